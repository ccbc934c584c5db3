"""The Store contract: what a store keeps and how it answers. Rules live in rules/lifecycle.py.

A store is synchronous, thread-safe and batch first. `now` is always an argument, milliseconds by
the store's clock. A store never decides: it applies transitions as compare-and-set and says, for
each, what became of it. It raises only `StoreError`s and `QueueNotFound`.

`Store` is two protocols: `Messages`, for queues and what they hold, and `Board`, for the small
things that processes share. Messages change only by `enqueue`, `lease`, `settle`, `drop` and
`restore`. `Columnar` and `Inspectable` are abilities that a store may have. See docs/adr/0017.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, overload, runtime_checkable

import msgspec

from holdfast.model.message import Finished, Lease, Message, Status
from holdfast.model.moves import Enqueued, Settled, State, Transition
from holdfast.model.queues import Depth, QueueSpec

NO_DEADLINE = 253_402_300_799_000
"""The end of the year 9999: the deadline of what is reserved (see `ReserveAsk`)."""


class OtherQueue(msgspec.Struct, frozen=True):
    """A further queue of a `LeaseAsk`, with the lease time of its messages."""

    queue: str
    timeout_ms: int


class LeaseAsk(msgspec.Struct, frozen=True):
    queue: str
    limit: int
    owner: str
    token: str
    """New for every call; a store makes each lease's token from it."""
    timeout_ms: int
    """The lease time of messages that have none of their own."""
    partitions: tuple[int, ...] | None = None
    """Only these; None is every partition of the queue."""
    batch: str | None = None
    """A durable name by which the leases can be read again (see `View.batch`)."""
    epochs: tuple[int, ...] | None = None
    """Of the claims on `partitions`, in their order (see `partition_claim`). A partition gives
    nothing unless, in the same atomic step, `owner` holds its claim at that epoch, not run out at
    `now`. And it gives the exact head of its line: nothing that is due or locked is passed over."""
    others: tuple[OtherQueue, ...] = ()
    """Queues to lease from after `queue`, in this order and under the same `limit`. A store
    leases from all of them in a few round trips. Not together with `partitions`, `batch` or
    `epochs`."""
    share: int | None = None
    """With `others`: no queue gives more than this; None is no bound but `limit`."""

    def each(self) -> Iterator[LeaseAsk]:
        """An ask for each of its queues, in order, every one with the whole limit of a queue."""
        limit = self.limit if self.share is None else min(self.limit, self.share)
        first = OtherQueue(self.queue, self.timeout_ms)
        for other in (first, *self.others):
            yield LeaseAsk(other.queue, limit, self.owner, self.token, other.timeout_ms)


class ReserveAsk(msgspec.Struct, frozen=True):
    """A lease without a deadline, under a durable name. No message is read: the answer is a count.

    The caller keeps a record of the name (see work/ledger): nothing else ever ends this lease.
    """

    queue: str
    limit: int
    owner: str
    token: str
    batch: str
    partitions: tuple[int, ...] | None = None
    epochs: tuple[int, ...] | None = None

    def as_lease(self) -> LeaseAsk:
        """The same ask, for stores that reserve by the steps of a lease."""
        return LeaseAsk(
            self.queue,
            self.limit,
            self.owner,
            self.token,
            timeout_ms=0,
            partitions=self.partitions,
            batch=self.batch,
            epochs=self.epochs,
        )


class BatchEnd(msgspec.Struct, frozen=True):
    """Ack up to `limit` of the messages that are leased under a batch name, without reading them.
    Without a `status` they leave no row in the log."""

    queue: str
    batch: str
    limit: int
    status: Status | None


class Purge(msgspec.Struct, frozen=True):
    """Up to `limit` of a queue's waiting (not leased) messages."""

    queue: str
    limit: int


class Cut(msgspec.Struct, frozen=True):
    """Which log rows of a queue may go: up to `limit` that finished before `before`, or that are
    older than the newest `keep`."""

    queue: str
    limit: int
    before: int | None = None
    keep: int | None = None


