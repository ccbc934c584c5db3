"""Records, changed by compare-and-set, and receipts for what was enqueued."""

# pyright: basic

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Queue, QueueNotFound
from holdfast.model.message import Message, new_ids
from holdfast.model.moves import Enqueued
from holdfast.stores.contract import Record, Store
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import StoreFactory

ODD = [
    *("a", "a/", "a/%", "a/_", "a/b", "a%", "a%b", "a_", "a_b", "aXb", "ab", "b", "Z", "'"),
    *("\\", "a\\", "é", "é/ü", "éz", "日/本", "😀", "😀/x"),
]


def put(store: Store, name: str, value: bytes | None, revision: int | None, now: int = 1) -> bool:
    return store.put_record("kind", name, value, revision, now)


def names(store: Store, **ask: Any) -> list[str]:
    return [record.name for record in store.records("kind", **ask)]


def test_a_record_is_made_changed_and_deleted(store: Store, store_factory: StoreFactory) -> None:
    other = store_factory()
    assert store.records("kind") == []
    assert put(store, "x", b"one", 0, 5)
    assert other.records("kind") == [Record("x", b"one", 1, 5)]
    assert put(other, "x", b"", 1, 6)
    assert store.records("kind") == [Record("x", b"", 2, 6)]
    assert put(store, "x", bytes(range(256)), 2, 7)
    assert other.records("kind") == [Record("x", bytes(range(256)), 3, 7)]
    assert put(store, "x", None, 3, 8)
    assert other.records("kind") == []
    assert put(other, "x", b"anew", 0, 9)


def test_a_wrong_revision_changes_nothing(store: Store) -> None:
    assert put(store, "x", b"one", 0)
    assert put(store, "x", b"two", 1)
    for wrong in (0, 1, 3):
        assert not put(store, "x", b"wrong", wrong, 9)
        assert not put(store, "x", None, wrong, 9)
    assert store.records("kind") == [Record("x", b"two", 2, 1)]
    assert not put(store, "y", b"there is none", 1)
    assert not put(store, "y", None, 1)
    assert put(store, "y", None, 0)  # it is not there, as was said
    assert names(store) == ["x"]


def test_without_a_revision_it_is_written_in_any_case(store: Store) -> None:
    assert put(store, "x", b"one", None)
    assert put(store, "x", b"two", None, 2)
    assert store.records("kind") == [Record("x", b"two", 2, 2)]
    assert put(store, "x", None, None)
    assert put(store, "x", None, None)
    assert store.records("kind") == []


def test_kinds_are_apart(store: Store) -> None:
    for kind in ("a", "ab", "b"):
        assert store.put_record(kind, "x", kind.encode(), 0, 1)
    assert [record.value for record in store.records("a")] == [b"a"]
    assert store.drop_records("a", limit=10) == 1
    assert [len(store.records(kind)) for kind in ("a", "ab", "b")] == [0, 1, 1]


@pytest.mark.parametrize(
    "prefixes",
    [["", "a", "a/", "a%", "a_", "c"], ["é", "é/", "日", "😀", "\\", "'"]],
    ids=["ascii", "odd"],
)
def test_records_by_the_beginning_of_their_names(store: Store, prefixes: list[str]) -> None:
    for prefix in prefixes:
        store.drop_records("kind", limit=100)
        for name in ODD:
            assert put(store, name, name.encode(), 0)
        are_found_by(store, prefix)


def are_found_by(store: Store, prefix: str) -> None:
    wanted = sorted(name for name in ODD if name.startswith(prefix))
    assert names(store, prefix=prefix) == wanted
    assert [r.value.decode() for r in store.records("kind", prefix=prefix)] == wanted
    for after in ["", *ODD]:
        rest = [name for name in wanted if name > after]
        assert names(store, prefix=prefix, after=after) == rest
        assert names(store, prefix=prefix, after=after, limit=2) == rest[:2]
    assert store.drop_records("kind", prefix=prefix, limit=100) == len(wanted)
    assert names(store) == sorted(set(ODD) - set(wanted))


def test_records_in_pages(store: Store) -> None:
    wanted = [f"n/{n:03d}" for n in range(25)]
    for name in reversed(wanted):
        put(store, name, b"", 0)
    got: list[str] = []
    while page := names(store, prefix="n/", after=got[-1] if got else "", limit=4):
        assert len(page) <= 4
        got += page
    assert got == wanted


def test_records_are_dropped_by_age_and_number(store: Store) -> None:
    for n in range(10):
        put(store, f"old/{n}", b"", 0, 100 + n)
        put(store, f"new/{n}", b"", 0, 200 + n)
    put(store, "old/0", b"changed", 1, 300)
    assert store.drop_records("kind", prefix="old/", before=105, limit=3) == 3
    assert names(store, prefix="old/") == [f"old/{n}" for n in (0, 4, 5, 6, 7, 8, 9)]
    assert store.drop_records("kind", prefix="old/", before=105, limit=3) == 1  # not at 105
    assert store.drop_records("kind", before=205, limit=100) == 10
    assert names(store) == [*(f"new/{n}" for n in range(5, 10)), "old/0"]
    assert store.drop_records("kind", limit=100) == 6
    assert store.drop_records("kind", limit=100) == 0


