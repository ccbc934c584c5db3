"""What enqueue stores, refuses and repeats."""

# pyright: basic

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Backoff, Holdfast, InvalidArgument, Message, Outgoing, Queue, QueueNotFound
from holdfast.model.moves import State
from holdfast.stores.contract import Cut, View
from holdfast.testing import ManualClock, wait_until
from holdfast.testing.conformance.fixtures import ids, whereabouts

ID = "01890000-0000-7000-8000-000000000001"
IDS = [f"01890000-0000-7000-8000-00000000001{n}" for n in range(3)]
DAY = 24 * 3600


@pytest.mark.promise("LIFE-2")
def test_a_message_is_stored_with_everything_it_carries(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue(
        {"id": 1},
        id=ID,
        key="customer-7",
        type="order",
        priority=8,
        delay=60,
        headers={"trace": "abc"},
        ack_timeout=120,
        max_attempts=8,
        backoff=Backoff(base=1, jitter="none"),
    )
    wanted = Message(
        id=ID,
        queue="orders",
        partition=0,
        priority=8,
        key="customer-7",
        type="order",
        body=b'{"id":1}',
        content_type="application/json",
        headers={"trace": "abc"},
        enqueued_at=clock.now(),
        available_at=clock.now() + 60_000,
        attempts=0,
        ack_timeout=120,
        max_attempts=8,
        backoff=Backoff(base=1, jitter="none"),
    )
    assert sent == wanted
    assert queue.get(ID) == wanted


@pytest.mark.promise("LIFE-2")
def test_the_defaults_of_a_message(queue: Queue, clock: ManualClock) -> None:
    sent = queue.enqueue("hello")
    assert sent == Message(
        id=sent.id,
        queue="orders",
        partition=0,
        priority=0,
        key=None,
        type=None,
        body=b'"hello"',
        content_type="application/json",
        headers={},
        enqueued_at=clock.now(),
        available_at=clock.now(),
        attempts=0,
    )
    assert queue.get(sent.id) == sent


@pytest.mark.promise("LIFE-2")
def test_another_connection_sees_a_message_at_once(queue: Queue, another: Any) -> None:
    sent = queue.enqueue(1)
    assert another().queue("orders").get(sent.id) == sent


@pytest.mark.promise("LIFE-3")
def test_a_batch_is_stored_whole(queue: Queue) -> None:
    sent = queue.enqueue_many([{"n": n} for n in range(1000)])
    assert whereabouts(queue) == {"ready": ids(sent)}
    assert queue.enqueue_many([]) == []


@pytest.mark.promise("LIFE-3")
def test_a_batch_with_one_bad_message_stores_none(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="priority") as caught:
        queue.enqueue_many([1, 2, Outgoing(3, priority=10), 4])
    assert caught.value.index == 2
    assert whereabouts(queue) == {}


@pytest.mark.promise("LIFE-3")
def test_a_bad_payload_in_a_batch_is_named_by_its_index(queue: Queue) -> None:
    good = {"n": 1, "text": "two\nlines"}
    for bad in ({"n": float("nan")}, {1: 2}, {"n": b""}, object(), "x" * 2**20, "\ud800"):
        with pytest.raises(InvalidArgument) as caught:
            queue.enqueue_many([good, good, bad, good])
        assert (caught.value.index, caught.value.field.split(".")[0]) == (2, "payload")
    assert queue.stats().ready == 0
    queue.enqueue_many([good, b"bytes", good, (1, 2), Outgoing(good, type="t")])
    found = [lease.message.payload for lease in queue.lease(10)]
    assert found == [good, b"bytes", good, [1, 2], good]


@pytest.mark.promise("LIFE-3")
def test_a_batch_to_a_queue_that_is_gone_stores_none(queue: Queue) -> None:
    queue.delete()
    with pytest.raises(QueueNotFound):
        queue.enqueue_many([1, 2])


@pytest.mark.promise("LIFE-4")
def test_an_id_that_is_held_changes_nothing_and_says_so(queue: Queue) -> None:
    first = queue.enqueue("first", id=ID, priority=3)
    again = queue.enqueue("second", id=ID, priority=9, delay=5)
    assert not first.duplicate
    assert again.duplicate and again.payload == "first" and again.priority == 3
    assert whereabouts(queue) == {"ready": [ID]}
    assert queue.stats().ready == 1


@pytest.mark.promise("LIFE-4")
def test_a_repeated_batch_adds_only_what_is_new(queue: Queue) -> None:
    batch = [Outgoing(n, id=f"01890000-0000-7000-8000-00000000000{n}") for n in range(1, 6)]
    queue.enqueue_many(batch[:3])
    answers = queue.enqueue_many(batch)
    assert [message.duplicate for message in answers] == [True, True, True, False, False]
    assert queue.stats().ready == 5
    assert [lease.message.payload for lease in queue.lease(10)] == [1, 2, 3, 4, 5]


@pytest.mark.promise("LIFE-4")
def test_a_long_batch_adds_only_what_is_new(queue: Queue) -> None:
    """Longer than what a store writes in one statement, and not all of it alike."""
    named = [f"{ID[:-3]}{n:03}" for n in range(130)]
    batch = [
        Outgoing(n, id=named[n % 130], key="k" if n % 13 == 0 else None, priority=n % 2)
        for n in range(140)
    ]
    held = {named[n] for n in (0, 7, 49, 50, 51, 120)}
    queue.enqueue_many(Outgoing("first", id=id) for id in sorted(held))
    answers = queue.enqueue_many(batch)
    assert [m.id for m in answers if m.duplicate] == [
        item.id for n, item in enumerate(batch) if item.id in held or n >= 130
    ]
    assert queue.stats().ready == 130
    found = {lease.id: lease.message.payload for lease in queue.lease(200)}
    assert found == {id: "first" if id in held else n for n, id in enumerate(named)}


@pytest.mark.promise("LIFE-4")
def test_one_batch_may_not_hold_an_id_twice_either(queue: Queue) -> None:
    answers = queue.enqueue_many([Outgoing(1, id=ID), Outgoing(2, id=ID)])
    assert [message.duplicate for message in answers] == [False, True]
    assert queue.stats().ready == 1


@pytest.mark.promise("LIFE-4")
def test_an_id_is_held_while_it_is_delayed_leased_or_dead(queue: Queue, hf: Holdfast) -> None:
    queue.enqueue(1, id=ID)
    (lease,) = queue.lease()
    assert queue.enqueue(2, id=ID).duplicate
    queue.nack(lease, "later", delay=10)
    assert queue.enqueue(3, id=ID).duplicate
    hf.context.clock.advance(10)  # pyright: ignore
    queue.fail(queue.lease()[0])
    assert queue.enqueue(4, id=ID).duplicate
    assert whereabouts(queue) == {"dead": [ID]}


@pytest.mark.promise("LIFE-4")
def test_an_id_that_finished_lately_is_a_duplicate(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue({"n": 1}, id=ID, key="a")
    queue.ack(queue.lease()[0], result="done")
    again = queue.enqueue({"n": 2}, id=ID, key="b")
    assert again.duplicate
    assert (again.payload, again.key, again.attempts) == ({"n": 1}, "a", 1)
    clock.advance(DAY)
    assert queue.enqueue({"n": 2}, id=ID).duplicate
    assert whereabouts(queue) == {"log": [ID]}
    assert queue.stats().done == 1


@pytest.mark.promise("LIFE-4")
def test_an_id_that_finished_before_the_window_is_new(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", duplicate_window=60)
    queue.enqueue(1, id=ID)
    queue.ack(queue.lease()[0])
    clock.advance(60.001)
    assert not queue.enqueue(2, id=ID).duplicate
    assert whereabouts(queue) == {"ready": [ID], "log": [ID]}


@pytest.mark.promise("LIFE-4")
def test_each_time_an_id_finishes_has_its_own_log_row(hf: Holdfast, clock: ManualClock) -> None:
    queue = hf.queue("orders", duplicate_window=0, max_attempts=1)
    ends = [queue.ack, queue.ack, lambda lease: queue.settle([lease]), queue.fail]
    for n, end in enumerate(ends):
        assert not queue.enqueue(n, id=ID).duplicate
        queue.enqueue("another")
        lease, other = queue.lease(2)
        end(lease)
        queue.settle([other])
        clock.advance(1)
    discarded = queue.dlq.lease()[0]
    queue.dlq.ack(discarded)
    assert not queue.enqueue(4, id=ID).duplicate
    rows = [row for row in queue.log() if row.message.id == ID]
    assert [row.message.payload for row in rows] == [0, 1, 2]
    assert [row.message.payload for row in queue.dlq.log()] == [3]
    assert queue.stats().done == 3 + 4
    view = View("orders", State.LOG, id=ID)
    page = hf.store.browse(view, None, 2, clock.now())
    rest = hf.store.browse(view, page.after, 2, clock.now())
    found = [entry.message.payload for entry in (*page.entries, *rest.entries)]
    assert (found, rest.after) == ([0, 1, 2], None)
    assert hf.store.drop([Cut("orders", 100, before=rows[0].finished_at + 1)]) == [2]
    assert [row.message.payload for row in queue.log() if row.message.id == ID] == [1, 2]
    assert hf.store.drop([Cut("orders", 100, keep=1)]) == [4]
    assert len(list(queue.log())) == 1


@pytest.mark.promise("LIFE-4")
def test_a_discarded_dead_letter_is_a_duplicate(queue: Queue) -> None:
    queue.enqueue(1, id=ID)
    queue.fail(queue.lease()[0])
    queue.dlq.ack(queue.dlq.lease()[0])
    again = queue.enqueue(2, id=ID)
    assert (again.duplicate, again.payload, again.reason) == (True, 1, "failed")
    assert whereabouts(queue) == {}


@pytest.mark.promise("LIFE-4")
def test_in_a_batch_only_what_finished_is_a_duplicate(queue: Queue) -> None:
    finished, held, new = IDS[:3]
    queue.enqueue("finished", id=finished)
    queue.ack(queue.lease()[0])
    queue.enqueue("held", id=held)
    items = [Outgoing(n, id=id) for n, id in enumerate((None, finished, new, held, None, new))]
    answers = queue.enqueue_many(items)
    assert [m.duplicate for m in answers] == [False, True, False, True, False, True]
    assert [m.payload for m in answers] == [0, "finished", 2, "held", 4, 2]
    assert [lease.message.payload for lease in queue.lease(10)] == ["held", 0, 2, 4]
    assert queue.stats().done == 1


@pytest.mark.promise("LIFE-4")
def test_without_a_log_a_finished_id_is_new(hf: Holdfast) -> None:
    queue = hf.queue("orders", log=False)
    queue.enqueue(1, id=ID)
    queue.ack(queue.lease()[0])
    assert not queue.enqueue(2, id=ID).duplicate


@pytest.mark.promise("LIFE-4")
def test_a_publish_that_is_repeated_after_it_finished_adds_nothing(hf: Holdfast) -> None:
    topic = hf.topic("news")
    groups = [topic.bind(name) for name in ("a", "b")]
    topic.publish(1, id=ID)
    groups[0].ack(groups[0].lease()[0])
    assert topic.publish(2, id=ID).duplicate
    groups[1].ack(groups[1].lease()[0])
    assert topic.publish(3, id=ID).duplicate
    assert [group.stats().ready for group in groups] == [0, 0]


@pytest.mark.promise("LIFE-4")
def test_a_call_repeated_while_its_message_is_worked_on(
    queue: Queue, another: Callable[[], Holdfast]
) -> None:
    """Producers repeat their calls without end, and consumers finish what they get."""
    wanted = [str(uuid.UUID(int=n + 1)) for n in range(40)]
    over = threading.Event()

    def produce() -> None:
        mine = another().queue("orders")
        for id in wanted:
            for _ in range(3):
                mine.enqueue(id, id=id)
            mine.enqueue_many([Outgoing(id, id=id) for id in wanted[:5]])

    def consume() -> None:
        mine = another().queue("orders")
        while not over.is_set():
            mine.settle(mine.lease(5))

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    producers = [threading.Thread(target=produce) for _ in range(2)]
    for thread in (*consumers, *producers):
        thread.start()
    for thread in producers:
        thread.join()
    wait_until(lambda: queue.stats().lag == 0)
    over.set()
    for thread in consumers:
        thread.join()
    assert queue.stats().done == len(wanted)
    assert sorted(row.message.id for row in queue.log()) == wanted


@pytest.mark.promise("LIFE-4")
def test_the_same_id_in_two_queues_is_two_messages(hf: Holdfast) -> None:
    for name in ("a", "b"):
        assert not hf.queue(name).enqueue(name, id=ID).duplicate


VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    2**80,
    "",
    "ünïcode \x00 \U0001f980",
    [],
    {},
    {"a": [1, {"b": None}], "": {"deep": [[[]]]}},
]


@pytest.mark.promise("LIFE-11")
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_json_values_come_out_equal(queue: Queue, value: Any) -> None:
    queue.enqueue(value)
    (lease,) = queue.lease()
    assert lease.message.payload == value
    assert lease.message.content_type == "application/json"


@pytest.mark.promise("LIFE-11")
def test_bytes_and_text_come_out_as_they_went_in(queue: Queue) -> None:
    queue.enqueue(bytes(range(256)))
    queue.enqueue("näme;wert", content_type="text/csv")
    queue.enqueue(b"\x89PNG", content_type="image/png")
    kinds = [(lease.message.content_type, lease.message.payload) for lease in queue.lease(3)]
    assert kinds == [
        ("application/octet-stream", bytes(range(256))),
        ("text/csv", "näme;wert"),
        ("image/png", b"\x89PNG"),
    ]


BAD: list[tuple[str, dict[str, Any]]] = [
    ("payload", {"payload": 1j}),
    ("payload", {"payload": float("nan")}),
    ("payload.a[1]", {"payload": {"a": [1, float("inf")]}}),
    ("payload", {"payload": {1: 2}}),
    ("payload.a", {"payload": {"a": b"bytes"}}),
    ("payload", {"payload": "\ud800"}),
    ("payload", {"payload": "x" * 1024 * 1024}),
    ("payload", {"payload": b"x" * (1024 * 1024 + 1)}),
    ("payload", {"payload": b"{", "content_type": "application/json"}),
    ("payload", {"payload": {"a": 1}, "content_type": "image/png"}),
    ("priority", {"priority": -1}),
    ("priority", {"priority": 10}),
    ("priority", {"priority": 1.0}),
    ("priority", {"priority": True}),
    ("delay", {"delay": -1}),
    ("delay", {"delay": float("nan")}),
    ("delay", {"delay": "5"}),
    ("at", {"at": datetime(2026, 1, 1)}),  # noqa: DTZ001
    ("at", {"at": datetime(2026, 1, 1, tzinfo=UTC), "delay": 1}),
    ("ack_timeout", {"ack_timeout": 0}),
    ("ack_timeout", {"ack_timeout": -3}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": 2.5}),
    ("backoff", {"backoff": 5}),
    ("key", {"key": 7}),
    ("key", {"key": "k" * 2000}),
    ("type", {"type": b"t"}),
    ("headers", {"headers": ["a"]}),
    ("headers.a", {"headers": {"a": 1}}),
    ("headers", {"headers": {"a": "x" * 70_000}}),
    ("id", {"id": "not-a-uuid"}),
    ("id", {"id": 7}),
]


@pytest.mark.no_store
@pytest.mark.promise("LIFE-11")
@pytest.mark.parametrize(("field", "options"), BAD, ids=lambda bad: str(bad)[:40])
def test_bad_input_names_the_field_and_stores_nothing(
    queue: Queue, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        queue.enqueue(**{"payload": 1, **options})
    assert caught.value.field == field
    assert caught.value.code == "INVALID_ARGUMENT"
    assert whereabouts(queue) == {}


@pytest.mark.promise("LIFE-11")
def test_the_payload_limit_is_a_setting(hf: Holdfast) -> None:
    small = hf.queue("small", payload_max=10)
    small.enqueue(b"x" * 10)
    with pytest.raises(InvalidArgument, match="payload: 11 bytes; the limit is 10"):
        small.enqueue(b"x" * 11)


@pytest.mark.no_store
@pytest.mark.promise("LIFE-11")
@pytest.mark.parametrize(
    "name", ["", None, 5, "a b", "a/b", "-a", ".a", "a@b@c", "é", "x" * 129, "a.dlq.dlq", "a\n"]
)
def test_a_bad_queue_name_is_refused(hf: Holdfast, name: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        hf.queue(name)
    assert caught.value.field == "queue"
    assert hf.queues() == []


@pytest.mark.no_store
@pytest.mark.promise("LIFE-11")
def test_one_payload_where_a_list_belongs_is_refused(queue: Queue) -> None:
    for wrong in ("text", b"bytes", {"id": 1}):
        with pytest.raises(InvalidArgument, match="items"):
            queue.enqueue_many(wrong)
