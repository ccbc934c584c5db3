"""How often one call over HTTP or gRPC reads the queue's row, and how many policies it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from threading import current_thread
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Lease, Queue, QueueNotFound
from holdfast.model import policy
from holdfast.model.settings import Settings
from holdfast.telemetry.observe import Wrapper
from holdfast.testing import ManualClock, MemoryStore
from tests.server.rig import serving


class Counting(Wrapper):
    """A store that counts how often the threads that answer calls ask it for queues."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.reads = 0

    def queues(self, *args: Any, **options: Any) -> Any:
        if answers_calls():
            self.reads += 1
        return self.wrapped.queues(*args, **options)


def answers_calls() -> bool:
    """Whether this is a thread in which the server answers: not one of its background."""
    return current_thread().name.startswith(("holdfast-serve", "holdfast-slow"))


@pytest.fixture(scope="module")
def store() -> Counting:
    return Counting()


@pytest.fixture(scope="module")
def urls(store: Counting) -> Iterator[dict[str, str]]:
    local = holdfast.connect(store, clock=ManualClock())
    with serving(local, settings=Settings(overdue_check_interval_ms=3_600_000)) as doors:
        yield {"http": doors.http, "grpc": doors.grpc}


@pytest.fixture(params=["http", "grpc"])
def hf(request: pytest.FixtureRequest, urls: dict[str, str]) -> Iterator[Holdfast]:
    with holdfast.connect(urls[request.param]) as remote:
        yield remote


@pytest.fixture
def queue(hf: Holdfast) -> Queue:
    queue = hf.queue("orders")
    for lease in _some_leases(queue, 3):
        queue.ack(lease)
    return queue


def _some_leases(queue: Queue, n: int) -> list[Lease]:
    queue.enqueue_many(range(n))
    return queue.lease(n)


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many policies the server makes from now on, going by a check that each one makes once.
    (msgspec calls the `__post_init__` that a struct had when its class was made.)"""
    made: Counter[str] = Counter()
    check = policy.whole

    def counted(field: str, *args: Any, **options: Any) -> None:
        if field == "traceback_max" and answers_calls():
            made["policies"] += 1
        check(field, *args, **options)

    monkeypatch.setattr(policy, "whole", counted)
    return made


CALLS: dict[str, Callable[[Queue, list[Lease]], object]] = {
    "enqueue": lambda queue, leases: queue.enqueue({"n": 1}),
    "enqueue_many": lambda queue, leases: queue.enqueue_many([1, 2]),
    "lease": lambda queue, leases: queue.lease(),
    "ack": lambda queue, leases: queue.ack(leases[0], result=1),
    "nack": lambda queue, leases: queue.nack(leases[0]),
    "fail": lambda queue, leases: queue.fail(leases[0]),
    "release": lambda queue, leases: queue.release(leases[0]),
    "extend": lambda queue, leases: queue.extend(leases[0]),
    "settle": lambda queue, leases: queue.settle(leases),
    "stats": lambda queue, leases: queue.stats(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_reads_a_queue_at_most_once(
    name: str, queue: Queue, store: Counting, policies: Counter[str]
) -> None:
    leases = _some_leases(queue, 3)
    queue.enqueue(0)
    store.reads = 0
    policies.clear()
    CALLS[name](queue, leases)
    assert store.reads <= 1
    assert not policies


def test_policies_are_counted(queue: Queue, policies: Counter[str]) -> None:
    queue.pause()
    queue.spec  # noqa: B018
    queue.resume()
    queue.dlq.enqueue(1)  # of a queue that was not used before
    assert policies["policies"] > 0


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda queue: queue.enqueue(1), id="enqueue"),
        pytest.param(lambda queue: queue.enqueue_many([1]), id="enqueue_many"),
        pytest.param(lambda queue: queue.settle([]), id="settle"),
        pytest.param(lambda queue: queue.stats(), id="stats"),
        pytest.param(lambda queue: queue.get("0" * 32), id="get"),
        pytest.param(lambda queue: list(queue.browse()), id="browse"),
        pytest.param(lambda queue: list(queue.log()), id="log"),
        pytest.param(lambda queue: queue.pause(), id="pause"),
        pytest.param(lambda queue: queue.purge(), id="purge"),
        pytest.param(lambda queue: queue.delete(), id="delete"),
        pytest.param(lambda queue: queue.partitions(), id="partitions"),
        pytest.param(lambda queue: queue.replay(since=0), id="replay"),
    ],
)
def test_a_queue_that_is_not_there_is_an_error_with_a_hint(
    hf: Holdfast, call: Callable[[Queue], object]
) -> None:
    hf.queue("orders")
    gone = hf.queue("ordres")
    gone.delete(force=True)
    with pytest.raises(QueueNotFound, match=r"^no queue 'ordres'; did you mean 'orders'"):
        call(gone)
