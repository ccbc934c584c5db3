"""Dead letters back to their queue: oldest first, each in one atomic step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast import lifecycle
from holdfast.errors import (
    InvalidArgument,
    QueueNotFound,
    RedriveFailed,
    SourceQueueGone,
    StoreError,
)
from holdfast.message import home_of, is_dlq
from holdfast.policy import whole
from holdfast.queue import Context
from holdfast.store import Event, Settled, View

BATCH = 200


class Redriven(msgspec.Struct, frozen=True):
    dlq: str
    redriven: int


def redrive(at: Context, dlq: Any, count: int = 0) -> Redriven:
    """Move the `count` oldest dead letters back to their source queue; 0 moves all.

    Messages that die while this runs are left alone, so it ends even if everything fails again.
    """
    whole("count", count, low=0)
    source = _source(at, dlq)
    moved = 0
    try:
        for n in _steps(at, dlq, source, count):
            moved += n
        if moved:
            news = {"queue": source, "dlq": dlq, "count": moved}
            at.store.publish([Event("redrive", at.clock.now(), news)])
    except StoreError as error:
        raise RedriveFailed(str(error), moved) from error
    return Redriven(dlq, moved)


def _source(at: Context, dlq: Any) -> str:
    """The five checks, in the order in which every interface reports them."""
    if not isinstance(dlq, str) or not dlq:
        raise InvalidArgument("dlq", f"name a dead-letter queue, not {dlq!r}")
    if at.store.get_queue(dlq) is None:
        raise QueueNotFound(f"no queue {dlq!r}")
    if not is_dlq(dlq):
        raise InvalidArgument("dlq", f"{dlq!r} is not a dead-letter queue; did you mean {dlq}.dlq?")
    source = home_of(dlq)
    if at.store.get_queue(source) is None:
        raise SourceQueueGone(f"{dlq}: its queue {source!r} is gone; create it first")
    return source


def _steps(at: Context, dlq: str, source: str, count: int) -> Iterator[int]:
    after: str | None = None
    end: str | None = None  # the end of the line when the call began
    left = count or None
    while left is None or left > 0:
        limit = BATCH if left is None else min(BATCH, left)
        now = at.clock.now()
        page = at.store.browse(View(dlq, upto=end), after, limit, now)
        moves = [lifecycle.redriven(e.message, e.place, source, now) for e in page.entries]
        moved = at.store.settle(moves, now).count(Settled.APPLIED)
        yield moved
        left = None if left is None else left - moved
        after, end = page.after, end or page.end
        if after is None:
            return
