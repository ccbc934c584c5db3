"""Consumers of ordered queues, for those who are far away (see work/ownership).

A partition has an owner, and an owner is somebody who is there. So one sits here for each client,
as long as its stream lasts, or as long as it comes back for more under the same name. What the
client settles goes through him: he holds keys, and hands out the next message of a partition.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress

import msgspec

from holdfast.errors import FailedPrecondition, HoldfastError, InvalidArgument, LeaseLost
from holdfast.model.message import Lease
from holdfast.model.moves import Transition
from holdfast.model.policy import Policy
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.queue import LocalQueue
from holdfast.rules import lifecycle
from holdfast.rules.outcome import Done, Fail, Release, Retry
from holdfast.server.limits import Limits
from holdfast.server.sizes import Leasing
from holdfast.wire.problems import TooManyStreams
from holdfast.wire.shapes import LeaseAsk
from holdfast.work.ownership import Consumer, Owner

REAP_S = 0.5
logger = logging.getLogger("holdfast.server")


class Seat:
    """One client's consumer, and what that client has in hand. To be called in threads."""

    def __init__(
        self, at: Context, queue: LocalQueue, owner: str | None, settings: Settings, budget: int
    ) -> None:
        self.waiting = 0
        """Polls that wait for it."""
        self._at = at
        self._queue = queue
        self._budget, self._leasing = budget, Leasing(budget)
        # Its own name each time: two who call themselves the same must not own the same.
        name = f"{owner or at.owner}:{secrets.token_hex(2)}"
        self._consumer = Consumer(Owner(at, queue, settings, batch=1, name=name))
        self._lock = threading.Lock()
        self._out: dict[str, Lease] = {}
        self._unsent: set[str] = set()
        """Of these, what has not reached its client yet."""
        self._used_at = at.clock.monotonic()
        self._closed = False

    def take(self, ask: LeaseAsk) -> list[Lease]:
        with self._lock:
            if self._closed:
                return []
            self._used_at = self._at.clock.monotonic()
            self._expire()
            limit = self._leasing.rows(ask.queue, self._budget, ask.limit)
            leases = self._consumer.lease(limit)
            self._leasing.seen(ask.queue, leases)
            self._out.update((lease.token, lease) for lease in leases)
            self._unsent.update(lease.token for lease in leases)
        if not leases:
            _ = self._queue.spec  # who waits hears it when the queue is gone
        return leases

    def _expire(self) -> None:
        """What ran out in the client's hands is moved as a sweep would; the line goes on."""
        now = self._at.clock.now()
        late = [lease for lease in self._out.values() if lease.deadline <= now]
        rng = self._at.rng
        self._move(late, lambda lease, policy: lifecycle.expired(lease, policy, now, rng))
        for lease in late:
            self._out.pop(lease.token, None)
            with suppress(LeaseLost):  # as it must be by now: only its key is to be held
                self._consumer.nack(lease)

    def _move(self, leases: Sequence[Lease], how: Callable[[Lease, Policy], Transition]) -> None:
        if leases:
            policy = self._queue.policy
            moves = [how(lease, policy) for lease in leases]
            self._at.store.settle(moves, self._at.clock.now())

    def sent(self, leases: Iterable[Lease]) -> None:
        self._unsent.difference_update(lease.token for lease in leases)

    def holds(self, queue: str, id: str, token: str) -> bool:
        lease = self._out.get(token)
        return lease is not None and lease.id == id and self._queue.name == queue

    def settle(self, token: str, outcome: Done | Retry | Fail | Release) -> None:
        """LeaseLost if it has ended. May be repeated when the store did not answer."""
        lease = self._out.get(token)
        if lease is None:
            raise LeaseLost("this lease has ended")
        self._used_at = self._at.clock.monotonic()
        try:
            self._consumer.settle(lease, outcome)
        except LeaseLost:
            self._out.pop(token, None)
            raise
        self._out.pop(token, None)

    def give_back(self, queue: str, leases: Sequence[Lease]) -> None:
        for lease in leases:
            with suppress(LeaseLost):
                self.settle(lease.token, Release())

    def extended(self, token: str, deadline: int) -> None:
        lease = self._out.get(token)
        if lease is not None:
            self._out[token] = msgspec.structs.replace(lease, deadline=deadline)

    def is_idle(self, for_s: float) -> bool:
        quiet = self._at.clock.monotonic() - self._used_at > for_s
        return quiet and not self._out and not self.waiting

    def close(self, *, keep: bool) -> None:
        """`keep`: what the client has it may still settle. Else it counts as lost with its owner,
        so that a message that kills its consumers ends somewhere."""
        with self._lock:
            self._closed = True
            now, out = self._at.clock.now(), list(self._out.values())
            with suppress(HoldfastError):
                self.give_back("", [lease for lease in out if lease.token in self._unsent])
                lost = [] if keep else [lease for lease in out if lease.token not in self._unsent]
                self._move(lost, lambda lease, policy: lifecycle.abandoned(lease, policy, now))
            self._out.clear()
            self._consumer.close(keep=keep)


