"""The log: what is finished, once, with how it ended."""

# pyright: basic

from __future__ import annotations

import pytest

from holdfast import (
    Done,
    ErrorInfo,
    Finished,
    Holdfast,
    InvalidArgument,
    LeaseLost,
    Message,
    MessageNotFound,
    Queue,
)
from holdfast.model.message import History
from holdfast.stores.contract import Cut
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import whereabouts


@pytest.mark.promise("LOG-1")
def test_an_ack_moves_the_message_to_the_log(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue({"id": 1}, key="k", type="t", priority=3, headers={"h": "v"})
    enqueued = clock.now()
    clock.advance(1)
    queue.nack(queue.lease(owner="a")[0], "once", delay=1)
    first = clock.now()
    clock.advance(1)
    queue.release(queue.lease(owner="x")[0])
    released = clock.now()
    clock.advance(1)
    (lease,) = queue.lease(owner="b")
    last = clock.now()
    clock.advance(1)
    queue.ack(lease, result={"total": 7})
    assert list(queue.log()) == [
        Finished(
            message=Message(
                id=sent.id,
                queue="orders",
                partition=0,
                priority=3,
                key="k",
                type="t",
                body=b'{"id":1}',
                content_type="application/json",
                headers={"h": "v"},
                enqueued_at=enqueued,
                available_at=released,
                attempts=2,
                first_leased_at=first,
                history=History(errors=(ErrorInfo("once", "ERROR", first, 1, "a"),), delay=None),
            ),
            status="COMPLETED",
            finished_at=clock.now(),
            first_leased_at=first,
            last_leased_at=last,
            consumer="b",
            result={"total": 7},
        )
    ]
    assert whereabouts(queue) == {"log": [sent.id]}
    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.done) == (0, 0, 1)


@pytest.mark.promise("LOG-1")
def test_results_of_a_batch(queue: Queue) -> None:
    queue.enqueue_many(range(3))
    first, second, third = queue.lease(3)
    queue.settle([(first, Done({"n": 1})), second, (third, Done([3]))])
    assert [finished.result for finished in queue.log()] == [{"n": 1}, None, [3]]


@pytest.mark.promise("LOG-1")
def test_a_result_that_is_no_json_value_is_refused(queue: Queue) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    for bad in (object(), float("nan"), "x" * 70_000):
        with pytest.raises(InvalidArgument):
            queue.ack(lease, result=bad)
    assert queue.stats().leased == 1


@pytest.mark.promise("LOG-2")
@pytest.mark.parametrize("how", ["nack", "timeout"])
def test_exhausted_complete_ends_in_the_log(hf: Holdfast, clock: ManualClock, how: str) -> None:
    queue = hf.queue("events", exhausted="complete", max_attempts=2)
    sent = queue.enqueue(1)
    for _ in range(2):
        (lease,) = queue.lease()
        if how == "nack":
            queue.nack(lease, "no", delay=0)
        else:
            clock.advance(30)
            hf.sweep()
    (finished,) = queue.log()
    assert whereabouts(queue) == {"log": [sent.id]}
    assert finished.status == "COMPLETED_WITH_ERRORS"
    wanted = "no" if how == "nack" else "ack timeout exceeded"
    assert [(e.message, e.attempt) for e in finished.message.errors] == [(wanted, 1), (wanted, 2)]
    assert finished.message.attempts == 2
    queue.enqueue(2)
    queue.fail(queue.lease()[0])  # but what can never work is still a dead letter
    assert queue.stats().dead == 1


@pytest.mark.promise("LOG-3")
def test_finishing_twice_keeps_the_first_row(hf: Holdfast) -> None:
    queue = hf.queue("events", exhausted="complete", max_attempts=1)
    sent = queue.enqueue("first", id="01890000-0000-7000-8000-000000000001")
    (lease,) = queue.lease()
    queue.nack(lease, "no")
    with pytest.raises(LeaseLost):
        queue.ack(lease)
    assert queue.enqueue("second", id=sent.id).duplicate
    (finished,) = queue.log()
    assert (finished.status, finished.message.payload) == ("COMPLETED_WITH_ERRORS", "first")
    assert queue.stats().done == 1


