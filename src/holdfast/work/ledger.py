"""Batches: many messages held under one name by a query that reads them again until it is done.

A query (a Spark stream) works in numbered batches. It reserves one, seals it when the number is in
the query's own log, reads it as often as it must, and settles it when it is told that the batch is
done. All that it knows is one record in the store, changed by compare-and-set, and written before
what it speaks of: a crash at any point leaves messages that a record accounts for (docs/adr/0008).

    reserve ----> seal ----> read, read again ... ----> settle
       |            |
       |            +-- the query is gone: held until it comes back, or somebody abandons it
       +-- never sealed: given back when its time is over
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.errors import FailedPrecondition, NotFound, QueueNotFound
from holdfast.model import settings
from holdfast.model.backoff import Backoff
from holdfast.model.message import Lease, is_dlq
from holdfast.model.moves import Settled, Target, Transition
from holdfast.queue.context import Context
from holdfast.queue.queue import Queue
from holdfast.rules import lifecycle
from holdfast.stores.contract import BatchEnd, Record, ReserveAsk, batch_in
from holdfast.work.handlers import Verdict, decide
from holdfast.work.ownership import Owner

QUERY = "query"
VERDICT = "verdict"
RECEIPT = "receipt"

PART_ROWS = 10_000
"""Messages held by one name: one step of the store, and one piece for a reader."""
PAGE = 2000
JUDGED_ROWS = 1000
RESERVED_MS = 60_000
"""A batch that is not sealed by then never reached its query: it is given back."""
LOST_MS = 60_000
"""A query that has not been seen for so long is gone."""
STRAY_MS = 10 * 60_000
"""For so long a call that was under way when a batch was given back may still add to it."""
FORGET_MS = 30 * 86_400_000
HISTORY = 20
"""Batches that a query's record tells of."""
LEFTOVER_MS = 7 * 86_400_000

OnLost = Literal["hold", "redeliver"]
logger = logging.getLogger("holdfast.batches")


class Offset(msgspec.Struct, frozen=True):
    """How far a query is: the last batch, and the name its messages are held by."""

    query: str = ""
    batch: int = 0
    hold: str = ""


class Part(msgspec.Struct, frozen=True):
    """A piece of a batch that one task reads."""

    name: str
    rows: int


class Stray(msgspec.Struct, frozen=True):
    hold: str
    parts: int
    until: int


class Past(msgspec.Struct, frozen=True, array_like=True):
    """What became of a batch, when it was settled."""

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
    """Goes up with every process that takes the query up; older ones are fenced off by it."""
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
    """Asked to reserve no more; forgotten by the process that takes it up next."""

    @property
    def held(self) -> int:
        return sum(self.parts)


class Judged(msgspec.Struct, frozen=True):
    """A verdict on one message of a batch; the lease comes without the body."""

    lease: Lease
    verdict: Verdict | None
    """None: it did not run, and goes back."""


class QueryFenced(FailedPrecondition):
    """Another process has taken this query up, or it was abandoned: this one must stop."""


class StaleCheckpoint(FailedPrecondition):
    """The query asks for batches that were settled long ago: its checkpoint is an old copy."""


class QueryNotFound(NotFound):
    """No query has that id."""


