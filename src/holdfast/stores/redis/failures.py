"""The driver's errors as Holdfast's. What a script raises is known by its words only."""

from __future__ import annotations

import re

from redis import exceptions as errors
from redis.sentinel import MasterNotFoundError

from holdfast.errors import (
    FailedPrecondition,
    HoldfastError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.stores.redis.url import Where

FAILURES = (errors.RedisError, errors.RedisClusterException, OSError)
"""All that the driver raises; not all of it has one base."""


class Misplaced(StoreCorrupt):
    """A script found that what is noted of a message is damaged, before it wrote anything."""

    def __init__(self, text: str, id: bytes) -> None:
        super().__init__(text)
        self.id = id


def ours(error: BaseException, where: Where, *, closed: bool) -> HoldfastError:
    if isinstance(error, errors.RedisClusterException) and error.__cause__ is not None:
        error = error.__cause__  # of the last node that was asked
    if isinstance(error, MasterNotFoundError):  # it would go on with each sentinel's settings
        error = MasterNotFoundError(str(error).partition(" : ")[0])
    said = _SCRIPT.sub("", str(error)).strip().rstrip(".")
    text = f"{where.shown}: {said or type(error).__name__}"
    if closed:
        return StoreUnavailable(f"{where.shown}: this connection was closed")
    match error:
        case errors.MovedError() if where.kind != "cluster":
            scheme = where.shown.partition(":")[0]
            return StoreError(f"{text}. One node of a cluster: connect by {scheme}+cluster://")
        case errors.AuthenticationError() | errors.NoPermissionError():
            return StoreError(f"{text}. Check user and password, and what this user may do")
        case MasterNotFoundError() | errors.ConnectionError() | errors.TimeoutError():
            if "NOAUTH" in said or "AUTH" in said.upper().split():
                return StoreError(f"{text}. Check user and password")
            return StoreUnavailable(text)
        case OSError():
            return StoreUnavailable(text)
        case _:
            return _by_words(said, text)


# What a server says before and after the words of an error inside a script.
_SCRIPT = re.compile(
    r"(ERR )?Error running script \(.*?\): |@?user_script: ?\d+: |"
    r" script: [0-9a-f]{40}, on @user_script:\d+\.?"
)


# Keys and fields that another program wrote lead to these.
_STRANGE = (
    "WRONGTYPE", "wrong kind of value", "NOGROUP", "BUSYGROUP", "nil value", "not an integer",
    "no such key", "not written by Holdfast",
)  # fmt: skip


_MISPLACED = re.compile(r"MISPLACED ([0-9a-f]*):")


def _by_words(said: str, text: str) -> HoldfastError:
    """Errors inside a script are known by their words only."""

    def says(*words: str) -> bool:
        return any(word in said for word in words)

    if says("READONLY", "read only replica"):
        return StoreReadOnly(f"{text}. A replica takes no messages: connect to the master")
    if says("OOM", "maxmemory"):
        return StoreFull(f"{text}. Nothing was stored; consumers can still work it off")
    if says("MISCONF", "NOREPLICAS"):
        return StoreReadOnly(text)
    if (found := _MISPLACED.search(said)) is not None:
        return Misplaced(text, bytes.fromhex(found[1]))
    if says(*_STRANGE):
        return StoreCorrupt(f"{text}. Somebody else writes keys of this prefix: take another")
    if says("NOPERM", "NOAUTH", "WRONGPASS", "no permissions", "executing the script can't"):
        return StoreError(f"{text}. Check user and password, and what this user may do")
    if says("`SENTINEL`", "'SENTINEL'"):
        return StoreError(f"{text}. This is no Sentinel: name the Sentinels, or say redis://")
    if says("unknown command", "Unknown Redis command", "unknown subcommand"):
        return FailedPrecondition(f"{text}. Redis 6.2 or newer is needed")
    if says("LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "MOVED", "ASK "):
        return StoreUnavailable(text)
    return StoreError(text)
