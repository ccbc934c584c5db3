"""A query's record: all that is known of it, changed by compare-and-set (docs/adr/0008).

A query (a Spark stream) works in numbered batches. The record is written before the store does
what it says, so a crash at any point leaves only messages that a record accounts for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.errors import FailedPrecondition, NotFound
from holdfast.queue.context import Context
from holdfast.queue.records import each_record, find_record
from holdfast.stores.contract import Record
from holdfast.work.ledger.parts import Part, part_name

QUERY = "query"
"""The kind of record."""
LOST_MS = 60_000
"""A query that has not been seen for so long is gone."""
STRAY_MS = 10 * 60_000
"""How long a call that was under way when a batch was given back may still add to it."""

OnLost = Literal["hold", "redeliver"]


class Offset(msgspec.Struct, frozen=True):
    """How far a query is: its last batch, and the name under which that batch is held."""

    query: str = ""
    batch: int = 0
    hold: str = ""


class Stray(msgspec.Struct, frozen=True):
    """A batch that was given back: until then, messages may still turn up under its name."""

    hold: str
    parts: int
    until: int


class Past(msgspec.Struct, frozen=True, array_like=True):
    """A batch that was settled, and what became of its messages."""

    batch: int
    rows: int
    done: int
    retried: int
    dead: int
    ms: int
    """From reserving to settling."""
    settled_at: int


class Query(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the store knows of a query. Times are milliseconds by the store's clock."""

    id: str
    queue: str
    name: str = ""
    run: int = 0
    """Goes up with every process that takes the query over; it fences off the earlier ones."""
    batch: int = 0
    """The batch that is held, or was last."""
    hold: str = ""
    parts: tuple[int, ...] = ()
    """Messages of each part that is held; 0 for one that is being taken."""
    sealed: bool = False
    judged: str | None = None
    """The set of verdicts on the batch that counts."""
    settled: int = 0
    expires_at: int = 0
    on_lost: OnLost = "hold"
    started_at: int = 0
    seen_at: int = 0
    settled_at: int = 0
    batch_ms: int = 0
    """From reserving to settling, of the last batch."""
    reserved_at: int = 0
    strays: tuple[Stray, ...] = ()
    taken: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    history: tuple[Past, ...] = ()
    """The last batches, oldest first."""
    stopping: bool = False
    """Asked to reserve no more; forgotten by the process that takes it over next."""

    @property
    def held(self) -> int:
        return sum(self.parts)


class QueryFenced(FailedPrecondition):
    """Another process has taken this query over, or it was abandoned: this one must stop."""


class StaleCheckpoint(FailedPrecondition):
    """The query asks for batches that were settled long ago: its checkpoint is an old copy."""


class QueryNotFound(NotFound):
    """No query has that id."""


def parts_of(query: Query) -> list[Part]:
    return [Part(part_name(query.hold, n), rows) for n, rows in enumerate(query.parts)]


def is_alive(query: Query, now: int) -> bool:
    return query.seen_at + LOST_MS > now


def state_of(query: Query, now: int) -> str:
    if query.stopping and not query.hold:
        return "stopped"
    if is_alive(query, now):
        return "running" if query.hold else "idle"
    return "in doubt" if query.sealed else "gone"


def without_hold(query: Query, now: int) -> Query:
    """The query when its batch is given back; the parts of that become strays."""
    strays = tuple(stray for stray in query.strays if stray.until > now)
    if query.hold:
        strays = (*strays, Stray(query.hold, len(query.parts), now + STRAY_MS))
    return replace(query, hold="", parts=(), sealed=False, judged=None, strays=strays)


# In the store


def queries(at: Context) -> list[Query]:
    """Every query the store knows of, oldest first."""
    found = [query for query, _ in read_all(at)]
    return sorted(found, key=lambda query: (query.started_at, query.id))


def find(at: Context, query_id: str) -> Query | None:
    found = look_up(at, query_id)
    return found[0] if found else None


def look_up(at: Context, query_id: str) -> tuple[Query, int] | None:
    """The query with the revision of its record."""
    record = find_record(at.store, QUERY, query_id)
    return record and _decode(record)


def read_all(at: Context) -> Iterator[tuple[Query, int]]:
    """Every query with the revision of its record."""
    return map(_decode, each_record(at.store, QUERY))


def put(at: Context, query: Query, revision: int) -> bool:
    """False if the record has changed since that revision."""
    value = msgspec.json.encode(query)
    return at.store.put_record(QUERY, query.id, value, revision, at.clock.now())


def update(at: Context, query_id: str, change: Callable[[Query], Query]) -> Query:
    """Change the record by compare-and-set; returns it as it is now."""
    while True:
        found = look_up(at, query_id)
        if found is None:
            raise QueryNotFound(f"no query {query_id!r}")
        query, revision = found
        changed = change(query)
        if changed == query or put(at, changed, revision):
            return changed


_decoder = msgspec.json.Decoder(Query)


def _decode(record: Record) -> tuple[Query, int]:
    return _decoder.decode(record.value), record.revision
