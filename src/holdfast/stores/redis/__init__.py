"""Redis 6.2 or newer: one server, one behind Sentinel, or a cluster."""

from holdfast.stores.redis.store import open_url

__all__ = ["open_url"]
