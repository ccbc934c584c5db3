"""Leasing from many queues at once; workers that have many; sweeps of many."""

# pyright: basic

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

import holdfast
from holdfast import Holdfast, Lease, Outgoing, Queue, Settled
from holdfast.errors import StoreError
from holdfast.model.settings import Settings
from holdfast.queue.expiry import Swept
from holdfast.stores.contract import (
    Cut,
    LeaseAsk,
    OtherQueue,
    Page,
    ReserveAsk,
    Store,
    View,
    spec_of,
)
from holdfast.testing import ManualClock, wait_until
from holdfast.testing.conformance.fixtures import StoreFactory
from holdfast.work import sweeper
from holdfast.work.leaser import FEW, LOOKS, SHARE, Leaser, Specs
from holdfast.work.sweeper import Sweeper

TIMEOUT_MS = 30_000


class Counted:
    """A store that notes which of its methods were called."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            return found(*args, **options)

        return call


@pytest.fixture
def counted(store: Store) -> Counted:
    return Counted(store)


def make(hf: Holdfast, n: int, **options: Any) -> list[Queue]:
    return [hf.queue(f"orders-{i:03d}", **options) for i in range(n)]


def ask_of(
    queues: Sequence[Queue], limit: int, share: int | None = None, timeouts: Sequence[int] = ()
) -> LeaseAsk:
    first, *others = (
        OtherQueue(queue.name, timeouts[n] if timeouts else TIMEOUT_MS)
        for n, queue in enumerate(queues)
    )
    token = secrets.token_hex(8)
    return LeaseAsk(
        first.queue, limit, "me", token, first.timeout_ms, others=tuple(others), share=share
    )


def lease(
    hf: Holdfast, queues: Sequence[Queue], limit: int, share: int | None = None
) -> list[Lease]:
    return hf.store.lease(ask_of(queues, limit, share), hf.context.clock.now())


def seen(leases: list[Lease]) -> list[tuple[str, Any]]:
    return [(lease.message.queue, lease.message.payload) for lease in leases]


def test_many_queues_give_what_they_have_in_their_order(hf: Holdfast) -> None:
    first, empty, second, third = make(hf, 4)
    for n in range(3):
        first.enqueue(n)
        third.enqueue(n, priority=n)
    second.enqueue("only")
    wanted = [(first.name, n) for n in range(3)]
    wanted += [(second.name, "only"), *((third.name, n) for n in (2, 1, 0))]
    leases = lease(hf, [first, empty, second, third], 100)
    assert seen(leases) == wanted
    assert all(lease.message.attempts == 1 for lease in leases)
    assert [queue.stats().leased for queue in (first, empty, second, third)] == [3, 0, 1, 3]
    assert lease(hf, [first, empty, second, third], 100) == []


def test_many_queues_give_no_more_than_their_share_and_the_limit(hf: Holdfast) -> None:
    queues = make(hf, 4)
    for queue in queues:
        queue.enqueue_many(range(5))
    a, b, c, d = (queue.name for queue in queues)
    assert seen(lease(hf, queues, 5, share=2)) == [(a, 0), (a, 1), (b, 0), (b, 1), (c, 0)]
    assert seen(lease(hf, queues[::-1], 7, share=3)) == [
        *((d, n) for n in range(3)),
        *((c, n) for n in range(1, 4)),
        (b, 2),
    ]
    rest = seen(lease(hf, queues, 100))
    assert Counter(name for name, _ in rest) == {a: 3, b: 2, c: 1, d: 2}
    assert [queue.stats().ready for queue in queues] == [0, 0, 0, 0]


def test_of_many_queues_paused_and_deleted_ones_give_nothing(hf: Holdfast) -> None:
    gone, paused, there = make(hf, 3)
    for queue in (gone, paused, there):
        queue.enqueue(queue.name)
    lease(hf, [gone, there], 1)  # the store has seen both
    gone.delete(force=True)
    paused.pause()
    assert seen(lease(hf, [gone, paused, there], 10)) == [(there.name, there.name)]
    paused.resume()
    assert seen(lease(hf, [gone, paused, there], 10)) == [(paused.name, paused.name)]


def test_of_many_queues_what_is_due_takes_its_place(hf: Holdfast, clock: ManualClock) -> None:
    first, second = queues = make(hf, 2)
    first.enqueue("late", delay=5, priority=1)
    first.enqueue("early")
    second.enqueue("later", delay=60)
    assert seen(lease(hf, queues, 1)) == [(first.name, "early")]
    first.enqueue("third")
    clock.advance(5)
    assert seen(lease(hf, queues, 10)) == [(first.name, "late"), (first.name, "third")]
    clock.advance(55)
    assert seen(lease(hf, queues, 10)) == [(second.name, "later")]


def test_what_is_due_is_leased_although_other_queues_fill_every_lease(
    hf: Holdfast, clock: ManualClock
) -> None:
    deep, late = queues = make(hf, 2)
    deep.enqueue_many(range(100))
    late.enqueue("late", delay=1)
    clock.advance(1)
    for _ in range(30):
        found = seen(lease(hf, queues[::-1], 2, share=1))
        if (late.name, "late") in found:
            return
    pytest.fail("the queue whose message was delayed got no turn")


def test_many_queues_keep_their_own_lease_times(hf: Holdfast, clock: ManualClock) -> None:
    first, second = make(hf, 2)
    first.enqueue("queue's")
    second.enqueue("queue's")
    second.enqueue("its own", ack_timeout=7)
    ask = ask_of([first, second], 10, timeouts=[5_000, 60_000])
    leases = hf.store.lease(ask, clock.now())
    assert [lease.deadline - clock.now() for lease in leases] == [5_000, 60_000, 7_000]
    assert first.extend(leases[0], 90).deadline == clock.now() + 90_000
    clock.advance(61)
    assert hf.sweep().requeued == 2
    assert [queue.stats().ready for queue in (first, second)] == [0, 2]


def test_leases_of_many_queues_settle_together(hf: Holdfast, clock: ManualClock) -> None:
    queues = make(hf, 12)
    for queue in queues:
        queue.enqueue_many(range(3))
    leases = lease(hf, queues, 100)
    by_queue = {queue.name: queue for queue in queues}
    for one in leases[::3]:
        by_queue[one.message.queue].nack(one, "again", delay=0)
    for one in leases[1::3]:
        by_queue[one.message.queue].ack(one)
    answers = [by_queue[one.message.queue].settle([one])[0] for one in leases[2::3]]
    assert answers == [Settled.APPLIED] * 12
    again = lease(hf, queues, 100)
    assert sorted(one.id for one in again) == sorted(one.id for one in leases[::3])
    assert {one.message.attempts for one in again} == {2}
    for queue in queues:
        stats = queue.stats()
        assert (stats.ready, stats.leased, stats.done) == (0, 1, 2)


def test_an_observer_is_told_of_a_lease_from_many_queues_queue_by_queue(hf: Holdfast) -> None:
    told: list[tuple[set[str], int]] = []

    class Watcher:
        def leased(self, leases: Sequence[Lease]) -> None:
            told.append(({one.message.queue for one in leases}, len(leases)))

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    queues = make(hf, 3)
    for n, queue in enumerate(queues):
        queue.enqueue_many(range(n))
    hf.context.observe(cast(Any, Watcher()))
    lease(hf, queues, 100)
    assert told == [({queues[1].name}, 1), ({queues[2].name}, 2)]


def test_queues_with_partitions_and_retries_among_many(hf: Holdfast) -> None:
    split = hf.queue("split", partitions=3)
    plain, other = make(hf, 2)
    split.enqueue_many(Outgoing(n, key=str(n)) for n in range(30))
    plain.enqueue_many(range(3))
    other.enqueue("x")
    (again,) = plain.lease()
    plain.nack(again, "later", delay=0)
    leases = lease(hf, [plain, split, other], 100)
    found = Counter(one.message.queue for one in leases)
    assert found == {plain.name: 3, "split": 30, other.name: 1}
    assert [one.message.payload for one in leases if one.message.queue == plain.name] == [0, 1, 2]
    assert [one.message.payload for one in leases if one.message.queue == "split"] == list(
        range(30)
    )


def test_leasers_of_many_queues_get_different_messages(
    hf: Holdfast, another: Callable[[], Holdfast]
) -> None:
    queues = make(hf, 20)
    for queue in queues:
        queue.enqueue_many(range(10))
    got: list[list[str]] = [[] for _ in range(4)]
    go = threading.Barrier(4)

    def work(n: int) -> None:
        mine = another()
        handles = [mine.queue(queue.name) for queue in queues]
        go.wait()
        while leases := lease(mine, handles[n * 5 :] + handles[: n * 5], 13, share=4):
            got[n] += [one.id for one in leases]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Counter(id for mine in got for id in mine)
    assert set(found.values()) == {1}
    missed = lease(hf, queues, 1000)  # whoever lost a race may have been told of nothing
    assert len(found) + len(missed) == 200


def test_waiting_for_many_queues(hf: Holdfast, clock: ManualClock) -> None:
    queues = make(hf, 30)
    names = [queue.name for queue in queues]
    # Beginning to listen for news may count as a sign.
    wait_until(lambda: not hf.store.wait(names, clock.now(), 0.05))
    queues[17].enqueue("x")
    assert hf.store.wait(names, clock.now(), 600) is True
    lease(hf, queues, 10)
    queues[3].enqueue("y", delay=60)
    clock.advance(60)
    assert hf.store.wait(names, clock.now(), 600) is True
    lease(hf, queues, 10)
    woken = threading.Event()

    def wait() -> None:
        while not hf.store.wait(names, clock.now(), 600):
            pass
        woken.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    queues[29].enqueue("z")
    assert woken.wait(30)
    with pytest.raises(holdfast.QueueNotFound):
        hf.store.wait([*names, "missing"], clock.now(), 0.01)


def test_a_turn_costs_as_many_calls_for_many_queues_as_for_few(
    counted: Counted, clock: ManualClock
) -> None:
    hf = holdfast.connect(cast(Store, counted), clock=clock)
    queues = make(hf, FEW + 30)
    for n in (FEW + 1, FEW + 30):
        some = queues[:n]
        for queue in some:
            queue.enqueue(queue.name)
        specs = Specs(hf.context, [queue.name for queue in some])
        counted.calls.clear()
        specs.read()
        leases = Leaser(hf.context, specs).lease(some, 500)
        specs.policies([queue.name for queue in some])
        assert len(leases) == n
        calls = Counter(counted.calls)
        # One to read the settings, one to ask which queues have overdue messages.
        assert calls == {"queues": 2, "lease": 1}


@pytest.mark.promise("OVERDUE-2")
def test_turns_put_back_what_is_overdue_a_few_queues_at_a_time(
    counted: Counted, clock: ManualClock
) -> None:
    hf = holdfast.connect(cast(Store, counted), clock=clock)
    queues = make(hf, LOOKS + 3)
    for queue in queues:
        queue.enqueue(queue.name)
        queue.lease(owner="gone")
    *left, deleted = queues
    specs = Specs(hf.context, [queue.name for queue in queues])
    specs.read()
    leaser = Leaser(hf.context, specs)
    assert leaser.lease(queues, 100) == []
    clock.advance(30)
    counted.calls.clear()
    found = {lease.message.payload for lease in leaser.lease(queues, 100)}
    assert len(found) == counted.calls.count("browse") == LOOKS
    deleted.delete(force=True)
    found |= {lease.message.payload for lease in leaser.lease(left, 100)}
    assert found >= {queue.name for queue in left}
    counted.calls.clear()
    assert leaser.lease(left, 100) == []  # asked within the same second
    assert counted.calls.count("browse") == counted.calls.count("queues") == 0
    clock.advance(1)
    assert leaser.lease(left, 100) == []
    assert (counted.calls.count("browse"), counted.calls.count("queues")) == (0, 1)


def test_a_deep_queue_keeps_no_other_from_its_turn(hf: Holdfast, clock: ManualClock) -> None:
    queues = make(hf, 5)
    for queue in queues:
        queue.enqueue_many(range(10 * SHARE))
    specs = Specs(hf.context, [queue.name for queue in queues])
    specs.read()
    leaser = Leaser(hf.context, specs)
    served = Counter[str]()
    for _ in range(5):
        served.update(one.message.queue for one in leaser.lease(queues, 2 * SHARE))
    assert set(served.values()) == {2 * SHARE}
    for queue in queues[1:]:
        queue.purge()
    assert len(leaser.lease(queues, 4 * SHARE)) == 4 * SHARE  # what the others leave is its own


def test_a_worker_works_off_many_queues(counted: Counted, clock: ManualClock) -> None:
    hf = holdfast.connect(cast(Store, counted), clock=clock)
    queues = make(hf, FEW + 30)
    done: list[str] = []
    for queue in queues:
        queue.enqueue_many(range(5))

        @hf.handler(queue.name)
        def handle(payload: int, name: str = queue.name) -> None:
            done.append(name)  # in one step: several threads do it

    worker = hf.worker(concurrency=4, until_empty=True, sweep=False)  # makes missing queues
    counted.calls.clear()
    assert worker.run()
    assert Counter(done) == {queue.name: 5 for queue in queues}
    assert [queue.stats().done for queue in queues] == [5] * len(queues)
    assert counted.calls.count("queues") < len(queues)
    # Each turn leases something, or finds all empty: it does not ask queue by queue.
    assert counted.calls.count("lease") < 2 * 5 * len(queues)


def test_a_worker_that_is_full_asks_nothing(store_factory: StoreFactory) -> None:
    counted = Counted(store_factory())
    hf = holdfast.connect(cast(Store, counted))
    queues = make(hf, FEW + 5, ack_timeout=0.3)
    started, go_on = threading.Event(), threading.Event()
    for queue in queues:
        queue.enqueue_many(range(2))

        @hf.handler(queue.name)
        def handle(payload: int) -> None:
            started.set()
            go_on.wait(30)

    worker = hf.worker(concurrency=1, sweep=False, until_empty=True)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        assert started.wait(30)
        before = len(counted.calls)
        # Each renewal of the one lease is a call of its own: they show that time goes by.
        wait_until(lambda: counted.calls[before:].count("settle") >= 4)
        asked = Counter(counted.calls[before:])
        assert {name for name in asked if name != "settle"} == set()
    finally:
        go_on.set()
        running.join()
    assert sum(queue.stats().done for queue in queues) == 2 * len(queues)


def finish(queue: Queue, n: int) -> None:
    queue.enqueue_many(range(n))
    queue.settle(queue.lease(n))


def logged(queue: Queue) -> int:
    return len(list(queue.log()))


@pytest.mark.promise("OVERDUE-4")
def test_queues_are_found_by_what_is_overdue_in_them(hf: Holdfast, clock: ManualClock) -> None:
    early, held, idle, late, over = make(hf, 5, ack_timeout=30, max_attempts=1)
    for queue in (early, held, late, over):
        queue.enqueue_many(range(3))
    late.lease(2)
    held.lease()
    held.extend(held.lease()[0], 60)
    over.nack(over.lease()[0])
    over.dlq.lease()
    over.lease()
    clock.advance(0.001)
    early.lease()

    def names(ahead_ms: int) -> list[str]:
        found = hf.store.queues(overdue=clock.now() + ahead_ms)
        assert found == [spec_of(hf.store, spec.name) for spec in found]
        return [spec.name for spec in found]

    assert names(29_998) == []
    assert names(29_999) == [held.name, late.name, over.name, over.dlq.name]
    assert names(30_000) == [early.name, held.name, late.name, over.name, over.dlq.name]
    late.delete(force=True)
    assert names(30_000) == [early.name, held.name, over.name, over.dlq.name]
    ask = ReserveAsk(idle.name, 10, "me", secrets.token_hex(8), "held")
    idle.enqueue("held without a deadline")
    assert hf.store.lease(ask, clock.now()) == 1
    assert names(10**9) == [early.name, held.name, over.name, over.dlq.name]


@pytest.mark.promise("OVERDUE-4")
def test_an_overdue_message_in_one_of_many_queues_comes_back(
    hf: Holdfast, clock: ManualClock
) -> None:
    queues = make(hf, 30)
    for queue in queues:
        queue.enqueue_many(Outgoing(n, ack_timeout=3600) for n in range(3))
        assert len(queue.lease(3)) == 3
    queues[17].enqueue("late", ack_timeout=1)
    queues[17].lease()
    sweeper = Sweeper(hf.context, Settings())
    assert sweeper.tick() == Swept()
    clock.advance(1)
    assert sweeper.tick() == Swept(requeued=1)
    assert [lease.message.payload for lease in queues[17].lease()] == ["late"]


@pytest.mark.promise("OVERDUE-7")
def test_an_idle_tick_makes_as_many_calls_for_many_queues_as_for_few(
    counted: Counted, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "TRIM_QUEUES", 5)
    hf = holdfast.connect(cast(Store, counted), clock=clock)
    mine, seen = Sweeper(hf.context, Settings()), list[Counter[str]]()
    for n in (3, 30):
        for queue in make(hf, n):
            finish(queue, 2)
            queue.enqueue("leased", ack_timeout=3600)
            queue.lease()
        counted.calls.clear()
        assert mine.tick() == Swept()
        seen.append(Counter(counted.calls))
    few, many = seen
    assert few == many
    assert (many["queues"], many["browse"], many["drop"]) == (2, 0, 1)
    counted.calls.clear()
    hf.store.claim(sweeper.LOCK, "another", 60_000, clock.now())
    assert mine.tick() == Swept()
    assert counted.calls.count("queues") == 1


@pytest.mark.promise("LOG-4")
def test_ticks_trim_all_queues_in_turn(
    hf: Holdfast, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "TRIM_QUEUES", 2)
    queues = make(hf, 3, retention=60)
    mine = Sweeper(hf.context, Settings())
    for _ in range(2):  # the second round begins where the first one did
        for n, queue in enumerate(queues):
            finish(queue, n + 1)
        clock.advance(61)
        left = [[logged(queue) for queue in queues]]
        # Each queue comes with its dead letters.
        for _ in queues:
            mine.tick()
            left.append([logged(queue) for queue in queues])
        assert left == [[1, 2, 3], [0, 2, 3], [0, 0, 3], [0, 0, 0]]
        mine.tick()  # the end of the round
    for n, queue in enumerate(queues):
        finish(queue, n + 1)
    clock.advance(61)
    assert hf.sweep() == Swept(trimmed=6)


@pytest.mark.promise("LOG-4")
def test_a_trim_answers_for_each_queue(hf: Holdfast, clock: ManualClock) -> None:
    first, gone, second, third = make(hf, 4)
    for n, queue in enumerate((first, gone, second, third)):
        finish(queue, 4 + n)
    gone.delete(force=True)
    now = clock.now() + 1
    cuts = [
        Cut(first.name, 100, before=now),
        Cut(gone.name, 100, before=now),
        Cut(second.name, 2, keep=1),
        Cut("missing", 100, keep=0),
        Cut(third.name, 100, before=now - 1, keep=100),
        Cut(first.dlq.name, 100, before=now, keep=0),
    ]
    assert hf.store.drop(cuts) == [4, 0, 2, 0, 0, 0]
    assert [logged(queue) for queue in (first, second, third)] == [0, 4, 7]
    assert hf.store.drop(cuts) == [0, 0, 2, 0, 0, 0]
    assert hf.store.drop([]) == []


@pytest.mark.promise("OVERDUE-7")
def test_a_queue_that_fails_keeps_no_other_from_being_swept(
    hf: Holdfast, clock: ManualClock, store: Store
) -> None:
    queues = make(hf, 3, retention=10)
    for queue in queues:
        finish(queue, 1)
        queue.enqueue("late")
        queue.lease()
    clock.advance(60)
    damaged = queues[0].name

    class Damaged:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def browse(self, view: View, *args: Any) -> Page:
            if view.overdue_at is not None and view.queue == damaged:
                raise StoreError("a row that nobody can read")
            return store.browse(view, *args)

    broken = holdfast.connect(cast(Store, Damaged()), clock=clock)
    with pytest.raises(StoreError, match="nobody can read"):
        Sweeper(broken.context, Settings()).tick()
    assert [queue.stats().ready for queue in queues] == [0, 1, 1]
    assert [logged(queue) for queue in queues] == [0, 0, 0]
