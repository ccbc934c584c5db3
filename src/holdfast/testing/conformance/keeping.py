"""The rest of the contract: pages, batches, specs, claims, events."""

# pyright: basic

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from holdfast import (
    Holdfast,
    InvalidArgument,
    MessageNotFound,
    Outgoing,
    Queue,
    QueueNotFound,
    State,
)
from holdfast.model.message import new_ids
from holdfast.model.policy import Policy
from holdfast.model.queues import QueueSpec
from holdfast.stores.contract import Event, View, batch_in, held_in, spec_of
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import ids


@pytest.mark.parametrize("state", list(State))
def test_pages_join_to_the_whole_in_order(hf: Holdfast, clock: ManualClock, state: State) -> None:
    queue = hf.queue("orders", partitions=2)
    dice = Random(3)
    for n in range(40):
        delay = dice.choice([5, 50]) if state is State.DELAYED else dice.choice([None, 1])
        queue.enqueue(n, priority=dice.randrange(10), key=str(n), delay=delay)
        clock.advance(dice.choice([0, 0.5]))
    clock.advance(2)
    if state is State.LEASED:
        for _ in range(20):
            queue.lease(2)
            clock.advance(dice.choice([0, 1]))
    if state is State.LOG:
        for _ in range(20):
            queue.settle(queue.lease(2))
            clock.advance(dice.choice([0, 1]))
    whole = hf.store.browse(View("orders", state), None, 1000, clock.now())
    assert whole.after is None and len(whole.entries) > 10
    for size in (1, 7, len(whole.entries)):
        got, after, pages = [], None, 0
        while pages <= len(whole.entries):
            page = hf.store.browse(View("orders", state), after, size, clock.now())
            got += page.entries
            after, pages = page.after, pages + 1
            if after is None:
                break
        assert got == whole.entries
        assert pages == -(-len(got) // size)


def test_browsing_a_range_of_time(queue: Queue, clock: ManualClock) -> None:
    start = clock.now()
    for n in range(4):
        queue.enqueue(n)
        clock.advance(1)
    entries = queue.browse(since=start + 1000, until=start + 3000)
    assert [entry.message.payload for entry in entries] == [1, 2]
    queue.settle(queue.lease(4))
    assert len(list(queue.log(since=clock.now()))) == 4
    assert list(queue.log(until=clock.now())) == []
    with pytest.raises(InvalidArgument, match="state"):
        list(queue.browse("nowhere"))


def test_pages_of_what_lies_behind_much_else(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue_many(range(600))
    clock.advance(1)
    late, view = queue.enqueue_many(range(20)), View("orders", since=clock.now())
    found, after = [], None
    for size in (7, 7, 6):
        page = hf.store.browse(view, after, 7, clock.now())
        assert len(page.entries) == size
        found, after = [*found, *(entry.message for entry in page.entries)], page.after
    assert after is None
    assert ids(found) == ids(late)


def test_a_cursor_that_is_none_is_refused(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    for bad in ("x", "1", "1.2.3", ""):
        with pytest.raises(InvalidArgument, match="after"):
            hf.store.browse(View("orders"), bad, 10, clock.now())


def test_get_finds_what_is_held(queue: Queue, hf: Holdfast) -> None:
    sent = queue.enqueue_many(range(3))
    assert sorted(ids(held_in(hf.store, "orders", ids(sent)))) == ids(sent)
    assert held_in(hf.store, "orders", []) == []
    queue.ack(queue.lease()[0])
    with pytest.raises(MessageNotFound):
        queue.get(sent[0].id)
    with pytest.raises(InvalidArgument, match="id"):
        queue.get("nonsense")


def test_find_says_where_each_message_is(queue: Queue, hf: Holdfast, clock: ManualClock) -> None:
    later = queue.enqueue("delayed", delay=60)
    acked, failed, discarded, taken = queue.enqueue_many(["acked", "failed", "discarded", "taken"])
    by = {lease.id: lease for lease in queue.lease(4)}
    queue.ack(by[acked.id], result={"n": 1})
    queue.fail(by[discarded.id], "never")
    queue.dlq.ack(queue.dlq.lease()[0])
    queue.fail(by[failed.id], "never")
    ready = queue.enqueue("ready")
    (unknown,) = new_ids(1, clock.now())
    asked = [unknown, *ids([ready, later, taken, failed, acked, discarded]), ready.id]
    for name in ("orders", "orders.dlq"):
        found = hf.store.find(name, asked)
        assert [entry and (entry.message.queue, entry.state(clock.now())) for entry in found] == [
            None,
            ("orders", State.READY),
            ("orders", State.DELAYED),
            ("orders", State.LEASED),
            ("orders.dlq", State.READY),
            ("orders", State.LOG),
            ("orders.dlq", State.LOG),
            ("orders", State.READY),
        ]
        assert [entry and entry.message.id for entry in found] == [None, *asked[1:]]
        assert [entry.lease for entry in found if entry and entry.lease] == [by[taken.id]]
        done = [entry.finished for entry in found if entry and entry.finished]
        assert [row.result for row in done] == [{"n": 1}, None]
        held = [None if entry is None or entry.finished else entry for entry in found]
        assert hf.store.find(name, asked, log=False) == held
    assert hf.store.find("orders", []) == []


def test_find_says_how_a_message_finished_last(
    queue: Queue, hf: Holdfast, clock: ManualClock
) -> None:
    sent = queue.enqueue(1)
    for n in range(2):
        queue.ack(queue.lease()[0], result=n)
        clock.advance(10)
        assert queue.enqueue(1, id=sent.id).duplicate
        clock.advance(86_400)
        queue.enqueue(1, id=sent.id)
    (held,) = hf.store.find("orders", [sent.id])
    assert held is not None and held.finished is None
    queue.purge()
    (found,) = hf.store.find("orders", [sent.id])
    assert found is not None and found.finished is not None and found.finished.result == 1
    with pytest.raises(QueueNotFound):
        hf.store.find("nothing", [sent.id])


def test_a_batch_can_be_read_again_by_its_name(queue: Queue, hf: Holdfast) -> None:
    queue.enqueue_many(range(10))
    mine = queue.lease(6, batch="run-1")
    queue.lease(2, batch="run-2")
    by_id = sorted(mine, key=lambda lease: lease.id)
    assert batch_in(hf.store, "orders", "run-1", None, 100) == by_id
    assert batch_in(hf.store, "orders", "run-1", by_id[3].id, 100) == by_id[4:]
    assert batch_in(hf.store, "orders", "run-1", None, 2) == by_id[:2]
    queue.settle(mine[:3])
    queue.release(mine[3])
    left = sorted(mine[4:], key=lambda lease: lease.id)
    assert batch_in(hf.store, "orders", "run-1", None, 100) == left
    assert batch_in(hf.store, "orders", "nobody", None, 100) == []
    other = hf.queue("bills")
    other.enqueue("the same id in another queue", id=left[0].id)
    (theirs,) = other.lease(batch="run-1")
    assert batch_in(hf.store, "orders", "run-1", None, 100) == left
    assert batch_in(hf.store, "bills", "run-1", None, 100) == [theirs]


def test_a_spec_is_written_only_over_the_one_that_was_read(
    hf: Holdfast, another: Callable[[], Holdfast]
) -> None:
    store, other = hf.store, another().store
    spec = QueueSpec("q", 3, Policy(max_attempts=4), created_at=5)
    assert store.put_queues([spec])
    stored = spec_of(other, "q")
    assert stored is not None and stored == msgspec.structs.replace(spec, revision=1)
    assert not other.put_queues([spec])  # a new one, but it is there
    assert other.put_queues([msgspec.structs.replace(stored, paused=True)])
    assert not store.put_queues([msgspec.structs.replace(stored, partitions=9)])
    both = [msgspec.structs.replace(stored, partitions=9), QueueSpec("r")]
    assert not store.put_queues(both)
    assert spec_of(store, "r") is None  # all or none
    assert spec_of(store, "q") == msgspec.structs.replace(stored, paused=True, revision=2)
    assert [spec.name for spec in store.queues()] == ["q"]


def test_two_connections_make_one_queue(hf: Holdfast, another: Callable[[], Holdfast]) -> None:
    handles = [another() for _ in range(4)]
    threads = [
        threading.Thread(target=handle.queue, args=("orders",), kwargs={"max_attempts": n + 1})
        for n, handle in enumerate(handles)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [queue.name for queue in hf.queues()] == ["orders", "orders.dlq"]
    assert hf.queue("orders").policy.max_attempts in (1, 2, 3, 4)


def test_events_reach_every_subscriber(hf: Holdfast, another: Callable[[], Holdfast]) -> None:
    hf.store.publish([Event("before", 1, {})])
    first, second = hf.subscribe(), another().subscribe()
    news = [Event("a", 2, {"n": [1, None]}), Event("b", 3, {})]
    got: list[list[Event]] = []
    waiting = threading.Thread(target=lambda: got.append(second.next(timeout=30)))
    waiting.start()
    hf.store.publish(news)
    waiting.join()
    for events in (first.next(timeout=1), got[0]):
        assert [(e.type, e.timestamp, e.payload) for e in events] == [
            ("a", 2, {"n": [1, None]}),
            ("b", 3, {}),
        ]
    assert first.next(timeout=0) == []


def test_a_key_has_one_partition_and_keyless_ones_spread(hf: Holdfast) -> None:
    queue = hf.queue("orders", partitions=8)
    sent = queue.enqueue_many(Outgoing(n, key=f"customer-{n % 40}") for n in range(400))
    by_key = {(message.key, message.partition) for message in sent}
    assert len(by_key) == 40
    known = {"customer-0": 0, "customer-1": 5, "customer-7": 2}
    assert {key: part for key, part in by_key if key in known} == known  # for ever
    spread = [m.partition for m in queue.enqueue_many(range(800))]
    assert all(50 <= spread.count(part) <= 150 for part in range(8))
