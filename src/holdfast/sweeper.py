"""Finds leases past their deadline and settles them by the rules; trims the log.

Runs in every worker and server. Any number may run: the lock only spares work, the token and the
deadline in each transition keep it right.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter

from holdfast import announce, archives, batches, expiry, redrive, topic
from holdfast.errors import QueueNotFound
from holdfast.expiry import Swept, settle_overdue
from holdfast.lifecycle import ms
from holdfast.policy import Policy
from holdfast.queue import Context
from holdfast.settings import Settings
from holdfast.store import QueueSpec

LOCK = "sweep"
LOCK_MS = 30_000
TRIM_STEP = 1000
TRIM_STEPS_MAX = 20
"""Log rows dropped per queue and tick: the rest waits for the next tick."""

logger = logging.getLogger("holdfast.sweeper")


class Sweeper:
    def __init__(self, context: Context, settings: Settings) -> None:
        self._at = context
        self._settings = settings
        self._requeued: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        """Of the sweep under way, by queue."""

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
            return self.sweep(now - self._interval_ms, triggered_by="scheduler", trim=False)
        try:
            swept = self.sweep(now, triggered_by="scheduler")
            self._at.store.tidy(now, log_before=self._log_before(now))
            return swept
        finally:
            self._at.store.claim(LOCK, self._at.owner, 0, self._at.clock.now())

    def sweep(self, now: int, *, triggered_by: str, trim: bool = True) -> Swept:
        """Settle everything that was overdue at `now`, in batches, and tell who watches."""
        swept = Swept()
        renewed = now
        self._requeued.clear()
        self._dead.clear()
        swept += Swept(requeued=(given_back := batches.sweep(self._at, now)))
        if given_back:
            self._requeued[announce.OTHER] = given_back
        marks = archives.marks(archives.list_archives(self._at)) if trim else {}
        for spec in self._at.store.queues():
            swept += self._requeue(spec, now)
            if trim:
                swept += self._trim(spec, now, marks.get(spec.name))
                if self._at.clock.now() - renewed > LOCK_MS // 3:
                    renewed = self._at.clock.now()
                    self._at.store.claim(LOCK, self._at.owner, LOCK_MS, renewed)
        if trim:
            swept += Swept(trimmed=topic.trim(self._at, now))
            redrive.forget(self._at, now)
        expiry.publish(
            self._at.store, swept, self._requeued, self._dead, self._at.clock.now(), triggered_by
        )
        return swept

    def _requeue(self, spec: QueueSpec, now: int) -> Swept:
        policy, swept = self._at.complete(spec), Swept()
        while True:
            step = self._requeue_batch(spec.name, policy, now)
            if step == Swept():  # nothing left, or all of it was settled by others meanwhile
                return swept
            swept += step

    def _requeue_batch(self, queue: str, policy: Policy, now: int) -> Swept:
        try:
            late = self._at.store.overdue(queue, now, self._settings.requeue_batch_size)
        except QueueNotFound:
            return Swept()  # deleted since the tick began
        at = self._at
        swept = settle_overdue(at.store, queue, late, policy, at.clock, at.rng)
        self._requeued[queue] += swept.requeued
        self._dead[queue] += swept.dead
        return swept

    def _trim(self, spec: QueueSpec, now: int, mark: int | None) -> Swept:
        """`mark`: an archive has what finished before; it waits for no other row to go."""
        policy, trimmed = self._at.complete(spec), 0
        before = archives.cut(now - ms(policy.retention) if policy.retention else None, mark)
        keep = policy.retention_count or None
        for _ in range(TRIM_STEPS_MAX):
            limit = TRIM_STEP
            if keep is not None and mark is not None:
                limit = archives.spare(self._at, spec.name, mark, TRIM_STEP)
            n = limit and self._at.store.trim(spec.name, before=before, keep=keep, limit=limit)
            trimmed += n
            if n < TRIM_STEP:
                break
        return Swept(trimmed=trimmed)

    def _log_before(self, now: int) -> int | None:
        """What finished before this is of no interest to any queue, and in every archive."""
        specs = self._at.store.queues()
        kept = [self._at.complete(spec).retention for spec in specs]
        if not kept or not all(kept):
            return None
        before = now - ms(max(seconds or 0.0 for seconds in kept))
        marks = archives.marks(archives.list_archives(self._at))
        waiting = [marks[spec.name] for spec in specs if spec.name in marks]
        return archives.cut(before, min(waiting, default=None))

    @property
    def _interval_ms(self) -> int:
        return self._settings.overdue_check_interval_ms
