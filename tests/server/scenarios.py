"""What can be done with queues, as a table of small stories that any connection can play.

A story gets a scene: a connection (the library's, or one over a wire), the clock behind it, and
what only a process that has the store can do. It gives back whole values; names that are made up on
the way (ids, tokens, consumers) are told apart by their order alone.
"""

from __future__ import annotations

import gzip
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from holdfast import (
    Backoff,
    DeadFilter,
    Done,
    Edit,
    Extend,
    Fail,
    Holdfast,
    HoldfastError,
    Lease,
    Message,
    Outgoing,
    Queue,
    Release,
    Retry,
    State,
    batches,
    groups,
)
from holdfast.errors import StoreUnavailable
from holdfast.queue import Context
from holdfast.server.browsing import page
from holdfast.server.history import Spans
from holdfast.server.pipelines import pipelines, report, reports
from holdfast.store import Event
from holdfast.testing import ManualClock, wait_until
from holdfast.wire import shapes as s

ID = "0190a000-0000-7000-8000-{:012d}"
HOUR = 3_600_000
Story = Callable[["Scene"], Any]


class Scene:
    """One run of a story."""

    def __init__(self, hf: Holdfast, at: Context, clock: ManualClock) -> None:
        self.hf = hf
        self.clock = clock
        self.at = at
        """Of the process that has the store: this one's, or the server's."""

    @property
    def transport(self) -> Any:
        """None for the library."""
        return vars(self.hf).get("_transport")

    def asks(self, name: str, ask: Any, library: Callable[[Context], Any]) -> Any:
        """An operation that is no verb of a connection."""
        return self.transport.call(name, ask) if self.transport else library(self.at)

    @contextmanager
    def streams(self, queue: str, n: int) -> Iterator[list[Lease]]:
        """The next `n` leases, as a stream where there is one. To be settled before it ends: what
        may not have arrived by then is given back."""
        if not hasattr(self.transport, "leases"):
            yield self.hf.queue(queue).lease(n, owner="me")
            return
        stream = self.transport.leases(s.LeaseStreamAsk(queue, max_in_flight=n, owner="me"))
        try:
            yield [doc.value() for doc in islice(stream, n)]
        finally:
            stream.close()

    def worked(self, id: str) -> Any:
        """A redrive, when it has come to its end: a server works it by itself."""
        if not self.transport:
            self.hf.redrive_runner().run_pending()
        wait_until(lambda: self.hf.get_redrive(id).state != "running")
        return self.hf.get_redrive(id)

    @contextmanager
    def store_breaks(self, verb: str, call: int) -> Iterator[None]:
        """The store is away when `verb` is called for the n-th time."""
        whole = self.at.store
        self.at.store = Breaking(whole, verb, call)  # type: ignore[assignment]
        try:
            yield
        finally:
            self.at.store = whole


class Breaking:
    def __init__(self, store: Any, verb: str, call: int) -> None:
        self._store = store
        self._verb = verb
        self._left = call

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            self._left -= 1
            if not self._left:
                raise StoreUnavailable("the store is gone")
        return getattr(self._store, name)


def refused(call: Callable[[], Any]) -> Any:
    """All that an error says; or what came instead."""
    try:
        return {"answer": call()}
    except HoldfastError as error:
        told = {name: getattr(error, name, None) for name in ("code", "field", "index", "redriven")}
        return {"error": type(error).__name__, **told, "text": str(error)}


def plain(value: Any) -> Any:
    """Builtins, without what differs from one run to the next."""
    known: dict[str, str] = {}

    def alias(found: re.Match[str]) -> str:
        return known.setdefault(found.group(), f"id {len(known)}")

    def walk(value: Any) -> Any:
        match value:
            case str():
                return _UUID.sub(alias, _CONSUMER.sub("a consumer", value))
            case dict():
                return {walk(k): _HIDDEN.get(k) or walk(v) for k, v in value.items()}
            case list() | tuple():
                return [walk(one) for one in value]
            case _:
                return value

    return walk(msgspec.to_builtins(value, enc_hook=_encoded))


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CONSUMER = re.compile(r"[\w.-]+:\d+:[0-9a-f]{6}")
_HIDDEN = {"token": "a token", "place": "its place", "seq": "its number"}


