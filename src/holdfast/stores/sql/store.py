"""The part of a store that is the same on SQLite and PostgreSQL: reads, records, claims, events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.model.message import Lease
from holdfast.model.moves import State
from holdfast.model.queues import Depth, QueueSpec
from holdfast.stores.base import StoreBase, last_of_each
from holdfast.stores.contract import (
    Claim,
    Entry,
    Event,
    Page,
    QueueStats,
    Record,
    View,
)
from holdfast.stores.kit.figures import Heads, depths_of, queue_stats
from holdfast.stores.kit.pages import Keyed, page_of, read_cursor
from holdfast.stores.kit.specs import all_exist, must_exist, read_policy, read_starts
from holdfast.stores.kit.waiting import Subscription, Watch, wait_for_messages
from holdfast.stores.rows import read_finished, read_message

EVENTS = "event"
EVENTS_KEPT = 1000
FAR = 2**62
"""After every time, position and number."""

T = TypeVar("T")
D = TypeVar("D", bound="Database")
Row = tuple[Any, ...]
Rows = Callable[[str, dict[str, Any]], list[Row]]
"""Runs a statement and returns its rows, inside a transaction that is open."""


class Statements(Protocol):
    """The statements of a database, a module; what each binds is in the method that runs it."""

    SPECS: str
    LATE_QUEUES: str
    SHAPE: str
    OVERDUE: str
    BATCH: str
    HELD: str
    LOGGED: str
    END: str
    DEPTHS: str
    DEPTH: str
    COUNTS: Mapping[State, str]
    CUTS: Mapping[State, str]
    CLAIMS: str
    RECORDS: str
    DROP_RECORDS: str
    ANYTHING: str
    EVENTS: str
    LAST_EVENT: str


class Database(Protocol):
    """The connections of a store."""

    def rows(self, statement: str, bind: dict[str, Any]) -> list[Row]:
        """What a statement reads."""
        ...

    def change(self, statement: str, bind: dict[str, Any]) -> list[Row]:
        """A statement as a transaction. Nobody waits for what it changes."""
        ...

    def snapshot(self, read: Callable[[Rows], T]) -> T:
        """Several reads of one moment."""
        ...

    def listed(self, values: Sequence[str]) -> Any:
        """A list, as statements bind it."""
        ...

    def ids(self, ids: Sequence[str]) -> Any:
        """The ids of messages, as statements bind them."""
        ...


class SqlStore(StoreBase, Generic[D]):
    _db: D
    statements: Statements
    events_rest_s = 0.0
    """Between two looks for events, where every commit ends a wait for one."""
    look_again_s = 0.0
    """Between two looks for messages in some partitions, where those in others end a wait."""

    # What each database does its own way

    @abstractmethod
    def _named(self, names: Sequence[str]) -> list[QueueSpec]:
        """Those that exist, in this order."""
        ...

    @abstractmethod
    def _qid(self, queue: str) -> int: ...

    @abstractmethod
    def _lease_of(self, row: Row, queue: str, at: int) -> Lease:
        """The lease whose columns start at index `at` of a row."""
        ...

    @abstractmethod
    def _page(
        self, rows: Rows, view: View, qid: int, after: tuple[int, int], limit: int, now: int
    ) -> list[Row]:
        """Rows of a view in order: the two numbers of the cursor, the place, then what
        `_entry` reads."""
        ...

    @abstractmethod
    def _heads(self, rows: Rows, queues: Mapping[int, int], now: int) -> dict[int, Heads]:
        """Of queues by their number of partitions."""
        ...

    @abstractmethod
    def _watch(self, topics: Sequence[str]) -> Watch:
        """Of queues by their names, or of EVENTS."""
        ...

    @abstractmethod
    def _ready_in(self, qid: int, partitions: Sequence[int], of: int) -> bool:
        """Whether any of these partitions of a queue that has `of` has something ready."""
        ...

    # Queues

    def queues(
        self, names: Sequence[str] | None = None, *, overdue: int | None = None
    ) -> list[QueueSpec]:
        if names is not None:
            return self._named(names)
        if overdue is None:
            rows = self._db.rows(self.statements.SPECS, {})
        else:
            rows = self._db.rows(self.statements.LATE_QUEUES, {"now": overdue})
        return [read_spec(row) for row in rows]

    def _count_queues(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        found = self._db.snapshot(lambda rows: self._stats(rows, queues, now))
        return [must_exist(name, found.get(name)) for name in queues]

    def _stats(self, rows: Rows, queues: Sequence[str], now: int) -> dict[str, QueueStats]:
        counted = rows(self.statements.DEPTHS, {"names": self._db.listed(queues)})
        heads = self._heads(rows, {row[1]: row[3] for row in counted}, now)
        return {
            name: queue_stats(
                name,
                counts,
                due=heads[qid].due.total(),
                dead=dead,
                oldest_at=min(heads[qid].oldest().values(), default=None),
                paused=bool(paused),
                now=now,
            )
            for name, qid, paused, _, *counts, dead in counted
        }

    def _count_partitions(self, queue: str, now: int) -> list[Depth]:
        def read(rows: Rows) -> list[Depth]:
            found = rows(self.statements.SHAPE, {"name": queue})
            qid, partitions = must_exist(queue, found[0] if found else None)
            stored = rows(self.statements.DEPTH, {"qid": qid})
            heads = self._heads(rows, {qid: partitions}, now)[qid]
            counts = {part: counts for part, *counts in stored}
            return depths_of(partitions, counts, heads.due, heads.oldest())

        return self._db.snapshot(read)

    # Messages

    def _read_overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        bind = {"qid": self._qid(queue), "now": now, "limit": limit}
        rows = self._db.rows(self.statements.OVERDUE, bind)
        return [self._lease_of(row, queue, 0) for row in rows]

    def _read_batch(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        bind = {"qid": self._qid(queue), "batch": batch, "after": after, "limit": limit}
        return [self._lease_of(row, queue, 0) for row in self._db.rows(self.statements.BATCH, bind)]

    def _find_held(self, queue: str, ids: Sequence[str]) -> list[Entry]:
        bind = {"home": self._qid(queue) // 2, "ids": self._db.ids(ids)}
        return [self._held(row) for row in self._db.rows(self.statements.HELD, bind)]

    def _held(self, row: Row) -> Entry:
        queue, is_leased = row[:2]
        if not is_leased:
            return Entry(read_message(row, queue, 6), 0)
        lease = self._lease_of(row, queue, 2)
        return Entry(lease.message, 0, lease)

    def _find_logged(self, queue: str, ids: Sequence[str]) -> Mapping[str, Entry]:
        source = self._qid(queue) // 2 * 2
        bind = {"source": source, "dlq": source + 1, "ids": self._db.ids(ids)}
        found = self._db.rows(self.statements.LOGGED, bind)
        rows = [(read_finished(row, row[0], 2), row[1]) for row in found]
        return last_of_each([Entry(done.message, seq, finished=done) for done, seq in rows])

    def _read_page(self, view: View, after: str | None, limit: int, now: int) -> Page:
        cursor, qid = read_cursor(after), self._qid(view.queue)

        def read(rows: Rows) -> tuple[int, list[Row]]:
            ((end,),) = rows(self.statements.END, {})
            return end, self._page(rows, view, qid, cursor, limit + 1, now)

        end, found = self._db.snapshot(read)
        return page_of([self._keyed(row, view) for row in found], view, limit, end)

    def _keyed(self, row: Row, view: View) -> Keyed:
        first, second, place = row[:3]
        if view.state is State.LOG:
            finished = read_finished(row, view.queue, 3)
            entry = Entry(finished.message, place, finished=finished)
        elif view.state is State.LEASED:
            lease = self._lease_of(row, view.queue, 3)
            entry = Entry(lease.message, place, lease)
        else:
            entry = Entry(read_message(row, view.queue, 3), place)
        return (first, second), entry

    def split(self, view: View, parts: int, now: int) -> list[str]:
        bind = {"qid": self._qid(view.queue), **between(view)}

        def read(rows: Rows) -> list[str]:
            ((count,),) = rows(self.statements.COUNTS[view.state], bind)
            step = max(1, -(-count // parts))
            cuts = rows(self.statements.CUTS[view.state], {**bind, "step": step})
            return [f"{a}.{b}" for a, b in cuts[: max(0, count - 1) // step]]

        return self._db.snapshot(read)

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        def look(now: int, left: float) -> tuple[bool, bool]:
            with self._watch(queues) as watch:
                ahead = self._look_ahead(queues, now, partitions)
                if ahead is None:
                    return True, True
                return False, watch.wait(min(left, ahead)) or ahead < left

        again = partitions is not None
        return wait_for_messages(look, now, timeout, again=again, rest_s=self.look_again_s)

    def _look_ahead(
        self, queues: Sequence[str], now: int, partitions: Sequence[int] | None
    ) -> float | None:
        """None when there is something to lease; else the seconds until the next is due."""
        ahead = float("inf")
        found = self._db.rows(self.statements.ANYTHING, {"names": self._db.listed(queues)})
        all_exist(queues, [row[0] for row in found])
        for _, qid, paused, of, ready, due in found:
            if paused:
                continue
            if due is not None and due <= now:  # whoever leases makes them ready, wherever they are
                return None
            if ready and (partitions is None or self._ready_in(qid, partitions, of)):
                return None
            if due is not None:
                ahead = min(ahead, (due - now) / 1000)
        return ahead

    # Claims, records, events

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        rows = self._db.rows(self.statements.CLAIMS, {"names": self._db.listed(names)})
        found = {row[0]: Claim(*row) for row in rows}
        return [found.get(name) for name in names]

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        bind = {"kind": kind, "prefix": prefix, "after": after, "limit": limit}
        return [Record(*row) for row in self._db.rows(self.statements.RECORDS, bind)]

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        before = FAR if before is None else before
        bind = {"kind": kind, "prefix": prefix, "after": "", "before": before, "limit": limit}
        return len(self._db.change(self.statements.DROP_RECORDS, bind))

    def subscribe(self, after: int | None = None) -> Subscription:
        if after is None:
            ((after,),) = self._db.rows(self.statements.LAST_EVENT, {})
        return Subscription(
            self._events, lambda: self._watch([EVENTS]), after or 0, rest_s=self.events_rest_s
        )

    def _events(self, after: int) -> list[Event]:
        rows = self._db.rows(self.statements.EVENTS, {"after": after, "limit": EVENTS_KEPT})
        return [Event(type, at, msgspec.json.decode(body), seq) for type, at, body, seq in rows]


def read_spec(row: Row) -> QueueSpec:
    _, name, partitions, policy, paused, created_at, revision, ordered, starts = row
    plain = (name, partitions, read_policy(policy), bool(paused), created_at, revision)
    first = read_starts(starts) if isinstance(starts, str) else tuple(starts)
    return QueueSpec(*plain, bool(ordered), first)


def between(view: View) -> dict[str, Any]:
    """The bounds of a view, as its statements bind them."""
    return {
        "since": view.since or 0,
        "until": FAR if view.until is None else view.until,
        "upto": FAR if view.upto is None else int(view.upto),
    }


def scripts(package: str) -> list[str]:
    """The migrations of a store, in order: forward only, numbered by their names."""
    found = sorted((files(package) / "sql").iterdir(), key=lambda script: script.name)
    return [script.read_text() for script in found if script.name.endswith(".sql")]
