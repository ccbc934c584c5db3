"""A queue that is deleted while others use it: what they do in between is neither lost nor hidden.

Each test lets them in at the one moment that matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Queue, QueueNotEmpty
from holdfast.model.queues import QueueSpec
from holdfast.stores.contract import held_in
from holdfast.telemetry.observe import unobserved


@pytest.fixture
def hf(redis_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(redis_url) as opened:
        yield opened


@pytest.fixture
def other(redis_url: str) -> Iterator[Holdfast]:
    """Another process."""
    with holdfast.connect(redis_url) as opened:
        yield opened


def test_a_queue_made_again_before_the_old_one_is_dropped_keeps_its_messages(
    hf: Holdfast, other: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = hf.queue("orders")
    old = queue.enqueue_many(range(3))
    drop_all, sent = hf.store._drop_all, list[str]()  # pyright: ignore

    def late(name: str) -> None:
        if not sent:  # the queue is gone, what it held is not yet
            again = other.queue("orders")
            sent.extend(message.id for message in again.enqueue_many(["new", "newer"]))
            sent.append(again.dlq.enqueue("dead").id)
        drop_all(name)

    monkeypatch.setattr(unobserved(hf.store), "_drop_all", late)
    queue.delete(force=True)
    again = Queue(other.context, "orders")
    leases = [*again.lease(10), *again.dlq.lease(10)]
    assert [lease.id for lease in leases] == sent
    assert held_in(hf.store, "orders", [message.id for message in old]) == []


def test_a_queue_that_is_not_deleted_is_not_deleted_by_half(
    hf: Holdfast, other: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = hf.queue("orders")
    is_empty = hf.store._is_empty  # pyright: ignore

    def late(name: str) -> bool:
        empty = is_empty(name)
        if name == queue.dlq.name:  # both were found empty
            Queue(other.context, name).enqueue("dead")
        return empty

    monkeypatch.setattr(unobserved(hf.store), "_is_empty", late)
    with pytest.raises(QueueNotEmpty):
        queue.delete()
    assert [each.name for each in other.queues()] == ["orders", "orders.dlq"]
    queue.enqueue(1)
    assert (queue.stats().ready, queue.stats().dead) == (1, 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_queue_made_again_while_the_old_one_is_forgotten_is_listed(
    hf: Holdfast, other: Holdfast, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A queue that is not listed is never swept."""
    queue = hf.queue("orders")
    run = hf.store._db.run  # pyright: ignore

    def late(*command: Any, **options: Any) -> Any:
        if command[0] != "SREM":
            return run(*command, **options)
        if when == "before":
            other.queue("orders")
        answer = run(*command, **options)
        if when == "after":
            other.queue("orders")
        return answer

    monkeypatch.setattr(hf.store._db, "run", late)  # pyright: ignore
    queue.delete(force=True)
    assert [each.name for each in other.queues()] == ["orders", "orders.dlq"]


def test_a_queue_that_is_forgotten_while_it_is_made_is_listed(
    hf: Holdfast, other: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion of the one before ends between the two steps of making it."""
    hf.queue("orders")
    script, done = other.store._db.script, list[bool]()  # pyright: ignore

    def late(*call: Any) -> Any:
        if not done:
            done.append(True)
            Queue(hf.context, "orders").delete(force=True)
        return script(*call)

    monkeypatch.setattr(other.store._db, "script", late)  # pyright: ignore
    other.store.put_queues([QueueSpec("orders"), QueueSpec("orders.dlq")])
    assert done
    assert [each.name for each in other.queues()] == ["orders", "orders.dlq"]
