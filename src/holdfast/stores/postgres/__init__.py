"""PostgreSQL; see stores/contract.py."""

from holdfast.stores.postgres.store import PostgresStore, migrations, open_url

__all__ = ["PostgresStore", "migrations", "open_url"]
