"""Small values by kind and name. Receipts lie with the home whose messages they are for."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import StoreCorrupt
from holdfast.stores.contract import Record
from holdfast.stores.redis.connections import Connections, load

PUT, DROP = load("record"), load("unrecord")
RECEIPT = "receipt"
LOOK = 500

Pair = Sequence[str]
"""The keys of the names, in order, and of the values."""


def put(
    db: Connections, keys: Pair, name: str, value: bytes | None, revision: int | None, now: int
) -> bool:
    known = "" if revision is None else revision
    args = [name, known, now, 0 if value is None else 1, value or b""]
    return db.script(PUT, keys, args) == 1


def read(db: Connections, keys: Pair, prefix: str, after: str, limit: int) -> list[Record]:
    low, high = _range(prefix, after)
    names: list[bytes] = db.run("ZRANGEBYLEX", keys[0], low, high, "LIMIT", 0, limit)
    if not names:
        return []
    values = db.run("HMGET", keys[1], *names)
    found: list[Record] = []
    for name, stored in zip(names, values, strict=True):
        if stored is not None:
            try:
                revision, at, value = stored.split(b" ", 2)
                found.append(Record(name.decode(), value, int(revision), int(at)))
            except ValueError as error:
                raise StoreCorrupt(f"{keys[1]}: {name!r} was not written by Holdfast") from error
    return found


def drop(db: Connections, keys: Pair, prefix: str, before: int | None, limit: int) -> int:
    low, high = _range(prefix, "")
    dropped = 0
    while dropped < limit:
        args = [low, high, 2**53 if before is None else before, limit - dropped, LOOK]
        n, last = db.script(DROP, keys, args)
        dropped += n
        if not last:
            break
        low = b"(" + last
    return dropped


def _range(prefix: str, after: str) -> tuple[bytes, bytes]:
    """A name that begins with a prefix lies before the prefix with a byte that no text holds."""
    low = b"(" + after.encode() if after and after >= prefix else b"[" + prefix.encode()
    return low, b"(" + prefix.encode() + b"\xff"
