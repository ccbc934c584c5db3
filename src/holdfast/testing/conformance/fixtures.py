"""A connection on the store under test, on a clock that stands still, with seeded dice."""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

import holdfast
from holdfast import Holdfast, Lease, Message, Queue, State
from holdfast.stores.contract import Store
from holdfast.testing import ManualClock

__all__ = ["another", "clock", "hf", "ids", "queue", "store", "whereabouts"]

StoreFactory = Callable[[], Store]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(store_factory: StoreFactory) -> Store:
    return store_factory()


@pytest.fixture
def hf(store: Store, clock: ManualClock) -> Holdfast:
    return holdfast.connect(store, clock=clock, rng=Random(7))


@pytest.fixture
def another(store_factory: StoreFactory, clock: ManualClock) -> Callable[[], Holdfast]:
    """One more connection to the same store, as another process would have."""
    return lambda: holdfast.connect(store_factory(), clock=clock, rng=Random(8))


@pytest.fixture
def queue(hf: Holdfast) -> Queue:
    return hf.queue("orders")


def ids(items: list[Message] | list[Lease]) -> list[str]:
    return [item.id for item in items]


def whereabouts(queue: Queue) -> dict[str, list[str]]:
    """The ids in every state of a queue, its dead letters and its log included."""
    places = {state.value: [entry.message.id for entry in queue.browse(state)] for state in State}
    dead = [
        entry.message.id
        for state in (State.READY, State.DELAYED, State.LEASED)
        for entry in queue.dlq.browse(state)
    ]
    return {place: found for place, found in {**places, "dead": dead}.items() if found}
