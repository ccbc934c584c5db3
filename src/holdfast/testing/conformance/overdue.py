"""Messages whose consumer went silent."""

# pyright: basic

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, ErrorInfo, Extend, Fail, Holdfast, LeaseLost, Queue
from holdfast.errors import StoreUnavailable
from holdfast.model import settings
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.stores.contract import Event, Page, Store, Subscription, View
from holdfast.testing import ManualClock, drain, wait_until
from holdfast.testing.conformance.fixtures import ids, whereabouts
from holdfast.work.sweeper import LOCK, Sweeper, Swept


@pytest.mark.promise("OVERDUE-1", "OVERDUE-2")
def test_overdue_goes_back_at_its_deadline_and_not_before(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    sent = queue.enqueue({"id": 1}, key="k", priority=5, headers={"h": "v"})
    queue.lease(owner="gone")
    clock.advance(29.999)
    assert hf.sweep() == Swept()
    clock.advance(0.001)
    assert hf.sweep() == Swept(requeued=1)
    back = queue.get(sent.id)
    assert (back.queue, back.partition, back.priority, back.id) == ("orders", 0, 5, sent.id)
    assert (back.key, back.headers, back.payload) == ("k", {"h": "v"}, {"id": 1})
    assert (back.attempts, back.available_at) == (1, clock.now())
    assert back.errors == (
        ErrorInfo("ack timeout exceeded", "ACK_TIMEOUT", clock.now(), 1, "gone"),
    )
    assert queue.lease()[0].message.attempts == 2


@pytest.mark.promise("OVERDUE-1")
def test_overdue_out_of_attempts_is_dead(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue(1, max_attempts=2)
    for wanted in (Swept(requeued=1), Swept(dead=1)):
        queue.lease()
        clock.advance(30)
        assert hf.sweep() == wanted
    dead = queue.dlq.get(sent.id)
    assert (dead.reason, dead.attempts, dead.dead_at) == ("ack timeout exceeded", 2, clock.now())


@pytest.mark.promise("OVERDUE-1")
def test_overdue_backoff_is_a_choice(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", overdue_backoff=True, backoff=Backoff(base=40, jitter="none"))
    sent = queue.enqueue(1)
    queue.lease()
    clock.advance(30)
    hf.sweep()
    assert queue.get(sent.id).available_at == clock.now() + 40_000


@pytest.mark.promise("OVERDUE-1")
def test_overdue_keeps_its_place(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue_many(range(5))
    queue.lease(3)
    clock.advance(30)
    hf.sweep()
    assert whereabouts(queue) == {"ready": ids(sent)}


@pytest.mark.promise("OVERDUE-3")
def test_the_nearest_time_out_holds(store: Store, clock: ManualClock) -> None:
    hf = holdfast.connect(store, clock=clock)
    plain, own = hf.queue("plain"), hf.queue("own", ack_timeout=50)
    for queue in (plain, own):
        queue.enqueue("default")
        queue.enqueue("message", ack_timeout=2.5)
    for queue, wanted in ((plain, {30_000, 2500}), (own, {50_000, 2500})):
        assert {lease.deadline - clock.now() for lease in queue.lease(2)} == wanted
        stored = [entry.lease for entry in queue.browse("leased")]
        assert {lease.deadline - clock.now() for lease in stored if lease} == wanted
    clock.advance(2.5)
    assert hf.sweep() == Swept(requeued=2)


@pytest.mark.promise("OVERDUE-4")
def test_long_leases_do_not_hide_an_overdue_one(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_many(range(1000))
    front = queue.lease(1000)
    queue.settle([(lease, Extend(86_400)) for lease in front])
    late = queue.enqueue("late")
    queue.lease()
    clock.advance(30)
    assert hf.sweep() == Swept(requeued=1)
    assert whereabouts(queue)["ready"] == [late.id]


@pytest.mark.promise("OVERDUE-5")
def test_an_ack_during_a_sweep_wins_or_loses(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    queue = hf.queue("orders", max_attempts=100)
    sweeping = another()
    acked: list[str] = []
    lost: list[str] = []
    for _ in range(20):
        queue.enqueue_many(range(20))
        leases = queue.lease(1000)
        clock.advance(30)
        thread = threading.Thread(target=sweeping.sweep)
        thread.start()
        for lease in leases:
            try:
                queue.ack(lease)
                acked.append(lease.id)
            except LeaseLost:
                lost.append(lease.id)
        thread.join()
    while leases := queue.lease(1000):
        lost.extend(ids(leases))
        assert not set(ids(leases)) & set(acked)
        queue.settle(leases)
    log = [finished.message.id for finished in queue.log()]
    assert sorted(log) == sorted(set(acked) | set(lost))
    assert len(log) == 400


@pytest.mark.promise("OVERDUE-5")
def test_an_extension_that_came_before_the_sweep_wins(
    hf: Holdfast, queue: Queue, clock: ManualClock, store: Store
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    clock.advance(30)

    class Late:
        """A store whose sweeper reads the overdue, and then is slow to write."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def browse(self, *args: object) -> object:
            found = store.browse(*args)  # pyright: ignore
            queue.extend(lease, 60)
            return found

    slow = Context(Late(), clock, Random(), hf.context.policy, "slow")  # pyright: ignore
    assert Sweeper(slow, Settings()).sweep(clock.now(), triggered_by="test") == Swept()
    queue.ack(lease)


@pytest.mark.promise("OVERDUE-6")
def test_two_sweepers_requeue_each_message_once(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    queue = hf.queue("orders", max_attempts=2)
    queue.enqueue_many(range(500))
    queue.lease(500)
    clock.advance(30)
    swept: list[Swept] = []
    sweepers = [another() for _ in range(4)]
    barrier = threading.Barrier(4, timeout=60)

    def sweep(mine: Holdfast) -> None:
        barrier.wait()
        swept.append(mine.sweep())

    threads = [threading.Thread(target=sweep, args=(mine,)) for mine in sweepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.requeued for each in swept) == 500
    assert sum(each.dead for each in swept) == 0
    assert [lease.message.attempts for lease in queue.lease(1000)] == [2] * 500


@pytest.mark.promise("OVERDUE-6")
def test_the_sweep_lock(hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock) -> None:
    store, now = hf.store, clock.now()
    held = store.claim(LOCK, "a", 30_000, now)
    assert held is not None and (held.owner, held.epoch, held.expires_at) == ("a", 1, now + 30_000)
    other = another().store
    assert other.claim(LOCK, "b", 30_000, now + 29_999) is None
    assert other.claim(LOCK, "b", 0, now) is None  # only its owner gives it up
    renewed = store.claim(LOCK, "a", 30_000, now + 10_000)
    assert renewed is not None and (renewed.epoch, renewed.expires_at) == (1, now + 40_000)
    taken = other.claim(LOCK, "b", 30_000, now + 40_000)
    assert taken is not None and taken.epoch == 2
    assert other.claim(LOCK, "b", 0, now + 40_000) is None
    again = store.claim(LOCK, "a", 30_000, now + 40_000)
    assert again is not None and again.epoch == 3


@pytest.mark.promise("OVERDUE-6")
def test_a_lock_whose_owner_died_does_not_stop_the_sweep(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(1)
    queue.lease()
    clock.advance(29)
    hf.store.claim(LOCK, "killed in the middle of a sweep", 30_000, clock.now())
    sweeper = Sweeper(hf.context, Settings())
    clock.advance(1)
    assert sweeper.tick() == Swept()  # its owner may be at it
    clock.advance(5)
    assert sweeper.tick() == Swept(requeued=1)  # it was not


@pytest.mark.promise("OVERDUE-7")
def test_a_sweep_works_through_everything_in_batches(
    hf: Holdfast, queue: Queue, clock: ManualClock, store: Store
) -> None:
    queue.enqueue_many(range(250))
    queue.lease(250)
    clock.advance(30)
    sizes: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def settle(self, moves: list[object], now: int) -> object:
            sizes.append(len(moves))
            return store.settle(moves, now)  # pyright: ignore

    at = Context(Counting(), clock, Random(), hf.context.policy, "me")  # pyright: ignore
    assert Sweeper(at, Settings()).tick() == Swept(requeued=250)
    assert sizes[:3] == [100, 100, 50]
    assert max(sizes) == 100


@pytest.mark.promise("OVERDUE-7")
def test_a_tick_that_fails_does_not_stop_the_next(
    hf: Holdfast, queue: Queue, clock: ManualClock, store: Store
) -> None:
    queue.enqueue(1)
    queue.lease()
    clock.advance(30)
    calls: list[str] = []
    running = threading.Semaphore(1)

    class Flaky:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def browse(self, *args: object) -> object:
            assert running.acquire(blocking=False), "two ticks at once"
            try:
                calls.append("overdue")
                if len(calls) < 3:
                    raise StoreUnavailable("gone for a moment")
                return store.browse(*args)  # pyright: ignore
            finally:
                running.release()

    at = Context(Flaky(), clock, Random(), hf.context.policy, "me")  # pyright: ignore
    stop = threading.Event()
    sweeper = Sweeper(at, Settings(overdue_check_interval_ms=10))
    thread = threading.Thread(target=sweeper.run, args=(stop,))
    thread.start()
    wait_until(lambda: queue.stats().ready == 1)
    stop.set()
    thread.join()
    assert len(calls) >= 3


@pytest.mark.promise("OVERDUE-7")
def test_every_worker_sweeps_by_itself(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("left behind")
    queue.lease(owner="gone")
    clock.advance(30)
    seen: list[object] = []
    hf.handler("orders")(lambda payload: seen.append(payload))  # noqa: PLW0108
    worker = hf.worker(concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: seen == ["left behind"])
    worker.stop()
    thread.join()


@pytest.mark.promise("OVERDUE-8")
def test_one_event_per_tick_that_moved_something(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    queue = hf.queue("orders", max_attempts=2)
    watching = another().subscribe()
    sweeper = Sweeper(hf.context, Settings())
    assert sweeper.tick() == Swept()
    queue.enqueue_many(range(3))
    queue.lease(3)
    clock.advance(30)
    sweeper.tick()
    first = clock.now()
    queue.enqueue("new")
    queue.lease(4)
    clock.advance(30)
    sweeper.tick()
    sweeper.tick()
    events: list[Event] = []
    while news := watching.next(timeout=0.05):
        events += news
    by_queue = {"queues": {"orders": 1}, "dlq_queues": {"orders": 3}}
    assert [(e.type, e.timestamp, e.payload) for e in events] == [
        ("requeue", first, {**told_of(3, 0), "queues": {"orders": 3}, "dlq_queues": {}}),
        ("requeue", clock.now(), {**told_of(1, 3), **by_queue}),
        ("move_to_dlq", clock.now(), {"count": 3, "queues": {"orders": 3}}),
    ]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    resumed = another().subscribe(after=events[0].seq)
    assert resumed.next(timeout=1) == events[1:]
    resumed.close()
    watching.close()


@pytest.mark.promise("OVERDUE-2")
def test_a_lease_from_an_empty_queue_finds_what_is_overdue(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    """Nobody sweeps in this test and those that follow."""
    sent = hf.queue("orders").enqueue({"id": 1}, priority=3)
    consumer = another().queue("orders")
    hf.queue("orders").lease(owner="gone")
    clock.advance(29.999)
    assert consumer.lease() == []
    clock.advance(0.001)
    (lease,) = consumer.lease()
    assert (lease.id, lease.message.attempts, lease.message.priority) == (sent.id, 2, 3)
    assert lease.message.errors == (
        ErrorInfo("ack timeout exceeded", "ACK_TIMEOUT", clock.now(), 1, "gone"),
    )
    consumer.ack(lease)
    assert whereabouts(consumer) == {"log": [sent.id]}


@pytest.mark.promise("OVERDUE-2")
def test_a_backlog_does_not_hide_what_is_overdue(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    first, second, *others = ids(hf.queue("orders").enqueue_many(range(10)))
    consumer = another().queue("orders")
    hf.queue("orders").lease(owner="gone")
    assert ids(consumer.lease()) == [second]
    clock.advance(30)
    assert ids(consumer.lease()) == [first]
    assert ids(consumer.lease()) == [second]
    assert ids(consumer.lease(100)) == others


@pytest.mark.promise("OVERDUE-2")
def test_a_new_connection_finds_what_is_overdue_behind_a_backlog(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    first, *_ = ids(hf.queue("orders").enqueue_many(range(10)))
    hf.queue("orders").lease(owner="gone")
    clock.advance(30)
    assert ids(another().queue("orders").lease()) == [first]


@pytest.mark.promise("OVERDUE-2")
def test_a_lease_takes_more_than_one_batch_of_what_is_overdue(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    queue = hf.queue("orders")
    sent = ids(queue.enqueue_many(range(250)))
    queue.lease(250, owner="gone")
    clock.advance(30)
    consumer, found = another().queue("orders"), list[str]()
    while leases := consumer.lease(250):
        found += ids(leases)
    assert sorted(found) == sorted(sent)


@pytest.mark.promise("OVERDUE-2")
def test_a_waiting_lease_gets_what_becomes_overdue_meanwhile(
    store: Store, store_factory: Callable[[], Store]
) -> None:
    queue = holdfast.connect(store).queue("orders", ack_timeout=0.3)
    sent = queue.enqueue(1)
    consumer = holdfast.connect(store_factory()).queue("orders")
    assert queue.lease(owner="gone")
    (lease,) = consumer.lease(wait=20)
    assert (lease.id, lease.message.attempts) == (sent.id, 2)


@pytest.mark.promise("OVERDUE-1", "OVERDUE-2")
def test_a_lease_moves_what_is_overdue_by_the_rules(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", max_attempts=2)
    twice = queue.enqueue("twice")
    queue.lease(owner="gone")
    clock.advance(30)
    assert ids(queue.lease(owner="gone")) == [twice.id]
    once = queue.enqueue("once")
    queue.lease(owner="gone")
    clock.advance(30)
    assert ids(queue.lease(10)) == [once.id]
    dead = queue.dlq.get(twice.id)
    assert (dead.reason, dead.attempts, dead.dead_at) == ("ack timeout exceeded", 2, clock.now())


@pytest.mark.promise("OVERDUE-8")
def test_a_lease_that_moved_something_says_so(
    hf: Holdfast, store: Store, clock: ManualClock
) -> None:
    queue = hf.queue("orders", max_attempts=2)
    watching = store.subscribe()
    queue.enqueue_many(["once", "twice"])
    queue.lease(owner="gone")
    clock.advance(30)
    assert len(queue.lease(2)) == 2
    clock.advance(30)
    assert len(queue.lease(2)) == 1
    events: list[Event] = []
    wait_until(lambda: events.extend(watching.next(timeout=0.05)) or len(events) >= 3)
    watching.close()
    requeue = {"triggered_by": "lease", "count": 1, "queues": {"orders": 1}}
    assert [(event.type, event.payload) for event in events] == [
        ("requeue", {**requeue, "dlq_count": 0, "dlq_queues": {}}),
        ("requeue", {**requeue, "dlq_count": 1, "dlq_queues": {"orders": 1}}),
        ("move_to_dlq", {"count": 1, "queues": {"orders": 1}}),
    ]


@pytest.mark.promise("OVERDUE-2")
def test_a_lease_of_dead_letters_finds_what_is_overdue(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue(1)
    queue.fail(queue.lease()[0])
    assert ids(queue.dlq.lease(owner="gone")) == [sent.id]
    clock.advance(30)
    assert ids(queue.dlq.lease()) == [sent.id]


@pytest.mark.promise("OVERDUE-2", "OVERDUE-6")
def test_leases_at_once_get_what_is_overdue_once(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    queue = hf.queue("orders", max_attempts=100)
    sent = ids(queue.enqueue_many(range(90)))
    queue.lease(90, owner="gone")
    clock.advance(30)
    consumers = [another().queue("orders") for _ in range(4)]
    barrier = threading.Barrier(4, timeout=60)
    found: list[tuple[str, int]] = []

    def consume(mine: Queue) -> None:
        barrier.wait()
        for _ in range(1000):
            if len(found) < len(sent):
                found.extend((lease.id, lease.message.attempts) for lease in mine.lease(10))

    threads = [threading.Thread(target=consume, args=(mine,)) for mine in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [(id, 2) for id in sorted(sent)]


@pytest.mark.promise("OVERDUE-2", "OVERDUE-5")
def test_a_lease_leaves_alone_what_was_extended_or_is_still_held(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(range(3))
    late, longer, done = queue.lease(3)
    queue.extend(longer, 60)
    clock.advance(30)
    queue.ack(done)  # the token decides, not the timer
    assert ids(another().queue("orders").lease(10)) == [late.id]
    queue.ack(longer)
    with pytest.raises(LeaseLost):
        queue.ack(late)


@pytest.mark.no_store
@pytest.mark.promise("OVERDUE-2")
def test_a_lease_that_finds_messages_looks_once_a_second(
    hf: Holdfast, queue: Queue, clock: ManualClock, store: Store
) -> None:
    queue.enqueue_many(range(100))
    looks: list[int | None] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def browse(self, view: View, *args: Any) -> Page:
            looks.append(view.overdue_at)
            return store.browse(view, *args)

    at = Context(Counting(), clock, Random(), hf.context.policy, "me")  # pyright: ignore
    begun = clock.now()
    for _ in range(30):
        assert len(Queue(at, "orders").lease(2)) == 2
        clock.advance(0.1)
    assert looks == [begun, begun + 1000, begun + 2000]
    at.looks.cover(clock.now(), 5000)  # a sweeper in this process: leases need not look
    assert len(Queue(at, "orders").lease(100)) == 40
    assert Queue(at, "orders").lease() == []
    assert len(looks) == 3
    clock.advance(10)
    assert Queue(at, "orders").lease() == []
    assert len(looks) == 4


@pytest.mark.no_store
def test_a_look_that_fails_keeps_no_message_from_being_leased(
    hf: Holdfast, queue: Queue, clock: ManualClock, store: Store
) -> None:
    queue.enqueue_many([1, 2])
    queue.lease(owner="gone")
    clock.advance(30)

    class Odd:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def browse(self, *args: object) -> object:
            raise TypeError("a row that nobody can read")

    at = Context(Odd(), clock, Random(), hf.context.policy, "me")  # pyright: ignore
    assert len(Queue(at, "orders").lease()) == 1
    assert Queue(at, "orders").lease() == []


def told_of(count: int, dead: int) -> dict[str, object]:
    return {"count": count, "dlq_count": dead, "triggered_by": "scheduler"}


@pytest.mark.promise("OVERDUE-8")
def test_every_dead_letter_is_told(hf: Holdfast, another: Callable[[], Holdfast]) -> None:
    """Whoever made it, once for each call; and nothing is told where nobody died."""
    queue, once = hf.queue("orders"), hf.queue("once", max_attempts=1)
    watching = another().subscribe()
    queue.enqueue_many(range(6))
    once.enqueue_many(range(2))
    a, b, c, d, e, f = queue.lease(6)
    queue.ack(a)
    queue.nack(b)
    queue.release(c)
    queue.fail(d, "no route")
    queue.settle([(e, Fail("no route")), (f, Fail("no route"))])
    once.nack(once.lease()[0])
    hf.handler("once")(lambda payload: 1 / 0)
    drain(hf, "once")
    events: list[Event] = []
    wait_until(lambda: sum(_counts(news(watching, events))) == 5)
    assert {event.type for event in events} == {"move_to_dlq"}
    assert [event.payload["queues"] for event in events] == [
        {"orders": 1},
        {"orders": 2},
        {"once": 1},
        {"once": 1},
    ]
    watching.close()


def news(watching: Subscription, found: list[Event]) -> list[Event]:
    found += watching.next(timeout=0.05)
    return found


def _counts(events: list[Event]) -> list[int]:
    return [event.payload["count"] for event in events]


@pytest.mark.promise("OVERDUE-9")
def test_the_settings_and_their_defaults(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.load({}) == Settings(None, 5000, 100, None, None)
    monkeypatch.setenv("HOLDFAST_OVERDUE_CHECK_INTERVAL_MS", "250")
    monkeypatch.setenv("HOLDFAST_REQUEUE_BATCH_SIZE", "7")
    monkeypatch.setenv("HOLDFAST_ACK_TIMEOUT_SECONDS", "12.5")
    monkeypatch.setenv("HOLDFAST_MAX_ATTEMPTS", "1")
    assert settings.load() == Settings(None, 250, 7, 12.5, 1)
    queue = holdfast.connect(store, clock=clock).queue("orders")
    sent = queue.enqueue(1)
    (lease,) = queue.lease()
    assert lease.deadline == clock.now() + 12_500
    queue.nack(lease, "no")
    assert whereabouts(queue) == {"dead": [sent.id]}
