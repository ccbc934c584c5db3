"""The verbs users call on a queue. They check what comes in, ask the rules, tell the store."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.errors import (
    FailedPrecondition,
    InvalidArgument,
    LeaseLost,
    MessageNotFound,
    QueueNotEmpty,
    QueueNotFound,
    shown,
)
from holdfast.model.backoff import Backoff
from holdfast.model.message import (
    Finished,
    Lease,
    Message,
    Outgoing,
    check_id,
    dlq_of,
    home_of,
    is_dlq,
    new_ids,
)
from holdfast.model.moves import Enqueued, Settled, State, Transition
from holdfast.model.policy import DEFAULTS, Policy, seconds, whole
from holdfast.model.queues import QueueSpec, partition_claim
from holdfast.queue.checks import (
    check_given,
    check_items,
    check_partitions,
    check_range,
    check_state,
    check_text,
)
from holdfast.queue.context import Context
from holdfast.queue.outgoing import Maker
from holdfast.rules import lifecycle
from holdfast.rules.decide import decide
from holdfast.rules.lifecycle import ms
from holdfast.rules.outcome import (
    Done,
    Extend,
    Fail,
    Outcome,
    Release,
    Retry,
)
from holdfast.stores.contract import ByPartition, Entry, LeaseAsk, Purge, QueueStats, View, held_in
from holdfast.telemetry import tracing

T = TypeVar("T")

LEASE_MAX = 10_000
WAIT_STEP_S = 5.0
PAGE = 500

logger = logging.getLogger("holdfast.queue")


class PartitionStats(msgspec.Struct, frozen=True):
    """What one partition holds, and who works it."""

    partition: int
    ready: int
    delayed: int
    leased: int
    lag: int
    """All of these: what is not finished."""
    oldest_age: float | None
    """Seconds since the oldest message at the head of a lane was enqueued; None: none is ready."""
    owner: str | None
    """Of an ordered queue: who holds its claim now."""
    epoch: int
    """How many owners it has had."""


class Queue:
    """A handle on one queue. Cheap, thread-safe, good for the life of its connection."""

    def __init__(self, context: Context, name: str) -> None:
        self.name = name
        self._at = context
        self._policies: tuple[Policy, Policy] = (DEFAULTS, context.policy)

    @property
    def context(self) -> Context:
        return self._at

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    @property
    def dlq(self) -> Queue:
        """Its dead letters: a queue like any other."""
        return Queue(self._at, dlq_of(self.name))

    @property
    def spec(self) -> QueueSpec:
        spec = self._at.spec(self.name)
        if spec is None:
            raise QueueNotFound(f"no queue {self.name!r}")
        return spec

    @property
    def policy(self) -> Policy:
        """The rules in force for messages that bring none of their own."""
        return self._complete(self.spec)

    def enqueue(
        self,
        payload: Any,
        *,
        id: Any = None,
        key: str | bytes | None = None,
        type: str | None = None,
        priority: int = 0,
        delay: float | None = None,
        at: datetime | float | None = None,
        headers: dict[str, str] | None = None,
        ack_timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        content_type: str | None = None,
        within: Any = None,
    ) -> Message:
        """Store one message; returns when the store has it.

        `delay` seconds or a time `at` hold it back. `within` is your own open transaction on the
        same store. An `id` that the queue still holds, or that finished within the policy's
        `duplicate_window` and is still in the log, changes nothing: the message that is there comes
        back, as it is or as it finished, with `duplicate` set.
        """
        outgoing = Outgoing(
            payload,
            id,
            key,
            type,
            priority,
            delay,
            at,
            headers,
            ack_timeout,
            max_attempts,
            backoff,
            content_type,
        )
        return self._enqueue([outgoing], within)[0]

    def enqueue_many(
        self, items: Iterable[Any], *, within: Any = None, receipt: str | None = None
    ) -> list[Message]:
        """Store all or none of them: payloads, or `Outgoing(payload, key=..., ...)`.

        A bad one is named by the `index` of the error; nothing is stored then. A `receipt` names
        the call on this queue: repeated with the same name it stores nothing, also when the
        messages were finished meanwhile. Receipts are kept for a week.
        """
        return self._enqueue(check_items(items), within, check_text("receipt", receipt))

    def _enqueue(self, items: list[Any], within: Any, receipt: str | None = None) -> list[Message]:
        span = tracing.producing("enqueue", self.name, len(items))
        if span is None:
            return self._store(items, within, receipt)
        with span as headers:
            return self._store(items, within, receipt, headers)

    def _store(
        self,
        items: list[Any],
        within: Any,
        receipt: str | None,
        trace: dict[str, str] | None = None,
    ) -> list[Message]:
        spec, now = self.spec, self._at.clock.now()
        policy = self._complete(spec)
        make = Maker(spec, policy, now)
        messages = make.all(items)
        if trace:
            messages = tracing.carrying(messages, trace)
        kept = receipt and receipt_name(self.name, receipt)
        since = lifecycle.finished_since(messages, make.given, policy, now)
        answers = self._at.store.enqueue(
            messages, now, within=within, receipt=kept, finished_since=since
        )
        if Enqueued.HELD not in answers:
            return messages
        return self._with_held(messages, answers, make.given)

    def enqueue_each(self, items: Sequence[Any]) -> list[Message | InvalidArgument]:
        """Like `enqueue_many`, of different callers in one write: one that is bad fails alone."""
        spec, now = self.spec, self._at.clock.now()
        policy = self._complete(spec)
        make = Maker(spec, policy, now)
        made: list[Message | InvalidArgument] = []
        for item, id in zip(items, new_ids(len(items), now), strict=True):
            try:
                made.append(make(item, id))
            except InvalidArgument as error:
                error.index = 0  # of its caller, who sent one
                made.append(error)
        good = [message for message in made if isinstance(message, Message)]
        since = lifecycle.finished_since(good, make.given, policy, now)
        answers = self._at.store.enqueue(good, now, finished_since=since) if good else []
        stored = iter(good)
        if Enqueued.HELD in answers:
            stored = iter(self._with_held(good, answers, make.given))
        return [next(stored) if isinstance(item, Message) else item for item in made]

    def _with_held(
        self, messages: list[Message], answers: list[Enqueued], given: set[str]
    ) -> list[Message]:
        pairs = list(zip(messages, answers, strict=True))
        held_ids = [message.id for message, answer in pairs if answer is Enqueued.HELD]
        found = self._at.store.find(self.name, held_ids, log=not given.isdisjoint(held_ids))
        held = {entry.message.id: entry.message for entry in found if entry is not None}
        return [
            msgspec.structs.replace(held.get(message.id, message), duplicate=True)
            if answer is Enqueued.HELD
            else message
            for message, answer in pairs
        ]

    def lease(
        self,
        limit: int = 1,
        wait: float = 0.0,
        *,
        owner: str | None = None,
        partitions: Sequence[int] | None = None,
        batch: str | None = None,
    ) -> list[Lease]:
        """Up to `limit` messages, for you alone until their deadline.

        On an empty queue: an empty list at once, or after up to `wait` seconds.
        """
        whole("limit", check_given("limit", limit), low=1, high=LEASE_MAX)
        seconds("wait", check_given("wait", wait))
        check_text("owner", owner)
        chosen = None if partitions is None else check_partitions(partitions)
        spec = self.spec
        if spec.ordered:
            raise FailedPrecondition(
                f"{self.name} is ordered: lease by `with hf.consumer({self.name!r}) as consumer`"
            )
        policy = self._complete(spec)
        clock, store = self._at.clock, self._at.store
        until, first = clock.monotonic() + wait, True
        while True:
            ask = LeaseAsk(
                self.name,
                limit,
                owner or self._at.owner,
                secrets.token_hex(8),
                ms(policy.ack_timeout or 0.0),
                chosen,
                batch,
            )
            leases = self._lease(ask, policy, thorough=first, ahead_s=min(wait, WAIT_STEP_S))
            left, first = until - clock.monotonic(), False
            if leases or left <= 0:
                return leases
            now = clock.now()
            store.wait([self.name], now, min(left, self._wait_step(now)))

    def _lease(
        self, ask: LeaseAsk, policy: Policy, *, thorough: bool, ahead_s: float
    ) -> list[Lease]:
        """Lease what there is, and what is overdue: it is put back at once.

        The look is a round trip: it is made at most once a second, and when the queue is empty
        (`thorough`: in any case, unless this process sweeps).
        """
        at = self._at
        looked = at.looks.due(self.name, at.clock.now())
        if looked:
            at.look(self.name, policy, ahead_s)
        now = at.clock.now()
        leases = at.store.lease(ask, now)
        if leases or looked or not thorough or at.looks.covered(now):
            return leases
        if at.look(self.name, policy, ahead_s):
            leases = at.store.lease(ask, at.clock.now())
        return leases

    def _wait_step(self, now: int) -> float:
        """Until the next look: a deadline may pass while a consumer waits."""
        looks = self._at.looks
        next_at = looks.next_at(self.name)
        if next_at is None or looks.covered(now):
            return WAIT_STEP_S
        return min(WAIT_STEP_S, max(0, next_at - now) / 1000 + 0.001)

    def ack(self, lease: Lease, *, result: Any = None, within: Any = None) -> None:
        """Finished: the message goes to the log, with its result if it has one.

        This and the other verbs may be repeated: a lease that the same verb has ended already is
        fine, and `LeaseLost` says that the message moved on for another reason. `within` your own
        transaction a repeated ack is `LeaseLost` as well, so that it rolls back your writes.
        """
        self._settle_one(lease, Done(result), within)

    def nack(self, lease: Lease, error: Any = None, *, delay: float | None = None) -> None:
        """It did not work: back after `delay` seconds or its backoff; dead if out of attempts."""
        self._settle_one(lease, Retry(error, delay=delay))

    def fail(self, lease: Lease, error: Any = "failed", *, code: str | None = None) -> None:
        """It will never work: to the dead letters at once."""
        self._settle_one(lease, Fail(error, code=code))

    def release(self, lease: Lease, *, delay: float | None = None) -> None:
        """Give it back, at once or after `delay` seconds; this delivery does not count."""
        self._settle_one(lease, Release(delay=delay))

    def extend(self, lease: Lease, seconds: float | None = None) -> Lease:
        """Hold it for `seconds` from now, or for its own time-out. Returns the longer lease."""
        move = self._settle_one(lease, Extend(seconds))
        return msgspec.structs.replace(lease, deadline=move.deadline)

    def settle(
        self, items: Iterable[Lease | tuple[Lease, Outcome]], *, within: Any = None
    ) -> list[Settled]:
        """End many leases in one write; a bare lease is acked. One answer per item, in order."""
        policy, now, name = self.policy, self._at.clock.now(), self.name
        if not isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument("items", f"must be a list of leases, not {shown(items)}")
        moves = [
            lifecycle.acked(item, policy)
            if type(item) is Lease and item.message.queue == name
            else self._decide(item, policy, now)
            for item in items
        ]
        return self._at.store.settle(moves, now, within=within)

    def _settle_one(self, lease: Lease, outcome: Outcome, within: Any = None) -> Transition:
        """Repeating a verb that was applied changes nothing and is fine.

        But not `within` a transaction: what the caller writes there would be committed twice.
        """
        now = self._at.clock.now()
        move = self._decide((lease, outcome), self.policy, now)
        answer = self._at.store.settle([move], now, within=within)[0]
        if answer is Settled.STALE:
            raise LeaseLost(f"{lease.message.id}: this lease has ended, the message moved on")
        if answer is Settled.ALREADY and within is not None:
            raise LeaseLost(
                f"{lease.message.id}: this lease was settled before; roll back what would be "
                "written again"
            )
        return move

    def _decide(self, item: Lease | tuple[Lease, Outcome], policy: Policy, now: int) -> Transition:
        lease, outcome = (item, _DONE) if isinstance(item, Lease) else _pair(item)
        if lease.message.queue != self.name:
            raise InvalidArgument(
                "lease", f"is of queue {lease.message.queue!r}, not {self.name!r}"
            )
        return decide(lease, outcome, policy, now, self._at.rng)

    def stats(self) -> QueueStats:
        """How many are ready, delayed, leased, dead and done, and the age of the oldest."""
        return self._at.store.stats([self.name], self._at.clock.now())[0]

    def partitions(self) -> list[PartitionStats]:
        """Of each partition in use: the newest ones, and older ones that still hold something."""
        spec, store, now = self.spec, self._at.store, self._at.clock.now()
        depths = store.stats(ByPartition(self.name), now)
        numbers = lifecycle.in_use(spec, depths)
        claims = store.claims([partition_claim(self.name, number) for number in numbers])
        return [
            PartitionStats(
                number,
                (depth := depths[number]).ready,
                depth.delayed,
                depth.leased,
                depth.ready + depth.delayed + depth.leased,
                None if depth.oldest_at is None else max(0, now - depth.oldest_at) / 1000,
                claim.owner if claim is not None and claim.expires_at > now else None,
                claim.epoch if claim is not None else 0,
            )
            for number, claim in zip(numbers, claims, strict=True)
        ]

    def get(self, id: Any) -> Message:
        """A message that the queue or its dead-letter queue holds."""
        found = held_in(self._at.store, self.name, [check_id(id)])
        if not found:
            raise MessageNotFound(f"{self.name} holds no message {id}")
        return found[0]

    def browse(
        self,
        state: State | str = State.READY,
        *,
        since: int | None = None,
        until: int | None = None,
    ) -> Iterator[Entry]:
        """Look at messages in lease order without touching them: ready, delayed, leased or log."""
        check_range(since, until)
        for page in self._pages(View(self.name, check_state(state), since, until)):
            yield from page

    def _pages(self, view: View) -> Iterator[list[Entry]]:
        after: str | None = None
        while True:
            page = self._at.store.browse(view, after, PAGE, self._at.clock.now())
            yield page.entries
            after = page.after
            if after is None:
                return

    def log(self, *, since: int | None = None, until: int | None = None) -> Iterator[Finished]:
        """What is finished, oldest first."""
        entries = self.browse(State.LOG, since=since, until=until)
        return (entry.finished for entry in entries if entry.finished is not None)

    def replay(
        self, id: Any = None, *, since: int | None = None, until: int | None = None
    ) -> list[Message]:
        """Enqueue finished messages again, as new ones that name their origin.

        By `id`, or all that finished at or after `since` and before `until` (milliseconds).
        """
        if id is None and since is None and until is None:
            raise InvalidArgument("id", "name a message, or a range by since and until")
        check_range(since, until)
        until = self._at.clock.now() + 1 if until is None else until
        wanted = None if id is None else check_id(id)
        view = View(self.name, State.LOG, since, until, wanted)
        replayed: list[Message] = []
        for page in self._pages(view):
            replayed += replay_entries(self._at, page)
        if wanted is not None and not replayed:
            raise MessageNotFound(f"the log of {self.name} has no message {wanted}")
        return replayed

    def pause(self) -> None:
        """Lease nothing any more; messages are still accepted, leases still settled."""
        self._update(paused=True)

    def resume(self) -> None:
        self._update(paused=False)

    def purge(self) -> int:
        """Drop every waiting message, without a trace; leased ones stay. Says how many."""
        self.spec  # noqa: B018  # a queue that is not there is an error, not an empty one
        purged = 0
        while n := self._at.store.drop(Purge(self.name, PAGE)):
            purged += n
        return purged

    def delete(self, *, force: bool = False) -> None:
        """Delete the queue with its dead letters and its log; `force` if either holds messages."""
        if is_dlq(self.name) and self._at.spec(home_of(self.name)):
            raise FailedPrecondition(
                f"{self.name} goes with its queue: delete {home_of(self.name)}, or purge this one"
            )
        self.spec  # noqa: B018
        names = list(dict.fromkeys([self.name, dlq_of(self.name)]))
        if not self._at.store.delete_queues(names, only_empty=not force):
            raise QueueNotEmpty(
                f"{self.name} or its dead letters hold messages; force=True deletes"
            )

    def _update(self, **changes: Any) -> QueueSpec:
        while True:
            changed = msgspec.structs.replace(self.spec, **changes)
            if self._at.store.put_queues([changed]):
                return changed

    def _complete(self, spec: QueueSpec) -> Policy:
        """Remembered while the stored policy stays the same object: this is on the hot path."""
        known, complete = self._policies
        if known is not spec.policy:
            complete = self._at.complete(spec)
            self._policies = (spec.policy, complete)
        return complete


_DONE = Done()


def replay_entries(at: Context, entries: Sequence[Entry]) -> list[Message]:
    """Enqueue what these rows of a log finished with, as new messages."""
    now = at.clock.now()
    ids = new_ids(len(entries), now)
    fresh = [
        lifecycle.replayed(entry.message, id, now) for entry, id in zip(entries, ids, strict=True)
    ]
    at.store.enqueue(fresh, now)
    return fresh


def receipt_name(queue: str, receipt: str) -> str:
    """The name of the record of a receipt. No queue has a "/" in its name, so that two queues
    never share a record, whatever texts their callers choose."""
    return f"{queue}/{receipt}"


def _pair(item: Any) -> tuple[Lease, Outcome]:
    match item:
        case (Lease() as lease, Done() | Retry() | Fail() | Release() | Extend() as outcome):
            return lease, outcome
        case _:
            raise InvalidArgument(
                "lease", f"must be a lease, or a lease with its outcome, not {shown(item)}"
            )
