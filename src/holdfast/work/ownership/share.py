"""The partitions that one consumer of an ordered queue holds, and how it comes to hold them.

Each is held by a claim, at an epoch that grows with every new owner. The store leases from a
partition only to its owner, so the next owner first takes over what was left behind, and then goes
on in order. An owner that cannot renew stops before its claim runs out.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from holdfast.errors import QueueNotFound
from holdfast.model.message import Lease
from holdfast.model.moves import State
from holdfast.model.queues import Depth, partition_claim
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.queue import LocalQueue
from holdfast.rules import lifecycle
from holdfast.stores.contract import NO_DEADLINE, ByPartition, Claim, Entry, View
from holdfast.work.ownership.generations import is_clear, start_of
from holdfast.work.ownership.line import Blocker, Common, OwnedPartition, Work

MEMBER = "consumer"
"""The kind of record that says that a consumer of a queue is alive."""
PAGE = 1000
DEAD_KEPT = 20
"""Records of dead consumers: this many may be left before they are deleted."""
LOOKS = 5
"""How often within a rebalance interval an owner looks for partitions that are free."""

logger = logging.getLogger("holdfast.ownership")


class Share:
    """One consumer's partitions. `keep` renews and balances them."""

    def __init__(
        self,
        context: Context,
        queue: LocalQueue,
        settings: Settings,
        name: str,
        nudge: threading.Event,
    ) -> None:
        self.queue = queue
        self.name = name
        self.common = Common(context.clock, queue.spec, queue.policy, nudge)
        self.lock = self.common.lock
        self.parts: dict[int, OwnedPartition] = {}
        self._at = context
        self._todo = Work()
        self._lease_ms = settings.partition_lease_ms
        self._renew_ms = settings.partition_renew_ms
        self._rebalance_ms = settings.partition_rebalance_ms
        self._renew_at = self._look_at = self._rebalance_at = 0

    def keep(self) -> None:
        """Do what is due: renew, give up what is too much, take what is free."""
        now = self._at.clock.now()
        if now >= self._renew_at:
            self._renew_at = now + self._renew_ms
            self._renew()
        self.hand_over()
        if now >= self._look_at:
            self._look_at = now + self._rebalance_ms // LOOKS
            rebalance = now >= self._rebalance_at
            if rebalance:
                self._rebalance_at = now + self._rebalance_ms
            self._balance(shed=rebalance)

    def due_in(self) -> float:
        """Seconds until `keep` has something to do."""
        due = min(self._renew_at, self._look_at, self._rebalance_at)
        return max(0, due - self._at.clock.now()) / 1000

    def look_soon(self) -> None:
        """Take over again what is left behind in partitions that are no longer open."""
        self._look_at = 0
        self.common.nudge.set()

    def add_todo(self, work: Work) -> None:
        with self.lock:
            self._todo.add(work)

    def take_todo(self) -> Work:
        """What has come together, also before an error of the store."""
        with self.lock:
            work, self._todo = self._todo, Work()
        return work

    def held(self) -> list[OwnedPartition]:
        with self.lock:
            return list(self.parts.values())

    def leave(self) -> None:
        """Give up everything at once, except what still runs: its claim runs out by itself."""
        with self.lock:
            parts, self.parts = list(self.parts.values()), {}
        for part in parts:
            part.lost = True
            if part.running is None:
                self._claim(part.number, 0)
        self._at.store.put_record(MEMBER, self._member, None, None, self._at.clock.now())

    def read_spec(self) -> None:
        self.common.spec, self.common.policy = self.queue.spec, self.queue.policy

    @property
    def _member(self) -> str:
        return f"{self.queue.name}/{self.name}"

    # Claims

    def claim(self, number: int) -> OwnedPartition | None:
        """None if another owner holds it."""
        claim = self._claim(number, self._lease_ms)
        return claim and self._adopt(number, claim)

    def _claim(self, number: int, ttl_ms: int) -> Claim | None:
        name = partition_claim(self.queue.name, number)
        return self._at.store.claim(name, self.name, ttl_ms, self._at.clock.now())

    def _adopt(self, number: int, claim: Claim) -> OwnedPartition:
        part = OwnedPartition(number, claim, self._until(claim), self.common)
        with self.lock:
            self.parts[number] = part
        return part

    def _until(self, claim: Claim) -> int:
        return claim.expires_at - self._renew_ms

    def _renew(self) -> None:
        now = self._at.clock.now()
        self._at.store.put_record(MEMBER, self._member, b"", None, now)
        fresh: list[OwnedPartition] = []
        for part in self.held():
            claim = self._claim(part.number, self._lease_ms)
            if claim is not None and claim.epoch == part.epoch:
                part.until = self._until(claim)
                continue
            logger.warning("%s: partition %d was lost", self.queue.name, part.number)
            self._lose(part)
            if claim is not None:
                fresh.append(self._adopt(part.number, claim))
        self.take_over(fresh)

    def _lose(self, part: OwnedPartition) -> None:
        with self.lock:
            part.lost = True
            if self.parts.get(part.number) is part:
                del self.parts[part.number]
            self._todo.add(part.clear())

    def hand_over(self) -> None:
        """Give up those that are leaving and have nothing in hand any more."""
        for part in self.held():
            with self.lock:
                ready = part.leaving and not part.out and not part.asking
                if ready:
                    del self.parts[part.number]
                    part.lost = True
            if ready:
                self._claim(part.number, 0)
                logger.info("%s: handed over partition %d", self.queue.name, part.number)

    # Balancing

    def _balance(self, *, shed: bool) -> None:
        """Move towards an equal share. Every consumer computes the same from the same facts."""
        store, now = self._at.store, self._at.clock.now()
        try:
            depths = store.stats(ByPartition(self.queue.name), now)
            self.read_spec()
        except QueueNotFound:
            for part in self.held():
                self._lose(part)
            return
        wanted = lifecycle.in_use(self.common.spec, depths)
        claims = store.claims([partition_claim(self.queue.name, number) for number in wanted])
        owners = {
            number: claim.owner
            for number, claim in zip(wanted, claims, strict=True)
            if claim is not None and claim.expires_at > now
        }
        share = self._fair_share(len(wanted), Counter(owners.values()), now)
        with self.lock:
            staying = [part for part in self.parts.values() if not part.leaving]
            mine = [part for part in staying if part.number in wanted]
            mine.sort(key=lambda part: not part.out)  # idle ones are given up first
            surplus = mine[share:] if shed else []
            for part in [*(part for part in staying if part not in mine), *surplus]:
                part.leaving = True
                self._todo.add(part.clear())
        self.hand_over()
        held = {part.number for part in self.held()}  # perhaps run out: renewing will show
        free = [n for n in wanted if n not in owners and n not in held]
        self._take(free, share - len(mine))
        kept = [part for part in mine if not part.leaving]
        self.take_over([p for p in kept if not p.open or _left_behind(p, depths)])

    def _fair_share(self, partitions: int, owned: Counter[str], now: int) -> int:
        """Those that own most keep the larger shares, so that few partitions move."""
        prefix = f"{self.queue.name}/"
        records = self._at.store.records(MEMBER, prefix=prefix)
        old = now - self._lease_ms
        alive = {r.name.removeprefix(prefix) for r in records if r.updated_at > old}
        if len(records) > len(alive) + DEAD_KEPT:
            self._at.store.drop_records(MEMBER, prefix=prefix, before=old, limit=PAGE)
        ranked = sorted(alive | {self.name}, key=lambda name: (-owned[name], name))
        least, over = divmod(partitions, len(ranked))
        return least + (ranked.index(self.name) < over)

    def _take(self, free: Sequence[int], n: int) -> None:
        taken: list[OwnedPartition] = []
        # A random start, so that owners do not all race for the same partition.
        start = secrets.randbelow(len(free)) if free else 0
        for number in [*free[start:], *free[:start]]:
            if len(taken) >= n:
                break
            part = self.claim(number)
            if part is not None:
                taken.append(part)
        if taken:
            numbers = sorted(part.number for part in taken)
            logger.info("%s: owns partitions %s", self.queue.name, numbers)
        self.take_over(taken)

    # Taking over

    def take_over(self, parts: Sequence[OwnedPartition]) -> None:
        """Put back what others left leased in partitions that are ours now, and what we leased
        without getting the answer; learn which keys are blocked.

        What a batch holds is not taken: the partition waits until the batch is settled.
        """
        with self.lock:
            parts = [part for part in parts if not part.asking]  # its answer is on the way
            for part in parts:
                part.open = False
        if not parts:
            return
        now, by_number = self._at.clock.now(), {part.number: part for part in parts}
        store, policy = self._at.store, self.common.policy
        depths = store.stats(ByPartition(self.queue.name), now)
        held, left = set[int](), list[tuple[OwnedPartition, Lease]]()
        if any(_left_behind(part, depths) for part in parts):
            held, left = self._find_left_behind(by_number)
        now = self._at.clock.now()
        parts = [part for part in parts if not part.lost and now < part.until]
        left = [(part, lease) for part, lease in left if part in parts]  # still ours: so were these
        moves = [lifecycle.abandoned(lease, policy, now) for _, lease in left]
        store.settle(moves, now)
        for part, lease in left:
            part.careful += 1
            logger.info("%s %s: taken over from %s", self.queue.name, lease.id, lease.owner)
        waits = {part.number for part in parts if depths[part.number].delayed}
        for number, key, blocker in self.failed_keys(waits):
            with self.lock:
                blocked = by_number[number].blocked
                blocked[key] = blocked.get(key, blocker).or_later(blocker.until)
        for part in parts:
            part.open = part.number not in held

    def _find_left_behind(
        self, by_number: dict[int, OwnedPartition]
    ) -> tuple[set[int], list[tuple[OwnedPartition, Lease]]]:
        """Partitions of which a batch holds messages; leases that are in nobody's hands."""
        held = set[int]()
        left: list[tuple[OwnedPartition, Lease]] = []
        for entry in self._browse(State.LEASED):
            part, lease = by_number.get(entry.message.partition), entry.lease
            if part is None or lease is None or lease.token in part.out:
                continue
            if lease.deadline >= NO_DEADLINE:
                held.add(part.number)
            else:
                left.append((part, lease))
        return held, left

    def failed_keys(
        self, numbers: Iterable[int], at: int | None = None
    ) -> Iterator[tuple[int, str, Blocker]]:
        """Keys that wait for a failed message in these partitions, in the order of their places."""
        if not numbers or not self.common.blocks:
            return
        found = [
            entry
            for entry in self._browse(State.DELAYED, at)
            if entry.message.partition in numbers
            and entry.message.key is not None
            and entry.message.first_leased_at is not None
        ]
        for entry in sorted(found, key=lambda entry: entry.place):
            message = entry.message
            blocker = Blocker(message.id, message.available_at)
            yield message.partition, message.key or "", blocker

    def _browse(self, state: State, at: int | None = None) -> Iterator[Entry]:
        after: str | None = None
        while True:
            view, now = View(self.queue.name, state), self._at.clock.now() if at is None else at
            page = self._at.store.browse(view, after, PAGE, now)
            yield from page.entries
            after = page.after
            if after is None:
                return

    # Older generations of partitions

    def start_of(self, number: int) -> int:
        return start_of(self.common.spec, number)

    def is_clear(self, number: int, depths: Sequence[Depth]) -> bool:
        return is_clear(self.common.spec, number, depths)

    def not_barred(self, parts: list[OwnedPartition]) -> list[OwnedPartition]:
        """Those that wait for no older partition."""
        if not any(self.start_of(part.number) for part in parts):
            return parts
        depths = self._at.store.stats(ByPartition(self.queue.name), self._at.clock.now())
        return [part for part in parts if self.is_clear(part.number, depths)]


def _left_behind(part: OwnedPartition, depths: Sequence[Depth]) -> bool:
    return part.number < len(depths) and depths[part.number].leased > len(part.out)
