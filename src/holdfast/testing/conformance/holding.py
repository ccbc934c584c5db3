"""Held under a name, without a deadline, and finished by that name."""

# pyright: basic

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, Lease, Outgoing, Queue, QueueNotFound, Settled
from holdfast.rules.lifecycle import acked
from holdfast.stores.contract import (
    NO_DEADLINE,
    BatchEnd,
    ReserveAsk,
    Store,
    batch_in,
    overdue_in,
)
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import ids, whereabouts

_calls = iter(range(10**9))


def hold(hf: Holdfast, limit: int, batch: str = "b", queue: str = "orders", **ask: Any) -> int:
    """Hold so many; each call has a token of its own, as the contract asks."""
    now = hf.context.clock.now()
    given = ReserveAsk(queue, limit, "me", f"{next(_calls):016x}", batch, **ask)
    return hf.store.lease(given, now)


def held(store: Store, batch: str = "b", queue: str = "orders") -> list[Lease]:
    return batch_in(store, queue, batch, None, 10_000)


def finish(hf: Holdfast, limit: int = 10_000, batch: str = "b", **how: Any) -> int:
    given = {"queue": "orders", "status": "COMPLETED", **how}
    now = hf.context.clock.now()
    return hf.store.settle(BatchEnd(given["queue"], batch, limit, given["status"]), now)


