"""Extends the leases of messages whose handlers still run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.model.message import Lease
from holdfast.model.moves import Settled
from holdfast.model.policy import DEFAULTS
from holdfast.rules import lifecycle
from holdfast.work.delivery import Delivery
from holdfast.work.loops.inflight import GROUP
from holdfast.work.loops.shared import Shared

RENEW_TICK_S = (0.01, 0.25)
RENEW_MIN_MS = 1000
"""A lease is renewed for at least this long: leases of a millisecond would keep this loop busy."""

logger = logging.getLogger("holdfast.worker")


class Renewing:
    def __init__(self, shared: Shared) -> None:
        self._at = shared.context
        self._flight = shared.flight
        self._quit = shared.quit

    def run(self) -> None:
        """It needs nothing of the handlers: one that blocks, or hogs the interpreter, keeps its
        lease."""
        tick = RENEW_TICK_S[1]
        while not self._quit.wait(tick):
            items = list(self._flight.running.copy().values())
            shortest = min((_length_ms(item.lease) for item in items), default=0)
            tick = max(RENEW_TICK_S[0], min(RENEW_TICK_S[1], shortest / 5000))
            try:
                self._renew(items)
            except Exception as error:
                logger.warning("leases not renewed: %s", error)

    def _renew(self, items: Sequence[Delivery]) -> None:
        now = self._at.clock.now()
        due = [item for item in items if now >= item.deadline - _renewal_ms(item) * 2 // 3]
        for start in range(0, len(due), GROUP):
            group = due[start : start + GROUP]
            moves = [
                lifecycle.extended(item.lease, DEFAULTS, now, _renewal_ms(item) / 1000)
                for item in group
            ]
            answers = self._at.store.settle(moves, now)
            for item, move, answer in zip(group, moves, answers, strict=True):
                item.deadline = move.deadline
                if answer is not Settled.APPLIED and item.lease.token in self._flight.running:
                    logger.warning("%s: lease lost while it runs", item.lease.message.id)


def _length_ms(lease: Lease) -> int:
    return lease.deadline - lease.leased_at


def _renewal_ms(item: Delivery) -> int:
    return max(RENEW_MIN_MS, _length_ms(item.lease))
