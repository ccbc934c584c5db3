"""Drops what topics have retained for longer than their retention time."""

from __future__ import annotations

from contextlib import suppress

from holdfast.errors import QueueNotFound
from holdfast.queue.context import Context
from holdfast.queue.topic.copies import dropped
from holdfast.queue.topic.record import log_of, setups
from holdfast.rules.lifecycle import ms
from holdfast.stores.contract import View

TRIM_STEP = 1000
TRIM_STEPS_MAX = 20


def trim(at: Context, now: int) -> int:
    """Drop what is too old, in bounded steps; returns how many messages were dropped."""
    return sum(
        _trim(at, log_of(name), now, ms(setup.retention))
        for name, setup in setups(at)
        if setup.log and setup.retention
    )


def _trim(at: Context, log: str, now: int, retention: int) -> int:
    n = 0
    with suppress(QueueNotFound):  # deleted since the tick began
        for _ in range(TRIM_STEPS_MAX):
            oldest = at.store.stats([log], now)[0].oldest_age
            if oldest is None or ms(oldest) <= retention:
                break
            entries = at.store.browse(View(log), None, TRIM_STEP, now).entries
            old = [e for e in entries if e.message.enqueued_at < now - retention]
            at.store.settle([dropped(log, e.message.id, e.place) for e in old], now)
            n += len(old)
            if len(old) < TRIM_STEP:
                break
    return n
