"""What the stores share, written once. Nothing in here knows a database or another store."""
