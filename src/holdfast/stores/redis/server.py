"""What a server must be, and what it says of itself."""

from __future__ import annotations

from typing import Any

from holdfast.errors import FailedPrecondition, HoldfastError, StoreError
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.scripts import RIGHTS
from holdfast.stores.redis.url import Where

SERVER_MIN = (6, 2)
EVICTING = ("allkeys-lru", "allkeys-lfu", "allkeys-random", "allkeys-lrm")


def check_server(told: dict[str, str], where: Where) -> None:
    version = told.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < SERVER_MIN:
        raise FailedPrecondition(
            f"{where.shown}: Redis 6.2 or newer is needed; this server is {version}"
        )
    policy = told.get("maxmemory_policy", "noeviction")
    if policy in EVICTING:
        raise FailedPrecondition(
            f"{where.shown}: maxmemory-policy is {policy}: the server may throw messages away when "
            "it is full. Set it to noeviction"
        )


def check_rights(db: Connections, key: str) -> None:
    """A script that is refused a command halfway would leave its first half behind. Who may change
    nothing at all may look."""
    reads, writes, n = db.script(RIGHTS, [key], [])
    if refused := reads or (len(writes) < n and writes):
        names = b", ".join(refused).decode()
        raise StoreError(
            f"{db.where.shown}: this user may not run {names}. Check what it may do: "
            "ACL SETUSER ... +@read +@write +@scripting +@connection +info +time"
        )


def look(db: Connections, key: str) -> dict[str, Any]:
    """Of the one that holds a key."""
    told = db.info(key)
    try:
        fsync = db.run("CONFIG", "GET", "appendfsync", key=key)[1].decode()
    except (HoldfastError, IndexError):  # most that are rented do not tell
        fsync = ""
    return {
        "version": told.get("redis_version", "?"),
        "policy": told.get("maxmemory_policy", ""),
        "maxmemory": int(told.get("maxmemory", 0)),
        "used_memory": int(told.get("used_memory", 0)),
        "aof": told.get("aof_enabled") == "1",
        "fsync": fsync,
        "replicas": int(told.get("connected_slaves", 0)),
    }
