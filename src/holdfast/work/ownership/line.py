"""One partition in its owner's hands: a line of messages, one of which runs at a time.

While anything is on its way back to the store, nothing more is asked for, and what was asked for
before goes back as well. So whatever runs was leased when everything before it in line was in its
place.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from random import Random

import msgspec

from holdfast.model.clock import Clock
from holdfast.model.message import Lease
from holdfast.model.moves import Settled, Target, Transition
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.rules import lifecycle
from holdfast.stores.contract import Claim
from holdfast.work.delivery import Delivery
from holdfast.work.verdict import Problem, Verdict

MAKE_WAY_MS = 100
NO_EXTEND = "Extend: messages of an ordered queue are finished by the worker that holds them"

logger = logging.getLogger("holdfast.ownership")


class Common:
    """What the partitions of one owner share."""

    __slots__ = ("clock", "lock", "nudge", "policy", "spec")

    def __init__(
        self, clock: Clock, spec: QueueSpec, policy: Policy, nudge: threading.Event
    ) -> None:
        self.clock = clock
        self.spec = spec
        self.policy = policy
        self.nudge = nudge
        """Set when the owner has something to do before its time."""
        self.lock = threading.RLock()

    @property
    def blocks(self) -> bool:
        """Whether a failed message holds back later ones of its key."""
        return self.policy.on_failure == "block"


class Work(msgspec.Struct):
    """What to do next: run these, and settle those as given back."""

    start: list[InLine] = []
    back: list[InLine] = []
    leased: int = 0
    """How many are new: of these two, and of those that wait in line."""

    def add(self, other: Work) -> None:
        self.start += other.start
        self.back += other.back
        self.leased += other.leased


class Blocker(msgspec.Struct, frozen=True):
    """The failed message that holds a key, until all that was put off for it may come again."""

    id: str
    until: int = 0

    def or_later(self, until: int) -> Blocker:
        return Blocker(self.id, max(self.until, until))


class OwnedPartition:
    """A claimed partition. What concerns one delivery (from `finished` on) takes the owner's lock;
    the rest is called with it."""

    def __init__(self, number: int, claim: Claim, until: int, common: Common) -> None:
        self.number = number
        self.epoch = claim.epoch
        self.until = until
        """Work ends here unless the claim is renewed: some time before it can be taken."""
        self.open = False
        """Whatever is leased of it and is not in our hands has been taken over. Only then is
        anything asked for."""
        self.leaving = False
        self.lost = False
        self.asking = False
        self.line: deque[InLine] = deque()
        """Leased, not started."""
        self.running: InLine | None = None
        self.out: dict[str, InLine] = {}
        """Leased, not settled, by token."""
        self.returning = 0
        """How many of them are on their way back."""
        self.turn = 0
        """Goes up when one is sent back: what was asked for before is no longer valid."""
        self.blocked: dict[str, Blocker] = {}
        self.careful = 0
        """This many are leased one by one, as one of them may have killed the previous owner."""
        self._common = common

    def now(self) -> int:
        return self._common.clock.now()

    def is_ours(self, now: int) -> bool:
        """Otherwise nothing may be settled: its new owner has taken everything over."""
        return not self.lost and now < self.until

    def may_ask(self, now: int, each: int) -> bool:
        """Whether more messages are wanted, at most `each` at a time."""
        fit = self.open and not self.leaving and not self.returning and now < self.until
        return fit and len(self.out) <= (0 if self.careful else each // 2)

    def next(self) -> Work:
        """The head of the line may run if nothing does, and the partition is still ours."""
        now = self.now()
        if self.running or not self.line or not self.is_ours(now):
            return Work()
        if self.line[0].deadline <= now:  # swept, or about to be: it is leased again, in order
            return self.clear()
        self.running = self.line.popleft()
        return Work([self.running])

    def clear(self) -> Work:
        """Send back everything that has not started."""
        work = Work()
        while self.line:
            self.send_back(self.line.popleft(), work)
        return work

    def send_back(self, delivery: InLine, work: Work) -> None:
        delivery.back = True
        self._expect_back()
        work.back.append(delivery)

    def _expect_back(self) -> None:
        self.returning += 1
        self.turn += 1

    def is_held(self, lease: Lease, asked_at: int, gone: set[str]) -> bool:
        """Whether an earlier message of its key comes first.

        That message itself ends the hold, if everything that was put off for it was due when these
        were asked for: then it is among them, in order.
        """
        key = lease.message.key
        blocker = self.blocked.get(key) if key is not None else None
        if key is None or blocker is None:
            return False
        due = blocker.until <= asked_at
        if blocker.id == lease.id or blocker.id in gone:
            if due:
                del self.blocked[key]
            return False
        if due:  # of a higher priority, else the other would have come first: it makes way
            self.blocked[key] = Blocker(blocker.id, self.now() + MAKE_WAY_MS)
        return True

    def finished(self, delivery: InLine, *, failed: bool, started: bool = True) -> Work:
        """One has run; returns what comes next. The key of a message that failed is held for it.
        A message that did not start goes back, and everything behind it."""
        key, work = delivery.lease.message.key, Work()
        with self._common.lock:
            if self.running is delivery:
                self.running = None
            if not started:
                delivery.back = True
                self._expect_back()
                return self.clear()
            if failed and key is not None and self._common.blocks:
                delivery.returns = True
                self._expect_back()
                before = self.blocked.get(key)
                self.blocked[key] = Blocker(delivery.lease.id, before.until if before else 0)
                for other in [d for d in self.line if d.lease.message.key == key]:
                    self.line.remove(other)
                    self.send_back(other, work)
            work.add(self.next())
        return work

    def given_back(self, delivery: InLine, now: int) -> Transition:
        """To its place in line: at once, or when the message that holds its key comes again."""
        key, until = delivery.lease.message.key, max(now, delivery.until or 0)
        with self._common.lock:
            if key is not None and key in self.blocked:
                self.blocked[key] = self.blocked[key].or_later(until)
                until = self.blocked[key].until
        return lifecycle.parked(delivery.lease, until)

    def decided(self, delivery: InLine, move: Transition) -> None:
        """Where a message goes that failed: its key waits for it, or is free if it is dead."""
        message = delivery.lease.message
        if not delivery.returns or message.key is None:
            return
        with self._common.lock:
            blocker = self.blocked.get(message.key)
            if blocker is not None and blocker.id == message.id:
                back = move.target is Target.WAITING and move.to_queue == message.queue
                until = move.available_at if back else 0
                self.blocked[message.key] = blocker.or_later(until)

    def settled(self, delivery: InLine, answer: Settled | None) -> Work:
        """The store has answered, or was not asked (None)."""
        with self._common.lock:
            self.out.pop(delivery.lease.token, None)
            if delivery.back or delivery.returns:
                self.returning -= 1
            elif self.careful:
                self.careful -= 1
            if self.leaving and not self.out:
                self._common.nudge.set()
            if answer is Settled.STALE and not delivery.back:
                return self.clear()  # it is back in line, before these
            return Work()


class InLine(Delivery):
    """A message of an ordered queue: its partition decides when it runs and whether it may end."""

    __slots__ = ("back", "part", "returns", "until")

    def __init__(self, lease: Lease, part: OwnedPartition, until: int | None = None) -> None:
        super().__init__(lease)
        self.part = part
        self.back = False
        """It goes back without having run, because of what comes before it."""
        self.until = until
        """When the message that holds its key comes again, if that is in another partition."""
        self.returns = False
        """It failed, and holds its key until it is back in line, or dead."""

    def may_start(self) -> bool:
        """Its partition may have been lost on the way to here."""
        now = self.part.now()
        return self.deadline > now and self.is_ours(now)

    def handled(self) -> Work:
        verdict: Verdict | None = self.verdict
        if verdict is not None and verdict.ending == "extend":
            verdict = self.verdict = Verdict(problems=(Problem(NO_EXTEND, "ExtendInOrder"),))
        failed = verdict is not None and not verdict.is_done
        return self.part.finished(self, failed=failed, started=verdict is not None)

    def is_ours(self, now: int) -> bool:
        return self.part.is_ours(now)

    def decide(self, policy: Policy, now: int, rng: Random) -> Transition:
        if self.back:
            return self.part.given_back(self, now)
        move = super().decide(policy, now, rng)
        self.part.decided(self, move)
        return move

    def settled(self, answer: Settled | None) -> Work:
        return self.part.settled(self, answer)
