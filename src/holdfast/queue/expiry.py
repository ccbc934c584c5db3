"""Settles leases that have passed their deadline. Sweeps do it, and so does every lease.

A lease looks at its own queue before it picks, so that messages of consumers that died come back
also where nobody sweeps. Any number of callers may do this at once: the token and the deadline in
each transition decide which of them moves a message.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from holdfast.errors import StoreError
from holdfast.model.clock import Clock
from holdfast.model.message import Lease, dlq_of, is_dlq
from holdfast.model.moves import Settled
from holdfast.model.policy import Policy
from holdfast.rules import lifecycle
from holdfast.stores.contract import Store, overdue_in
from holdfast.telemetry import announce

LOOK_MS = 1000
"""A connection that leases looks for overdue leases of the queue at most this often, unless it
finds the queue empty."""
COVER_MS_MAX = 10_000
"""For how long one sweep makes looks needless, at most."""
QUEUES_MAX = 10_000

logger = logging.getLogger("holdfast.expiry")


class Swept(msgspec.Struct, frozen=True):
    """What a sweep moved: back to its queue, to the dead letters, to the log; and log rows cut."""

    requeued: int = 0
    dead: int = 0
    completed: int = 0
    trimmed: int = 0

    def __add__(self, other: Swept) -> Swept:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Swept(*(mine + theirs for mine, theirs in pairs))


class _Look(msgspec.Struct, frozen=True, gc=False):
    at: int
    next_at: int | None
    """The next deadline, if one was near when somebody began to wait."""


class Looks:
    """When one connection last looked for overdue leases, by queue. Thread-safe: a race costs
    nothing but a second look."""

    def __init__(self) -> None:
        self._last: dict[str, _Look] = {}
        self._covered_until = 0

    def due(self, queue: str, now: int) -> bool:
        last = self._last.get(queue)
        if self.covered(now):
            return False
        if last is None or not last.at <= now < last.at + LOOK_MS:
            return True
        return last.next_at is not None and last.next_at <= now

    def looked(self, queue: str, now: int, next_at: int | None) -> None:
        if len(self._last) >= QUEUES_MAX:
            self._last.clear()
        self._last[queue] = _Look(now, next_at)

    def again(self, queue: str) -> None:
        """There may be more: the next lease looks once more."""
        self._last.pop(queue, None)

    def next_at(self, queue: str) -> int | None:
        last = self._last.get(queue)
        return last and last.next_at

    def cover(self, now: int, interval_ms: int) -> None:
        """A sweeper of this connection has swept at `now`, and will again after the interval."""
        self._covered_until = now + min(2 * interval_ms, COVER_MS_MAX)

    def uncover(self) -> None:
        self._covered_until = 0

    def covered(self, now: int) -> bool:
        """Whether a sweeper of this connection does the work. A clock that was set back says no."""
        return self._covered_until - COVER_MS_MAX <= now < self._covered_until


def settle_overdue(
    store: Store, queue: str, late: Sequence[Lease], policy: Policy, clock: Clock, rng: Random
) -> Swept:
    """Settle these leases by the rules, those of them that are still overdue."""
    now = clock.now()
    moves = [lifecycle.expired(lease, policy, now, rng) for lease in late]
    went: Counter[str] = Counter()
    with announce.quiet():  # the caller publishes what was moved
        answers = store.settle(moves, now) if moves else []
    for move, answer in zip(moves, answers, strict=True):
        if answer is Settled.APPLIED:
            went[move.to_queue or "the log"] += 1
            logger.info("%s %s: ack timeout, to %s", queue, move.id, move.to_queue or "the log")
    dlq = dlq_of(queue) if not is_dlq(queue) else ""
    return Swept(went[queue], went[dlq], went["the log"])


def publish(
    store: Store,
    swept: Swept,
    requeued: Mapping[str, int],
    dead: Mapping[str, int],
    now: int,
    triggered_by: str,
) -> None:
    """Publish what was moved, by queue; nothing if nothing was."""
    if swept.requeued or swept.dead or swept.completed:
        store.publish(announce.swept(requeued, dead, now, triggered_by))


def look(
    store: Store,
    looks: Looks,
    queue: str,
    policy: Policy,
    clock: Clock,
    rng: Random,
    *,
    limit: int,
    ahead_ms: int = 0,
) -> bool:
    """Settle up to `limit` overdue leases of a queue that is about to be leased from.

    Whether there were any. With `ahead_ms`, also remember the next deadline if it is that near.
    """
    now = clock.now()
    late = overdue_in(store, queue, now, limit)
    if late:
        swept = settle_overdue(store, queue, late, policy, clock, rng)
        try:
            moved, dead = {queue: swept.requeued}, {queue: swept.dead}
            publish(store, swept, moved, dead, clock.now(), "lease")
        except StoreError as error:
            logger.warning("%s: the event of a requeue was not published: %s", queue, error)
    if len(late) == limit:
        looks.again(queue)
        return True
    coming = overdue_in(store, queue, now + ahead_ms, 1) if ahead_ms and not late else []
    looks.looked(queue, now, coming[0].deadline if coming else None)
    return bool(late)
