"""The MongoDB store. Needs the extra `mongo`."""

from holdfast.stores.mongo.store import MongoStore, open_url

__all__ = ["MongoStore", "open_url"]
