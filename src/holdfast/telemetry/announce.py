"""Tells everybody who watches the store of messages that became dead letters.

Every dead-lettering goes through `Store.settle`, so one wrapper around the store of a connection
sees them all. A settle call publishes at most one event, and none where nobody died. Sweeps
publish one event for all that they moved, by `swept`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast, overload

from holdfast.errors import HoldfastError
from holdfast.model.message import is_dlq
from holdfast.model.moves import Settled, Target, Transition, Verb
from holdfast.stores.contract import BatchEnd, Event, Store
from holdfast.telemetry.observe import Wrapper, wraps

NAMED_MAX = 100
OTHER = "(other)"
"""What other queues are counted under; no queue has this name."""
_DEATHS = (Verb.NACK, Verb.FAIL, Verb.EXPIRE)
_here = threading.local()
logger = logging.getLogger("holdfast.events")


def announcing(store: Store) -> Store:
    """The same store, which publishes `move_to_dlq` for what dies in it."""
    if any(isinstance(inner, _Announcing) for inner in wraps(store)):
        return store
    return cast(Store, _Announcing(store))


@contextmanager
def quiet() -> Generator[None, None, None]:
    """For a caller that publishes by itself what it settles in this thread."""
    before = getattr(_here, "quiet", False)
    _here.quiet = True
    try:
        yield
    finally:
        _here.quiet = before


def deaths(moves: Sequence[Transition], answers: Sequence[Settled]) -> Counter[str]:
    """How many died, by the queue that they died in."""
    return Counter(
        move.queue
        for move, answer in zip(moves, answers, strict=True)
        if answer is Settled.APPLIED
        and move.target is Target.WAITING
        and move.verb in _DEATHS
        and is_dlq(move.to_queue)
        and not is_dlq(move.queue)
    )


def died(queues: Mapping[str, int], now: int) -> Event:
    return Event("move_to_dlq", now, {"count": sum(queues.values()), "queues": named(queues)})


def swept(
    requeued: Mapping[str, int], dead: Mapping[str, int], now: int, triggered_by: str
) -> list[Event]:
    """What a sweep tells, by queue."""
    payload = {
        "count": sum(requeued.values()),
        "dlq_count": sum(dead.values()),
        "triggered_by": triggered_by,
        "queues": named(requeued),
        "dlq_queues": named(dead),
    }
    events = [Event("requeue", now, payload)]
    return [*events, died(dead, now)] if sum(dead.values()) else events


def named(queues: Mapping[str, int]) -> dict[str, int]:
    """Those with the most first; those beyond NAMED_MAX together."""
    moved = [(queue, count) for queue, count in queues.items() if count]
    most = sorted(moved, key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in most[NAMED_MAX:])
    return dict(most[:NAMED_MAX]) | ({OTHER: rest} if rest else {})


class _Announcing(Wrapper):
    @overload
    def settle(self, moves: BatchEnd, now: int, *, within: None = None) -> int: ...
    @overload
    def settle(
        self, moves: Sequence[Transition], now: int, *, within: Any = None
    ) -> list[Settled]: ...
    def settle(
        self, moves: Sequence[Transition] | BatchEnd, now: int, *, within: Any = None
    ) -> list[Settled] | int:
        if isinstance(moves, BatchEnd):  # an ack: nothing dies
            return self.wrapped.settle(moves, now)
        answers = self.wrapped.settle(moves, now, within=within)
        # Within a caller's transaction nothing is certain yet, and to publish could wait for it.
        if within is None and not getattr(_here, "quiet", False):
            dead = deaths(moves, answers)
            if dead:
                self._tell(died(dead, now))
        return answers

    def _tell(self, event: Event) -> None:
        try:
            self.wrapped.publish([event])
        except HoldfastError as error:  # what was settled stays settled
            logger.warning("%s was not published: %s", event.type, error)
