"""Dead letters and redrive."""

# pyright: basic

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from holdfast import (
    ErrorInfo,
    FailedPrecondition,
    Holdfast,
    InvalidArgument,
    Lease,
    Message,
    Queue,
    QueueNotEmpty,
    QueueNotFound,
    RedriveFailed,
    SourceQueueGone,
)
from holdfast.app import LocalHoldfast as App
from holdfast.errors import StoreUnavailable
from holdfast.model.message import History
from holdfast.model.settings import Settings
from holdfast.queue.context import Context
from holdfast.queue.redrive import BATCH
from holdfast.stores.contract import Store
from holdfast.testing import ManualClock, wait_until
from holdfast.testing.conformance.fixtures import ids, whereabouts


def kill(queue: Queue, n: int = 1) -> list[str]:
    """Let the next `n` messages die; their ids, in the order of dying."""
    leases = queue.lease(n)
    for lease in leases:
        queue.fail(lease, "poison")
    return ids(leases)


def names(hf: Holdfast) -> list[str]:
    return [queue.name for queue in hf.queues()]


@pytest.mark.promise("DEAD-1")
def test_a_queue_comes_with_its_dead_letter_queue(hf: Holdfast) -> None:
    hf.queue("orders")
    assert names(hf) == ["orders", "orders.dlq"]
    hf.queue("orders.dlq")
    hf.queue("lone.dlq")
    assert names(hf) == ["lone.dlq", "orders", "orders.dlq"]
    hf.queue("lone")
    assert names(hf) == ["lone", "lone.dlq", "orders", "orders.dlq"]


@pytest.mark.promise("DEAD-1")
def test_deleting_takes_both_and_needs_force_while_either_holds_messages(hf: Holdfast) -> None:
    for holding in ("nothing", "ready", "delayed", "leased", "dead", "log"):
        queue = hf.queue("orders")
        if holding != "nothing":
            queue.enqueue(1, delay=60 if holding == "delayed" else None)
        if holding == "leased":
            queue.lease()
        elif holding == "dead":
            kill(queue)
        elif holding == "log":
            queue.ack(queue.lease()[0])
        if holding in ("ready", "delayed", "leased", "dead"):
            with pytest.raises(QueueNotEmpty):
                queue.delete()
            assert names(hf) == ["orders", "orders.dlq"]
            queue.delete(force=True)
        else:
            queue.delete()
        assert names(hf) == []
    fresh = hf.queue("orders")
    assert whereabouts(fresh) == {}
    assert fresh.stats().done == 0


@pytest.mark.promise("DEAD-1")
def test_a_dead_letter_queue_goes_only_with_its_queue(hf: Holdfast, queue: Queue) -> None:
    with pytest.raises(FailedPrecondition, match="orders"):
        queue.dlq.delete(force=True)
    hf.queue("lone.dlq").delete()
    assert names(hf) == ["orders", "orders.dlq"]