def _encoded(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    return {"backoff": value.to_dict()} if isinstance(value, Backoff) else repr(value)


STORIES: dict[str, Story] = {}


def story(function: Story) -> Story:
    STORIES[function.__name__] = function
    return function


def everything(queue: Queue) -> Any:
    """Whole rows of all that is known of a queue."""
    return {
        "stats": (queue.stats(), queue.dlq.stats()),
        **{f"{of.name} {state}": list(of.browse(state)) for of in both(queue) for state in State},
    }


def both(queue: Queue) -> tuple[Queue, Queue]:
    return queue, queue.dlq


def kill(queue: Queue, *items: Any, code: str = "Declined") -> list[Message]:
    """Dead letters of these, in their order."""
    sent = queue.enqueue_many(items)
    leases = queue.lease(len(items), owner="me")
    queue.settle((lease, Fail(f"no {lease.message.payload}", code=code)) for lease in leases)
    return sent


# Queues


@story
def a_queue_is_made_and_changed(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue(
        "orders",
        partitions=2,
        ack_timeout=12.5,
        max_attempts=7,
        backoff=Backoff(base=1, factor=3, max=60, jitter="none"),
        overdue_backoff=True,
        exhausted="complete",
        log=True,
        retention=0,
        retention_count=5,
        payload_max=2000,
        on_failure="skip",
    )
    seen: list[Any] = [queue.spec, queue.policy, queue.dlq.spec]
    scene.clock.advance(1)
    again = hf.queue("orders", max_attempts=8, backoff=Backoff(max=30), log=False)
    seen += [again.spec, again.policy, hf.queue("orders", create=False).spec]
    seen += [hf.queue("orders", partitions=4).spec, hf.queue("orders.dlq").spec]
    seen += [hf.queue("lone.dlq").spec, hf.queue("kept", ordered=True, partitions=3).spec]
    return seen, [of.name for of in hf.queues()], hf.stats()


@story
def what_a_queue_refuses(scene: Scene) -> Any:
    hf = scene.hf
    hf.queue("orders", partitions=4)
    tries: list[Callable[[], Any]] = [
        lambda: hf.queue("ordres", create=False),
        lambda: hf.queue("ordres", create=False, max_attempts=3),
        lambda: hf.queue("orders", max_atempts=3),
        lambda: hf.queue("orders", max_attempts=0),
        lambda: hf.queue("orders", ack_timeout=-1),
        lambda: hf.queue("orders", retention=-1),
        lambda: hf.queue("orders", exhausted="gone"),
        lambda: hf.queue("orders", on_failure="maybe"),
        lambda: hf.queue("orders", backoff=Backoff(factor=0.5)),
        lambda: hf.queue("orders", partitions=2),
        lambda: hf.queue("orders", partitions=0),
        lambda: hf.queue("orders", partitions=257),
        lambda: hf.queue("orders", ordered=True),
        lambda: hf.queue("orders.dlq", partitions=8),
        lambda: hf.queue("new.dlq", ordered=True),
        lambda: hf.queue("orders.dlq").delete(),
        lambda: hf.queue("a b"),
        lambda: hf.queue("x" * 129),
        lambda: hf.queue("x.dlq.dlq"),
        lambda: hf.queue(""),
    ]
    return [refused(one) for one in tries], [of.name for of in hf.queues()]


@story
def pause_resume_purge_delete(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    queue.enqueue_many(range(5))
    queue.pause()
    seen: list[Any] = [queue.spec.paused, queue.stats(), queue.lease(5), queue.enqueue("late")]
    queue.resume()
    held = queue.lease(2)
    seen += [queue.stats(), refused(queue.delete), queue.purge(), queue.purge(), queue.stats()]
    queue.fail(held[0])
    queue.ack(held[1])
    seen += [refused(queue.delete), queue.dlq.purge(), queue.delete(), hf.queues()]
    gone: list[Callable[[], Any]] = [
        queue.delete,
        queue.pause,
        queue.resume,
        queue.purge,
        queue.stats,
        queue.partitions,
        queue.lease,
        lambda: queue.spec,
        lambda: queue.policy,
        lambda: queue.enqueue(1),
        lambda: queue.enqueue_many([1, 2]),
        lambda: queue.ack(held[0]),
        lambda: queue.settle(held),
        lambda: queue.get(held[0].id),
        lambda: list(queue.browse()),
        lambda: list(queue.log()),
        lambda: queue.replay(held[0].id),
    ]
    seen += [_without_hint(refused(one)) for one in gone]
    hf.queue("full").enqueue(1)
    hf.queue("full").delete(force=True)
    return seen, [of.name for of in hf.queues()]


def _without_hint(told: dict[str, Any]) -> dict[str, Any]:
    """A server is given a name with every call, and says which one may be meant; a handle that the
    library gave out was good once."""
    return {**told, "text": str(told.get("text")).partition(";")[0]}


# Messages


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


# Leases


@story
def leases_in_their_order(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", ack_timeout=20)
    for n, priority in enumerate([0, 9, 0, 5, 9]):
        queue.enqueue(n, priority=priority)
    queue.enqueue("later", delay=10, priority=9)
    queue.enqueue("long", ack_timeout=100)
    first = queue.lease(4, owner="me")
    scene.clock.advance(10)
    rest = queue.lease(10, wait=5, owner="you")
    held = list(queue.browse("leased"))
    return first, rest, queue.lease(), queue.lease(wait=0.02), held, queue.stats()


@story
def what_a_lease_refuses(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    tries: list[Callable[[], Any]] = [
        lambda: queue.lease(0),
        lambda: queue.lease(10_001),
        lambda: queue.lease(wait=-1),
        lambda: queue.lease(wait=float("nan")),
        lambda: queue.lease(owner="x" * 2000),
    ]
    return [refused(one) for one in tries]


@story
def partitions(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", partitions=4)
    sent = queue.enqueue_many([Outgoing(n, key=f"k{n % 6}") for n in range(24)])
    parts = queue.partitions()
    some = queue.lease(100, partitions=[0, 3], owner="me")
    bad = [refused(lambda one=one: queue.lease(partitions=one)) for one in ([], [-1], [0, 999])]
    scene.clock.advance(3)
    grown = scene.hf.queue("orders", partitions=5)
    more = grown.enqueue_many([Outgoing(n, key=f"k{n % 6}") for n in range(6)])
    return [m.partition for m in sent], parts, some, bad, more, grown.partitions()


@story
def the_next_leases_as_they_come(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    queue.enqueue_many([Outgoing({"n": n}, key="k") for n in range(3)])
    with scene.streams("orders", 3) as leases:
        settled = queue.settle(leases)
    return leases, settled, everything(queue)


# How they end


@story
def every_way_to_end_a_lease(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", max_attempts=3, backoff=Backoff(base=10))
    queue.enqueue_many(range(9))
    a, b, c, d, e, f, g, h, i = queue.lease(9, owner="me")
    scene.clock.advance(1)
    queue.ack(a)
    queue.ack(b, result={"sum": [1, 2, None]})
    queue.nack(c)
    queue.nack(d, "not now", delay=4)
    queue.nack(e, ValueError("of the caller"))
    queue.nack(f, {"message": "mapped", "code": "E42"}, delay=0)
    queue.fail(g, "never", code="Declined")
    queue.release(h)
    longer = [queue.extend(i, 100), queue.extend(i)]
    return longer, everything(queue), list(queue.log()), queue.get(g.id)


@story
def a_batch_of_ends(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", backoff=Backoff(base=2))
    queue.enqueue_many(range(9))
    a, b, c, d, e, f, g, h, i = queue.lease(9, owner="me")
    queue.ack(h)
    ends = [
        a,
        (b, Done({"result": True})),
        (c, Retry("again", code="Busy")),
        (d, Retry(KeyError("k"), delay=7)),
        (e, Fail("no", code="Never")),
        (f, Release()),
        (g, Extend(90)),
        h,
        (msgspec.structs.replace(i, token="nonsense"), Done()),
    ]
    answers = [queue.settle(ends), queue.settle(ends), queue.settle([])]
    return answers, everything(queue)


@story
def leases_that_are_lost(scene: Scene) -> Any:
    """Every verb after everything that may have happened since."""
    seen: list[Any] = []
    for n, since in enumerate(SINCE):
        queue = scene.hf.queue(f"orders-{n}", ack_timeout=30)
        queue.enqueue(n)
        (lease,) = queue.lease(owner="me")
        since(scene, queue, lease)
        before = everything(queue)
        seen += [refused(partial(verb, queue, lease)) for verb in VERBS]
        seen += [queue.settle([(lease, outcome)]) for outcome in OUTCOMES]
        assert plain(everything(queue)) == plain(before)
    return seen


VERBS: list[Callable[[Queue, Lease], Any]] = [
    lambda queue, lease: queue.ack(lease),
    lambda queue, lease: queue.nack(lease, "no"),
    lambda queue, lease: queue.fail(lease, "never"),
    lambda queue, lease: queue.release(lease),
    lambda queue, lease: queue.extend(lease, 60),
]
OUTCOMES = [Done(), Retry("no"), Fail("never"), Release(), Extend(60)]
SINCE: list[Callable[[Scene, Queue, Lease], Any]] = [
    lambda scene, queue, lease: queue.ack(lease),
    lambda scene, queue, lease: queue.nack(lease, "no"),
    lambda scene, queue, lease: queue.fail(lease),
    lambda scene, queue, lease: queue.release(lease),
    lambda scene, queue, lease: (queue.release(lease), queue.lease(owner="you")),
    lambda scene, queue, lease: (scene.clock.advance(30), scene.hf.sweep()),
    lambda scene, queue, lease: (queue.fail(lease), scene.hf.redrive(queue.dlq.name)),
    lambda scene, queue, lease: (queue.fail(lease), queue.dlq.lease(owner="you")),
    lambda scene, queue, lease: (queue.release(lease), queue.purge()),
]


@story
def what_ending_a_lease_refuses(scene: Scene) -> Any:
    queue, other = scene.hf.queue("orders"), scene.hf.queue("bills")
    queue.enqueue_many(range(2))
    lease, second = queue.lease(2)
    tries: list[Callable[[], Any]] = [
        lambda: other.ack(lease),
        lambda: other.settle([lease]),
        lambda: queue.ack(lease, result=1j),
        lambda: queue.ack(lease, result="x" * 70_000),
        lambda: queue.settle([second, (lease, Done("x" * 70_000))]),
        lambda: queue.nack(lease, "no", delay=-1),
        lambda: queue.nack(lease, 42),
        lambda: queue.extend(lease, 0),
        lambda: queue.extend(lease, -5),
        lambda: queue.extend(lease, float("inf")),
        lambda: queue.ack(msgspec.structs.replace(lease, token="")),
        lambda: queue.nack(msgspec.structs.replace(lease, token="x.1")),
    ]
    return [refused(one) for one in tries], everything(queue)


@story
def out_of_attempts(scene: Scene) -> Any:
    dead = scene.hf.queue("orders", max_attempts=2, backoff=Backoff(base=1))
    done = scene.hf.queue("bills", max_attempts=1, exhausted="complete")
    dead.enqueue("a")
    done.enqueue("b")
    for _ in range(2):
        for queue in (dead, done):
            for lease in queue.lease(5, owner="me"):
                queue.nack(lease, RuntimeError("broken"))
        scene.clock.advance(5)
    (looked_at,) = dead.dlq.lease(owner="you")
    before = dead.dlq.get(looked_at.id)
    dead.dlq.nack(looked_at, "leave it")
    dead.dlq.ack(dead.dlq.lease()[0])
    return before, everything(dead), everything(done)


@story
def sweeps(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders", ack_timeout=10, max_attempts=2, retention_count=1)
    done = hf.queue("bills", ack_timeout=10, max_attempts=1, exhausted="complete")
    queue.enqueue_many(range(4))
    done.enqueue("b")
    queue.settle(queue.lease(2))
    leases = [queue.lease(5, owner="me"), done.lease(owner="me")]
    seen: list[Any] = [hf.sweep()]
    scene.clock.advance(10)
    seen += [list(queue.browse("leased")), hf.sweep(), queue.lease(5, owner="you")]
    scene.clock.advance(10)
    return leases, seen, hf.sweep(), hf.sweep(), everything(queue), everything(done)


# What is finished


@story
def log_and_replay(scene: Scene) -> Any:
    queue = scene.hf.queue("orders", partitions=2)
    sent = []
    for n in range(4):
        sent.append(queue.enqueue({"n": n}, key=f"k{n}", headers={"h": "1"}, priority=n))
        queue.ack(queue.lease(owner="me")[0], result=n)
        scene.clock.advance(60)
    since, until = sent[1].enqueued_at, sent[3].enqueued_at
    seen: list[Any] = [
        list(queue.log()),
        list(queue.log(since=since, until=until)),
        queue.replay(sent[0].id),
        queue.replay(since=since, until=until),
        queue.replay(since=until + HOUR),
    ]
    tries: list[Callable[[], Any]] = [
        queue.replay,
        lambda: queue.replay(ID.format(7)),
        lambda: queue.replay("nonsense"),
        lambda: queue.get(sent[0].id),
        lambda: queue.get("nonsense"),
        lambda: queue.get(ID.format(7)),
    ]
    read = scene.asks("ReadLog", s.LogAsk("orders"), lambda _: None)
    seen += [list(queue.log()) if read is None else [doc.value() for doc in read.finished]]
    return seen, [refused(one) for one in tries], everything(queue)


@story
def looking_around(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    queue.enqueue_many([Outgoing(n, delay=n % 3, priority=n % 2) for n in range(12)])
    queue.settle(queue.lease(2, owner="me"))
    kill(queue, "dead")
    queue.lease(1, owner="me")
    scene.clock.advance(1)
    now = scene.clock.now()
    ranges = [{"since": now}, {"until": now}, {"since": now - 1000, "until": now + 5000}]
    seen = [list(queue.browse(state, **one)) for state in State for one in ranges]
    return seen, everything(queue), refused(lambda: list(queue.browse("nowhere")))


@story
def more_than_a_page(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    queue.enqueue_many([Outgoing(n, priority=n % 3) for n in range(1100)])
    payloads = [entry.message.payload for entry in queue.browse()]
    return payloads, queue.purge(), queue.stats()


@story
def who_holds_what(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    queue.enqueue_many(range(5))
    queue.lease(2, owner="me")
    queue.lease(1, owner="you")
    found = scene.asks("ListConsumers", s.QueueAsk("orders"), lambda _: None)
    if found is not None:
        return {one.owner: one.leases for one in found.consumers}
    return dict(Counter(entry.lease.owner for entry in queue.browse("leased") if entry.lease))


# Dead letters


@story
def redrive_with_every_option(scene: Scene) -> Any:
    hf = scene.hf
    queue, other = hf.queue("orders"), hf.queue("repair", partitions=3)
    kill(queue, {"n": 1, "c": {"id": 7}}, Outgoing({"n": 2}, key="k", type="t"), code="Slow")
    scene.clock.advance(100)
    sent = kill(
        queue, Outgoing({"n": 3}, key="c", headers={"h": "x"}), {"n": 4}, {"n": 5}, {"n": 6}, [7]
    )
    held = queue.dlq.lease(1, owner="me")
    dlq = "orders.dlq"
    seen: list[Any] = [
        hf.redrive(dlq, dry_run=True),
        hf.redrive(dlq, 2, dry_run=True, to="repair"),
        hf.redrive(dlq, ids=[]),
        hf.redrive(dlq, ids=[sent[1].id, ID.format(9)]),
        hf.redrive(dlq, where=DeadFilter(code="Slow", older_than=50)),
        hf.redrive(dlq, where=DeadFilter(newer_than=0.0)),
        hf.redrive(dlq, where={"headers": {"h": "x"}, "reason": "failed"}, to="repair"),
        hf.redrive(dlq, where=DeadFilter(fields={"n": 5}), edit=Edit(merge={"n": None, "m": [1]})),
        hf.redrive(dlq, 1, rate=1000, edit=Edit(payload=None)),
        queue.dlq.stats(),
        hf.redrive(dlq, 1),
        hf.redrive(dlq),
    ]
    queue.dlq.release(held[0])
    seen += [hf.redrive(dlq, where=DeadFilter(key="nobody", type="t")), hf.redrive(dlq)]
    return seen, everything(queue), everything(other)


@story
def the_five_errors_of_a_redrive(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    hf.queue("lone.dlq")
    names = ["", "a b", "nowhere", "nowhere.dlq", "orders", "lone.dlq"]
    seen = [refused(lambda name=name: hf.redrive(name, to="nowhere")) for name in names]
    seen += [refused(lambda name=name: hf.start_redrive(name, to="nowhere")) for name in names]
    kill(queue, *range(250))
    with scene.store_breaks("settle", 2):
        seen += [refused(lambda: hf.redrive("orders.dlq"))]
    return seen, queue.stats(), queue.dlq.stats()


@story
def the_five_errors_past_the_client(scene: Scene) -> Any:
    """By the server itself, whatever a client checks before it sends."""
    scene.hf.queue("orders")
    scene.hf.queue("lone.dlq")

    def redrive(name: str, operation: str) -> Any:
        does = "start_redrive" if operation == "StartRedrive" else "redrive"
        return scene.asks(operation, s.RedriveAsk(name), lambda _: getattr(scene.hf, does)(name))

    names = ["", "a b", "nowhere", "nowhere.dlq", "orders", "lone.dlq"]
    return [
        refused(lambda name=name, operation=operation: redrive(name, operation))
        for operation in ("Redrive", "StartRedrive")
        for name in names
    ]


@story
def what_else_a_redrive_refuses(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders", payload_max=100)
    kill(queue, {"a": 1}, Outgoing(b"png", content_type="image/png"))
    dlq = "orders.dlq"
    tries: list[dict[str, Any]] = [
        {"count": -1},
        {"rate": 0},
        {"rate": float("nan")},
        {"ids": "one"},
        {"ids": ["nonsense"]},
        {"where": {"colour": "red"}},
        {"where": {"older_than": -1}},
        {"where": 7},
        {"edit": {"payload": 1, "merge": {}}},
        {"edit": {"colour": "red"}},
        {"edit": {"payload": 1j}},
        {"edit": 7},
        {"to": "nowhere"},
        {"to": "orders.dlq"},
        {"to": "a b"},
        {"edit": Edit(payload="x" * 200)},
    ]
    told = [refused(lambda one=one: hf.redrive(dlq, **one)) for one in tries]
    told += [refused(lambda one=one: hf.start_redrive(dlq, **one)) for one in tries[:-1]]
    told += [refused(lambda: hf.redrive(dlq, edit=Edit(merge={"b": 2})))]
    return told, everything(queue)


@story
def redrives_in_the_background(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    hf.queue("repair")
    kill(queue, *range(230))
    started = hf.start_redrive("orders.dlq", 210, to="repair")
    first = _job(scene.worked(started.id))
    bad = hf.start_redrive("orders.dlq", edit=Edit(merge={"b": 2}))
    second = _job(scene.worked(bad.id))
    listed = [_job(job) for job in hf.list_redrives()]
    tries: list[Callable[[], Any]] = [
        lambda: hf.get_redrive(ID.format(7)),
        lambda: hf.cancel_redrive(ID.format(7)),
        lambda: hf.get_redrive("nonsense"),
        lambda: hf.cancel_redrive("nonsense"),
    ]
    told = [refused(one) for one in tries]
    return _job(started), first, second, listed, told, queue.dlq.stats(), hf.stats()


@story
def a_redrive_is_cancelled(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders")
    kill(queue, *range(20))
    slow = hf.start_redrive("orders.dlq", rate=0.001)
    hf.cancel_redrive(slow.id)
    ended = scene.worked(slow.id)
    stays = hf.cancel_redrive(slow.id).state
    return ended.state, stays, ended.total, queue.stats().ready + queue.stats().dead


def _job(job: Any) -> dict[str, Any]:
    """What every door tells of a redrive."""
    return {name: getattr(job, name) for name in s.RedriveDoc.__struct_fields__}


@story
def dead_letters_by_what_they_died_of(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    kill(queue, *range(5), code="Declined")
    scene.clock.advance(100)
    kill(queue, "x", "y", code="Slow")
    found = scene.asks(
        "ListFailures", s.FailuresAsk("orders"), lambda at: groups.failure_groups(at, "orders.dlq")
    )
    fields = ("fingerprint", "reason", "code", "error", "count", "examples", "first_dead_at")
    causes = [[getattr(group, name) for name in fields] for group in found.groups]
    return found.dlq, causes, found.looked, found.total, found.bucket_ms


# Topics


@story
def topics_and_groups(scene: Scene) -> Any:
    hf = scene.hf
    topic = hf.topic("shop", retention=3600)
    topic.publish({"early": 1}, key="k", headers={"h": "1"}, id=ID.format(1))
    now = topic.bind("billing", max_attempts=5, partitions=2)
    all_ = topic.bind("audit", start="earliest", ordered=True)
    seen: list[Any] = [now.spec, all_.spec, topic.groups(), topic.group("audit").name]
    seen += [topic.publish(b"bytes", key="c", priority=3, delay=2, content_type="image/png")]
    seen += [topic.publish_many([Outgoing("a", key="d"), Outgoing("b", id=ID.format(2), type="t")])]
    seen += [topic.publish("again", id=ID.format(2)), topic.publish_many([Outgoing(1, key="e")])]
    seen += [topic.stats(), everything(now), everything(all_)]
    hf.topic("shop", log=False)
    hf.topic("news")
    seen += [topic.stats(), [one.name for one in hf.topics()], [one.name for one in hf.queues()]]
    seen += [refused(lambda: topic.unbind("billing")), topic.unbind("billing", force=True)]
    seen += [refused(topic.delete), topic.groups(), topic.delete(force=True)]
    return seen, [one.name for one in hf.topics()], [one.name for one in hf.queues()]


@story
def what_a_topic_refuses(scene: Scene) -> Any:
    hf = scene.hf
    topic = hf.topic("shop")
    topic.bind("small", payload_max=10)
    gone = hf.topic("gone")
    gone.delete()
    tries: list[Callable[[], Any]] = [
        lambda: hf.topic("shp", create=False),
        lambda: hf.topic("a b"),
        lambda: hf.topic("a.dlq"),
        lambda: hf.topic(""),
        lambda: hf.topic("x", retention=-1.5),
        lambda: topic.bind("a", start="latest"),  # type: ignore[arg-type]
        lambda: topic.bind("_a"),
        lambda: topic.bind("a" * 200),
        lambda: topic.bind("a", max_atempts=1),
        lambda: topic.bind("a", partitions=0),
        lambda: topic.group("smal"),
        lambda: topic.unbind("smal"),
        lambda: topic.publish("x" * 20),
        lambda: topic.publish_many([1, "x" * 20]),
        lambda: topic.publish(1, priority=10),
        lambda: topic.publish_many("text"),
        lambda: gone.publish(1),
        lambda: gone.publish_many([1, 2]),
        gone.groups,
        gone.stats,
        lambda: gone.bind("a"),
        gone.delete,
        lambda: gone.unbind("a"),
        lambda: gone.group("a"),
    ]
    return [refused(one) for one in tries], topic.stats()


# Who watches


@story
def news_of_a_sweep(scene: Scene) -> Any:
    hf = scene.hf
    queue = hf.queue("orders", max_attempts=1)
    hf.queue("bills").enqueue(1)
    queue.enqueue_many(range(2))
    news = hf.subscribe()
    try:
        queue.lease(2)
        hf.queue("bills").lease()
        scene.clock.advance(30)
        hf.sweep()
        hf.redrive("orders.dlq")
        heard: list[Any] = []
        # A server also tells who asked it to sweep.
        wait_until(lambda: heard.extend(_of_queues(news.next(0.1))) or len(heard) >= 3)
        return heard
    finally:
        news.close()


def _of_queues(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type != "action"]


@story
def who_one_is(scene: Scene) -> Any:
    anybody = s.IdentityDoc("", "anybody", ["admin", "consume", "produce", "read"], ["*"], False)
    return scene.asks("GetIdentity", s.NoAsk(), lambda _: anybody)


@story
def how_long_messages_took(scene: Scene) -> Any:
    """Half of them waited a second and were worked on for three; the others took longer."""
    queue = scene.hf.queue("orders", ack_timeout=600)
    for wait, handle in [(1, 3)] * 6 + [(10, 30)] * 4:
        queue.enqueue(1)
        scene.clock.advance(wait)
        lease = queue.lease(1)[0]
        scene.clock.advance(handle)
        queue.ack(lease)
    scene.clock.advance(600)

    def ask(name: str) -> Any:
        ask = s.HistoryAsk(name)
        found = scene.asks("GetHistory", ask, lambda at: _spans(scene.hf, at, name))
        return found if isinstance(found, list) else found.queues[0].spans

    return ask("orders"), refused(lambda: ask("order")), refused(lambda: ask("a b"))


def _spans(hf: Holdfast, at: Context, name: str) -> Any:
    hf.queue(name, create=False)
    return Spans(at).of(name)


@story
def who_did_what(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    scene.hf.queue("orders")  # it is there: no news
    queue.pause()
    queue.resume()
    queue.enqueue_many(range(3))
    queue.purge()
    kill(queue, 1, 2)
    scene.hf.redrive("orders.dlq", dry_run=True)
    scene.hf.redrive("orders.dlq", 1)
    queue.delete(force=True)
    told = [
        ("delete_queue", "orders", 2, '{"force":true}'),
        ("redrive", "orders.dlq", 1, '{"count":1}'),
        ("purge", "orders", 3, ""),
        ("resume", "orders", None, ""),
        ("pause", "orders", None, ""),
        ("create_queue", "orders", None, ""),
    ]

    def ask(**given: Any) -> Any:
        found = scene.asks("ListActions", s.ActionsAsk(**given), lambda _: None)
        if found is None:
            return None
        return [(one.what, one.queue, one.count, one.detail) for one in found.actions]

    first = scene.asks("ListActions", s.ActionsAsk(limit=2), lambda _: None)
    seen = [ask(), ask(queue="orders"), ask(queue="orders.dlq"), ask(queue="nobody")]
    if first is not None:
        return [*seen, ask(after=first.after)]
    return [told, told, [told[1]], [], told[2:]]


@story
def queries_of_spark(scene: Scene) -> Any:
    at, now = scene.at, scene.clock.now()
    scene.hf.queue("orders").enqueue_many(range(3))
    past = batches.Past(3, 10, 8, 1, 1, 250, now)
    held = batches.Query(
        "q1", "orders", "nightly", batch=4, hold="h", parts=(2, 3), seen_at=now, history=(past,)
    )
    lost = batches.Query("q2", "gone", sealed=True, hold="h", reserved_at=now, parts=(1,))
    for query in (held, lost):
        at.store.put_record(batches.QUERY, query.id, msgspec.json.encode(query), 0, now)
    return scene.asks("ListPipelines", s.NoAsk(), lambda at: pipelines(at, lambda _: True))


@story
def reports_of_spark(scene: Scene) -> Any:
    at = scene.at
    for made_at in (5, 17, 9):
        told = {"made_at": made_at, "title": f"of {made_at}", "rows": 3, "summary": {"a": [1]}}
        name = f"{made_at:015d}"
        at.store.put_record("report", name, msgspec.json.encode(told), 0, made_at)
        page = gzip.compress(f"<p>é {made_at}".encode())
        at.store.put_record("report-page", name, page, 0, made_at)

    def one(id: str) -> Any:
        return scene.asks("GetReport", s.ReportIdAsk(id), lambda at: report(at, id))

    return (
        scene.asks("ListReports", s.ReportsAsk(), lambda at: reports(at, 100)),
        scene.asks("ListReports", s.ReportsAsk(2), lambda at: reports(at, 2)),
        one(f"{17:015d}"),
        [refused(lambda x=x: one(x)) for x in ("1", "x", f"{17:015d}0", "000000000000018")],
    )


@story
def a_page_by_id_and_by_failure(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    dead = kill(queue, 1, 2, code="Declined")
    kill(queue, 3, code="Slow")
    waiting = queue.enqueue(4, delay=5)
    held = queue.enqueue(5)
    queue.lease(1, owner="me")
    found = groups.failure_groups(scene.at, "orders.dlq").groups
    prints = {group.code: group.fingerprint for group in found}

    def ask(name: str, **given: Any) -> Any:
        ask = s.BrowseAsk(name, **given)
        return scene.asks("Browse", ask, lambda at: page(Queue(at, name), ask))

    seen = [
        ask("orders.dlq", fingerprint=prints["Declined"]),
        ask("orders.dlq", fingerprint="0" * 16),
        *[ask("orders", id=one.id, state=state) for one in (waiting, held) for state in STATES],
        ask("orders.dlq", id=dead[0].id),
        ask("orders", id=dead[0].id),
        refused(lambda: ask("orders", id="x")),
        refused(lambda: ask("orders.dlq", fingerprint="x")),
        refused(lambda: ask("orders", newest=True)),
    ]
    moved = scene.hf.redrive("orders.dlq", where=DeadFilter(fingerprint=prints["Slow"]))
    return seen, moved, everything(queue)


@story
def the_log_from_its_end(scene: Scene) -> Any:
    queue = scene.hf.queue("orders")
    for n in range(7):
        queue.enqueue(n)
        queue.settle(queue.lease(1, owner="me"))
        scene.clock.advance(n * 50)

    def ask(**given: Any) -> Any:
        ask = s.BrowseAsk("orders", "log", newest=True, **given)
        return scene.asks("Browse", ask, lambda at: page(Queue(at, "orders"), ask))

    seen = [ask(limit=3)]
    while seen[-1].after is not None:
        seen.append(ask(limit=3, after=seen[-1].after))
    order = [entry.message.payload for one in seen for entry in one.entries]
    return seen, order, refused(lambda: ask(after="1~2"))


STATES = ("ready", "delayed", "leased", "log")