class Seats:
    """All of them; made in the loop's thread, used in any."""

    def __init__(self, at: Context, settings: Settings, limits: Limits, threads: Executor) -> None:
        self._at = at
        self._settings = settings
        self._limits = limits
        self._threads = threads
        self._lock = threading.RLock()
        self._all: tuple[Seat, ...] = ()
        self._named: dict[tuple[str, str], Seat] = {}
        self._reaping: asyncio.Task[None] | None = None

    def open(self, queue: str, owner: str | None) -> Seat | None:
        """One of its own for a stream; None if the queue is not ordered."""
        of = LocalQueue(self._at, queue)
        return self._make(of, owner) if of.spec.ordered else None

    async def named(self, queue: str, owner: str | None) -> Seat:
        """That of who calls itself so. It goes when nothing is heard of its client."""
        if not owner:
            raise InvalidArgument(
                "owner", f"{queue} is ordered: name yourself, and keep that name from call to call"
            )
        seat = await asyncio.wrap_future(self._threads.submit(self._find, queue, owner))
        if self._reaping is None or self._reaping.done():
            self._reaping = asyncio.get_running_loop().create_task(self._reap())
        return seat

    def _find(self, queue: str, owner: str) -> Seat:
        of = LocalQueue(self._at, queue)
        if not of.spec.ordered:
            raise FailedPrecondition(f"{queue} is not ordered")
        with self._lock:
            seat = self._named.get((queue, owner))
            if seat is None:
                seat = self._named[queue, owner] = self._make(of, owner)
            return seat

    def _make(self, queue: LocalQueue, owner: str | None) -> Seat:
        with self._lock:
            if len(self._all) >= self._limits.streams:
                raise TooManyStreams(f"{len(self._all)} consumers are here; try again later")
            seat = Seat(self._at, queue, owner, self._settings, self._limits.answer_bytes)
            self._all = (*self._all, seat)
            return seat

    def of(self, queue: str, id: str, token: str) -> Seat | None:
        """Whose lease this is; None if it was not leased in order, or not here."""
        return next((seat for seat in self._all if seat.holds(queue, id, token)), None)

    def extended(self, token: str, deadline: int) -> None:
        for seat in self._all:
            seat.extended(token, deadline)

    def close(self, seats: Iterable[Seat], *, keep: bool = False) -> None:
        with self._lock:
            gone = list(seats)
            self._all = tuple(seat for seat in self._all if seat not in gone)
            self._named = {name: s for name, s in self._named.items() if s not in gone}
        for seat in gone:
            self._threads.submit(self._close, seat, keep)

    def _close(self, seat: Seat, keep: bool) -> None:
        try:
            seat.close(keep=keep)
        except HoldfastError as error:
            logger.warning("partitions are given up when their claims run out: %s", error)

    def close_all(self) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
        self.close(self._all, keep=True)

    async def _reap(self) -> None:
        while self._named:
            await asyncio.sleep(REAP_S)
            idle_s = self._settings.partition_lease_ms / 1000
            self.close([seat for seat in self._named.values() if seat.is_idle(idle_s)])
