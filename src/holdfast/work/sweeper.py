"""Finds leases past their deadline and settles them by the rules; trims the log.

Runs in every worker and server. Any number may run: the lock only spares work, the token and the
deadline in each transition keep it right.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.errors import QueueNotFound, StoreUnavailable
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.model.settings import Settings
from holdfast.queue import archives, expiry, redrive, topic
from holdfast.queue.context import Context
from holdfast.queue.expiry import Swept, settle_overdue
from holdfast.rules.lifecycle import ms
from holdfast.stores.contract import Cut, overdue_in
from holdfast.telemetry import announce
from holdfast.work import ledger

LOCK = "sweep"
LOCK_MS = 30_000
TRIM_STEP = 1000
TRIM_STEPS_MAX = 20
"""Log rows dropped per queue and tick: the rest waits for the next tick."""
TRIM_QUEUES = 100
"""Queues whose logs one tick trims; the next tick goes on with those behind them."""

logger = logging.getLogger("holdfast.sweeper")


class Sweeper:
    def __init__(self, context: Context, settings: Settings) -> None:
        self._at = context
        self._settings = settings
        self._requeued: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        """Of the sweep under way, by queue."""
        self._trimmed_last = ""
        self._lock_renewed_at: int | None = None
        self._failed: Exception | None = None

    def run(self, stop: threading.Event) -> None:
        """Tick until `stop`. Ticks never overlap; one that fails is logged, the next still runs."""
        try:
            while not stop.is_set():
                try:
                    now = self._at.clock.now()
                    self.tick()
                    self._at.looks.cover(now, self._interval_ms)
                except Exception:
                    logger.exception("sweep failed; trying again in %s ms", self._interval_ms)
                stop.wait(self._interval_ms / 1000)
        finally:
            self._at.looks.uncover()

    def tick(self) -> Swept:
        """One scheduled sweep. While another holds the lock: only what it seems to have missed."""
        now = self._at.clock.now()
        if self._at.store.claim(LOCK, self._at.owner, LOCK_MS, now) is None:
            return self._whole(self._requeue_all(now - self._interval_ms, "scheduler"))
        self._lock_renewed_at = now
        try:
            swept = self._requeue_all(now, "scheduler")
            specs, marks = self._at.store.queues(), self._marks()
            swept += self._trim_all(self._in_turn(specs), marks, now)
            self._at.store.tidy(now, log_before=self._log_before(specs, marks, now))
            return self._whole(swept)
        finally:
            self._lock_renewed_at = None
            self._at.store.claim(LOCK, self._at.owner, 0, self._at.clock.now())

    def sweep(self, now: int, *, triggered_by: str) -> Swept:
        """Settle everything that was overdue at `now`, tell who watches, and trim every log."""
        swept = self._requeue_all(now, triggered_by)
        return self._whole(swept + self._trim_all(self._at.store.queues(), self._marks(), now))

    def _whole(self, swept: Swept) -> Swept:
        """What was swept, unless a queue failed: then its error, now that the others are done."""
        if self._failed is not None:
            raise self._failed
        return swept

    def _requeue_all(self, now: int, triggered_by: str) -> Swept:
        swept = Swept()
        self._requeued.clear()
        self._dead.clear()
        self._failed = None
        swept += Swept(requeued=(given_back := ledger.sweep(self._at, now)))
        if given_back:
            self._requeued[announce.OTHER] = given_back
        for spec in self._at.store.queues(overdue=now):
            try:
                swept += self._requeue(spec, now)
            except StoreUnavailable:
                raise
            except Exception as error:  # of this queue: the others must not wait for it
                logger.warning("%s: overdue messages could not be put back: %s", spec.name, error)
                self._failed = self._failed or error
            self._keep_lock()
        expiry.publish(
            self._at.store, swept, self._requeued, self._dead, self._at.clock.now(), triggered_by
        )
        return swept

    def _keep_lock(self) -> None:
        """Renew the lock during a long tick."""
        now = self._at.clock.now()
        if self._lock_renewed_at is not None and now - self._lock_renewed_at > LOCK_MS // 3:
            self._lock_renewed_at = now
            self._at.store.claim(LOCK, self._at.owner, LOCK_MS, now)

    def _requeue(self, spec: QueueSpec, now: int) -> Swept:
        policy, swept = self._at.complete(spec), Swept()
        while True:
            step = self._requeue_batch(spec.name, policy, now)
            if step == Swept():  # nothing left, or all of it was settled by others meanwhile
                return swept
            swept += step

    def _requeue_batch(self, queue: str, policy: Policy, now: int) -> Swept:
        try:
            late = overdue_in(self._at.store, queue, now, self._settings.requeue_batch_size)
        except QueueNotFound:
            return Swept()  # deleted since the tick began
        at = self._at
        swept = settle_overdue(at.store, queue, late, policy, at.clock, at.rng)
        self._requeued[queue] += swept.requeued
        self._dead[queue] += swept.dead
        return swept

    def _marks(self) -> dict[str, int]:
        return archives.marks(archives.list_archives(self._at))

    def _in_turn(self, specs: Sequence[QueueSpec]) -> Sequence[QueueSpec]:
        """The next queues, by name, whose logs are to be trimmed."""
        some = [spec for spec in specs if spec.name > self._trimmed_last][:TRIM_QUEUES]
        self._trimmed_last = some[-1].name if len(some) == TRIM_QUEUES else ""
        return some

    def _trim_all(self, specs: Sequence[QueueSpec], marks: Mapping[str, int], now: int) -> Swept:
        trimmed = 0
        for start in range(0, len(specs), TRIM_QUEUES):
            trimmed += self._trim(specs[start : start + TRIM_QUEUES], marks, now)
        trimmed += topic.trim(self._at, now)
        redrive.forget(self._at, now)
        return Swept(trimmed=trimmed)

    def _trim(self, specs: Sequence[QueueSpec], marks: Mapping[str, int], now: int) -> int:
        trimmed = 0
        for _ in range(TRIM_STEPS_MAX):
            cuts = [self._cut(spec, marks.get(spec.name), now) for spec in specs]
            wanted = [cut for cut in cuts if cut.limit and (cut.before or cut.keep is not None)]
            if not wanted:
                break
            dropped = dict(
                zip((cut.queue for cut in wanted), self._at.store.drop(wanted), strict=True)
            )
            trimmed += sum(dropped.values())
            self._keep_lock()
            specs = [spec for spec in specs if dropped.get(spec.name) == TRIM_STEP]
        return trimmed

    def _cut(self, spec: QueueSpec, mark: int | None, now: int) -> Cut:
        """`mark`: an archive has what finished before; it waits for no other row to go."""
        policy, limit = self._at.complete(spec), TRIM_STEP
        before = archives.cut(now - ms(policy.retention) if policy.retention else None, mark)
        keep = policy.retention_count or None
        if keep is not None and mark is not None:
            limit = archives.spare(self._at, spec.name, mark, TRIM_STEP)
        return Cut(spec.name, limit, before, keep)

    def _log_before(
        self, specs: Sequence[QueueSpec], marks: Mapping[str, int], now: int
    ) -> int | None:
        """What finished before this is of no interest to any queue, and in every archive."""
        own = [spec.policy.retention for spec in specs]
        kept = [self._at.policy.retention if seconds is None else seconds for seconds in own]
        if not kept or not all(kept):
            return None
        before = now - ms(max(seconds or 0.0 for seconds in kept))
        waiting = [marks[spec.name] for spec in specs if spec.name in marks]
        return archives.cut(before, min(waiting, default=None))

    @property
    def _interval_ms(self) -> int:
        return self._settings.overdue_check_interval_ms
