"""What SQLite and PostgreSQL share. Each writes its own statements, under the same names."""
