"""Messages: what they carry, and what is refused."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast import (
    Backoff,
    Outgoing,
)
from holdfast.wire import shapes as s
from tests.server.stories.scene import (
    ID,
    Scene,
    everything,
    refused,
    story,
)


@story
def a_message_carries_all_its_fields(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    sent = queue.enqueue(
        {"n": 1, "näme": ["ü", None, 1.5, 2**53 - 1]},
        id=ID.format(1),
        key="customer-7",
        type="order",
        priority=7,
        delay=1.5,
        headers={"trace": "abc", "sprache": "größe"},
        ack_timeout=4.5,
        max_attempts=2,
        backoff=Backoff(base=2, jitter="none"),
    )
    at = datetime.fromtimestamp((scene.clock.now() + 9000) / 1000, UTC)
    others = [
        queue.enqueue("at a time", at=at),
        queue.enqueue("at a number", at=at.timestamp() + 0.5),
        queue.enqueue("in the past", at=1.0),
        queue.enqueue("a key of bytes", key=b"\xff\x00"),
        queue.enqueue("a key of text in bytes", key="ü".encode()),
        queue.enqueue("at once", delay=0),
    ]
    scene.clock.advance(20)
    leases = queue.lease(10, owner="me")
    return sent, others, leases, queue.get(ID.format(1)), queue.get(others[0].id)


@story
def payloads_of_every_kind(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    values = [None, True, 0, -1.5, "", "text", [], {}, [[{"a": [None]}]], "\u2028\x00\U0001f600"]
    sent = [queue.enqueue(value) for value in values]
    sent += queue.enqueue_many(values)
    sent += [
        queue.enqueue(b""),
        queue.enqueue(bytes(range(256))),
        queue.enqueue(bytearray(b"\x89PNG"), content_type="image/png"),
        queue.enqueue("näme;wert", content_type="text/csv"),
        queue.enqueue(b'{ "kept": 1.0 }', content_type="application/json"),
    ]
    leases = queue.lease(100, owner="me")
    return [message.payload for message in sent], sent, [one.message.payload for one in leases]


@story
def many_at_once(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    receipt = secrets.token_hex(8)
    items = ["plain", Outgoing({"a": 1}, id=ID.format(1), key="k", priority=3), b"bytes"]
    first = queue.enqueue_many(items, receipt=receipt)
    queue.settle(queue.lease(10))
    again = queue.enqueue_many(items, receipt=receipt)
    one = queue.enqueue_many(["alone"], receipt=f"{receipt} of one")
    one += queue.enqueue_many(["alone"], receipt=f"{receipt} of one")
    return first, len(again), len(one), queue.enqueue_many([]), queue.stats(), list(queue.browse())


@story
def an_id_that_is_held(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    seen: list[Any] = [queue.enqueue({"first": 1}, id=ID.format(1), key="k")]
    scene.clock.advance(1)
    seen += [queue.enqueue({"second": 2}, id=ID.format(1))]
    batch = [Outgoing(n, id=ID.format(n)) for n in (1, 2, 2, 3)]
    seen += [queue.enqueue_many(batch), queue.enqueue_many(batch)]
    for lease in queue.lease(2):
        queue.fail(lease)
    seen += [queue.enqueue_many(batch)]
    return seen, everything(queue)


@story
def bad_input(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", payload_max=1000)
    bad = [refused(lambda one=one: queue.enqueue(**{"payload": 1, **one})) for one in BAD]
    bad += [
        refused(lambda one=one: queue.enqueue_many([1, Outgoing(**{"payload": 1, **one})]))
        for one in BAD
    ]
    bad += [refused(lambda one=one: queue.enqueue_many(one)) for one in ("text", b"b", {"a": 1})]
    return bad, everything(queue)


BAD: list[dict[str, Any]] = [
    {"payload": 1j},
    {"payload": float("nan")},
    {"payload": {"a": [1, float("inf")]}},
    {"payload": "\ud800"},
    {"payload": "x" * 1000},
    {"payload": b"x" * 1001},
    {"payload": b"{", "content_type": "application/json"},
    {"payload": {"a": 1}, "content_type": "image/png"},
    {"priority": -1},
    {"priority": 10},
    {"priority": 1.5},
    {"priority": True},
    {"delay": -1.5},
    {"delay": float("nan")},
    {"delay": 1e12},
    {"delay": "5"},
    {"at": datetime(2026, 1, 1)},
    {"at": 5.0, "delay": 1},
    {"ack_timeout": 0},
    {"ack_timeout": -3.5},
    {"max_attempts": 0},
    {"max_attempts": 2.5},
    {"backoff": 5},
    {"key": 7},
    {"key": "k" * 2000},
    {"type": "t" * 2000},
    {"headers": ["a"]},
    {"headers": {"a": 1}},
    {"headers": {"a": "x" * 70_000}},
    {"id": "not-a-uuid"},
    {"id": 7},
]


@story
def bad_input_past_the_client(scene: Scene) -> Any:
    """What another client may send: the server itself has to say the same."""
    queue = scene.hf.queue("orders", payload_max=1000)
    asks: list[dict[str, Any]] = [one for one in BAD if _can_be_sent(one)]

    def enqueue(name: str, given: dict[str, Any]) -> Any:
        fields = {"payload": 1, **given}
        body = fields.pop("payload")
        sent = {"body": body} if isinstance(body, bytes) else {"payload": _raw(body)}
        ask = s.EnqueueAsk(queue=name, **sent, **fields)
        return scene.asks("Enqueue", ask, lambda _: scene.hf.queue(name, create=False))

    def library(name: str, given: dict[str, Any]) -> Any:
        return scene.hf.queue(name, create=False).enqueue(**{"payload": 1, **given})

    does = enqueue if scene.transport else library
    names = ["a b", "nowhere", "x" * 129, "orders.dlq.dlq", "é", "-a"]
    told = [refused(lambda one=one: does("orders", one)) for one in asks]
    told += [refused(lambda name=name: does(name, {})) for name in names]
    return told, everything(queue)


def _can_be_sent(given: dict[str, Any]) -> bool:
    kinds = {"payload": str | bytes, "headers": dict, "id": str, "key": str, "type": str}
    kinds |= {"priority": int, "delay": float | int, "at": float, "ack_timeout": int | float}
    kinds |= {"max_attempts": int, "content_type": str}
    if any(not isinstance(value, kinds.get(name, ())) for name, value in given.items()):
        return False
    odd = (True, "\ud800", float("nan"))
    return all(value == value and value not in odd for value in given.values()) and not (
        isinstance(given.get("headers"), dict) and 1 in given["headers"].values()
    )


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
