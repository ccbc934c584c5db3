"""Settles what handlers have finished, in groups: one write for many messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from holdfast.errors import (
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.model.errortext import clean
from holdfast.model.message import ERROR_TEXT_MAX, is_dlq
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.work.delivery import Delivery
from holdfast.work.loops.inflight import GROUP
from holdfast.work.loops.shared import Shared
from holdfast.work.loops.trouble import Patience
from holdfast.work.ownership import Work
from holdfast.work.verdict import Problem, Verdict

STORE_REFUSED = "what came of it could not be stored"
PROBE = "probe"
"""A claim that nobody holds: a small write that shows whether the store takes any."""
_STORE_IS_AT_FAULT = (StoreUnavailable, StoreReadOnly, StoreFull, StoreCorrupt, SchemaTooNew)

logger = logging.getLogger("holdfast.worker")


class Settling:
    """`run` ends when the worker quits and everything is settled, or cannot be."""

    def __init__(self, shared: Shared, go_on: Callable[[Work], None]) -> None:
        self._at = shared.context
        self._specs = shared.specs
        self._flight = shared.flight
        self._trouble = shared.trouble
        self._quit = shared.quit
        self._go_on = go_on

    def run(self) -> None:
        patience = Patience(self._trouble, "settle", self._quit)
        group: list[Delivery] = []
        while True:
            group += self._flight.take_finished(wait=not group)
            last = self._quit.is_set() and not self._flight.has_finished()
            try:
                while group:
                    try:
                        self._settle_each(group[:GROUP])
                    finally:
                        group = [item for item in group if not item.ended]
                patience.reward()
            except Exception as error:
                if self._quit.is_set():
                    logger.error("%d deliveries not settled: %s", len(group), error)
                    return
                patience.wait(error)
            if last:
                return

    def _settle_each(self, group: Sequence[Delivery]) -> None:
        """If the store answers and still refuses a group, one item is bad: the others are settled
        without it, and it becomes a dead letter."""
        try:
            return self._settle(group)
        except StoreError as error:
            if isinstance(error, _STORE_IS_AT_FAULT) or not self._store_takes_writes():
                raise
            refused: Exception = error
        except Exception as error:
            refused = error
        if len(group) > 1:
            middle = len(group) // 2
            self._settle_each(group[:middle])
            return self._settle_each(group[middle:])
        item = group[0]
        item.refused += 1
        if item.refused == 2:  # not a passing fault
            text = f"{STORE_REFUSED}: {clean(refused, ERROR_TEXT_MAX)}"
            item.verdict = Verdict(problems=(Problem(text, "OutcomeRefused"),), fatal=True)
        if item.refused <= 3:
            return self._settle_each(group)
        what = f"{item.lease.message.queue} {item.lease.message.id}"
        logger.error("%s: %s; its lease runs out", what, STORE_REFUSED, exc_info=refused)
        self._answered(group, [None])
        return None

    def _store_takes_writes(self) -> bool:
        """It does not where a right is missing, for example: then no message is to blame."""
        try:
            self._at.store.claim(PROBE, self._at.owner, 0, self._at.clock.now())
        except Exception:
            return False
        return True

    def _settle(self, group: Sequence[Delivery]) -> None:
        now = self._at.clock.now()
        policies = self._specs.policies({item.lease.message.queue for item in group})
        ours, lost = list[Delivery](), list[Delivery]()
        for item in group:
            (ours if item.is_ours(now) else lost).append(item)
        rng = self._at.rng
        moves = [item.decide(policies[item.lease.message.queue], now, rng) for item in ours]
        answers = self._at.store.settle(moves, now)
        self._answered(ours, answers)
        if lost:
            self._drop(lost)
        everything = logger.isEnabledFor(logging.DEBUG)
        for item, move, answer in zip(ours, moves, answers, strict=True):
            if everything or answer is Settled.STALE or move.verb is not Verb.ACK:
                _log(item, move, answer, now)

    def _answered(self, items: Sequence[Delivery], answers: Sequence[Settled | None]) -> None:
        for item, answer in zip(items, answers, strict=True):
            work = item.settled(answer)
            if work is not None:
                self._go_on(work)
        self._flight.settle(items)

    def _drop(self, lost: Sequence[Delivery]) -> None:
        """Nothing of a lost partition may be settled: its new owner has taken everything over."""
        for item in lost:
            if item.verdict is not None:  # else it never started
                message = item.lease.message
                text = "%s %s: partition %d was lost, its outcome is dropped"
                logger.warning(text, message.queue, message.id, message.partition)
        self._answered(lost, [None] * len(lost))


def _log(item: Delivery, move: Transition, answer: Settled, now: int) -> None:
    message, verdict = item.lease.message, item.verdict
    what = f"{message.queue} {message.id} attempt {message.attempts}"
    errors = "; ".join(map(_shown, verdict.problems)) if verdict else ""
    if answer is Settled.STALE:
        logger.warning("%s: lease lost, its outcome (%s) is dropped", what, move.verb)
    elif move.verb is Verb.ACK:
        logger.debug("%s: done", what)
    elif move.verb is Verb.RELEASE:
        logger.info("%s: released", what)
    elif is_dlq(move.to_queue):
        logger.error("%s: dead: %s", what, errors)
    elif move.target is Target.DONE:
        logger.error("%s: out of attempts, completed with errors: %s", what, errors)
    else:
        seconds = (move.available_at - now) / 1000
        logger.warning("%s: again in %.1f s: %s", what, seconds, errors)


def _shown(problem: Problem) -> str:
    where = f"\n{problem.traceback}" if problem.traceback else ""
    return f"{problem.code}: {problem.message}{where}"