class Batches:
    """One query's side of it, in one process."""

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
        self._owner: Owner | None = None
        self._reserved = ""
        """The hold that this process reserved; another's never reached the query."""

    @property
    def query(self) -> Query | None:
        return self._record[0] if self._record else None

    def reserve(self, start: Offset, limit: int) -> Offset | None:
        """Settle everything up to `start`, then hold the next batch; None when nothing is ready.

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
        """From now on the batch is this query's until it is settled. Its parts, to be read.

        None of them if it was given back before it was sealed: nobody has read it then.
        """
        with self._lock:
            query = self._take_up(end, end.batch - 1)
            if end.batch <= query.settled:
                raise StaleCheckpoint(
                    f"query {query.id} has settled batch {query.settled}, its checkpoint is at "
                    f"{end.batch}: an old copy? Start with a new checkpoint"
                )
            if query.hold != end.hold:
                logger.warning(
                    "query %s: batch %d was given back and is empty", query.id, end.batch
                )
                return []
            if not query.sealed:
                query = self._change(query, lambda q: replace(q, sealed=True, seen_at=self._now()))
            return parts_of(query)

    def beat(self) -> None:
        """Say that the query lives. Raises QueryFenced when it is somebody else's."""
        with self._lock:
            if self._record is not None:
                self._change(self._record[0], lambda q: replace(q, seen_at=self._now()))

    def _now(self) -> int:
        return self._at.clock.now()

    def _take_up(self, at: Offset, settled: int) -> Query:
        """`settled`: how far it must be, if the store has forgotten it."""
        if self._record is not None:
            if at.query not in ("", self._record[0].id):
                raise QueryFenced(f"this reader belongs to {self._record[0].id}, not {at.query}")
            return self._reload(self._record[0])
        now = self._now()
        while True:
            found = _find(self._at, at.query) if at.query else None
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
            if _put(self._at, query, revision):
                self._record = query, revision + 1
                return query

    def _reload(self, known: Query) -> Query:
        found = _find(self._at, known.id)
        if found is None or found[0].run != known.run:
            raise QueryFenced(
                f"query {known.id} was taken up by another process, or abandoned: this one stops"
            )
        self._record = found
        return found[0]

    def _change(self, query: Query, change: Callable[[Query], Query]) -> Query:
        """Write the record anew; when somebody else has written it, from what they wrote."""
        while True:
            assert self._record is not None
            changed = change(query)
            if _put(self._at, changed, self._record[1]):
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
                f"spark:{query.id}",
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
        """Put back what is overdue, as every lease does: perhaps nobody sweeps."""
        spec = self._at.spec(self._queue)
        if spec is not None and self._at.looks.due(self._queue, self._now()):
            self._at.look(self._queue, self._at.complete(spec))

    def _hold_ordered(self, query: Query, batch: int, limit: int, hold: str) -> Offset | None:
        """A part for each partition that nobody else works, without what waits for a failed one."""
        if self._owner is None:
            queue = Queue(self._at, self._queue)
            self._owner = Owner(self._at, queue, settings.load(), name=f"spark:{query.id}")
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
        """Written down before one more part is taken."""
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
        query = self._change(query, lambda q: _without_hold(q, self._now()))
        release_strays(self._at, query)
        return query

    # Settling

    def _settle(self, query: Query, start: Offset) -> Query:
        if start.batch < query.settled:
            raise StaleCheckpoint(
                f"query {query.id} has settled batch {query.settled}, its checkpoint is at "
                f"{start.batch}: an old copy? Start with a new checkpoint"
            )
        if start.batch == query.settled:
            return query
        done = retried = dead = 0
        if query.hold and query.hold != start.hold:
            query = self._give_back(query)  # another process reserved, and did not get to the log
        if query.hold:
            if query.judged is None and self._needs_verdicts:
                raise FailedPrecondition(f"query {query.id}: batch {query.batch} has no verdicts")
            retried, dead = apply_verdicts(self._at, query)
            finish(self._at, query)
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
            _forget_verdicts(self._at, query.hold)
        return settled


def part_name(hold: str, n: int) -> str:
    return f"{hold}.{n}"


def parts_of(query: Query) -> list[Part]:
    return [Part(part_name(query.hold, n), rows) for n, rows in enumerate(query.parts)]


Fetch = Callable[[Callable[[], list[Lease]]], list[Lease]]


def read(
    at: Context, queue: str, part: str, fetch: Fetch = lambda page: page()
) -> Iterator[list[Lease]]:
    """The messages of a part by id, in pages; the same ones however often it is read.

    `fetch` calls what reads one page, and may call it again.
    """
    after: str | None = None
    while True:
        leases = fetch(lambda after=after: batch_in(at.store, queue, part, after, PAGE))
        if leases:
            yield leases
        if len(leases) < PAGE:
            return
        after = leases[-1].id


# Verdicts


def judge(
    at: Context,
    hold: str,
    attempt: str,
    part: int,
    judged: Iterable[Judged],
    write: Callable[[Callable[[], object]], object] = lambda put: put(),
) -> int:
    """Write down verdicts of one piece of a batch; they count when `publish` has said so.

    Writing them again, for the same attempt and piece, replaces them. `write` calls what writes
    some of them, and may call it again.
    """
    n = 0
    for number, some in enumerate(_chunks(judged, JUDGED_ROWS)):
        name, value = f"{hold}/{attempt}/{part:06d}/{number:06d}", encode_judged(some)
        write(
            lambda name=name, value=value: at.store.put_record(
                VERDICT, name, value, None, at.clock.now()
            )
        )
        n += len(some)
    return n


