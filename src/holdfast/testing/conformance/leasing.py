"""Who gets which message, and when."""

# pyright: basic

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, InvalidArgument, Lease, Outgoing, Queue, QueueNotFound
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import StoreFactory, ids, whereabouts


def payloads(leases: list[Lease]) -> list[Any]:
    return [lease.message.payload for lease in leases]


@pytest.mark.promise("LIFE-5")
def test_messages_are_leased_in_the_order_they_were_enqueued(queue: Queue) -> None:
    for n in range(5):
        queue.enqueue(n)
    queue.enqueue_many(range(5, 300))
    assert payloads(queue.lease(100)) == list(range(100))
    assert payloads(queue.lease(300)) == list(range(100, 300))


@pytest.mark.promise("LIFE-5")
def test_ids_that_are_not_in_order_do_not_change_it(queue: Queue) -> None:
    for n in (3, 1, 2):
        queue.enqueue(n, id=f"01890000-0000-7000-8000-00000000000{n}")
    assert payloads(queue.lease(3)) == [3, 1, 2]


@pytest.mark.promise("LIFE-6")
def test_a_higher_priority_goes_first(queue: Queue) -> None:
    order = [0, 9, 4, 4, 0, 9, 1]
    queue.enqueue_many(Outgoing((p, n), priority=p) for n, p in enumerate(order))
    wanted = sorted(([p, n] for n, p in enumerate(order)), key=lambda pair: (-pair[0], pair[1]))
    assert payloads(queue.lease(4)) + payloads(queue.lease(4)) == wanted


