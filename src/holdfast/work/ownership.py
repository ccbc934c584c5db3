"""Who works which partition of an ordered queue, and what of it may run next.

An owner holds a claim on each of its partitions, at an epoch that grows with every new owner. The
store leases from a partition to its owner alone, so whoever comes after first takes over what was
left behind, and then goes on in order. An owner that cannot renew stops before its claim runs out.

In the owner's hands a partition is a line. One message of it runs at a time. While anything is on
its way back to the store, nothing more is asked for, and what was asked for before goes back as
well: so whatever runs was leased when all that comes before it in line was in its place.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.errors import LeaseLost, QueueNotFound, StoreError
from holdfast.model.message import Lease
from holdfast.model.moves import Settled, State, Target, Transition
from holdfast.model.policy import seconds, whole
from holdfast.model.queues import Depth, partition_claim
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.queue import Queue
from holdfast.rules import lifecycle
from holdfast.rules.decide import decide
from holdfast.rules.lifecycle import ms
from holdfast.rules.outcome import Done, Fail, Outcome, Release, Retry
from holdfast.stores.contract import (
    NO_DEADLINE,
    ByPartition,
    Claim,
    Entry,
    LeaseAsk,
    View,
    batch_in,
    held_in,
)

MEMBER = "consumer"
"""The kind of record that says that a consumer of a queue is alive."""
BATCH = 32
PAGE = 1000
DEAD_KEPT = 20
"""Records of consumers that were killed: as many may lie about before they are cleared away."""
LOOKS = 5
"""How often within a rebalance interval an owner looks for partitions that are free."""
POLL_S = 0.05
MAKE_WAY_MS = 100

logger = logging.getLogger("holdfast.ownership")


class Delivery:
    """One leased message on its way through a consumer."""

    __slots__ = (
        "back",
        "deadline",
        "ended",
        "lease",
        "part",
        "refused",
        "returns",
        "until",
        "verdict",
    )

    def __init__(self, lease: Lease, part: Part | None = None) -> None:
        self.lease = lease
        self.deadline = lease.deadline
        self.verdict: Any = None
        """What came of it; None for one that never started: it is given back."""
        self.part = part
        """The partition of an ordered queue that it is of."""
        self.back = False
        """It goes back without having run, because of what comes before it."""
        self.until: int | None = None
        """When what holds its key comes again, if that is in another partition."""
        self.returns = False
        """It failed, and holds its key until it is back in line, or dead."""
        self.refused = 0
        """How often the store did not take what came of it."""
        self.ended = False
        """It is settled, or given up."""


class Blocker(msgspec.Struct, frozen=True):
    """The failed message that holds a key, until all that was put off for it may come again."""

    id: str
    until: int = 0

    def or_later(self, until: int) -> Blocker:
        return Blocker(self.id, max(self.until, until))


class Part:
    """A partition in its owner's hands."""

    def __init__(self, number: int, claim: Claim, until: int) -> None:
        self.number = number
        self.epoch = claim.epoch
        self.until = until
        """Work ends here unless the claim is renewed: some time before it can be taken."""
        self.open = False
        """What is leased of it, and is not in our hands, has been taken over. Only then is anything
        asked for."""
        self.leaving = False
        self.lost = False
        self.asking = False
        self.line: deque[Delivery] = deque()
        """Leased, not started."""
        self.running: Delivery | None = None
        self.out: dict[str, Delivery] = {}
        """Leased, not settled, by token."""
        self.returning = 0
        """How many of them are on their way back."""
        self.turn = 0
        """Goes up with each that is sent back: what was asked for before counts no more."""
        self.blocked: dict[str, Blocker] = {}
        self.careful = 0
        """So many are leased one by one, as one of them may have killed the owner before."""


class Work(msgspec.Struct):
    """What to do next: run these, and settle those as given back."""

    start: list[Delivery] = []
    back: list[Delivery] = []
    leased: int = 0
    """How many are new: of these two, and of what waits in line."""

    def add(self, other: Work) -> None:
        self.start += other.start
        self.back += other.back
        self.leased += other.leased


