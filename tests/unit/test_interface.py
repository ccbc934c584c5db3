"""A connection to a store and one to a server have the same names with the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import FailedPrecondition, Holdfast, Queue
from holdfast.app import LocalHoldfast
from holdfast.client.queues import RemoteConsumer, RemoteQueue, RemoteTopic
from holdfast.client.remote import RemoteHoldfast
from holdfast.queue.interface import Topic
from holdfast.queue.queue import LocalQueue
from holdfast.queue.topic import LocalTopic
from holdfast.stores.memory import MemoryStore
from holdfast.work.ownership import Consumer

PAIRS = [
    (LocalHoldfast, RemoteHoldfast),
    (LocalQueue, RemoteQueue),
    (LocalTopic, RemoteTopic),
    (Consumer, RemoteConsumer),
]
LOCAL_ONLY = {
    "LocalQueue": {"context", "enqueue_each"},
}
"""What the library itself calls; users have `hf.context`."""
REMOTE_ONLY = {
    "RemoteHoldfast": {"identity", "history", "actions", "pipelines", "reports", "report"},
}
"""What only a server knows."""


class NoTransport:
    """Nothing is sent: what is tested here needs no server."""

    def call(self, name: str, ask: Any, *, wait: float = 0.0) -> Any:
        raise AssertionError(f"{name} was sent")

    def events(self, after: int | None) -> Iterator[Any]:
        raise AssertionError("events were asked for")

    def close(self) -> None: ...


@pytest.fixture
def remote() -> RemoteHoldfast:
    return RemoteHoldfast(NoTransport(), "http://server")


@pytest.fixture
def remote_queue() -> RemoteQueue:
    return RemoteQueue(NoTransport(), "orders", "me")


def names(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def parameters(cls: type, name: str) -> Any:
    member = inspect.getattr_static(cls, name)
    if isinstance(member, property):
        return "property"
    given = inspect.signature(member).parameters.values()
    return [(each.name, each.kind, each.default) for each in given]


@pytest.mark.parametrize(("local", "remote"), PAIRS)
def test_they_have_the_same_names(local: type, remote: type) -> None:
    ours, theirs = names(local), names(remote)
    instance = {"name", "url"}  # attributes of instances here, a property there
    assert ours - theirs - instance == LOCAL_ONLY.get(local.__name__, set())
    assert theirs - ours - instance == REMOTE_ONLY.get(remote.__name__, set())


@pytest.mark.parametrize(
    ("local", "remote", "name"),
    [
        pytest.param(local, remote, name, id=f"{remote.__name__}.{name}")
        for local, remote in PAIRS
        for name in sorted(names(local) & names(remote))
    ],
)
def test_they_take_the_same_parameters(local: type, remote: type, name: str) -> None:
    assert parameters(local, name) == parameters(remote, name)


@pytest.mark.parametrize("name", ["context", "store", "_at", "_settings", "nonsense"])
def test_what_a_remote_connection_does_not_have(remote: RemoteHoldfast, name: str) -> None:
    assert not hasattr(remote, name)
    assert getattr(remote, name, None) is None


@pytest.mark.parametrize("name", ["context", "enqueue_each", "_at", "_policies", "nonsense"])
def test_what_a_remote_queue_does_not_have(remote_queue: RemoteQueue, name: str) -> None:
    assert not hasattr(remote_queue, name)


@pytest.mark.parametrize("name", ["find", "settle", "_at", "_record", "_make_queue"])
def test_what_a_remote_topic_does_not_have(name: str) -> None:
    assert not hasattr(RemoteTopic(NoTransport(), "orders", "me"), name)


@pytest.mark.parametrize("name", ["context", "store"])
def test_an_attribute_of_the_store_says_what_to_do(remote: RemoteHoldfast, name: str) -> None:
    with pytest.raises(FailedPrecondition, match="connect to the URL of the store"):
        getattr(remote, name)


def test_what_cannot_be_done_remotely_says_what_to_do(remote: RemoteHoldfast) -> None:
    @remote.handler("orders")
    def handle(payload: Any) -> None: ...

    for call in (remote.worker, remote.work, remote.redrive_runner):
        with pytest.raises(FailedPrecondition, match="connect to the URL of the store"):
            call()
    for given in ({"progress": print}, {"cancel": lambda: True}):
        with pytest.raises(FailedPrecondition, match=r"use start_redrive\(\)"):
            remote.redrive("orders.dlq", **given)


def test_what_cannot_be_done_with_a_remote_queue(remote_queue: RemoteQueue) -> None:
    topic = RemoteTopic(NoTransport(), "orders", "me")
    for call in (
        lambda: remote_queue.enqueue(1, within=object()),
        lambda: remote_queue.enqueue_many([1], within=object()),
        lambda: remote_queue.settle([], within=object()),
        lambda: topic.publish(1, within=object()),
    ):
        with pytest.raises(FailedPrecondition, match=r"within: .* connect to the store itself"):
            call()
    with pytest.raises(FailedPrecondition, match="batch: not supported over HTTP"):
        remote_queue.lease(batch="b")


def test_both_are_instances_of_the_public_classes(
    remote: RemoteHoldfast, remote_queue: RemoteQueue
) -> None:
    local = holdfast.connect(MemoryStore(), rng=Random(1))
    for hf in (local, remote):
        assert isinstance(hf, holdfast.Holdfast)
        assert isinstance(hf, Holdfast)
    for queue in (local.queue("orders"), local.queue("orders").dlq, remote_queue, remote_queue.dlq):
        assert isinstance(queue, Queue)
    for topic in (local.topic("t"), RemoteTopic(NoTransport(), "t", "me")):
        assert isinstance(topic, Topic)
