"""Exactly one state at every instant, and numbers that say so."""

# pyright: basic

from __future__ import annotations

import pytest

from holdfast import Extend, Fail, Holdfast, Outgoing, Queue, QueueStats, Release, Retry, State
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import whereabouts


def stats(queue: Queue) -> tuple[int, int, int, int, int, float | None]:
    s: QueueStats = queue.stats()
    return s.ready, s.delayed, s.leased, s.dead, s.done, s.oldest_age


@pytest.mark.promise("LIFE-1", "LIFE-12")
def test_a_message_is_in_one_state_and_counted_there(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    assert stats(queue) == (0, 0, 0, 0, 0, None)
    (id,) = {queue.enqueue(1, delay=5).id}
    assert (whereabouts(queue), stats(queue)) == ({"delayed": [id]}, (0, 1, 0, 0, 0, None))
    clock.advance(5)
    assert (whereabouts(queue), stats(queue)) == ({"ready": [id]}, (1, 0, 0, 0, 0, 5.0))
    (lease,) = queue.lease()
    assert (whereabouts(queue), stats(queue)) == ({"leased": [id]}, (0, 0, 1, 0, 0, None))
    queue.nack(lease, "no", delay=3)
    assert (whereabouts(queue), stats(queue)) == ({"delayed": [id]}, (0, 1, 0, 0, 0, None))
    clock.advance(3)
    queue.fail(queue.lease()[0])
    assert (whereabouts(queue), stats(queue)) == ({"dead": [id]}, (0, 0, 0, 1, 0, None))
    (look,) = queue.dlq.lease()
    assert (whereabouts(queue), stats(queue)) == ({"dead": [id]}, (0, 0, 0, 1, 0, None))
    queue.dlq.release(look)
    hf.redrive("orders.dlq")
    assert (whereabouts(queue), stats(queue)) == ({"ready": [id]}, (1, 0, 0, 0, 0, 8.0))
    queue.lease()
    clock.advance(30)
    hf.sweep()
    assert (whereabouts(queue), stats(queue)) == ({"ready": [id]}, (1, 0, 0, 0, 0, 38.0))
    queue.ack(queue.lease()[0])
    assert (whereabouts(queue), stats(queue)) == ({"log": [id]}, (0, 0, 0, 0, 1, None))


@pytest.mark.promise("LIFE-12")
def test_the_counts_of_a_mixed_batch(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", partitions=3)
    queue.enqueue_many(
        Outgoing(n, key=str(n), priority=n % 10, delay=60 if n % 7 == 0 else None)
        for n in range(210)
    )
    assert stats(queue) == (180, 30, 0, 0, 0, 0.0)
    leases = queue.lease(100)
    kinds = [None, Retry("x", delay=9), Fail("x"), Release(), Extend(90)]
    queue.settle([(lease, kind) if kind else lease for lease, kind in zip(leases, kinds * 20)])  # noqa: B905
    assert stats(queue) == (100, 50, 20, 20, 20, 0.0)
    clock.advance(60)
    assert stats(queue) == (150, 0, 20, 20, 20, 60.0)
    counted = {state: len(list(queue.browse(state))) for state in State}
    assert counted == {"ready": 150, "delayed": 0, "leased": 20, "log": 20}
    assert queue.dlq.stats().ready == 20


@pytest.mark.promise("LIFE-12")
def test_the_oldest_age_looks_into_every_lane(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("low", priority=0)
    clock.advance(10)
    queue.enqueue("high", priority=9)
    assert queue.stats().oldest_age == 10.0
    queue.lease()  # the high one
    assert queue.stats().oldest_age == 10.0
    queue.lease()
    assert queue.stats().oldest_age is None


@pytest.mark.promise("LIFE-12")
def test_purged_messages_are_not_counted(queue: Queue) -> None:
    queue.enqueue_many(range(1200))
    queue.enqueue("later", delay=60)
    queue.lease(2)
    assert queue.purge() == 1199
    assert stats(queue) == (0, 0, 2, 0, 0, None)


def test_stats_of_every_queue(hf: Holdfast) -> None:
    for name in ("b", "a", "lone.dlq"):
        hf.queue(name).enqueue(1)
    assert [(s.queue, s.ready, s.dead) for s in hf.stats()] == [
        ("a", 1, 0),
        ("b", 1, 0),
        ("lone.dlq", 1, 0),
    ]
