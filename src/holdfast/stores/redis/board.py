"""What belongs to no message: claims, records and events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import StoreCorrupt, StoreError
from holdfast.model import clock
from holdfast.stores.contract import Claim, Event, Record
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.homes import Homes
from holdfast.stores.redis.keys import flag_of
from holdfast.stores.redis.scripts import CLAIM, PUBLISH, RECORD, UNRECORD

RECEIPT = "receipt"
LOOK = 500
"""Records that one script looks at."""

Pair = Sequence[str]
"""The keys of the names of records, in order, and of their values."""


class Board(Homes):
    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        keys, field = self._claim_of(name)
        epoch = self._db.script(CLAIM, keys, [field, owner, ttl_ms, now])
        return Claim(name, owner, epoch, now + ttl_ms) if epoch and ttl_ms else None

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        places = [self._claim_of(name) for name in names]
        words = [("HGET", keys[0], field) for keys, field in places]
        stored = self._db.run_each(words) if words else []
        return [_claim(name, text) for name, text in zip(names, stored, strict=True)]

    def _claim_of(self, name: str) -> tuple[list[str], str]:
        """Where a claim lies. That of a partition with its home: a lease looks at it."""
        queue, mark, part = name.rpartition("#")
        if not mark:
            return [self._keys.claims], name
        return self._keys.of(queue).claims, f"{flag_of(queue)}#{part}"

    # Receipts lie with the home whose messages they are for.

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        known = "" if revision is None else revision
        args = [name, known, now, 0 if value is None else 1, value or b""]
        return self._db.script(RECORD, self._keys.records(kind), args) == 1

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        found: list[Record] = []
        for keys in self._of_kind(kind):
            found += self._read_records(keys, prefix, after, limit)
        return sorted(found, key=lambda record: record.name.encode())[:limit]

    def _read_records(self, keys: Pair, prefix: str, after: str, limit: int) -> Iterator[Record]:
        bounds = _range(prefix, after)
        names: list[bytes] = self._db.run("ZRANGEBYLEX", keys[0], *bounds, "LIMIT", 0, limit)
        values: list[bytes | None] = self._db.run("HMGET", keys[1], *names) if names else []
        for name, stored in zip(names, values, strict=True):
            if stored is not None:
                yield _record(keys[1], name, stored)

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        dropped = 0
        if kind == RECEIPT:
            try:
                self._mover.finish(before=before)
            except StoreError:  # the receipts tell how far those came
                return 0
        places = list(self._of_kind(kind))
        sizes = self._db.run_each([("ZCARD", names) for names, _ in places])
        for keys in (keys for keys, size in zip(places, sizes, strict=True) if size):
            if dropped < limit:
                dropped += self._drop_records(keys, prefix, before, limit - dropped)
        return dropped

    def _drop_records(self, keys: Pair, prefix: str, before: int | None, limit: int) -> int:
        low, high = _range(prefix, "")
        dropped = 0
        while dropped < limit:
            args = [low, high, 2**53 if before is None else before, limit - dropped, LOOK]
            n, last = self._db.script(UNRECORD, keys, args)
            dropped += n
            if not last:
                break
            low = b"(" + last
        return dropped

    def _of_kind(self, kind: str) -> Iterator[Pair]:
        yield self._keys.records(kind)
        if kind == RECEIPT:
            for name in self._homes():
                yield self._keys.home(name, 1).receipts

    def publish(self, events: Sequence[Event]) -> None:
        if events:
            told = [msgspec.json.encode((e.type, e.timestamp, e.payload)) for e in events]
            self._db.script(PUBLISH, self._keys.events, told)

    def subscribe(self, after: int | None = None) -> Subscription:
        counter, stream = self._keys.events
        if after is None:
            last = self._db.run("GET", counter) or b"0"
            if not last.isdigit():
                raise StoreCorrupt(f"{self._where.shown}: {counter} is not Holdfast's")
            after = int(last)
        return Subscription(self._db, stream, after)


class Subscription:
    def __init__(self, db: Connections, stream: str, after: int) -> None:
        self._db = db
        self._stream = stream
        self._after = after

    def next(self, timeout: float) -> list[Event]:
        until = clock.monotonic() + timeout
        while True:
            left = until - clock.monotonic()
            block = max(1, min(int(left * 1000), 1000, int(self._db.where.timeout * 500)))
            ask = ("XREAD", "COUNT", 1000, "BLOCK", block, "STREAMS", self._stream)
            found = self._db.run(*ask, f"{self._after}-0", key=self._stream)
            if found:
                events = [_event(*row) for row in found[0][1]]
                self._after = events[-1].seq
                return events
            if until - clock.monotonic() <= 0:
                return []

    def close(self) -> None: ...


def _claim(name: str, stored: bytes | None) -> Claim | None:
    if stored is None:
        return None
    try:
        epoch, expires, owner = stored.decode().split(" ", 2)
        return Claim(name, owner, int(epoch), int(expires))
    except ValueError as error:
        raise StoreCorrupt(f"{name}: this claim was not written by Holdfast") from error


def _record(key: str, name: bytes, stored: bytes) -> Record:
    try:
        revision, at, value = stored.split(b" ", 2)
        return Record(name.decode(), value, int(revision), int(at))
    except ValueError as error:
        raise StoreCorrupt(f"{key}: {name!r} was not written by Holdfast") from error


def _event(entry: bytes, fields: list[bytes]) -> Event:
    type, at, payload = msgspec.json.decode(fields[1])
    return Event(type, at, payload, int(entry.partition(b"-")[0]))


def _range(prefix: str, after: str) -> tuple[bytes, bytes]:
    """A name that begins with a prefix lies before the prefix with a byte that no text holds."""
    low = b"(" + after.encode() if after and after >= prefix else b"[" + prefix.encode()
    return low, b"(" + prefix.encode() + b"\xff"