def publish(at: Context, query_id: str, hold: str, attempt: str, *, run: int | None = None) -> None:
    """Of everything that was written down for this batch, this attempt counts, and nothing else.

    `run`: only while the query is in the hands of this process.
    """
    while True:
        found = _find(at, query_id)
        if found is None or found[0].hold != hold or run not in (None, found[0].run):
            raise QueryFenced(f"query {query_id} does not hold this batch any more")
        query, revision = found
        if query.judged == attempt or _put(at, replace(query, judged=attempt), revision):
            return


def apply_verdicts(at: Context, query: Query) -> tuple[int, int]:
    """Apply what was published; how many go round again, and how many are dead."""
    if query.judged is None:
        return 0, 0
    spec = at.spec(query.queue)
    if spec is None:
        return 0, 0
    policy, retried, dead = at.complete(spec), 0, 0
    prefix, after = f"{query.hold}/{query.judged}/", ""
    while records := at.store.records(VERDICT, prefix=prefix, after=after, limit=10):
        for record in records:
            now = at.clock.now()
            told = decode_judged(record.value)
            moves = [decide(each.lease, each.verdict, policy, now, at.rng) for each in told]
            _apply(at, moves, [each.lease for each in told], now)
            back = [move for move in moves if move.target is Target.WAITING]
            retried += sum(not is_dlq(move.to_queue) for move in back)  # or held back
            dead += sum(is_dlq(move.to_queue) for move in back)
        after = records[-1].name
    return retried, dead


def _apply(at: Context, moves: list[Transition], leases: list[Lease], now: int) -> None:
    """One that cannot go where it should (its dead-letter queue is gone) stays in its queue."""
    answers = at.store.settle(moves, now)
    stuck = [
        lifecycle.kept(lease, move, now)
        for move, lease, answer in zip(moves, leases, answers, strict=True)
        if answer is Settled.STALE and is_dlq(move.to_queue)
    ]
    at.store.settle(stuck, now)


def finish(at: Context, query: Query) -> None:
    """Ack all that the batch still holds."""
    spec = at.spec(query.queue)
    if spec is None:
        return  # its messages went with the queue
    status = lifecycle.ack_status(query.queue, at.complete(spec))
    for part in parts_of(query):
        while at.store.settle(BatchEnd(query.queue, part.name, PART_ROWS, status), at.clock.now()):
            pass


def _forget_verdicts(at: Context, hold: str) -> None:
    while at.store.drop_records(VERDICT, prefix=f"{hold}/", limit=1000) == 1000:
        pass


# Looking after all of them


def queries(at: Context) -> list[Query]:
    """Every query the store knows of, oldest first."""
    found = [query for query, _ in _all(at)]
    return sorted(found, key=lambda query: (query.started_at, query.id))


def is_alive(query: Query, now: int) -> bool:
    return query.seen_at + LOST_MS > now


def state_of(query: Query, now: int) -> str:
    if query.stopping and not query.hold:
        return "stopped"
    if is_alive(query, now):
        return "running" if query.hold else "idle"
    return "in doubt" if query.sealed else "gone"


def ask_to_stop(at: Context, query_id: str) -> Query:
    """Let a query settle what it holds and reserve no more. The query as it is now; ask again
    until it holds nothing."""
    while True:
        found = _find(at, query_id)
        if found is None:
            raise QueryNotFound(f"no query {query_id!r}")
        query, revision = found
        if query.stopping or _put(at, replace(query, stopping=True), revision):
            return query


def abandon(at: Context, query_id: str) -> int:
    """Give back what a query holds, and fence off whoever still runs it. How many messages.

    If the query had handed the batch on before it died, these are delivered a second time.
    """
    while True:
        found = _find(at, query_id)
        if found is None:
            raise QueryNotFound(f"no query {query_id!r}")
        query, revision = found
        changed = replace(_without_hold(query, at.clock.now()), run=query.run + 1)
        if _put(at, changed, revision):
            return release_strays(at, changed)


