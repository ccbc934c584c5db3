"""Leases from the partitions that one consumer owns, and says which messages may run."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping

from holdfast.model.message import Lease
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.queue import LocalQueue
from holdfast.rules.lifecycle import ms
from holdfast.stores.contract import ByPartition, LeaseAsk, held_in
from holdfast.work.ownership.generations import Barriers
from holdfast.work.ownership.line import InLine, OwnedPartition, Work
from holdfast.work.ownership.share import Share

BATCH = 32
POLL_S = 0.05


class Owner:
    """One consumer's share of one ordered queue. Thread-safe; `tick` keeps it."""

    def __init__(
        self,
        context: Context,
        queue: LocalQueue,
        settings: Settings,
        *,
        batch: int = BATCH,
        nudge: threading.Event | None = None,
        name: str = "",
        on_lease: Callable[[list[InLine]], None] | None = None,
    ) -> None:
        self.queue = queue
        self.name = name or f"{context.owner}:{secrets.token_hex(2)}"
        self.nudge = nudge or threading.Event()
        """Set when `tick` has something to do before its time."""
        self._on_lease = on_lease
        """Told of everything that was leased before any of it may start: it may start in another
        thread, and be finished before the lease returns."""
        self._at = context
        self._share = Share(context, queue, settings, self.name, self.nudge)
        self._common = self._share.common
        self._lock = self._share.lock
        self._batch = self._each = batch

    def tick(self) -> Work:
        """Keep the share, and say what may run now."""
        self._share.keep()
        with self._lock:
            for part in self._share.held():  # its claim may just have been renewed
                self._share.add_todo(part.next())
        return self._share.take_todo()

    def due_in(self) -> float:
        """Seconds until `tick` has something to do."""
        return self._share.due_in()

    def owned(self) -> list[int]:
        """The partitions that are its own and can be worked now."""
        now = self._at.clock.now()
        return sorted(p.number for p in self._share.held() if p.open and now < p.until)

    def clear(self) -> Work:
        """Send back everything that has not started, and prepare to leave."""
        work = Work()
        with self._lock:
            for part in self._share.held():
                part.leaving = True
                work.add(part.clear())
        return work

    def leave(self) -> None:
        """Give up everything at once, except what still runs: its claim runs out by itself."""
        self._share.leave()

    def lease(self, ahead: int = 0) -> Work:
        """Ask for more where little is left, and say what may run.

        `ahead`: how many are worth having in hand, in all partitions together; it is a batch in
        each if that is more.
        """
        now = self._at.clock.now()
        if self._at.looks.due(self.queue.name, now):
            self._at.look(self.queue.name, self._common.policy)
        with self._lock:
            parts = self._share.held()
            self._each = max(self._batch, ahead // max(1, len(parts)))
            hungry = [part for part in parts if part.may_ask(now, self._each)]
        hungry = self._share.not_barred(hungry)
        alone = [part for part in hungry if part.careful or self._batch == 1]
        plain = [part for part in hungry if part not in alone]
        for parts, limit in [(plain, self._each * len(plain)), *(([p], 1) for p in alone)]:
            if parts:
                self._share.add_todo(self._lease(parts, limit))
        return self._share.take_todo()

    def _lease(self, parts: list[OwnedPartition], limit: int) -> Work:
        now = self._at.clock.now()
        with self._lock:
            turns = {part: part.turn for part in parts if part.may_ask(now, self._each)}
            for part in turns:
                part.asking = True
        if not turns:
            return Work()
        try:
            ask = LeaseAsk(
                self.queue.name,
                limit,
                self.name,
                secrets.token_hex(8),
                ms(self._common.policy.ack_timeout or 0.0),
                tuple(part.number for part in turns),
                None,
                tuple(part.epoch for part in turns),
            )
            now = self._at.clock.now()
            leases = self._at.store.lease(ask, now)
            barriers = self._barriers(leases, now)
            gone = self._blockers_gone(leases, now)
            return self._hand_in(leases, turns, now, barriers, gone)
        except BaseException:  # the store may have leased some: nothing may pass them
            for part in turns:
                part.open = False
            self._share.look_soon()
            raise
        finally:
            for part in turns:
                part.asking = False

    def _hand_in(
        self,
        leases: list[Lease],
        turns: Mapping[OwnedPartition, int],
        asked_at: int,
        barriers: Barriers,
        gone: set[str],
    ) -> Work:
        """Put what was leased in line, or send it back if something has come before it since."""
        work = Work()
        with self._lock:
            asked = {part.number: part for part in turns if not part.lost}
            late = {part for part, turn in turns.items() if part.turn != turn}
            new = [
                InLine(lease, part, barriers.wait_until(lease.message))
                for lease in leases
                if (part := asked.get(lease.message.partition))  # else its new owner takes it over
            ]
            for delivery in new:
                part, lease = delivery.part, delivery.lease
                part.out[lease.token] = delivery
                is_late = part in late or part.number in barriers.partitions or part.leaving
                waits = delivery.until is not None
                if is_late or waits or part.is_held(lease, asked_at, gone):
                    part.send_back(delivery, work)
                else:
                    part.line.append(delivery)
            work.leased = len(new)
            if self._on_lease is not None:
                self._on_lease(new)
            for part in asked.values():
                work.add(part.next())
        return work

    def _barriers(self, leases: list[Lease], asked_at: int) -> Barriers:
        """Read after the lease: whatever is older than these messages was enqueued before."""
        share, spec = self._share, self._common.spec
        numbers = {n for lease in leases if share.start_of(n := lease.message.partition)}
        if not numbers:
            return Barriers(spec)
        depths = self._at.store.stats(ByPartition(self.queue.name), self._at.clock.now())
        older = {d.partition for d in depths if d.partition < share.start_of(max(numbers))}
        waits = {n for n in older if depths[n].delayed}
        keys: dict[str, tuple[int, int]] = {}
        if waits and self._common.blocks:
            for number, key, blocker in share.failed_keys(waits, asked_at):
                first, until = keys.get(key, (number, 0))
                keys[key] = (first, max(until, blocker.until))
            # One that came due meanwhile is no longer delayed: now it counts as ready.
            depths = self._at.store.stats(ByPartition(self.queue.name), self._at.clock.now())
        return Barriers(spec, {n for n in numbers if not share.is_clear(n, depths)}, keys)

    def _blockers_gone(self, leases: list[Lease], now: int) -> set[str]:
        """Blockers that are finished, dead or purged."""
        here = {lease.id for lease in leases}
        with self._lock:
            due = {
                blocker.id
                for lease in leases
                if (part := self._share.parts.get(lease.message.partition)) and lease.message.key
                if (blocker := part.blocked.get(lease.message.key))
                if blocker.id not in here and blocker.until <= now
            }
        if not due:
            return set()
        known = held_in(self._at.store, self.queue.name, sorted(due))
        return due - {message.id for message in known if message.queue == self.queue.name}