def test_what_is_held_has_no_deadline_and_one_more_attempt(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    sent = queue.enqueue_many([1, 2, 3])
    queue.nack(queue.lease()[0], "no", delay=0)
    clock.advance(1)
    assert hold(hf, 10) == 3
    leases = held(hf.store)
    assert ids(leases) == ids(sent)
    assert [lease.message.attempts for lease in leases] == [2, 1, 1]
    now = clock.now()
    assert {(lease.deadline, lease.leased_at, lease.owner) for lease in leases} == {
        (NO_DEADLINE, now, "me")
    }
    assert [lease.message.first_leased_at for lease in leases] == [now - 1000, now, now]
    assert whereabouts(queue) == {"leased": ids(sent)}
    assert (queue.stats().ready, queue.stats().leased) == (0, 3)
    assert queue.lease(10) == []


def test_it_is_never_overdue(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many([Outgoing(1, ack_timeout=5), Outgoing(2), Outgoing(3)])
    assert hold(hf, 2) == 2  # the message's own time-out gives it no deadline either
    queue.lease()
    clock.advance(400 * 86_400)
    late = overdue_in(hf.store, "orders", clock.now(), 10)
    assert [lease.message.payload for lease in late] == [3]
    assert hf.sweep().requeued == 1
    assert queue.stats().leased == 2


@pytest.mark.promise("LIFE-5", "LIFE-6")
def test_it_is_taken_in_the_order_of_the_line(hf: Holdfast, queue: Queue) -> None:
    order = [0, 9, 4, 4, 0, 9, 1]
    sent = queue.enqueue_many(Outgoing(n, priority=p) for n, p in enumerate(order))
    line = sorted(range(len(order)), key=lambda n: (-order[n], n))
    for n, taken in enumerate((3, 3, 1)):
        assert hold(hf, 3, f"b{n}") == taken
        wanted = {sent[i].id for i in line[3 * n : 3 * n + 3]}
        assert {lease.id for lease in held(hf.store, f"b{n}")} == wanted
    assert hold(hf, 3, "b3") == 0


@pytest.mark.promise("LIFE-7")
def test_a_delayed_message_is_held_when_it_is_due(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("x", delay=60)
    clock.advance(59.999)
    assert hold(hf, 5) == 0
    clock.advance(0.001)
    assert hold(hf, 5) == 1


@pytest.mark.promise("LIFE-10")
def test_a_paused_queue_holds_nothing_new(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many([1, 2])
    assert hold(hf, 1) == 1
    queue.pause()
    assert hold(hf, 1) == 0
    assert finish(hf) == 1  # what is held may be finished
    queue.resume()
    assert hold(hf, 5) == 1


def test_partitions_may_be_chosen(hf: Holdfast) -> None:
    queue = hf.queue("parts", partitions=4)
    sent = queue.enqueue_many(Outgoing(n, key=f"k{n}", priority=n % 3) for n in range(60))
    wanted = sorted(m.id for m in sent if m.partition in (1, 3))
    assert hold(hf, 100, queue="parts", partitions=(1, 3)) == len(wanted)
    assert ids(held(hf.store, queue="parts")) == wanted
    assert hold(hf, 100, "c", queue="parts") == 60 - len(wanted)


def test_a_queue_that_is_gone_holds_nothing(hf: Holdfast, queue: Queue) -> None:
    queue.delete()
    with pytest.raises(QueueNotFound):
        hold(hf, 1)
    with pytest.raises(QueueNotFound):
        finish(hf)
    with pytest.raises(QueueNotFound):
        held(hf.store)


def test_what_is_held_is_read_in_pages(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(25))
    assert hold(hf, 20) == 20
    assert hold(hf, 3, "c") == 3
    for size in (1, 7, 20, 100):
        got: list[str] = []
        while page := batch_in(hf.store, "orders", "b", got[-1] if got else None, size):
            assert len(page) <= size
            got += ids(page)
        assert got == ids(sent[:20])
    assert ids(held(hf.store, "c")) == ids(sent[20:23])


def test_another_call_adds_to_a_name(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue_many(range(5))
    assert (hold(hf, 2), hold(hf, 2)) == (2, 2)
    assert ids(held(hf.store)) == ids(sent[:4])
    assert finish(hf) == 4


def test_holders_at_once_get_distinct_messages(
    queue: Queue, another: Callable[[], Holdfast]
) -> None:
    sent = queue.enqueue_many(range(300))
    handles = [another() for _ in range(4)]
    barrier = threading.Barrier(len(handles), timeout=60)
    counts = [0] * len(handles)

    def take(n: int) -> None:
        barrier.wait()
        while got := hold(handles[n], 7, f"b{n}"):
            counts[n] += got

    threads = [threading.Thread(target=take, args=(n,)) for n in range(len(handles))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [held(handles[0].store, f"b{n}") for n in range(len(handles))]
    assert [len(leases) for leases in found] == counts
    assert sorted(lease.id for leases in found for lease in leases) == ids(sent)


@pytest.mark.promise("FENCE-2")
def test_one_that_is_held_is_settled_like_any_other(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_many(range(5))
    hold(hf, 5)
    done, again, dead, back, longer = held(hf.store)
    queue.ack(done, result=1)
    queue.nack(again, "no", delay=5)
    queue.fail(dead, "never")
    queue.release(back)
    queue.extend(longer, 10)
    assert held(hf.store)[0].deadline == clock.now() + 10_000
    assert whereabouts(queue) == {
        "log": [done.id],
        "delayed": [again.id],
        "dead": [dead.id],
        "ready": [back.id],
        "leased": [longer.id],
    }
    (lease,) = queue.lease()
    assert (lease.id, lease.message.attempts) == (back.id, 1)
    assert finish(hf) == 1
    clock.advance(5)
    assert [m.message.attempts for m in queue.lease()] == [2]


@pytest.mark.promise("LOG-1", "LIFE-12")
def test_finish_acks_what_the_name_holds_and_nothing_else(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", partitions=3)
    sent = queue.enqueue_many(Outgoing(n, key=str(n), priority=n % 4) for n in range(40))
    hold(hf, 15)
    hold(hf, 10, "c")
    mine, theirs = held(hf.store), held(hf.store, "c")
    plain = queue.lease(5)
    clock.advance(2)
    assert finish(hf) == 15
    assert finish(hf) == 0
    assert held(hf.store) == [] and held(hf.store, "c") == theirs
    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.done) == (10, 15, 15)
    assert sorted(f.message.id for f in queue.log()) == ids(mine)
    queue.settle(plain)
    assert finish(hf, batch="c") == 10
    rest = {m.id for m in sent} - {f.message.id for f in queue.log()}
    assert {lease.id for lease in queue.lease(40)} == rest
    assert (queue.stats().leased, queue.stats().done) == (10, 30)


@pytest.mark.promise("LOG-1")
def test_the_log_does_not_tell_it_from_an_ack(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    for n in range(2):
        queue.enqueue(n, key="k", type="t", priority=3, headers={"h": "v"}, ack_timeout=9)
    for lease in queue.lease(2):
        queue.nack(lease, "once", delay=0)
    clock.advance(1)
    (lease,) = queue.lease(owner="me")
    assert hold(hf, 1) == 1
    clock.advance(1)
    queue.ack(lease)
    assert finish(hf) == 1
    acked_row, finished_row = queue.log()
    assert finished_row.message.payload == 1
    for name in ("status", "finished_at", "first_leased_at", "last_leased_at", "consumer"):
        assert getattr(finished_row, name) == getattr(acked_row, name)
    left, right = acked_row.message, finished_row.message
    for name in set(left.__struct_fields__) - {"id", "body"}:
        assert getattr(left, name) == getattr(right, name), name
    assert finished_row.result is None


@pytest.mark.promise("LOG-4")
def test_finish_without_a_status_keeps_no_log(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(3))
    hold(hf, 3)
    (lease, *_) = held(hf.store)
    assert finish(hf, status=None) == 3
    assert whereabouts(queue) == {}
    assert (queue.stats().leased, queue.stats().done) == (0, 3)
    (answer,) = hf.store.settle([acked(lease, queue.policy)], 0)
    assert answer is Settled.STALE


@pytest.mark.promise("FENCE-3", "FENCE-4")
def test_an_old_token_after_finish_is_answered_as_after_an_ack(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_many(range(4))
    plain = queue.lease(1) + queue.lease(1)
    hold(hf, 2)
    named = held(hf.store)
    queue.settle(plain)
    finish(hf)
    before = list(queue.log())
    for pair in (plain, named):
        assert queue.settle(pair) == [Settled.ALREADY] * 2
        assert queue.settle([(lease, queue_retry()) for lease in pair]) == [Settled.STALE] * 2
    assert list(queue.log()) == before
    assert queue.stats().done == 4
    # and a token from before it was held is nobody's
    again = queue.enqueue(9)
    (old,) = queue.lease()
    queue.release(old)
    hold(hf, 1)
    assert queue.settle([old]) == [Settled.STALE]
    finish(hf)
    assert queue.settle([old]) == [Settled.STALE]
    assert [f.message.id for f in queue.log()][-1] == again.id


def queue_retry() -> Any:
    from holdfast import Retry

    return Retry("late")


@pytest.mark.promise("LOG-3")
def test_an_id_that_finishes_twice_is_twice_in_the_log(hf: Holdfast) -> None:
    queue = hf.queue("orders", duplicate_window=0)
    for id in (
        "01890000-0000-7000-8000-000000000001",  # of our making
        "5f0c7b1e-93a5-4c64-8bd0-0a4c8d9f6d21",  # of somebody else's
    ):
        for text in ("first", "second"):
            queue.enqueue(text, id=id)
            queue.enqueue(f"beside {text}")
            assert hold(hf, 5, text) == 2
            assert finish(hf, batch=text) == 2
    told = [f.message.payload for f in queue.log()]
    assert sorted(told) == sorted(["first", "second", "beside first", "beside second"] * 2)
    assert (queue.stats().leased, queue.stats().done) == (0, 8)


def test_finish_respects_its_limit(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(25))
    hold(hf, 25)
    by_id = ids(held(hf.store))
    assert [finish(hf, 10) for _ in range(4)] == [10, 10, 5, 0]
    assert len(list(queue.log())) == 25
    assert sorted(f.message.id for f in queue.log()) == by_id


def test_finish_of_a_batch_that_is_settled_in_part(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_many(range(10))
    hold(hf, 10)
    leases = held(hf.store)
    queue.settle(leases[:2])
    queue.nack(leases[2], "later", delay=50)
    queue.fail(leases[3], "never")
    queue.release(leases[4])
    (taken,) = queue.lease()
    assert taken.id == leases[4].id
    assert finish(hf) == 5
    assert held(hf.store) == []
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead, stats.done) == (0, 1, 1, 1, 7)
    queue.ack(taken)
    assert len(list(queue.log())) == 8


def test_the_same_name_in_two_queues(hf: Holdfast, queue: Queue) -> None:
    other = hf.queue("bills")
    for each in (queue, other, queue.dlq):
        each.enqueue_many(range(3))
        assert hold(hf, 2, queue=each.name) == 2
    assert finish(hf) == 2
    assert len(held(hf.store, queue="bills")) == 2
    assert len(held(hf.store, queue="orders.dlq")) == 2
    assert finish(hf, queue="orders.dlq", status="COMPLETED_WITH_ERRORS") == 2
    assert [f.status for f in queue.dlq.log()] == ["COMPLETED_WITH_ERRORS"] * 2
    assert [q.stats().done for q in (queue, other, queue.dlq)] == [2, 0, 2]
    assert (queue.stats().leased, other.stats().leased, queue.stats().dead) == (0, 2, 1)


def test_two_who_finish_a_batch_at_once(queue: Queue, another: Callable[[], Holdfast]) -> None:
    handles = [another() for _ in range(4)]
    queue.enqueue_many(range(400))
    hold(handles[0], 400)
    barrier, counts = threading.Barrier(len(handles), timeout=60), [0] * len(handles)

    def work(n: int) -> None:
        barrier.wait()
        while held(handles[n].store):
            counts[n] += finish(handles[n], 30)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(handles))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 400
    assert len(list(queue.log())) == queue.stats().done == 400
    assert queue.stats().leased == 0


def test_counts_after_any_mixture(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", partitions=3, retention_count=7)
    dice = Random(5)
    for _ in range(30):
        queue.enqueue_many(Outgoing(n, key=str(n), delay=dice.choice([None, 1])) for n in range(4))
        batch = f"b{dice.randrange(3)}"
        hold(hf, dice.randrange(1, 6), batch)
        for lease in held(hf.store, batch)[: dice.randrange(3)]:
            queue.nack(lease, "x", delay=dice.choice([0, 1]))
        if dice.random() < 0.5:
            finish(hf, dice.choice([1, 100]), batch)
        clock.advance(dice.choice([0, 1]))
        hf.sweep()
        stats = queue.stats()
        counted = {place: len(found) for place, found in whereabouts(queue).items()}
        assert counted.get("ready", 0) == stats.ready
        assert counted.get("delayed", 0) == stats.delayed
        assert counted.get("leased", 0) == stats.leased
        assert counted.get("log", 0) == min(7, stats.done)


def test_an_observer_sees_what_is_held_and_finished(hf: Holdfast, queue: Queue) -> None:
    told: list[tuple[Any, ...]] = []

    class Watcher:
        def reserved(self, queue: str, count: int) -> None:
            told.append(("reserved", queue, count))

        def ended(self, queue: str, count: int, status: str | None) -> None:
            told.append(("ended", queue, count, status))

        def enqueued(self, *_: Any) -> None: ...
        def leased(self, *_: Any) -> None: ...
        def settled(self, *_: Any) -> None: ...
        def handled(self, *_: Any) -> None: ...

    hf.context.observe(Watcher())
    queue.enqueue_many(range(5))
    assert hold(hf, 3) == 3
    assert hold(hf, 10) == 2
    assert hold(hf, 10) == 0
    assert finish(hf, 4) == 4
    assert finish(hf, 4, status=None) == 1
    assert finish(hf, 4) == 0
    assert told == [
        ("reserved", "orders", 3),
        ("reserved", "orders", 2),
        ("ended", "orders", 4, "COMPLETED"),
        ("ended", "orders", 1, None),
    ]


def test_an_observer_that_knows_nothing_of_batches_goes_on_working(
    hf: Holdfast, queue: Queue
) -> None:
    told: list[str] = []

    class Old:
        def enqueued(self, *_: Any) -> None:
            told.append("enqueued")

        def leased(self, *_: Any) -> None:
            told.append("leased")

        def settled(self, *_: Any) -> None:
            told.append("settled")

        def handled(self, *_: Any) -> None: ...

    hf.context.observe(Old())
    queue.enqueue_many(range(2))
    assert (hold(hf, 1), finish(hf)) == (1, 1)
    queue.ack(queue.lease()[0])
    assert told == ["enqueued", "leased", "settled"]
