"""What comes from another store: with its history, into the queue, the dead letters and the log."""

# pyright: basic

from __future__ import annotations

import msgspec
import pytest

from holdfast import Backoff, Holdfast, Outgoing, Queue, QueueNotFound, State
from holdfast.model.message import ErrorInfo, Finished, History, Message
from holdfast.model.moves import Enqueued, Settled
from holdfast.rules.lifecycle import moved_away
from holdfast.stores.contract import Cut, View
from holdfast.testing import ManualClock

PAST = History(
    errors=(ErrorInfo("no rate for LI", "ValueError", 900, 1, "w1", "ship"),),
    handled={"notify": {"ok": True}},
    delay=1.5,
    redriven=2,
)


def message(n: int, now: int, **fields: object) -> Message:
    made = Message(
        id=f"01890000-0000-7000-8000-{n:012d}",
        queue="orders",
        partition=0,
        priority=3,
        key=f"customer-{n}",
        type="order",
        body=b'{"n":%d}' % n,
        content_type="application/json",
        headers={"trace": "a b"},
        enqueued_at=now - 9000,
        available_at=now - 5000,
        attempts=2,
        ack_timeout=12.5,
        max_attempts=7,
        backoff=Backoff(base=0.5, max=9),
        first_leased_at=now - 8000,
        history=PAST,
    )
    return msgspec.structs.replace(made, **fields)


def finished(n: int, now: int, **fields: object) -> Finished:
    row = message(n, now, **fields)
    result = {"n": n} if n % 2 else None
    return Finished(
        row, "COMPLETED", now - 1000 + n, row.first_leased_at, now - 2000, "w 1", result
    )


def test_a_message_comes_with_all_that_happened_to_it(hf: Holdfast, clock: ManualClock) -> None:
    hf.queue("orders")
    now = clock.now()
    ready = message(1, now)
    delayed = message(2, now, available_at=now + 60_000)
    dead = message(
        3,
        now,
        queue="orders.dlq",
        history=msgspec.structs.replace(PAST, source="orders", dead_at=now - 10, reason="failed"),
    )
    assert hf.store.enqueue([ready, delayed, dead], now) == [Enqueued.STORED] * 3
    for view, sent in (
        (View("orders"), ready),
        (View("orders", State.DELAYED), delayed),
        (View("orders.dlq"), dead),
    ):
        page = hf.store.browse(view, None, 10, now)
        assert [entry.message for entry in page.entries] == [sent]
    (lease,) = hf.queue("orders").lease()
    assert (lease.message.attempts, lease.message.first_leased_at) == (3, ready.first_leased_at)


def test_rows_of_a_log_are_restored_as_they_ended(hf: Holdfast, clock: ManualClock) -> None:
    hf.queue("orders")
    now = clock.now()
    rows = [finished(n, now) for n in range(40)]
    assert hf.store.restore("orders", rows[:30], now) == 30
    assert hf.store.restore("orders", rows[20:], now) == 10
    assert hf.store.restore("orders", rows, now) == 0
    page = hf.store.browse(View("orders", State.LOG), None, 100, now)
    assert [entry.finished for entry in page.entries] == rows
    found = hf.store.browse(View("orders", State.LOG, id=rows[7].message.id), None, 1, now)
    assert [entry.finished for entry in found.entries] == rows[7:8]
    stats = hf.queue("orders").stats()
    assert (stats.done, stats.ready, stats.leased) == (40, 0, 0)
    cuts = hf.store.split(View("orders", State.LOG), 4, now)
    assert len(cuts) == 3
    assert hf.store.drop([Cut("orders", 100, keep=15)]) == [25]


def test_a_log_goes_on_after_what_was_restored(
    queue: Queue, hf: Holdfast, clock: ManualClock
) -> None:
    now = clock.now()
    hf.store.restore("orders", [finished(n, now) for n in range(3)], now)
    (sent,) = queue.enqueue_many([Outgoing("new")])
    queue.settle(queue.lease())
    log = list(queue.log())
    assert len(log) == 4 and log[-1].message.id == sent.id
    # An id that is in the log is used again: it has a row for each time it finished.
    again = message(1, now)
    hf.store.enqueue([again], now)
    queue.settle(queue.lease())
    ends = [row.finished_at for row in queue.log() if row.message.id == again.id]
    assert ends == [now - 999, now]
    assert queue.stats().done == 5


def test_an_id_that_finished_twice_is_restored_twice(
    queue: Queue, hf: Holdfast, clock: ManualClock
) -> None:
    now = clock.now()
    first = finished(1, now)
    second = msgspec.structs.replace(first, finished_at=first.finished_at + 5, result="again")
    third = msgspec.structs.replace(first, finished_at=first.finished_at + 9, consumer="other")
    assert hf.store.restore("orders", [first, second], now) == 2
    assert hf.store.restore("orders", [first, second, third], now) == 1
    assert list(queue.log()) == [first, second, third]
    assert queue.stats().done == 3


def test_dead_letters_that_were_discarded_are_restored_too(
    hf: Holdfast, clock: ManualClock
) -> None:
    hf.queue("orders")
    now = clock.now()
    row = finished(1, now, queue="orders.dlq")
    row = msgspec.structs.replace(row, status="COMPLETED_WITH_ERRORS", last_leased_at=None,
                                  consumer=None)  # fmt: skip
    assert hf.store.restore("orders.dlq", [row], now) == 1
    page = hf.store.browse(View("orders.dlq", State.LOG), None, 9, now)
    assert [entry.finished for entry in page.entries] == [row]
    assert not list(hf.queue("orders").log())


def test_nothing_is_restored_to_a_queue_that_is_not_there(hf: Holdfast, clock: ManualClock) -> None:
    with pytest.raises(QueueNotFound):
        hf.store.restore("orders", [finished(1, clock.now())], clock.now())


@pytest.mark.promise("SPARK-7")
def test_what_waits_leaves_by_its_place_and_nothing_else_does(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    """Who has carried messages elsewhere takes away just those."""
    queue.enqueue_many(range(5))
    queue.enqueue(9, delay=100)
    queue.dlq.enqueue(7)
    seen = {
        (name, state): hf.store.browse(View(name, state), None, 100, clock.now()).entries
        for name, state in (
            ("orders", State.READY),
            ("orders", State.DELAYED),
            ("orders.dlq", State.READY),
        )
    }
    queue.enqueue("came later")
    for (name, _), entries in seen.items():
        stale = [moved_away(name, entry.message.id, entry.place + 1000) for entry in entries]
        assert set(hf.store.settle(stale, clock.now())) == {Settled.STALE}
        moves = [moved_away(name, entry.message.id, entry.place) for entry in entries]
        assert hf.store.settle(moves, clock.now()) == [Settled.APPLIED] * len(moves)
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (1, 0, 0, 0)
    assert [entry.message.payload for entry in queue.browse()] == ["came later"]
    assert list(queue.log()) == []
    assert not hf.store.delete_queues(["orders", "orders.dlq"], only_empty=True)
