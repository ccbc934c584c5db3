"""Batches: many messages held under one name by a query that reads them again until it is done.

A query (a Spark stream) works in numbered batches. It reserves one, seals it when the number is in
the query's own log, reads it as often as it must, and settles it when it learns that the batch is
done.

    reserve ----> seal ----> read, read again ... ----> settle
       |            |
       |            +-- the query is gone: held until it comes back or is abandoned
       +-- never sealed: given back when its time is over
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.errors import FailedPrecondition
from holdfast.model import settings
from holdfast.queue.context import Context
from holdfast.queue.queue import LocalQueue
from holdfast.stores.contract import ReserveAsk
from holdfast.work.ledger.parts import PART_ROWS, Part, part_name
from holdfast.work.ledger.query import (
    Offset,
    OnLost,
    Past,
    Query,
    QueryFenced,
    StaleCheckpoint,
    look_up,
    parts_of,
    put,
    without_hold,
)
from holdfast.work.ledger.upkeep import release_strays
from holdfast.work.ledger.verdicts import apply_verdicts, finish, forget_verdicts
from holdfast.work.ownership import BatchOwner

RESERVED_MS = 60_000
"""A batch that is not sealed by then never reached its query: it is given back."""
HISTORY = 20
"""How many batches a query's record remembers."""

logger = logging.getLogger("holdfast.batches")