class View(msgspec.Struct, frozen=True):
    """What to browse: a queue's ready, delayed or leased messages, or its log."""

    queue: str
    state: State = State.READY
    since: int | None = None
    """Log: finished at or after; otherwise enqueued at or after."""
    until: int | None = None
    """Before this time (exclusive)."""
    id: str | None = None
    """Log: only this message."""
    to: str | None = None
    """Up to this cursor, inclusive (see `Store.split`)."""
    upto: str | None = None
    """Only what stood in line when a page with this `end` was read, at the place it had then."""
    overdue_at: int | None = None
    """Leased: only those with a deadline at or before this, read from the deadline index. Such a
    page has no cursor: settle what it holds, and read the next one."""
    batch: str | None = None
    """Leased: only those of this batch name, by id; `after` is the last id of the page before. The
    page after the last one is empty. Not together with any other restriction."""


class ByPartition(msgspec.Struct, frozen=True):
    """The queue whose partitions `Store.stats` counts."""

    queue: str


class Entry(msgspec.Struct, frozen=True):
    """One row of a page; `lease` for leased ones, `finished` for the log."""

    message: Message
    place: int
    """Position in line. New each time a message comes to the end of one (see `Transition.tail`).
    0 where it is not known: of what `Store.find` found waiting or leased, and in pages of
    `View.overdue_at` and `View.batch`."""
    lease: Lease | None = None
    finished: Finished | None = None

    def state(self, now: int) -> State:
        if self.finished is not None:
            return State.LOG
        if self.lease is not None:
            return State.LEASED
        return State.READY if self.message.available_at <= now else State.DELAYED


class Page(msgspec.Struct, frozen=True):
    entries: list[Entry]
    after: str | None
    """Pass it to get the next page; None at the end."""
    end: str
    """The end of the line now; see `View.upto`. Empty for `View.overdue_at` and `View.batch`."""

    @property
    def leases(self) -> list[Lease]:
        return [entry.lease for entry in self.entries if entry.lease is not None]


class QueueStats(msgspec.Struct, frozen=True):
    """Exact when nothing moves. `done` counts everything ever finished; `dead` the dead letters."""

    queue: str
    ready: int
    delayed: int
    leased: int
    dead: int
    done: int
    oldest_age: float | None
    """Seconds since the oldest message at the head of a lane was enqueued; None: none is ready."""
    paused: bool

    @property
    def lag(self) -> int:
        """All that is accepted and not finished, dead letters apart."""
        return self.ready + self.delayed + self.leased


class Record(msgspec.Struct, frozen=True):
    """A small value that outlives processes: what a reader holds, verdicts on a batch, receipts."""

    name: str
    value: bytes
    revision: int
    """Goes up with every change; 0 is a record that is not there."""
    updated_at: int


class Claim(msgspec.Struct, frozen=True):
    """A named lease: the sweep lock, a partition's owner. The epoch grows with every new owner."""

    name: str
    owner: str
    epoch: int
    expires_at: int


class Event(msgspec.Struct, frozen=True):
    """Small news for people who watch. May be lost; nothing is decided by it."""

    type: str
    timestamp: int
    payload: dict[str, Any]
    seq: int = 0


class Subscription(Protocol):
    def next(self, timeout: float) -> list[Event]:
        """Events since the last call, waiting up to `timeout` seconds for the first."""
        ...

    def close(self) -> None: ...