class Owner:
    """One consumer's share of one ordered queue. Thread-safe; `tick` keeps it."""

    def __init__(
        self,
        context: Context,
        queue: Queue,
        settings: Settings,
        *,
        batch: int = BATCH,
        nudge: threading.Event | None = None,
        name: str = "",
        on_lease: Callable[[list[Delivery]], None] | None = None,
    ) -> None:
        self.queue = queue
        self.name = name or f"{context.owner}:{secrets.token_hex(2)}"
        self.nudge = nudge or threading.Event()
        """Set when `tick` has something to do before its time."""
        self._on_lease = on_lease
        """Told of all that was leased before any of it may start: that can be in another thread,
        and all over before the lease returns."""
        self._at = context
        self._lease_ms = settings.partition_lease_ms
        self._renew_ms = settings.partition_renew_ms
        self._rebalance_ms = settings.partition_rebalance_ms
        self._batch = self._each = batch
        self._lock = threading.RLock()
        self._parts: dict[int, Part] = {}
        self._todo = Work()
        self._waiting: dict[str, int] = {}
        self._renew_at = self._look_at = self._rebalance_at = 0
        self._spec = queue.spec
        self._policy = queue.policy

    # Ownership

    def tick(self) -> Work:
        """Whatever is due: renew, give up what is too much, take what is free."""
        now = self._at.clock.now()
        if now >= self._renew_at:
            self._renew_at = now + self._renew_ms
            self._renew()
        self._hand_over()
        if now >= self._look_at:
            self._look_at = now + self._rebalance_ms // LOOKS
            rebalance = now >= self._rebalance_at
            if rebalance:
                self._rebalance_at = now + self._rebalance_ms
            self._balance(shed=rebalance)
        with self._lock:
            for part in self._parts.values():  # its claim may just have been renewed
                self._todo.add(self._next(part))
        return self._all_to_do()

    def _all_to_do(self) -> Work:
        """What has come together, also before an error of the store."""
        with self._lock:
            work, self._todo = self._todo, Work()
        return work

    def due_in(self) -> float:
        """Seconds until `tick` has something to do."""
        due = min(self._renew_at, self._look_at, self._rebalance_at)
        return max(0, due - self._at.clock.now()) / 1000

    def leave(self) -> None:
        """Give up everything at once, but for what still runs: its claim runs out by itself."""
        store = self._at.store
        with self._lock:
            parts, self._parts = list(self._parts.values()), {}
        for part in parts:
            part.lost = True
            if part.running is None:
                self._claim(part.number, 0)
        store.put_record(MEMBER, self._member, None, None, self._at.clock.now())

    # For one who holds batches: it takes whole partitions, and no share

    def seize(self) -> list[Part]:
        """Claim every partition that is free, or ours; those of them that can be worked now."""
        now = self._at.clock.now()
        depths = self._at.store.stats(ByPartition(self.queue.name), now)
        self._spec, self._policy = self.queue.spec, self.queue.policy
        with self._lock:
            self._parts.clear()  # nothing is kept between two batches but the claims
        fresh: list[Part] = []
        for number in lifecycle.in_use(self._spec, depths):
            claim = self._claim(number, self._lease_ms)
            if claim is not None:
                fresh.append(self._adopt(number, claim))
        self._take_over(fresh)
        self._waiting = self._delayed_keys()
        return self._not_barred([part for part in fresh if part.open])

    def _delayed_keys(self) -> dict[str, int]:
        keys: dict[str, int] = {}
        if self._policy.on_failure == "block":
            for _, key, blocker in self._blocked(range(self._spec.partitions)):
                keys[key] = max(keys.get(key, 0), blocker.until)
        return keys

    def put_off(self, number: int, batch: str, asked_at: int) -> int:
        """Of what a batch name took of a partition at a time, put back what has to wait; how many.

        That is what waits for a message that was delayed then. It may be due by now, and not be
        seen any more: hence what was seen before counts as well.
        """
        store, name, back = self._at.store, self.queue.name, 0
        before = {key: until for key, until in self._waiting.items() if until > asked_at}
        keys = before | self._delayed_keys()
        depths = store.stats(ByPartition(name), self._at.clock.now())
        barred = not self._is_clear(number, depths)
        after: str | None = None
        while (keys or barred) and (leases := batch_in(store, name, batch, after, PAGE)):
            now, after = self._at.clock.now(), leases[-1].id
            waiting = [lease for lease in leases if barred or (lease.message.key or "") in keys]
            moves = [
                lifecycle.parked(lease, max(now, keys.get(lease.message.key or "", 0)))
                for lease in waiting
            ]
            back += store.settle(moves, now).count(Settled.APPLIED)
        return back

    def owned(self) -> list[int]:
        """The partitions that are its own and can be worked now."""
        now = self._at.clock.now()
        with self._lock:
            found = [p.number for p in self._parts.values() if p.open and now < p.until]
        return sorted(found)

    @property
    def _member(self) -> str:
        return f"{self.queue.name}/{self.name}"

    def _claim(self, number: int, ttl_ms: int) -> Claim | None:
        name = partition_claim(self.queue.name, number)
        return self._at.store.claim(name, self.name, ttl_ms, self._at.clock.now())

    def _renew(self) -> None:
        now = self._at.clock.now()
        self._at.store.put_record(MEMBER, self._member, b"", None, now)
        fresh: list[Part] = []
        for part in self._held():
            claim = self._claim(part.number, self._lease_ms)
            if claim is not None and claim.epoch == part.epoch:
                part.until = self._until(claim)
                continue
            logger.warning("%s: partition %d was lost", self.queue.name, part.number)
            self._lose(part)
            if claim is not None:
                fresh.append(self._adopt(part.number, claim))
        self._take_over(fresh)

    def _until(self, claim: Claim) -> int:
        return claim.expires_at - self._renew_ms

    def _held(self) -> list[Part]:
        with self._lock:
            return list(self._parts.values())

    def _lose(self, part: Part) -> None:
        with self._lock:
            part.lost = True
            if self._parts.get(part.number) is part:
                del self._parts[part.number]
            self._todo.add(self._clear(part))

    def _adopt(self, number: int, claim: Claim) -> Part:
        part = Part(number, claim, self._until(claim))
        with self._lock:
            self._parts[number] = part
        return part

    def _balance(self, *, shed: bool) -> None:
        """Towards an equal share. Every consumer does the same sum on the same facts."""
        store, now = self._at.store, self._at.clock.now()
        try:
            depths = store.stats(ByPartition(self.queue.name), now)
            self._spec, self._policy = self.queue.spec, self.queue.policy
        except QueueNotFound:
            for part in self._held():
                self._lose(part)
            return
        wanted = lifecycle.in_use(self._spec, depths)
        claims = store.claims([partition_claim(self.queue.name, number) for number in wanted])
        owners = {
            number: claim.owner
            for number, claim in zip(wanted, claims, strict=True)
            if claim is not None and claim.expires_at > now
        }
        share = self._share(len(wanted), Counter(owners.values()), now)
        with self._lock:
            staying = [part for part in self._parts.values() if not part.leaving]
            mine = [part for part in staying if part.number in wanted]
            mine.sort(key=lambda part: not part.out)  # those at rest move
            surplus = mine[share:] if shed else []
            for part in [*(part for part in staying if part not in mine), *surplus]:
                part.leaving = True
                self._todo.add(self._clear(part))
        self._hand_over()
        held = {part.number for part in self._held()}  # perhaps run out: renewing tells
        free = [n for n in wanted if n not in owners and n not in held]
        self._take(free, share - len(mine))
        kept = [part for part in mine if not part.leaving]
        self._take_over([p for p in kept if not p.open or _left_behind(p, depths)])

    def _share(self, partitions: int, owned: Counter[str], now: int) -> int:
        """Those who own most keep the larger shares, so that few partitions move."""
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
        taken: list[Part] = []
        start = secrets.randbelow(len(free)) if free else 0  # not all of us the same ones
        for number in [*free[start:], *free[:start]]:
            if len(taken) >= n:
                break
            claim = self._claim(number, self._lease_ms)
            if claim is not None:
                taken.append(self._adopt(number, claim))
        if taken:
            numbers = sorted(part.number for part in taken)
            logger.info("%s: owns partitions %s", self.queue.name, numbers)
        self._take_over(taken)

    def _hand_over(self) -> None:
        """Give up those that are leaving and have nothing in hand any more."""
        for part in self._held():
            with self._lock:
                ready = part.leaving and not part.out and not part.asking
                if ready:
                    del self._parts[part.number]
                    part.lost = True
            if ready:
                self._claim(part.number, 0)
                logger.info("%s: handed over partition %d", self.queue.name, part.number)

    def _take_over(self, parts: Sequence[Part]) -> None:
        """Put back what others left leased in partitions that are ours now, and what we leased and
        never heard of; learn what is blocked.

        What a batch name holds is not taken: the partition waits until it is settled.
        """
        with self._lock:
            parts = [part for part in parts if not part.asking]  # its answer is on the way
            for part in parts:
                part.open = False
        if not parts:
            return
        now, by_number = self._at.clock.now(), {part.number: part for part in parts}
        name, store = self.queue.name, self._at.store
        depths = store.stats(ByPartition(name), now)
        held: set[int] = set()
        left: list[tuple[Part, Lease]] = []
        if any(_left_behind(part, depths) for part in parts):
            for entry in self._browse(State.LEASED):
                part, lease = by_number.get(entry.message.partition), entry.lease
                if part is None or lease is None or lease.token in part.out:
                    continue
                if lease.deadline >= NO_DEADLINE:
                    held.add(part.number)
                else:
                    left.append((part, lease))
        now = self._at.clock.now()
        parts = [part for part in parts if not part.lost and now < part.until]
        left = [(part, lease) for part, lease in left if part in parts]  # still ours: so were these
        moves = [lifecycle.abandoned(lease, self._policy, now) for _, lease in left]
        store.settle(moves, now)
        for part, lease in left:
            part.careful += 1
            logger.info("%s %s: taken over from %s", name, lease.id, lease.owner)
        waits = {part.number for part in parts if depths[part.number].delayed}
        if waits and self._policy.on_failure == "block":
            for number, key, blocker in self._blocked(waits):
                with self._lock:
                    blocked = by_number[number].blocked
                    blocked[key] = blocked.get(key, blocker).or_later(blocker.until)
        for part in parts:
            part.open = part.number not in held

    def _blocked(
        self, numbers: Iterable[int], at: int | None = None
    ) -> Iterator[tuple[int, str, Blocker]]:
        """Keys that wait for a message that failed, in the order of their places."""
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

    # The line

    def lease(self, ahead: int = 0) -> Work:
        """Ask for more where little is left, and say what may run. `ahead`: so many are worth
        having in hand, in all partitions together; a batch in each if that is more."""
        now = self._at.clock.now()
        if self._at.looks.due(self.queue.name, now):
            self._at.look(self.queue.name, self._policy)
        with self._lock:
            self._each = max(self._batch, ahead // max(1, len(self._parts)))
            hungry = [part for part in self._parts.values() if self._may_ask(part, now)]
        hungry = self._not_barred(hungry)
        alone = [part for part in hungry if part.careful or self._batch == 1]
        plain = [part for part in hungry if part not in alone]
        for parts, limit in [(plain, self._each * len(plain)), *(([p], 1) for p in alone)]:
            if parts:
                work = self._lease(parts, limit)
                with self._lock:
                    self._todo.add(work)
        return self._all_to_do()

    def _may_ask(self, part: Part, now: int) -> bool:
        fit = part.open and not part.leaving and not part.returning and now < part.until
        return fit and len(part.out) <= (0 if part.careful else self._each // 2)

    def _lease(self, parts: list[Part], limit: int) -> Work:
        now = self._at.clock.now()
        with self._lock:
            parts = [part for part in parts if self._may_ask(part, now)]
            turns = [(part, part.turn) for part in parts]
            for part in parts:
                part.asking = True
        if not parts:
            return Work()
        try:
            ask = LeaseAsk(
                self.queue.name,
                limit,
                self.name,
                secrets.token_hex(8),
                ms(self._policy.ack_timeout or 0.0),
                tuple(part.number for part in parts),
                None,
                tuple(part.epoch for part in parts),
            )
            now = self._at.clock.now()
            leases = self._at.store.lease(ask, now)
            barred, keys = self._barriers(leases, now)
            gone = self._blockers_gone(leases, now)
            return self._hand_in(leases, turns, now, barred, keys, gone)
        except BaseException:  # the store may have leased some: nothing may pass them
            for part in parts:
                part.open = False
            self._look_at = 0
            self.nudge.set()
            raise
        finally:
            for part in parts:
                part.asking = False

    def _hand_in(
        self,
        leases: list[Lease],
        turns: list[tuple[Part, int]],
        asked_at: int,
        barred: set[int],
        keys: dict[str, tuple[int, int]],
        gone: set[str],
    ) -> Work:
        new: list[Delivery] = []
        work = Work()
        with self._lock:
            asked = {part.number: part for part, _ in turns if not part.lost}
            late = {part.number for part, turn in turns if part.turn != turn}
            for lease in leases:
                message = lease.message
                part = asked.get(message.partition)
                if part is None:
                    continue  # lost meanwhile: whoever owns it now takes this over
                delivery = Delivery(lease, part)
                part.out[lease.token] = delivery
                new.append(delivery)
                number = message.partition
                older, until = keys.get(message.key or "", (number, None))
                if older < self._start(number):
                    delivery.until = until
                late_for = number in late or number in barred or part.leaving
                if (
                    late_for
                    or delivery.until is not None
                    or self._is_held(part, lease, asked_at, gone)
                ):
                    self._send_back(delivery, work)
                else:
                    part.line.append(delivery)
            work.leased = len(new)
            if self._on_lease is not None:
                self._on_lease(new)
            for part in asked.values():
                work.add(self._next(part))
        return work

    def _is_held(self, part: Part, lease: Lease, asked_at: int, gone: set[str]) -> bool:
        """Whether an earlier message of its key comes first; that one itself ends the hold, if all
        that was put off for it was due when these were asked for, and so is among them in order."""
        key = lease.message.key
        blocker = part.blocked.get(key) if key is not None else None
        if key is None or blocker is None:
            return False
        due = blocker.until <= asked_at
        if blocker.id == lease.id or blocker.id in gone:
            if due:
                del part.blocked[key]
            return False
        if due:  # of a higher priority, else the other would have come first: it makes way
            part.blocked[key] = Blocker(blocker.id, self._at.clock.now() + MAKE_WAY_MS)
        return True

    def _next(self, part: Part) -> Work:
        """The head of the line may run if nothing does, and all of it is still ours."""
        now = self._at.clock.now()
        if part.running or not part.line or part.lost or now >= part.until:
            return Work()
        if part.line[0].deadline <= now:  # swept, or about to be: it is leased anew, in order
            return self._clear(part)
        part.running = part.line.popleft()
        return Work([part.running])

    def _send_back(self, delivery: Delivery, work: Work) -> None:
        part = delivery.part
        assert part is not None
        delivery.back = True
        part.returning += 1
        part.turn += 1
        work.back.append(delivery)

    def _clear(self, part: Part) -> Work:
        work = Work()
        while part.line:
            self._send_back(part.line.popleft(), work)
        return work

    def clear(self) -> Work:
        """Send back everything that has not started."""
        work = Work()
        with self._lock:
            for part in self._parts.values():
                part.leaving = True
                work.add(self._clear(part))
        return work

    def finished(self, delivery: Delivery, *, failed: bool, started: bool = True) -> Work:
        """It ran: what comes next. A key whose message failed is held in its place. One that did
        not start goes back, and all that is behind it."""
        part, key, work = delivery.part, delivery.lease.message.key, Work()
        assert part is not None
        with self._lock:
            if part.running is delivery:
                part.running = None
            if not started:
                delivery.back = True
                part.returning += 1
                part.turn += 1
                return self._clear(part)
            if failed and key is not None and self._policy.on_failure == "block":
                delivery.returns = True
                part.returning += 1
                part.turn += 1
                before = part.blocked.get(key)
                part.blocked[key] = Blocker(delivery.lease.id, before.until if before else 0)
                for other in [d for d in part.line if d.lease.message.key == key]:
                    part.line.remove(other)
                    self._send_back(other, work)
            work.add(self._next(part))
        return work

    # Settling

    def holds(self, delivery: Delivery, now: int) -> bool:
        """Whether what it is of is still ours; if not, nothing may be said about it."""
        part = delivery.part
        assert part is not None
        return not part.lost and now < part.until

    def given_back(self, delivery: Delivery, now: int) -> Transition:
        """To its place in line: at once, or when the message that holds its key comes again."""
        message, part = delivery.lease.message, delivery.part
        assert part is not None
        key, until = message.key, max(now, delivery.until or 0)
        with self._lock:
            if key is not None and key in part.blocked:
                part.blocked[key] = part.blocked[key].or_later(until)
                until = part.blocked[key].until
        return lifecycle.parked(delivery.lease, until)

    def decided(self, delivery: Delivery, move: Transition) -> None:
        """The fate of one that failed: its key waits for it, or is free when it is dead."""
        part, message = delivery.part, delivery.lease.message
        if part is None or not delivery.returns or message.key is None:
            return
        with self._lock:
            blocker = part.blocked.get(message.key)
            if blocker is not None and blocker.id == message.id:
                back = move.target is Target.WAITING and move.to_queue == message.queue
                until = move.available_at if back else 0
                part.blocked[message.key] = blocker.or_later(until)

    def settled(self, delivery: Delivery, answer: Settled | None) -> Work:
        """The store has it, or nothing was said about it (None)."""
        part = delivery.part
        assert part is not None
        with self._lock:
            part.out.pop(delivery.lease.token, None)
            if delivery.back or delivery.returns:
                part.returning -= 1
            elif part.careful:
                part.careful -= 1
            if part.leaving and not part.out:
                self.nudge.set()
            if answer is Settled.STALE and not delivery.back:
                return self._clear(part)  # it is back in line, before these
            return Work()

    # Generations: what a key had before partitions were added comes first

    def _not_barred(self, parts: list[Part]) -> list[Part]:
        if not any(self._start(part.number) for part in parts):
            return parts
        depths = self._at.store.stats(ByPartition(self.queue.name), self._at.clock.now())
        return [part for part in parts if self._is_clear(part.number, depths)]

    def _barriers(
        self, leases: list[Lease], asked_at: int
    ) -> tuple[set[int], dict[str, tuple[int, int]]]:
        """Looked at after the lease: whoever enqueued these had enqueued what is older before."""
        numbers = {n for lease in leases if self._start(n := lease.message.partition)}
        if not numbers:
            return set(), {}
        depths = self._at.store.stats(ByPartition(self.queue.name), self._at.clock.now())
        older = {d.partition for d in depths if d.partition < self._start(max(numbers))}
        waits = {n for n in older if depths[n].delayed}
        keys: dict[str, tuple[int, int]] = {}
        if waits and self._policy.on_failure == "block":
            for number, key, blocker in self._blocked(waits, asked_at):
                first, until = keys.get(key, (number, 0))
                keys[key] = (first, max(until, blocker.until))
            # One that came due meanwhile is among the delayed no more: now it counts as ready.
            depths = self._at.store.stats(ByPartition(self.queue.name), self._at.clock.now())
        return {n for n in numbers if not self._is_clear(n, depths)}, keys

    def _start(self, number: int) -> int:
        """The first partition of its generation."""
        return max(start for start in self._spec.starts if start <= number)

    def _is_clear(self, number: int, depths: list[Depth]) -> bool:
        return not any(d.ready or d.leased for d in depths[: self._start(number)])

    def _blockers_gone(self, leases: list[Lease], now: int) -> set[str]:
        """Blockers that are finished, or dead, or that somebody purged."""
        here = {lease.id for lease in leases}
        with self._lock:
            due = {
                blocker.id
                for lease in leases
                if (part := self._parts.get(lease.message.partition)) and lease.message.key
                if (blocker := part.blocked.get(lease.message.key))
                if blocker.id not in here and blocker.until <= now
            }
        if not due:
            return set()
        known = held_in(self._at.store, self.queue.name, sorted(due))
        return due - {message.id for message in known if message.queue == self.queue.name}


def _left_behind(part: Part, depths: Sequence[Depth]) -> bool:
    return part.number < len(depths) and depths[part.number].leased > len(part.out)


class Consumer:
    """An ordered queue by hand: one message of each partition at a time, in order.

    `with hf.consumer("orders") as consumer:`, then `lease`, and `ack`, `nack`, `fail` or `release`.
    A thread keeps its partitions; without one (`background=False`) call `tick` often enough.
    """

    def __init__(self, owner: Owner, *, background: bool = True) -> None:
        self._owner = owner
        self._queue = owner.queue
        self._at = owner.queue.context
        self._here: dict[str, Delivery] = {}
        self._ready: deque[Delivery] = deque()
        self._back: list[Delivery] = []
        self._lock = threading.RLock()
        self._quit = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="holdfast-owner", daemon=True)
        if background:
            self._thread.start()

    @property
    def name(self) -> str:
        return self._owner.name

    @property
    def partitions(self) -> list[int]:
        """Those that it owns now."""
        return self._owner.owned()

    def tick(self) -> None:
        self._do(self._owner.tick())

    def lease(self, limit: int = 1, wait: float = 0.0) -> list[Lease]:
        """Up to `limit` messages, at most one of each partition that is owned."""
        whole("limit", limit, low=1)
        seconds("wait", wait)
        until = self._at.clock.monotonic() + wait
        while True:
            work = self._owner.lease()
            self._do(work)
            left = until - self._at.clock.monotonic()
            if given := self._give(limit):
                return given
            if work.back:  # of keys that are held: what is behind them may be free
                continue
            if left <= 0:
                return []
            owned = self._owner.owned()
            if not owned:
                self._quit.wait(min(left, POLL_S))
            else:
                now = self._at.clock.now()
                self._at.store.wait([self._queue.name], now, min(left, 1.0), owned)

    def ack(self, lease: Lease, *, result: Any = None) -> None:
        self._settle(lease, Done(result))

    def nack(self, lease: Lease, error: Any = None, *, delay: float | None = None) -> None:
        self._settle(lease, Retry(error, delay=delay))

    def fail(self, lease: Lease, error: Any = "failed", *, code: str | None = None) -> None:
        self._settle(lease, Fail(error, code=code))

    def release(self, lease: Lease, *, delay: float | None = None) -> None:
        self._settle(lease, Release(delay=delay))

    def settle(self, lease: Lease, outcome: Done | Retry | Fail | Release) -> None:
        """Any of these, as a value."""
        self._settle(lease, outcome)

    def close(self, *, keep: bool = False) -> None:
        """Give back what was not settled, and the partitions. `keep`: what was handed out stays
        leased, and its partitions are free when their claims run out."""
        self._quit.set()
        self._owner.nudge.set()
        if self._thread.is_alive():
            self._thread.join()
        self._do(self._owner.clear())
        for delivery in [] if keep else list(self._here.values()):
            self._settle(delivery.lease, Release(), lost_is_fine=True)
        while self._ready:
            self._not_started(self._ready.popleft())
        self._owner.leave()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self) -> None:
        while not self._quit.is_set():
            try:
                self.tick()
            except Exception as error:
                logger.warning("%s: partitions not kept: %s", self._queue.name, error)
                self._quit.wait(POLL_S)
            self._owner.nudge.wait(self._owner.due_in())
            self._owner.nudge.clear()

    def _give(self, limit: int) -> list[Lease]:
        given: list[Lease] = []
        with self._lock:
            while self._ready and len(given) < limit:
                delivery, now = self._ready.popleft(), self._at.clock.now()
                if delivery.deadline > now and self._owner.holds(delivery, now):
                    self._here[delivery.lease.token] = delivery
                    given.append(delivery.lease)
                else:
                    self._not_started(delivery)
        return given

    def _not_started(self, delivery: Delivery) -> None:
        work = self._owner.finished(delivery, failed=False, started=False)
        self._back.append(delivery)
        self._do(work)

    def _do(self, work: Work) -> None:
        with self._lock:
            self._ready.extend(work.start)
            self._back.extend(work.back)
            self._put_back()

    def _put_back(self) -> None:
        """What the store did not take stays here, for the next time."""
        while self._back:
            deliveries, now = [*self._back], self._at.clock.now()
            ours = [d for d in deliveries if self._owner.holds(d, now)]
            moves = [self._owner.given_back(d, now) for d in ours]
            answers = dict(zip(map(id, ours), self._at.store.settle(moves, now), strict=True))
            del self._back[: len(deliveries)]
            for delivery in deliveries:
                more = self._owner.settled(delivery, answers.get(id(delivery)))
                self._ready.extend(more.start)
                self._back.extend(more.back)

    def _settle(self, lease: Lease, outcome: Outcome, *, lost_is_fine: bool = False) -> None:
        """May be repeated when the store did not answer."""
        with self._lock:
            delivery, now = self._here.get(lease.token), self._at.clock.now()
            lost = LeaseLost(f"{lease.id}: this lease has ended, or its partition has a new owner")
            if delivery is None:
                if lost_is_fine or self._was_settled(lease, outcome, now):
                    return
                raise lost
            if delivery.verdict is None:
                delivery.verdict = outcome
                waits = isinstance(outcome, Release) and bool(outcome.delay)
                failed = waits or isinstance(outcome, Retry | Fail)
                started = waits or not isinstance(outcome, Release)
                work = self._owner.finished(delivery, failed=failed, started=started)
                self._ready.extend(work.start)
                self._back.extend(work.back)
            answer: Settled | None = None
            if self._owner.holds(delivery, now):
                move = decide(lease, outcome, self._queue.policy, now, self._at.rng)
                self._owner.decided(delivery, move)
                answer = self._at.store.settle([move], now)[0]
            del self._here[lease.token]
            with suppress(StoreError):  # this one is settled; the others are tried again
                self._do(self._owner.settled(delivery, answer))
        if answer not in (Settled.APPLIED, Settled.ALREADY) and not lost_is_fine:
            raise lost

    def _was_settled(self, lease: Lease, outcome: Outcome, now: int) -> bool:
        """Whether this very call was applied before. Applies nothing: no deadline is that old."""
        move = decide(lease, outcome, self._queue.policy, now, self._at.rng)
        never = msgspec.structs.replace(move, overdue_at=-1)
        return self._at.store.settle([never], now) == [Settled.ALREADY]