@pytest.mark.promise("DEAD-2")
def test_a_dead_letter_keeps_everything(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", partitions=4)
    sent = queue.enqueue(
        {"id": 1}, key="k", type="t", priority=7, headers={"h": "v"}, max_attempts=2
    )
    leased_at = clock.now()
    queue.nack(queue.lease(owner="a")[0], "first", delay=1)
    clock.advance(1)
    queue.nack(queue.lease(owner="b")[0], KeyError("second"))
    assert queue.dlq.get(sent.id) == Message(
        id=sent.id,
        queue="orders.dlq",
        partition=sent.partition,
        priority=7,
        key="k",
        type="t",
        body=b'{"id":1}',
        content_type="application/json",
        headers={"h": "v"},
        enqueued_at=sent.enqueued_at,
        available_at=clock.now(),
        attempts=2,
        max_attempts=2,
        first_leased_at=leased_at,
        history=History(
            errors=(
                ErrorInfo("first", "ERROR", leased_at, 1, "a"),
                ErrorInfo("'second'", "KeyError", clock.now(), 2, "b"),
            ),
            source="orders",
            dead_at=clock.now(),
            reason="max attempts exceeded",
        ),
    )


@pytest.mark.promise("DEAD-2")
def test_a_dead_letter_counts_its_redrives(hf: Holdfast, queue: Queue) -> None:
    sent = queue.enqueue(1)
    for redriven in (0, 1, 2):
        kill(queue)
        dead = queue.dlq.get(sent.id)
        assert (dead.redriven, len(dead.errors)) == (redriven, redriven + 1)
        hf.redrive("orders.dlq")


@pytest.mark.promise("DEAD-3")
def test_redrive_moves_the_oldest_first(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many(range(6))
    leases = queue.lease(6)
    order = [4, 0, 5, 2, 1, 3]
    for n in order:
        queue.fail(leases[n])
        clock.advance(1)
    died = [leases[n].id for n in order]
    assert whereabouts(queue) == {"dead": died}
    assert hf.redrive("orders.dlq", count=2).redriven == 2
    assert whereabouts(queue) == {"ready": sorted(died[:2]), "dead": died[2:]}
    assert hf.redrive("orders.dlq", count=0).redriven == 4
    assert whereabouts(queue) == {"ready": ids([lease.message for lease in leases])}
    assert hf.redrive("orders.dlq").redriven == 0


@pytest.mark.promise("DEAD-3")
def test_a_redriven_message_starts_over_as_itself(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", partitions=4)
    sent = queue.enqueue({"id": 1}, key="k", priority=7, headers={"h": "v"})
    kill(queue)
    died_at = clock.now()
    dead = queue.dlq.get(sent.id)
    clock.advance(100)
    hf.redrive("orders.dlq")
    back = queue.get(sent.id)
    assert back == Message(
        id=sent.id,
        queue="orders",
        partition=sent.partition,
        priority=7,
        key="k",
        type=None,
        body=sent.body,
        content_type=sent.content_type,
        headers={"h": "v"},
        enqueued_at=sent.enqueued_at,
        available_at=clock.now(),
        attempts=0,
        first_leased_at=died_at,
        history=History(errors=dead.errors, redriven=1),
    )
    assert queue.lease()[0].message.attempts == 1


@pytest.mark.promise("DEAD-3")
def test_more_than_one_batch_of_dead_letters(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(1001))
    died = kill(queue, 1001)
    assert hf.redrive("orders.dlq", count=450).redriven == 450
    assert whereabouts(queue) == {"ready": died[:450], "dead": died[450:]}
    assert hf.redrive("orders.dlq").redriven == 551
    assert whereabouts(queue) == {"ready": died}


@pytest.mark.promise("DEAD-4")
def test_a_waiting_consumer_gets_a_redriven_message(
    hf: Holdfast, queue: Queue, another: Callable[[], Holdfast]
) -> None:
    queue.enqueue("x")
    kill(queue)
    got: list[Lease] = []
    other = another().queue("orders")
    waiting = threading.Thread(target=lambda: got.extend(other.lease(wait=30)))
    waiting.start()
    hf.redrive("orders.dlq")
    waiting.join()
    assert [lease.message.payload for lease in got] == ["x"]


@pytest.mark.promise("DEAD-5")
def test_leased_dead_letters_stay_with_their_holder(hf: Holdfast, queue: Queue) -> None:
    queue.enqueue_many(range(5))
    died = kill(queue, 5)
    held = queue.dlq.lease(2)
    assert ids(held) == died[:2]
    assert hf.redrive("orders.dlq", count=2).redriven == 2
    assert whereabouts(queue) == {"ready": died[2:4], "dead": [died[4], *died[:2]]}
    assert hf.redrive("orders.dlq").redriven == 1
    assert hf.redrive("orders.dlq").redriven == 0  # all leased: none, and no error
    queue.dlq.release(held[0])
    assert hf.redrive("orders.dlq").redriven == 1


@pytest.mark.promise("DEAD-5")
def test_looking_at_a_dead_letter_changes_nothing(
    hf: Holdfast, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(1)
    (id,) = kill(queue)
    dead = queue.dlq.get(id)
    for put_back in (queue.dlq.release, queue.dlq.nack, queue.dlq.fail):
        put_back(queue.dlq.lease()[0])
        assert queue.dlq.get(id) == dead
    for _ in range(5):  # nothing is ever dead-lettered from there
        queue.dlq.lease()
        clock.advance(30)
        hf.sweep()
    back = queue.dlq.get(id)
    assert (back.attempts, back.errors, back.reason) == (dead.attempts, dead.errors, dead.reason)
    queue.dlq.ack(queue.dlq.lease()[0])
    assert whereabouts(queue) == {}
    assert [finished.status for finished in queue.dlq.log()] == ["COMPLETED_WITH_ERRORS"]


@pytest.mark.promise("DEAD-6")
def test_redriving_all_ends_though_everything_dies_again(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    queue.enqueue_many(range(500))
    kill(queue, 500)

    class Deadly:
        """A store on which every redriven message dies at once, in the same millisecond."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        calls = 0

        def settle(self, moves: list[object], now: int) -> object:
            self.calls += 1
            assert self.calls < 20, "this redrive never ends"
            answers = store.settle(moves, now)  # pyright: ignore
            kill(queue, 1000)
            return answers

    at = Context(Deadly(), clock, Random(), hf.context.policy, "me")  # pyright: ignore
    assert App(at, Settings()).redrive("orders.dlq").redriven == 500
    assert queue.stats().dead == 500


@pytest.mark.promise("DEAD-6")
def test_messages_that_die_meanwhile_are_left_alone(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    queue.enqueue_many(range(150))
    kill(queue, 150)

    class Meanwhile:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def settle(self, moves: list[object], now: int) -> object:
            other = hf.queue("orders").enqueue("new", priority=9)
            assert kill(queue) == [other.id]
            return store.settle(moves, now)  # pyright: ignore

    at = Context(Meanwhile(), clock, Random(), hf.context.policy, "me")  # pyright: ignore
    assert App(at, Settings()).redrive("orders.dlq").redriven == 150
    died = ["new" for _ in range(0, 150, BATCH)]  # one beside each step
    assert len(died) > 1
    assert queue.stats().dead == len(died)
    assert [entry.message.payload for entry in queue.dlq.browse()] == died


@pytest.mark.promise("DEAD-8")
def test_the_five_errors_of_a_redrive_in_their_order(
    hf: Holdfast, queue: Queue, store: Store, clock: ManualClock
) -> None:
    hf.queue("lone.dlq")
    for bad, error, code in [
        ("", InvalidArgument, "INVALID_ARGUMENT"),
        (None, InvalidArgument, "INVALID_ARGUMENT"),
        ("nowhere", QueueNotFound, "NOT_FOUND"),
        ("nowhere.dlq", QueueNotFound, "NOT_FOUND"),
        ("orders", InvalidArgument, "INVALID_ARGUMENT"),
        ("lone.dlq", SourceQueueGone, "FAILED_PRECONDITION"),
    ]:
        with pytest.raises(error) as caught:
            hf.redrive(bad)  # pyright: ignore
        assert caught.value.code == code
    with pytest.raises(InvalidArgument, match="count"):
        hf.redrive("orders.dlq", count=-1)

    queue.enqueue_many(range(500))
    died = kill(queue, 500)

    class Failing:
        def __init__(self) -> None:
            self.settled = 0

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def settle(self, moves: list[object], now: int) -> object:
            self.settled += 1
            if self.settled == 2:
                raise StoreUnavailable("the store is gone")
            return store.settle(moves, now)  # pyright: ignore

    at = Context(Failing(), clock, Random(), hf.context.policy, "me")  # pyright: ignore
    with pytest.raises(RedriveFailed, match="the store is gone") as failed:
        App(at, Settings()).redrive("orders.dlq")
    assert failed.value.code == "INTERNAL"
    moved = failed.value.redriven
    assert 0 < moved < 500
    assert whereabouts(queue) == {"ready": died[:moved], "dead": died[moved:]}


@pytest.mark.promise("DEAD-3")
def test_two_redrives_at_once_move_each_message_once(
    hf: Holdfast, queue: Queue, another: Callable[[], Holdfast]
) -> None:
    queue.enqueue_many(range(600))
    kill(queue, 600)
    moved: list[int] = []

    def redrive(mine: Holdfast) -> None:
        moved.append(mine.redrive("orders.dlq").redriven)

    threads = [threading.Thread(target=redrive, args=(another(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(moved) == 600
    wait_until(lambda: queue.stats().ready == 600)
    assert {entry.message.redriven for entry in queue.browse()} == {1}
