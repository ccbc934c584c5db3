"""The embedded store; see stores/contract.py."""

from holdfast.stores.sqlite.store import SQLiteStore, open_url

__all__ = ["SQLiteStore", "open_url"]