def test_of_many_who_change_a_record_one_wins_each_round(
    store: Store, store_factory: StoreFactory
) -> None:
    handles = [store_factory() for _ in range(4)]
    barrier = threading.Barrier(len(handles), timeout=60)
    won: list[list[int]] = [[] for _ in handles]

    def race(n: int) -> None:
        for revision in range(20):
            barrier.wait()
            if put(handles[n], "x", b"%d" % n, revision):
                won[n].append(revision)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(len(handles))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(round for mine in won for round in mine) == list(range(20))
    (record,) = store.records("kind")
    winner = next(n for n, mine in enumerate(won) if 19 in mine)
    assert (record.revision, record.value) == (20, b"%d" % winner)


# Receipts


def outgoing(n: int, now: int, queue: str = "orders") -> list[Message]:
    return [
        Message(id, queue, 0, 0, None, None, b"%d" % i, "application/json", {}, now, now, 0)
        for i, id in enumerate(new_ids(n, now))
    ]


def test_a_batch_with_a_receipt_is_stored_once(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    store, now = hf.store, clock.now()
    first, repeated = outgoing(3, now), outgoing(3, now)  # other ids: a task that ran again
    assert store.enqueue(first, now, receipt="r/1") == [Enqueued.STORED] * 3
    assert store.enqueue(repeated, now, receipt="r/1") == [Enqueued.HELD] * 3
    assert store.enqueue(first, now, receipt="r/1") == [Enqueued.HELD] * 3
    assert queue.stats().ready == 3
    assert [r.name for r in store.records("receipt")] == ["r/1"]
    queue.settle(queue.lease(10))
    assert store.enqueue(first, now, receipt="r/1") == [Enqueued.HELD] * 3
    assert (queue.stats().ready, queue.stats().done) == (0, 3)
    assert store.enqueue(repeated, now, receipt="r/2") == [Enqueued.STORED] * 3
    assert queue.stats().ready == 3


def test_a_receipt_does_not_hide_what_was_held_before(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    store, now = hf.store, clock.now()
    messages = outgoing(3, now)
    store.enqueue(messages[:1], now)
    answers = store.enqueue(messages, now, receipt="r")
    assert answers == [Enqueued.HELD, Enqueued.STORED, Enqueued.STORED]
    assert queue.stats().ready == 3


def test_a_batch_that_fails_keeps_no_receipt(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    store, now = hf.store, clock.now()
    mixed = outgoing(2, now) + outgoing(1, now, "nowhere")
    for batch in (mixed, mixed[2:]):
        with pytest.raises(QueueNotFound):
            store.enqueue(batch, now, receipt="r")
        assert store.records("receipt") == []
    assert queue.stats().ready == 0
    assert store.enqueue(mixed[:2], now, receipt="r") == [Enqueued.STORED] * 2


def test_a_batch_for_two_queues_has_one_receipt(hf: Holdfast, clock: ManualClock) -> None:
    now = clock.now()
    queues = [hf.queue(name) for name in ("orders", "bills")]
    batch = outgoing(2, now) + outgoing(2, now, "bills")
    assert hf.store.enqueue(batch, now, receipt="r") == [Enqueued.STORED] * 4
    assert hf.store.enqueue(batch, now, receipt="r") == [Enqueued.HELD] * 4
    assert [queue.stats().ready for queue in queues] == [2, 2]


def test_a_receipt_belongs_to_its_queue(hf: Holdfast) -> None:
    orders, bills = hf.queue("orders"), hf.queue("bills")
    assert [m.duplicate for m in orders.enqueue_many([1, 2], receipt="import-7")] == [False] * 2
    assert [m.duplicate for m in bills.enqueue_many([3], receipt="import-7")] == [False]
    assert [m.duplicate for m in orders.enqueue_many([4], receipt="import-7")] == [True]
    assert [m.duplicate for m in bills.enqueue_many([5], receipt="import-7")] == [True]
    assert [hf.queue(name).stats().ready for name in ("orders", "bills")] == [2, 1]


def test_a_receipt_that_is_forgotten_counts_no_more(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    now = clock.now()
    hf.store.enqueue(outgoing(1, now), now, receipt="r")
    assert hf.store.drop_records("receipt", before=now, limit=10) == 0
    assert hf.store.drop_records("receipt", before=now + 1, limit=10) == 1
    assert hf.store.enqueue(outgoing(1, now), now, receipt="r") == [Enqueued.STORED]


def test_of_two_at_once_with_one_receipt_one_stores(
    queue: Queue, another: Callable[[], Holdfast], clock: ManualClock
) -> None:
    handles = [another().store for _ in range(4)]
    barrier = threading.Barrier(len(handles), timeout=60)
    answers: list[Enqueued] = []

    def send(store: Store) -> None:
        for n in range(10):
            batch = outgoing(5, clock.now())
            barrier.wait()
            answers.extend(store.enqueue(batch, clock.now(), receipt=f"r{n}"))

    threads = [threading.Thread(target=send, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count(Enqueued.STORED) == queue.stats().ready == 50
    assert len(answers) == 200


def test_a_receipt_is_of_its_queue(hf: Holdfast) -> None:
    """Two callers may choose the same text: that of one queue hides nothing from the other."""
    queues = [hf.queue(name) for name in ("orders", "bills", "bills@eu")]
    for n, queue in enumerate(queues):
        assert [m.duplicate for m in queue.enqueue_many([n], receipt="r")] == [False]
    for queue in queues:
        assert [m.duplicate for m in queue.enqueue_many(["again"], receipt="r")] == [True]
    for n, queue in enumerate(queues):
        assert [entry.message.payload for entry in queue.browse()] == [n]