@pytest.mark.promise("LIFE-6")
def test_a_delayed_message_that_is_due_keeps_its_priority(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("low, early", delay=1)
    queue.enqueue("ready", priority=1)
    queue.enqueue("high, late", priority=9, delay=5)
    clock.advance(5)
    assert payloads(queue.lease(3)) == ["high, late", "ready", "low, early"]


@pytest.mark.promise("LIFE-7")
def test_a_delayed_message_comes_at_its_time_and_not_before(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("x", delay=60)
    clock.advance(59.999)
    assert queue.lease() == []
    assert queue.stats().delayed == 1
    clock.advance(0.001)
    assert queue.stats().ready == 1
    assert payloads(queue.lease()) == ["x"]


@pytest.mark.promise("LIFE-7")
def test_a_time_to_start_at(queue: Queue, clock: ManualClock) -> None:
    at = datetime.fromtimestamp(clock.now() / 1000 + 10, UTC)
    sent = queue.enqueue("x", at=at)
    assert sent.available_at == clock.now() + 10_000
    assert queue.lease() == []
    clock.advance(10)
    assert payloads(queue.lease()) == ["x"]
    past = queue.enqueue("y", at=datetime(2001, 1, 1, tzinfo=UTC))
    assert past.available_at == clock.now()


@pytest.mark.promise("LIFE-8")
def test_consumers_at_once_get_distinct_messages(
    queue: Queue, another: Callable[[], Holdfast]
) -> None:
    sent = queue.enqueue_many(range(600))
    got: list[str] = []
    handles = [another().queue("orders") for _ in range(8)]
    barrier = threading.Barrier(len(handles), timeout=60)

    def consume(mine: Queue) -> None:
        barrier.wait()
        while leases := mine.lease(7):
            got.extend(ids(leases))

    threads = [threading.Thread(target=consume, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(ids(sent))
    assert queue.stats().leased == 600


@pytest.mark.promise("LIFE-9")
def test_an_empty_queue_gives_an_empty_list(queue: Queue, clock: ManualClock) -> None:
    assert queue.lease() == []
    assert queue.lease(10, wait=0.01) == []
    queue.enqueue("later", delay=3600)
    assert queue.lease(10, wait=0.01) == []


@pytest.mark.promise("LIFE-9")
@pytest.mark.parametrize("how", ["enqueue", "release", "resume", "retry"])
def test_a_waiting_consumer_gets_what_comes(
    queue: Queue, another: Callable[[], Holdfast], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.queue.queue.WAIT_STEP_S", 600)  # it must be woken
    waiter = another()
    other, waits, really_wait = waiter.queue("orders"), threading.Event(), waiter.store.wait

    def wait(*args: Any) -> None:
        waits.set()
        really_wait(*args)

    monkeypatch.setattr(waiter.store, "wait", wait)
    if how != "enqueue":
        queue.enqueue("x")
    (lease,) = queue.lease() or [None]
    if how == "resume":
        assert lease is not None
        queue.pause()
        queue.release(lease)
    got: list[Lease] = []
    waiting = threading.Thread(target=lambda: got.extend(other.lease(wait=600)), daemon=True)
    waiting.start()
    assert waits.wait(10)
    threading.Event().wait(0.05)  # by now it has looked, found nothing and gone to sleep
    if how == "enqueue":
        queue.enqueue("x")
    elif how == "resume":
        queue.resume()
    elif lease is not None:
        queue.release(lease) if how == "release" else queue.nack(lease, delay=0)
    waiting.join(10)
    assert payloads(got) == ["x"]


@pytest.mark.promise("LIFE-9")
def test_a_waiting_consumer_gets_a_delayed_message_when_it_is_due(
    store_factory: StoreFactory,
) -> None:
    orders = holdfast.connect(store_factory()).queue("orders")  # on the real clock
    orders.enqueue("x", delay=0.05)
    assert payloads(orders.lease(wait=30)) == ["x"]


@pytest.mark.promise("LIFE-10")
def test_a_paused_queue_accepts_and_gives_none(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many([1, 2])
    (held,) = queue.lease()
    queue.pause()
    third = queue.enqueue(3)
    assert queue.lease(10) == []
    assert queue.stats().paused
    assert queue.extend(held, 90).deadline == clock.now() + 90_000
    queue.ack(held)
    queue.resume()
    assert payloads(queue.lease(10)) == [2, 3]
    assert queue.get(third.id).attempts == 1
    assert not queue.stats().paused


@pytest.mark.promise("LIFE-10")
def test_another_connection_sees_the_pause(queue: Queue, another: Callable[[], Holdfast]) -> None:
    other = another().queue("orders")
    queue.enqueue(1)
    other.pause()
    assert queue.lease() == []
    queue.resume()
    assert len(other.lease()) == 1


@pytest.mark.promise("FENCE-6")
def test_an_attempt_is_counted_by_the_lease(queue: Queue, hf: Holdfast, clock: ManualClock) -> None:
    sent = queue.enqueue(1)
    for attempt in (1, 2, 3):
        (lease,) = queue.lease()
        assert lease.message.attempts == attempt
        assert queue.get(sent.id).attempts == attempt  # also if this consumer dies now
        clock.advance(30)
        hf.sweep()
    assert queue.dlq.get(sent.id).attempts == 3


@pytest.mark.promise("OVERDUE-3")
def test_a_lease_says_what_it_holds_and_until_when(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue({"id": 1})
    start = clock.now()
    (lease,) = queue.lease(owner="me")
    assert lease == Lease(
        message=holdfast.Message(
            **{
                **{name: getattr(sent, name) for name in sent.__struct_fields__},
                "attempts": 1,
                "first_leased_at": start,
            }
        ),
        token=lease.token,
        deadline=start + 30_000,
        leased_at=start,
        owner="me",
    )
    assert whereabouts(queue) == {"leased": [sent.id]}


@pytest.mark.no_store
@pytest.mark.parametrize("limit", [0, -1, 1.5, True, 10_001, "3"])
def test_a_bad_limit_is_refused(queue: Queue, limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        queue.lease(limit)


def test_a_queue_that_is_gone_is_an_error(queue: Queue) -> None:
    queue.delete()
    with pytest.raises(QueueNotFound):
        queue.lease()
    with pytest.raises(QueueNotFound):
        queue.stats()


def test_only_the_partitions_asked_for(hf: Holdfast) -> None:
    queue = hf.queue("parts", partitions=4)
    sent = queue.enqueue_many(Outgoing(n, key=f"k{n}") for n in range(100))
    wanted = [m.id for m in sent if m.partition in (1, 3)]
    assert ids(queue.lease(200, partitions=[1, 3])) == wanted
    assert ids(queue.lease(200)) == [m.id for m in sent if m.partition in (0, 2)]


def test_priority_holds_across_partitions(hf: Holdfast) -> None:
    queue = hf.queue("parts", partitions=4)
    queue.enqueue_many(Outgoing(n, key=f"k{n}", priority=n % 3) for n in range(60))
    got = [lease.message.priority for lease in queue.lease(30)] + [
        lease.message.priority for lease in queue.lease(30)
    ]
    assert got == [2] * 20 + [1] * 20 + [0] * 20
