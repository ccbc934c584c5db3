"""Batches of an ordered queue: whole partitions, in order, without the keys that are held."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Backoff, Holdfast, Outgoing, Queue
from holdfast.stores.contract import ReserveAsk
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import another, clock, hf, store
from holdfast.work.handlers import Problem, Verdict
from holdfast.work.ledger import Batches, Judged, Offset, judge, publish, read

__all__ = ["another", "clock", "hf", "store"]

FAILED = Verdict(problems=(Problem("not this time", "ERROR"),))


@pytest.fixture
def ordered(hf: Holdfast) -> Queue:
    backoff = Backoff(base=10, jitter="none")
    return hf.queue("orders", partitions=3, ordered=True, backoff=backoff)


def batch_of(hf: Holdfast, batches: Batches, start: Offset, limit: int = 100) -> tuple[Any, Any]:
    """The next batch: its offset, and the messages of each of its parts."""
    end = batches.reserve(start, limit)
    if end is None:
        return None, []
    parts = batches.seal(end)
    pages = [list(read(hf.context, "orders", part.name)) for part in parts]
    return end, [[lease for page in each for lease in page] for each in pages]


def numbers(parts: list[list[Any]]) -> list[Any]:
    return sorted(lease.message.payload for part in parts for lease in part)


@pytest.mark.promise("PART-3", "PART-6")
def test_a_part_is_a_partition_in_order(hf: Holdfast, ordered: Queue) -> None:
    ordered.enqueue_many(Outgoing(n, key=f"k{n % 7}") for n in range(40))
    _, parts = batch_of(hf, Batches(hf.context, "orders"), Offset())
    assert len(parts) == 3
    for part in parts:
        assert len({lease.message.partition for lease in part}) == 1
        payloads = [lease.message.payload for lease in part]
        assert payloads == sorted(payloads)
    assert numbers(parts) == list(range(40))


@pytest.mark.promise("PART-3")
def test_what_another_owns_is_not_read_and_what_is_read_is_nobody_elses(
    hf: Holdfast, ordered: Queue, clock: ManualClock
) -> None:
    ordered.enqueue_many(Outgoing(n, key=f"k{n}") for n in range(30))
    batches = Batches(hf.context, "orders")
    start, parts = batch_of(hf, batches, Offset(), limit=6)
    worker = hf.consumer("orders", background=False)
    worker.tick()
    clock.advance(20)  # the claims of the reader have run out, what it holds has not
    worker.tick()
    clock.advance(20)
    worker.tick()
    assert worker.lease(10) == []
    assert batches.reserve(start, 6) is None  # settled; the partitions are the worker's now
    clock.advance(5)
    worker.tick()
    done = []
    while leases := worker.lease(10):
        for lease in leases:
            done.append(lease.message.payload)
            worker.ack(lease)
    assert sorted([*done, *numbers(parts)]) == list(range(30))
    worker.close()


@pytest.mark.promise("PART-6")
@pytest.mark.parametrize("how", ["block", "skip"])
def test_a_failed_key_is_held_back_from_the_next_batches(
    hf: Holdfast, ordered: Queue, clock: ManualClock, how: str
) -> None:
    hf.queue("orders", on_failure=how)
    ordered.enqueue_many(Outgoing(n, key="bad" if n % 2 else "good") for n in range(6))
    batches = Batches(hf.context, "orders")
    start, parts = batch_of(hf, batches, Offset())
    leases = {lease.message.payload: lease for part in parts for lease in part}
    verdicts = [Judged(leases[1], FAILED)]
    if how == "block":
        verdicts += [Judged(leases[n], None) for n in (3, 5)]  # a task does so: see spark/plan.py
    judge(hf.context, start.hold, "once", 0, verdicts)
    publish(hf.context, start.query, start.hold, "once")
    ordered.enqueue_many(Outgoing(n, key="bad" if n % 2 else "good") for n in range(6, 10))
    start, parts = batch_of(hf, batches, start)
    assert numbers(parts) == ([6, 8] if how == "block" else [6, 7, 8, 9])
    clock.advance(5)
    ordered.enqueue(11, key="bad")
    end, parts = batch_of(hf, batches, start)
    if how == "block":
        assert end is None
    else:
        start = end
        assert numbers(parts) == [11]
    clock.advance(5)
    start, parts = batch_of(hf, batches, start)
    found = [lease.message.payload for part in parts for lease in part]
    assert found == ([1, 3, 5, 7, 9, 11] if how == "block" else [1])
    (first, *_) = [lease for part in parts for lease in part]
    assert (first.message.attempts, first.message.payload) == (2, 1)


@pytest.mark.promise("PART-7")
def test_older_partitions_are_read_out_before_newer_ones(hf: Holdfast, ordered: Queue) -> None:
    ordered.enqueue_many(Outgoing(n, key=f"k{n % 5}") for n in range(20))
    hf.queue("orders", partitions=5)
    ordered.enqueue_many(Outgoing(n, key=f"k{n % 5}") for n in range(20, 40))
    batches, start, seen = Batches(hf.context, "orders"), Offset(), []
    for _ in range(2):
        start, parts = batch_of(hf, batches, start)
        seen.append(numbers(parts))
    assert seen == [list(range(20)), list(range(20, 40))]


@pytest.mark.promise("PART-6")
def test_a_key_is_held_back_when_its_failed_message_comes_due_meanwhile(
    hf: Holdfast, ordered: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered.enqueue_many(Outgoing(n, key="k") for n in range(3))
    batches = Batches(hf.context, "orders")
    start, parts = batch_of(hf, batches, Offset())
    leases = {lease.message.payload: lease for part in parts for lease in part}
    verdicts = [Judged(leases[0], FAILED), *(Judged(leases[n], None) for n in (1, 2))]
    judge(hf.context, start.hold, "once", 0, verdicts)
    publish(hf.context, start.query, start.hold, "once")
    lease = hf.store.lease

    def slow(ask: Any, now: int) -> Any:
        assert isinstance(ask, ReserveAsk)
        held = lease(ask, now)
        clock.advance(10)
        return held

    with monkeypatch.context() as patch:
        patch.setattr(hf.store, "lease", slow)
        end, parts = batch_of(hf, batches, start)
    assert (end, parts) == (None, [])
    _, parts = batch_of(hf, batches, start)
    assert [lease.message.payload for part in parts for lease in part] == [0, 1, 2]