def sweep(at: Context, now: int) -> int:
    """Give back what no query will come for: batches never sealed and, where the query says so,
    those of a query that is gone. How many messages."""
    n, held_since = 0, now
    for query, revision in _all(at):
        if query.hold:
            held_since = min(held_since, query.reserved_at)
        n += release_strays(at, query)
        lost = query.sealed and query.on_lost == "redeliver" and not is_alive(query, now)
        unsealed = query.hold and not query.sealed and query.expires_at <= now
        if unsealed or lost:
            changed = _without_hold(query, now)
            if _put(at, changed, revision):
                logger.warning(
                    "query %s: batch %d is given back: %s",
                    query.id,
                    query.batch,
                    "its query is gone" if lost else "it was never sealed",
                )
                n += release_strays(at, changed, counted=bool(lost))
        elif not query.hold and query.strays and all(s.until <= now for s in query.strays):
            _put(at, replace(query, strays=()), revision)
        elif not query.hold and not query.strays and _is_old(query, now):
            at.store.put_record(QUERY, query.id, None, revision, now)
    old = now - LEFTOVER_MS
    at.store.drop_records(VERDICT, before=min(old, held_since), limit=1000)
    at.store.drop_records(RECEIPT, before=old, limit=1000)
    return n


def _is_old(query: Query, now: int) -> bool:
    unused = not query.taken and not is_alive(query, now)
    return unused or query.seen_at + FORGET_MS <= now


def release_strays(at: Context, query: Query, *, counted: bool = False) -> int:
    """Give back what is held by names that were given up. `counted`: as a delivery that failed."""
    spec = at.spec(query.queue)
    if spec is None:
        return 0
    policy = at.complete(spec)

    def move(lease: Lease, now: int) -> Transition:
        if counted:
            return replace(lifecycle.expired(lease, policy, now, at.rng), overdue_at=None)
        return lifecycle.released(lease, now)

    n = 0
    for stray in query.strays:
        for part in range(stray.parts):
            try:
                n += _release(at, query.queue, part_name(stray.hold, part), move)
            except QueueNotFound:
                return n  # deleted meanwhile
    return n


def _release(at: Context, queue: str, part: str, move: Callable[[Lease, int], Transition]) -> int:
    n = 0
    while leases := batch_in(at.store, queue, part, None, PAGE):
        now = at.clock.now()
        answers = at.store.settle([move(lease, now) for lease in leases], now)
        moved = sum(answer is Settled.APPLIED for answer in answers)
        n += moved
        if not moved:
            break  # others are at it
    return n


def _without_hold(query: Query, now: int) -> Query:
    strays = tuple(stray for stray in query.strays if stray.until > now)
    if query.hold:
        strays = (*strays, Stray(query.hold, len(query.parts), now + STRAY_MS))
    return replace(query, hold="", parts=(), sealed=False, judged=None, strays=strays)


def find(at: Context, query_id: str) -> Query | None:
    found = _find(at, query_id)
    return found[0] if found else None


def _find(at: Context, query_id: str) -> tuple[Query, int] | None:
    for record in at.store.records(QUERY, prefix=query_id, limit=1):
        if record.name == query_id:
            return _decode(record)
    return None


def _all(at: Context) -> Iterator[tuple[Query, int]]:
    after = ""
    while records := at.store.records(QUERY, after=after):
        yield from map(_decode, records)
        after = records[-1].name


def _put(at: Context, query: Query, revision: int) -> bool:
    value = msgspec.json.encode(query)
    return at.store.put_record(QUERY, query.id, value, revision, at.clock.now())


_decoder = msgspec.json.Decoder(Query)


def _decode(record: Record) -> tuple[Query, int]:
    return _decoder.decode(record.value), record.revision


def _encode_hook(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Backoff) else str(value)


def _decode_hook(kind: type, value: Any) -> Any:
    return Backoff(**value) if kind is Backoff else value


_judged = msgspec.msgpack.Decoder(list[Judged], dec_hook=_decode_hook)


def encode_judged(judged: Sequence[Judged]) -> bytes:
    return msgspec.msgpack.encode(judged, enc_hook=_encode_hook)


def decode_judged(value: bytes) -> list[Judged]:
    return _judged.decode(value)


def _chunks(items: Iterable[Judged], size: int) -> Iterator[list[Judged]]:
    chunk: list[Judged] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