@pytest.mark.promise("LOG-4")
def test_retention_by_age(hf: Holdfast, clock: ManualClock) -> None:
    week = hf.queue("week")
    hour = hf.queue("hour", retention=3600)
    ever = hf.queue("ever", retention=0)
    for queue in (week, hour, ever):
        queue.enqueue_many(range(3))
        queue.settle(queue.lease(3))
    clock.advance(3600)
    assert hf.sweep().trimmed == 0
    clock.advance(0.001)
    assert hf.sweep().trimmed == 3
    clock.advance(7 * 86_400)
    assert hf.sweep().trimmed == 3
    assert [len(list(queue.log())) for queue in (week, hour, ever)] == [0, 0, 3]
    assert [queue.stats().done for queue in (week, hour, ever)] == [3, 3, 3]


@pytest.mark.promise("LOG-4")
def test_retention_by_count_keeps_the_newest(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", retention_count=4)
    for n in range(7):
        queue.enqueue(n)
        queue.ack(queue.lease()[0])
        clock.advance(1)
    assert hf.sweep().trimmed == 3
    assert [finished.message.payload for finished in queue.log()] == [3, 4, 5, 6]
    assert hf.sweep().trimmed == 0


@pytest.mark.promise("LOG-4")
def test_the_log_is_trimmed_in_bounded_steps(
    queue: Queue, hf: Holdfast, clock: ManualClock
) -> None:
    queue.enqueue_many(range(25))
    queue.settle(queue.lease(25))
    now = clock.now()
    assert hf.store.drop([Cut("orders", 10, before=now)]) == [0]  # finished_at < before
    all_of_it = [Cut("orders", 10, before=now + 1)]
    assert [hf.store.drop(all_of_it)[0] for _ in range(4)] == [10, 10, 5, 0]


@pytest.mark.promise("LOG-4")
def test_no_log_keeps_nothing(hf: Holdfast) -> None:
    queue = hf.queue("orders", log=False)
    queue.enqueue_many([1, 2])
    leases = queue.lease(2)
    queue.settle(leases)
    assert whereabouts(queue) == {}
    assert queue.stats().done == 2
    with pytest.raises(LeaseLost):
        queue.ack(leases[0])


@pytest.mark.promise("LOG-5")
def test_a_finished_message_can_be_replayed(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue({"id": 1}, key="k", type="t", priority=3, headers={"h": "v"})
    queue.nack(queue.lease()[0], "once", delay=0)
    queue.ack(queue.lease()[0], result=1)
    clock.advance(60)
    (fresh,) = queue.replay(sent.id)
    assert fresh == Message(
        id=fresh.id,
        queue="orders",
        partition=0,
        priority=3,
        key="k",
        type="t",
        body=sent.body,
        content_type=sent.content_type,
        headers={"h": "v"},
        enqueued_at=clock.now(),
        available_at=clock.now(),
        attempts=0,
        history=History(origin=sent.id),
    )
    assert fresh.id != sent.id
    assert queue.get(fresh.id) == fresh
    assert whereabouts(queue) == {"ready": [fresh.id], "log": [sent.id]}
    queue.ack(queue.lease()[0])
    assert [finished.message.origin for finished in queue.log()] == [None, sent.id]


@pytest.mark.promise("LOG-5")
def test_a_time_range_can_be_replayed(queue: Queue, clock: ManualClock) -> None:
    times: list[int] = []
    for n in range(5):
        queue.enqueue(n)
        queue.ack(queue.lease()[0])
        times.append(clock.now())
        clock.advance(1)
    replayed = queue.replay(since=times[1], until=times[3])
    assert [message.payload for message in replayed] == [1, 2]
    assert [lease.message.payload for lease in queue.lease(10)] == [1, 2]


@pytest.mark.promise("LOG-5")
def test_a_discarded_dead_letter_is_replayed_into_its_queue(queue: Queue) -> None:
    queue.enqueue("x")
    queue.fail(queue.lease()[0])
    (look,) = queue.dlq.lease()
    queue.dlq.ack(look)
    (fresh,) = queue.dlq.replay(look.id)
    assert (fresh.queue, fresh.dead_at, fresh.origin) == ("orders", None, look.id)
    assert whereabouts(queue) == {"ready": [fresh.id]}


@pytest.mark.promise("LOG-5")
def test_a_replay_of_nothing_is_an_error(queue: Queue) -> None:
    with pytest.raises(MessageNotFound):
        queue.replay("01890000-0000-7000-8000-000000000001")
    with pytest.raises(InvalidArgument):
        queue.replay()
    assert queue.replay(since=0) == []
