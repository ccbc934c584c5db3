"""An ordered queue by hand: a program leases and settles messages itself, in order."""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.errors import LeaseLost, StoreError
from holdfast.model.message import Lease
from holdfast.model.moves import Settled
from holdfast.model.policy import seconds, whole
from holdfast.rules.decide import decide
from holdfast.rules.outcome import Done, Fail, Outcome, Release, Retry
from holdfast.work.ownership.line import InLine, Work
from holdfast.work.ownership.owner import POLL_S, Owner

logger = logging.getLogger("holdfast.ownership")


class Consumer:
    """An ordered queue by hand: one message of each partition at a time, in order.

    `with hf.consumer("orders") as consumer:`, then `lease`, and `ack`, `nack`, `fail` or `release`.
    A thread keeps its partitions; without one (`background=False`) call `tick` often enough.
    """

    def __init__(self, owner: Owner, *, background: bool = True) -> None:
        self._owner = owner
        self._queue = owner.queue
        self._at = owner.queue.context
        self._here: dict[str, InLine] = {}
        self._ready: deque[InLine] = deque()
        self._back: list[InLine] = []
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
        """The partitions that it owns now."""
        return self._owner.owned()

    def tick(self) -> None:
        self._do(self._owner.tick())

    def lease(self, limit: int = 1, wait: float = 0.0) -> list[Lease]:
        """Up to `limit` messages, at most one of each owned partition."""
        whole("limit", limit, low=1)
        seconds("wait", wait)
        until = self._at.clock.monotonic() + wait
        while True:
            work = self._owner.lease()
            self._do(work)
            left = until - self._at.clock.monotonic()
            if given := self._give(limit):
                return given
            if work.back:  # their keys are held: messages behind them may be free
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
        """Give back the partitions and what was not settled. `keep`: what was handed out stays
        leased, and its partitions become free when their claims run out."""
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
                delivery = self._ready.popleft()
                if delivery.may_start():
                    self._here[delivery.lease.token] = delivery
                    given.append(delivery.lease)
                else:
                    self._not_started(delivery)
        return given

    def _not_started(self, delivery: InLine) -> None:
        work = delivery.part.finished(delivery, failed=False, started=False)
        self._back.append(delivery)
        self._do(work)

    def _do(self, work: Work) -> None:
        with self._lock:
            self._note(work)
            self._put_back()

    def _note(self, work: Work) -> None:
        self._ready.extend(work.start)
        self._back.extend(work.back)

    def _put_back(self) -> None:
        """What the store did not take stays here until the next time."""
        while self._back:
            deliveries, now = [*self._back], self._at.clock.now()
            ours = [d for d in deliveries if d.is_ours(now)]
            moves = [d.part.given_back(d, now) for d in ours]
            answers = dict(zip(map(id, ours), self._at.store.settle(moves, now), strict=True))
            del self._back[: len(deliveries)]
            for delivery in deliveries:
                self._note(delivery.settled(answers.get(id(delivery))))

    def _settle(self, lease: Lease, outcome: Outcome, *, lost_is_fine: bool = False) -> None:
        """May be repeated if the store did not answer."""
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
                self._note(delivery.part.finished(delivery, failed=failed, started=started))
            answer: Settled | None = None
            if delivery.is_ours(now):
                move = decide(lease, outcome, self._queue.policy, now, self._at.rng)
                delivery.part.decided(delivery, move)
                answer = self._at.store.settle([move], now)[0]
            del self._here[lease.token]
            with suppress(StoreError):  # this one is settled; the others are tried again
                self._do(delivery.settled(answer))
        if answer not in (Settled.APPLIED, Settled.ALREADY) and not lost_is_fine:
            raise lost

    def _was_settled(self, lease: Lease, outcome: Outcome, now: int) -> bool:
        """Whether this very call was applied before. Changes nothing: no deadline is that old."""
        move = decide(lease, outcome, self._queue.policy, now, self._at.rng)
        never = msgspec.structs.replace(move, overdue_at=-1)
        return self._at.store.settle([never], now) == [Settled.ALREADY]
