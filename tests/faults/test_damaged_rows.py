"""Rows that somebody damaged by hand stop no sweep, no page and no neighbour, on any store."""

# pyright: basic

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Fail, Holdfast, Outgoing, Queue, Release, Retry
from holdfast.cli import checks
from holdfast.metrics import Metrics
from holdfast.stores import damage, open_store
from holdfast.testing import ManualClock

STORES = ["sqlite", "postgres", "redis", "mongo"]
HISTORIES = {
    "a code that is a number": '{"errors":[{"message":"m","code":404,"at":1,"attempt":1}]}',
    "a lone surrogate": r'{"errors":[{"message":"a\ud800b","code":"X","at":1,"attempt":1}]}',
    "no JSON": '{"errors":[{',
    "a list": "[1, 2]",
    "times and numbers that are none": '{"errors":5,"delay":"x","redriven":-3,"dead_at":"now"}',
    "an error that is text": '{"errors":["broken"]}',
}


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(store_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    damage._seen.clear()
    damage._counts.clear()
    with holdfast.connect(open_store(store_url), clock=clock, ack_timeout=30) as opened:
        yield opened


Edit = Callable[[str, str], None]


@pytest.fixture
def edit(hf: Holdfast, store_name: str) -> Edit:
    """Write a text over what a message of `orders` has in a field: history, headers or backoff."""
    store: Any = hf.store

    def sqlite(id: str, field: str, text: str) -> int:
        with sqlite3.connect(store.path) as db:
            change = f"UPDATE holdfast_message SET {field} = ? WHERE id = ?"
            return db.execute(change, (text, id)).rowcount

    def postgres(id: str, field: str, text: str) -> int:
        change = (
            f"UPDATE holdfast.message SET {field} = %(text)s WHERE id = %(id)s::uuid RETURNING 1"
        )
        return len(store._run(change, {"text": text, "id": id}))

    def redis(id: str, field: str, text: str) -> int:
        home = store._keys.home("orders", 1)
        if field == "history":
            store._db.run("HSET", home.key("e"), id, text)
            return 1
        head = store._db.run("HGET", home.key("m"), id).partition(b"|")[0]
        store._db.run("HSET", home.key("m"), id, head + b"|nonsense")
        return 1

    def mongo(id: str, field: str, text: str) -> int:
        short = {"history": "hi", "headers": "hd", "backoff": "bo"}[field]
        change = {"$set": {short: text}}
        messages = store._db.get("messages")
        return messages.update_one({"_id": {"$regex": f"/{id}$"}}, change).matched_count

    write = {"sqlite": sqlite, "postgres": postgres, "redis": redis, "mongo": mongo}[store_name]

    def change(id: str, text: str, field: str = "history") -> None:
        assert write(id, field, text) == 1

    return change


def payloads(queue: Queue, state: str) -> list[Any]:
    return [entry.message.payload for entry in queue.browse(state)]


@pytest.mark.parametrize("kind", HISTORIES)
def test_a_damaged_history_stops_nothing(
    hf: Holdfast, clock: ManualClock, edit: Edit, kind: str
) -> None:
    queue, other = hf.queue("orders"), hf.queue("zebra")
    _, odd, _ = queue.enqueue_many(["first", "odd", "last"])
    other.enqueue("elsewhere")
    queue.lease(3)
    other.lease()
    edit(odd.id, HISTORIES[kind])
    assert payloads(queue, "leased") == ["first", "odd", "last"]
    assert queue.get(odd.id).payload == "odd"
    assert queue.stats().leased == 3
    clock.advance(31)
    report = hf.sweep()
    assert report.requeued == 4
    leases = queue.lease(3)
    assert sorted(lease.message.payload for lease in leases) == ["first", "last", "odd"]
    mine = next(lease for lease in leases if lease.id == odd.id)
    assert all(isinstance(error.code, str) for error in mine.message.errors)
    assert [error.code for error in mine.message.errors][-1] == "ACK_TIMEOUT"
    edit(odd.id, HISTORIES[kind])
    queue.settle([(lease, Fail("bad")) for lease in leases])
    edit(odd.id, HISTORIES[kind])
    assert sorted(payloads(queue.dlq, "ready")) == ["first", "last", "odd"]
    assert queue.stats().dead == 3
    assert hf.redrive("orders.dlq").redriven == 3
    assert sorted(payloads(queue, "ready")) == ["first", "last", "odd"]
    edit(odd.id, HISTORIES[kind])
    queue.settle(queue.lease(3))
    assert sorted(row.message.payload for row in queue.log()) == ["first", "last", "odd"]
    assert damage.counts()["orders"] == 1
    assert {id for _, id in damage._seen} == {odd.id}


@pytest.mark.parametrize("field", ["headers", "backoff"])
def test_other_damaged_fields_stop_nothing(
    hf: Holdfast, clock: ManualClock, edit: Edit, field: str
) -> None:
    queue = hf.queue("orders")
    _, odd, _ = queue.enqueue_many(["first", "odd", "last"])
    edit(odd.id, '{"base": "x", "n": [1', field)
    assert len(payloads(queue, "ready")) == 3
    leases = queue.lease(3)
    assert len(leases) == 3
    clock.advance(31)
    assert hf.sweep().requeued == 3
    leases = queue.lease(3)
    queue.settle([(lease, Fail("bad")) for lease in leases])
    assert len(payloads(queue.dlq, "ready")) == 3
    assert {id for _, id in damage._seen} == {odd.id}
    assert hf.redrive("orders.dlq").redriven == 3
    queue.settle(queue.lease(3))
    assert queue.stats().done == 3


@pytest.mark.parametrize("state", ["ready", "leased", "log"])
def test_doctor_says_which_rows_are_damaged(hf: Holdfast, edit: Edit, state: str) -> None:
    queue = hf.queue("orders")
    odd, _ = queue.enqueue_many(["odd", "good"])
    edit(odd.id, HISTORIES["a code that is a number"])
    if state != "ready":
        leases = queue.lease(2)
        if state == "log":
            queue.settle(leases)
    (told,) = checks._damage(hf, "")
    assert (told.status, told.data) == ("warn", {"queue": "orders", "ids": [odd.id]})
    assert "1 damaged row" in told.text and odd.id in told.text


def test_metrics_count_damaged_rows(hf: Holdfast, edit: Edit) -> None:
    metrics = Metrics().watch(hf)
    queue = hf.queue("orders")
    odd, _ = queue.enqueue_many(["odd", "good"])
    edit(odd.id, HISTORIES["no JSON"])
    for _ in range(2):
        assert len(payloads(queue, "ready")) == 2
    page = metrics.render()[0].decode()
    assert 'holdfast_damaged_rows_total{queue="orders"} 1.0' in page


COLUMNS = ["available_at", "priority", "body", "history"]


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_another_type_stops_nothing(
    hf: Holdfast, clock: ManualClock, column: str
) -> None:
    queue = hf.queue("orders")
    first, odd, last = queue.enqueue_many(["first", "odd", "last"])
    with sqlite3.connect(hf.store.path) as db:
        db.execute(f"UPDATE holdfast_message SET {column} = 'oops' WHERE id = ?", (odd.id,))
    assert len(list(queue.browse("ready"))) == 3
    leases = queue.lease(3)
    assert len(leases) == 3
    clock.advance(31)
    assert hf.sweep().requeued == 3
    queue.settle([(lease, Fail("bad")) for lease in queue.lease(3)])
    dead = {entry.message.id: entry.message for entry in queue.dlq.browse("ready")}
    assert dead.keys() == {first.id, odd.id, last.id}
    assert damage.DAMAGED_CODE in {error.code for error in dead[odd.id].errors}
    assert hf.redrive("orders.dlq").redriven == 3
    assert queue.stats().ready == 3


NOTES = {
    "nothing": b"",
    "a word": b"hello",
    "no text": b"\xff\xfe\x00",
    "a part of a note": b"W 0 0 0 100000000000001",
    "a queue and a lane that there are not": (
        b"W 7 0 12 100000000000001 100000000000001 0 1 - - - - -"
    ),
    "numbers of 40 digits": b"W 0 0 0 100000000000001 100000000000001 "
    + b"9" * 40
    + b" 1 - - - - -",
    "the token of another message": b"100000000000001" + b"0" * 36 + b".0.0.call",
    "gone": None,
}
"""What somebody wrote over the note of where a message is."""


@pytest.fixture
def misplace(hf: Holdfast) -> Callable[[str, bytes | None], None]:
    def write(id: str, note: bytes | None) -> None:
        store: Any = hf.store
        key = store._keys.home("orders", 1).key("x")
        if note is None:
            store._db.run("HDEL", key, id)
        else:
            store._db.run("HSET", key, id, note)

    return write


Misplace = Callable[[str, bytes | None], None]


@pytest.mark.parametrize("store_name", ["redis"], indirect=True)
@pytest.mark.parametrize("kind", NOTES)
def test_a_damaged_note_of_where_a_message_is_stops_nothing(
    hf: Holdfast, clock: ManualClock, misplace: Misplace, kind: str
) -> None:
    """In each place where a message can be: it is found there, and noted again."""
    queue, note = hf.queue("orders", max_attempts=9), NOTES[kind]
    sent = queue.enqueue_many([Outgoing(name, priority=3) for name in ("first", "odd", "last")])
    ids = [message.id for message in sent]
    odd = ids[1]

    def check(state: str) -> None:
        misplace(odd, note)
        assert [entry.message.id for entry in queue.browse(state)] == ids
        assert damage.DAMAGED_CODE in {error.code for error in queue.get(odd).errors}
        misplace(odd, note)

    leases = queue.lease(3)
    check("leased")
    clock.advance(31)
    assert hf.sweep().requeued == 3
    misplace(odd, note)
    leases = queue.lease(3)
    assert [lease.id for lease in leases] == ids
    check("leased")
    outcome = Retry("later", delay=60)
    assert queue.settle([(lease, outcome) for lease in leases]) == ["applied"] * 3
    check("delayed")
    clock.advance(60)
    leases = queue.lease(3)
    assert sorted(lease.id for lease in leases) == sorted(ids)
    misplace(odd, note)
    assert queue.settle([(lease, Release()) for lease in leases]) == ["applied"] * 3
    assert hf.store.depths("orders", clock.now())[0].ready == 3
    leases = queue.lease(3)
    assert queue.settle([(lease, Fail("bad")) for lease in leases]) == ["applied"] * 3
    misplace(odd, note)
    assert [entry.message.id for entry in queue.dlq.browse("ready")] == ids
    leases = queue.dlq.lease(3)
    misplace(odd, note)
    assert queue.dlq.settle([(lease, Release()) for lease in leases]) == ["applied"] * 3
    misplace(odd, note)
    assert hf.redrive("orders.dlq").redriven == 3
    leases = queue.lease(3)
    misplace(odd, note)
    assert queue.settle(leases) == ["applied"] * 3
    assert sorted(row.message.id for row in queue.log()) == sorted(ids)
    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.delayed, stats.dead, stats.done) == (0, 0, 0, 0, 3)
    assert {id for _, id in damage._seen} == {odd}
    db = hf.store._db  # pyright: ignore
    home = hf.store._keys.home("orders", 1)  # pyright: ignore
    for left in ("m", "x", "e", "k", "kn", "d0", "z0", "d1", "z1"):
        assert db.run("EXISTS", home.key(left)) == 0, left