class Messages(Protocol):
    """Queues and their messages."""

    # Its life

    def migrate(self) -> None:
        """Make or upgrade the schema. Idempotent; safe when two processes run it at once."""
        ...

    def close(self) -> None: ...

    def time(self) -> int:
        """The server's clock, in milliseconds."""
        ...

    def tidy(self, now: int, *, log_before: int | None) -> None:
        """The store's own upkeep, in bounded steps; the sweeper calls it at every tick.

        `log_before`: no queue wants log rows that finished before this; None if one keeps all.
        """
        ...

    # Queues

    def put_queues(self, specs: Sequence[QueueSpec]) -> bool:
        """Write all specs in one step if each stored revision is the spec's; else write none.

        The stored revision becomes one more. False: somebody was faster, read again. A queue and
        its dead-letter queue are always written in one step, and so are the groups of a topic. For
        other queues, a store that cannot reach them in one step (a Redis Cluster) compares all
        first and then writes them one after the other, so a process that comes in between can
        leave a part of them unwritten.
        """
        ...

    def queues(
        self, names: Sequence[str] | None = None, *, overdue: int | None = None
    ) -> list[QueueSpec]:
        """Every queue, by name; or those of `names` that exist, in the order of `names`.

        With `overdue`, only those with a lease whose deadline is at or before it, read from the
        deadline index: in a few round trips, however many queues have nothing leased. Not together
        with `names`.
        """
        ...

    def delete_queues(self, names: Sequence[str], *, only_empty: bool) -> bool:
        """Delete queues with all they hold in one step; False if `only_empty` and one holds any.

        The log does not count: what is finished keeps no queue alive.
        """
        ...

    # Writes

    def enqueue(
        self,
        messages: Sequence[Message],
        now: int,
        *,
        within: Any = None,
        receipt: str | None = None,
        finished_since: Mapping[int, int] | None = None,
    ) -> list[Enqueued]:
        """Store all or none (see LIFE-3 for stores that bound it); an id that is held stays as is.

        Each message names its queue, partition and priority. `within` is the caller's own open
        transaction on this store. A `receipt` is kept as a record of the kind "receipt" in the same
        step; if it is there already, nothing is stored and every answer is HELD.

        `finished_since` gives a time for some of the messages, by their index. In the same step
        those are looked up in the log of their queue and in that of its dead-letter queue: if their
        id finished there at or after that time, they are not stored, and the answer is HELD. The
        others cost no look-up.
        """
        ...

    @overload
    def lease(self, ask: ReserveAsk, now: int) -> int: ...
    @overload
    def lease(self, ask: LeaseAsk, now: int) -> list[Lease]:
        """Up to `limit` messages with available_at <= now: highest lane first, then by place.

        In one atomic step each gets its token, its deadline and one more attempt. A paused queue
        gives none. Waits for no lock that another consumer holds on a message.

        With `others`: up to `limit` messages from all queues together, each queue's in its own
        order, the first queue of the ask first. A queue that does not exist then gives nothing;
        of a single queue it is an error. The messages of different queues may be taken in
        different steps, and an answer may be short of the limit although there is more; it is
        empty only if there is nothing.

        A `ReserveAsk` takes the same messages in the same way, and answers how many.
        """
        ...

    @overload
    def settle(self, moves: BatchEnd, now: int, *, within: None = None) -> int: ...
    @overload
    def settle(self, moves: Sequence[Transition], now: int, *, within: Any = None) -> list[Settled]:
        """Apply each transition that still fits; one stale item never fails its neighbours.

        A `BatchEnd` acks what a batch name holds; the answer is how many there were.
        """
        ...

    @overload
    def drop(self, what: Purge) -> int: ...
    @overload
    def drop(self, what: Sequence[Cut]) -> list[int]:
        """Drop the oldest log rows of each queue; how many of each. A queue that is gone has none.

        Costs a few round trips for all queues that have nothing to drop. The queues may be
        trimmed in different steps.

        A `Purge` drops waiting messages, without a trace; the answer is how many.
        """
        ...

    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        """Write rows of a log that finished elsewhere, as they ended there; how many were new.

        In the order in which they finished, and none before what the log already holds: a store may
        refuse that (StoreError). A row that the log holds (the same id, finished at the same time)
        stays as it is, so that a call may be repeated. They count as done.
        """
        ...

    # Reads

    def browse(self, view: View, after: str | None, limit: int, now: int) -> Page:
        """A page in lease order (log: in order of finishing), by keyset cursor. Changes nothing."""
        ...

    def find(self, queue: str, ids: Sequence[str], *, log: bool = True) -> list[Entry | None]:
        """For each of `ids`, where it is in the queue or its dead-letter queue.

        What is held there, with its lease if it has one; otherwise, with `log`, the row it last
        finished with in the log of either. None for an id that neither holds.
        """
        ...

    def split(self, view: View, parts: int, now: int) -> list[str]:
        """Cursors that cut a view into about `parts` pieces of equal length, in order.

        Fewer where there is little; a piece is what lies after one cursor and up to the next.
        """
        ...

    @overload
    def stats(self, queues: ByPartition, now: int) -> list[Depth]: ...
    @overload
    def stats(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        """Counts, at a cost that does not grow with the number of messages.

        `ByPartition` asks for one queue, and the answer is of each of its partitions, by number.
        """
        ...

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        """Return when there may be something to lease, or after `timeout` seconds.

        False: there was nothing at the start, and no sign of anything since. Costs few round
        trips, however many queues there are. With `partitions`, of one queue: what is ready in
        its others wakes nobody.
        """
        ...


class Board(Protocol):
    """What processes coordinate by: claims, records and events. It knows nothing of messages."""

    def claim(self, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
        """Take or renew a named lease; None while another owner's holds. ttl 0 gives it up."""
        ...

    def claims(self, names: Sequence[str]) -> list[Claim | None]:
        """As they are stored, run out or not; None for a name that nobody ever claimed."""
        ...

    def put_record(
        self, kind: str, name: str, value: bytes | None, revision: int | None, now: int
    ) -> bool:
        """Write a record (None deletes it) if its revision is still this one; None: in any case."""
        ...

    def records(
        self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Record]:
        """Records of a kind by name, those whose names begin with `prefix` and follow `after`."""
        ...

    def drop_records(
        self, kind: str, *, prefix: str = "", before: int | None = None, limit: int
    ) -> int:
        """Delete up to `limit` records whose names begin so, last changed before `before`."""
        ...

    def publish(self, events: Sequence[Event]) -> None: ...

    def subscribe(self, after: int | None = None) -> Subscription:
        """Events from now on, or after an event's `seq` as far as they are still kept."""
        ...


class Store(Messages, Board, Protocol):
    """All of it: what a connection stands on."""


@runtime_checkable
class Columnar(Protocol):
    """A store that can hand out what it holds as Arrow record batches."""

    def read_arrow(self, view: View, after: str | None, now: int, walk: int) -> Iterator[Any]:
        """One of the walks of a view (see `arrow_walks`), from a cursor on."""
        ...

    def leased_arrow(self, queue: str, batch: str, after: str | None) -> Iterator[Any]:
        """What is leased under a batch name, by id; `after` is an id."""
        ...

    def arrow_walks(self, view: View) -> int:
        """How many walks read this view; 0 if it has to be browsed."""
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A store whose server can be asked how it is doing."""

    def look(self) -> dict[str, Any]:
        """What an operator wants to know of it; see `holdfast doctor`."""
        ...


def spec_of(store: Messages, name: str) -> QueueSpec | None:
    """The queue of this name; None if there is none."""
    return next(iter(store.queues([name])), None)


def held_in(store: Messages, queue: str, ids: Sequence[str]) -> list[Message]:
    """Those of `ids` that the queue or its dead-letter queue holds."""
    return [found.message for found in store.find(queue, ids, log=False) if found is not None]


def overdue_in(store: Messages, queue: str, now: int, limit: int) -> list[Lease]:
    """Leases with deadline <= now, oldest deadline first."""
    view = View(queue, State.LEASED, overdue_at=now)
    return store.browse(view, None, limit, now).leases


def batch_in(store: Messages, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
    """A page of what is leased under a batch name, by id; empty only after the last one."""
    view = View(queue, State.LEASED, batch=batch)
    return store.browse(view, after, limit, 0).leases