class Batches:
    """The batches of one query, in one process."""

    def __init__(
        self,
        at: Context,
        queue: str,
        *,
        name: str = "",
        on_lost: OnLost = "hold",
        slices: int = 4,
        part_rows: int = PART_ROWS,
        needs_verdicts: bool = False,
    ) -> None:
        self._at = at
        self._queue = queue
        self._name = name
        self._on_lost: OnLost = on_lost
        self._slices = slices
        self._part_rows = part_rows
        self._needs_verdicts = needs_verdicts
        self._lock = threading.Lock()
        self._record: tuple[Query, int] | None = None
        self._owner: BatchOwner | None = None
        self._reserved = ""
        """The hold that this process reserved; another's never reached the query."""

    @property
    def query(self) -> Query | None:
        return self._record[0] if self._record else None

    def reserve(self, start: Offset, limit: int) -> Offset | None:
        """Settle everything up to `start`, then hold the next batch; None if nothing is ready.

        May only be called when batch `start` is finished for good.
        """
        with self._lock:
            query = self._take_up(start, start.batch)
            if start.batch:
                query = self._settle(query, start)
            if query.hold and query.hold == self._reserved:
                return Offset(query.id, query.batch, query.hold)
            if query.hold:
                query = self._give_back(query)
            if query.stopping:
                return None
            return self._hold(query, start.batch + 1, limit)

    def seal(self, end: Offset) -> list[Part]:
        """Keep the batch for this query until it is settled. Returns its parts, to be read.

        There are none if it was given back before it was sealed: then nobody has read it.
        """
        with self._lock:
            query = self._take_up(end, end.batch - 1)
            if end.batch <= query.settled:
                raise _stale(query, end)
            if query.hold != end.hold:
                logger.warning(
                    "query %s: batch %d was given back and is empty", query.id, end.batch
                )
                return []
            if not query.sealed:
                query = self._change(query, lambda q: replace(q, sealed=True, seen_at=self._now()))
            return parts_of(query)

    def beat(self) -> None:
        """Say that the query is alive. Raises QueryFenced if another process has taken it over."""
        with self._lock:
            if self._record is not None:
                self._change(self._record[0], lambda q: replace(q, seen_at=self._now()))

    def _now(self) -> int:
        return self._at.clock.now()

    def _take_up(self, at: Offset, settled: int) -> Query:
        """`settled`: how far the query must be, if the store has forgotten it."""
        if self._record is not None:
            if at.query not in ("", self._record[0].id):
                raise QueryFenced(f"this reader belongs to {self._record[0].id}, not {at.query}")
            return self._reload(self._record[0])
        now = self._now()
        while True:
            found = look_up(self._at, at.query) if at.query else None
            if found is None:
                new = Query(at.query or secrets.token_hex(8), self._queue, started_at=now)
                found = replace(new, batch=settled, settled=settled), 0
            query, revision = found
            if query.queue != self._queue:
                raise FailedPrecondition(
                    f"query {query.id} reads {query.queue!r}; a checkpoint cannot change its queue"
                )
            query = replace(
                query,
                run=query.run + 1,
                name=self._name,
                on_lost=self._on_lost,
                seen_at=now,
                stopping=False,
            )
            if put(self._at, query, revision):
                self._record = query, revision + 1
                return query

    def _reload(self, known: Query) -> Query:
        found = look_up(self._at, known.id)
        if found is None or found[0].run != known.run:
            raise QueryFenced(
                f"query {known.id} was taken up by another process, or abandoned: this one stops"
            )
        self._record = found
        return found[0]

    def _change(self, query: Query, change: Callable[[Query], Query]) -> Query:
        """Change the record; if another process has changed it meanwhile, from what it wrote."""
        while True:
            assert self._record is not None
            changed = change(query)
            if put(self._at, changed, self._record[1]):
                self._record = changed, self._record[1] + 1
                return changed
            before, query = query, self._reload(query)
            if (query.hold, query.sealed) != (before.hold, before.sealed):
                raise QueryFenced(f"query {query.id}: its batch was given back while it was taken")

    # Reserving

    def _hold(self, query: Query, batch: int, limit: int) -> Offset | None:
        self._look()
        (stats,) = self._at.store.stats([self._queue], self._now())
        if not stats.ready or stats.paused or limit < 1:
            return None
        hold = secrets.token_hex(8)
        spec = self._at.spec(self._queue)
        if spec is not None and spec.ordered:
            return self._hold_ordered(query, batch, limit, hold)
        each = max(-(-min(limit, stats.ready) // self._slices), min(1000, limit))
        each = min(each, self._part_rows)
        counts: list[int] = []
        while sum(counts) < limit:
            query = self._taking(query, batch, hold, counts)
            if query.stopping:
                break  # asked meanwhile
            ask = ReserveAsk(
                self._queue,
                min(each, limit - sum(counts)),
                _owner_name(query),
                secrets.token_hex(8),
                part_name(hold, len(counts)),
            )
            n = self._at.store.lease(ask, self._now())
            if n:
                counts.append(n)
            if n < ask.limit:
                break
        return self._taken(query, batch, hold, counts)

    def _look(self) -> None:
        """Put back what is overdue, as every lease does: perhaps no sweeper runs."""
        spec = self._at.spec(self._queue)
        if spec is not None and self._at.looks.due(self._queue, self._now()):
            self._at.look(self._queue, self._at.complete(spec))

    def _hold_ordered(self, query: Query, batch: int, limit: int, hold: str) -> Offset | None:
        """A part for each partition that no other owner works, without messages that wait for a
        failed one."""
        if self._owner is None:
            queue = LocalQueue(self._at, self._queue)
            self._owner = BatchOwner(self._at, queue, settings.load(), _owner_name(query))
        counts: list[int] = []
        parts = self._owner.seize()
        each = min(-(-limit // max(1, len(parts))), self._part_rows)
        for part in parts:
            query = self._taking(query, batch, hold, counts)
            if query.stopping or sum(counts) >= limit:
                break
            ask = ReserveAsk(
                self._queue,
                min(each, limit - sum(counts)),
                self._owner.name,
                secrets.token_hex(8),
                part_name(hold, len(counts)),
                (part.number,),
                (part.epoch,),
            )
            now = self._now()
            n = self._at.store.lease(ask, now)
            if n:
                n -= self._owner.put_off(part.number, ask.batch, now)
            if n:
                counts.append(n)
        return self._taken(query, batch, hold, counts)

    def _taking(self, query: Query, batch: int, hold: str, counts: list[int]) -> Query:
        """Write down that one more part is about to be taken."""
        now = self._now()
        return self._change(
            query,
            lambda q: replace(
                q,
                batch=batch,
                hold=hold,
                parts=(*counts, 0),
                sealed=False,
                judged=None,
                expires_at=now + RESERVED_MS,
                reserved_at=now,
                seen_at=now,
            ),
        )

    def _taken(self, query: Query, batch: int, hold: str, counts: list[int]) -> Offset | None:
        if not counts:
            self._change(query, lambda q: replace(q, hold="", parts=()))
            return None
        self._change(
            query,
            lambda q: replace(
                q,
                parts=tuple(counts),
                taken=q.taken + sum(counts),
                expires_at=self._now() + RESERVED_MS,
            ),
        )
        self._reserved = hold
        return Offset(query.id, batch, hold)

    def _give_back(self, query: Query) -> Query:
        if query.sealed:  # it is in a log of offsets, and somebody may be reading it
            raise StaleCheckpoint(
                f"query {query.id} has sealed batch {query.batch}, which its checkpoint does not "
                "know: an old copy, or another process on it? If it is gone for good: abandon it"
            )
        query = self._change(query, lambda q: without_hold(q, self._now()))
        release_strays(self._at, query)
        return query

    # Settling

    def _settle(self, query: Query, start: Offset) -> Query:
        if start.batch < query.settled:
            raise _stale(query, start)
        if start.batch == query.settled:
            return query
        if query.hold and query.hold != start.hold:
            query = self._give_back(query)  # another process reserved, and did not get to the log
        retried, dead = self._finish(query) if query.hold else (0, 0)
        done = query.held - retried - dead
        now = self._now()
        ms = max(0, now - query.reserved_at)
        past = Past(start.batch, query.held, done, retried, dead, ms, now)
        settled = self._change(
            query,
            lambda q: replace(
                q,
                settled=start.batch,
                batch=start.batch,
                hold="",
                parts=(),
                sealed=False,
                judged=None,
                settled_at=now,
                batch_ms=ms,
                done=q.done + done,
                retried=q.retried + retried,
                dead=q.dead + dead,
                history=(*q.history, past)[-HISTORY:],
            ),
        )
        if query.judged is not None:
            forget_verdicts(self._at, query.hold)
        return settled

    def _finish(self, query: Query) -> tuple[int, int]:
        """Apply the verdicts and ack the rest; returns how many are retried, and how many dead."""
        if query.judged is None and self._needs_verdicts:
            raise FailedPrecondition(f"query {query.id}: batch {query.batch} has no verdicts")
        retried, dead = apply_verdicts(self._at, query)
        finish(self._at, query)
        return retried, dead


def _stale(query: Query, offset: Offset) -> StaleCheckpoint:
    return StaleCheckpoint(
        f"query {query.id} has settled batch {query.settled}, its checkpoint is at "
        f"{offset.batch}: an old copy? Start with a new checkpoint"
    )


def _owner_name(query: Query) -> str:
    return f"spark:{query.id}"
