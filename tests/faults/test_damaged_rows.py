"""Rows that somebody damaged by hand stop no sweep, no page and no neighbour, on any store."""

# pyright: basic

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast import Done, Fail, Holdfast, Lease, Outgoing, Queue, Release, Retry
from holdfast.cli import checks
from holdfast.metrics import Metrics
from holdfast.stores import damage, open_store
from holdfast.stores.contract import ByPartition
from holdfast.testing import ManualClock
from tests.plugins.sampling import more

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
        return len(store._db.rows(change, {"text": text, "id": id}))

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
    assert hf.store.stats(ByPartition("orders"), clock.now())[0].ready == 3
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


VALUES = {
    "a text": "'oops'",
    "bytes that are no UTF-8": "CAST(x'fffe41' AS TEXT)",
    "a BLOB": "x'fffe'",
    "a fraction": "1.5",
    "below zero": "-1",
    "a huge number": "4611686018427387905",
    "nothing": "NULL",
}
COLUMNS_OF = {
    "holdfast_message": (  # noqa: SIM905
        "home qid state part lane place available_at attempts lease deadline id priority key type "
        "content_type headers enqueued_at ack_timeout max_attempts backoff history first_leased_at "
        "token verb batch body"
    ).split(),
    "holdfast_lease": ["call", "owner", "leased_at", "open"],
    "holdfast_log": (  # noqa: SIM905
        "qid finished_at status id part priority key type content_type headers enqueued_at "
        "available_at attempts ack_timeout max_attempts backoff history first_leased_at leased_at "
        "owner lease verb result body"
    ).split(),
}


@pytest.fixture
def spoil(hf: Holdfast) -> Callable[[str, str, str, str], None]:
    """Overwrite a column of one message, of the lease that holds it, or of its row in the log."""

    def write(table: str, column: str, value: str, id: str) -> None:
        where = "id = ?"
        if table == "holdfast_lease":
            where = "lease = (SELECT lease FROM holdfast_message WHERE id = ?)"
        change = f"UPDATE {table} SET {column} = {value} WHERE {where}"
        with suppress(sqlite3.IntegrityError), sqlite3.connect(hf.store.path) as db:
            db.execute(change, (id,))  # the schema forbids some NULLs

    return write


Spoil = Callable[[str, str, str, str], None]


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", [*list(VALUES)[:3], *more(*list(VALUES)[3:])])
@pytest.mark.parametrize("table", COLUMNS_OF)
def test_no_column_of_one_row_stops_the_others(
    hf: Holdfast, clock: ManualClock, spoil: Spoil, table: str, value: str
) -> None:
    """Each column, with a value that no code of ours writes, while the message waits, is leased,
    is delayed, is dead and is done."""
    for column in COLUMNS_OF[table]:
        queue = hf.queue(f"q-{column.replace('_', '-')}", max_attempts=20)
        clean = {queue.enqueue(name).id for name in ("first", "last")}
        odd = queue.enqueue("odd").id

        def take(queue: Queue = queue) -> dict[str, Lease]:
            """By a call for each: what one call leases shares a row of holdfast_lease."""
            return {lease.id: lease for _ in range(3) for lease in queue.lease(1)}

        def seen(*states: str, queue: Queue = queue, clean: set[str] = clean) -> None:
            found = {entry.message.id for state in states for entry in queue.browse(state)}
            assert clean <= found

        def damaged(column: str = column, odd: str = odd) -> None:
            spoil(table, column, VALUES[value], odd)

        assert take().keys() == {odd, *clean}
        damaged()
        seen("leased")
        clock.advance(31)
        hf.sweep()
        seen("ready")
        damaged()
        hf.sweep()
        leases = take()
        assert clean <= leases.keys(), column
        damaged()
        answers = queue.settle([(lease, Retry("no", delay=60)) for lease in leases.values()])
        told = dict(zip(leases, answers, strict=True))
        assert {told[id] for id in clean} == {"applied"}, column
        seen("delayed")
        damaged()
        clock.advance(61)
        hf.sweep()
        leases = take()
        assert clean <= leases.keys(), column
        queue.settle([(lease, Fail("bad")) for lease in leases.values()])
        damaged()
        assert clean <= {entry.message.id for entry in queue.dlq.browse("ready")}, column
        hf.redrive(f"{queue.name}.dlq")
        seen("ready")
        damaged()
        leases = take()
        damaged()
        told = dict(zip(leases, queue.settle(leases.values()), strict=True))
        assert {told[id] for id in clean} == {"applied"}, column
        damaged()
        assert clean <= {row.message.id for row in queue.log()}, column
        queue.stats()
        hf.store.stats(ByPartition(queue.name), clock.now())
        deque(checks._damage(hf, ""), maxlen=0)


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
def test_a_lease_whose_row_is_gone_runs_out_like_any_other(
    hf: Holdfast, clock: ManualClock
) -> None:
    queue = hf.queue("orders")
    sent = [message.id for message in queue.enqueue_many(["a", "b"])]
    queue.lease(2)
    with sqlite3.connect(hf.store.path) as db:
        db.execute("DELETE FROM holdfast_lease")
    assert [entry.message.id for entry in queue.browse("leased")] == sent
    clock.advance(31)
    assert hf.sweep().requeued == 2
    leases = queue.lease(2)
    with sqlite3.connect(hf.store.path) as db:
        db.execute("DELETE FROM holdfast_lease")
    assert queue.settle(leases) == ["stale"] * 2  # nobody can tell whose they are
    clock.advance(31)
    assert hf.sweep().requeued == 2
    assert queue.settle(queue.lease(2)) == ["applied"] * 2
    assert [row.message.id for row in queue.log()] == sent


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("column", "value"), [("state", "7"), ("qid", "99"), ("part", "5"), ("place", "'oops'")]
)
def test_doctor_names_a_row_that_nothing_finds(
    hf: Holdfast, store_url: str, spoil: Spoil, column: str, value: str
) -> None:
    odd, good = hf.queue("orders").enqueue_many(["odd", "good"])
    assert "places" not in {check.check for check in checks._sqlite(hf, store_url)}
    spoil("holdfast_message", column, value, odd.id)
    told = {check.check: check for check in checks._sqlite(hf, store_url)}
    assert (told["places"].status, told["places"].data) == ("warn", {"ids": [odd.id]})
    assert good.id in {lease.id for lease in hf.queue("orders").lease(2)}


PG_VALUES = {
    "attempts": ["-1", "32767", "2000000000"],
    "priority": ["-1", "100"],
    "lane": ["-1", "100"],
    "part": ["99"],
    "ack_timeout": ["-1", "'NaN'", "1e300", "0"],
    "max_attempts": ["-1", "0"],
    "enqueued_at": ["-1", "9223372036854775807"],
    "available_at": ["-1", "9223372036854775807"],
    "deadline": ["-1", "9223372036854775807"],
    "first_leased_at": ["-1", "9223372036854775807"],
    "leased_at": ["-1", "9223372036854775807"],
    "place": ["-1", "9223372036854775807"],
    "key": ["''"],
    "type": ["''"],
    "content_type": ["'nonsense'"],
    "headers": ["'[]'"],
    "history": ["'{'"],
    "backoff": ["'{\"base\": -1}'"],
}


def probe(hf: Holdfast, clock: ManualClock, spoil: Callable[[str], None], name: str) -> None:
    """A life of three messages of which one is damaged again and again: the others are well."""
    queue = hf.queue(name, max_attempts=20)
    clean = {queue.enqueue(n).id for n in ("first", "last")}
    odd = queue.enqueue("odd").id

    def settled(outcome: Any) -> None:
        leases = queue.lease(3)
        assert clean <= {lease.id for lease in leases}, name
        spoil(odd)
        told = queue.settle([(lease, outcome) for lease in leases])
        for lease, answer in zip(leases, told, strict=True):
            assert lease.id == odd or answer == "applied", name
        spoil(odd)

    spoil(odd)
    queue.lease(3)
    spoil(odd)
    assert clean <= {entry.message.id for entry in queue.browse("leased")}, name
    clock.advance(31)
    hf.sweep()
    assert clean <= {entry.message.id for entry in queue.browse("ready")}, name
    settled(Retry("no", delay=60))
    assert clean <= {entry.message.id for entry in queue.browse("delayed")}, name
    clock.advance(61)
    hf.sweep()
    settled(Fail("bad"))
    assert clean <= {entry.message.id for entry in queue.dlq.browse("ready")}, name
    hf.redrive(f"{name}.dlq")
    settled(Done())
    assert clean <= {row.message.id for row in queue.log()}, name
    queue.stats()
    hf.store.stats(ByPartition(name), clock.now())
    deque(checks._damage(hf, ""), maxlen=0)


@pytest.mark.parametrize("store_name", ["postgres"], indirect=True)
@pytest.mark.parametrize("column", PG_VALUES)
def test_no_value_of_a_column_stops_the_others_on_postgres(
    hf: Holdfast, clock: ManualClock, column: str
) -> None:
    store: Any = hf.store
    for n, value in enumerate(PG_VALUES[column]):

        def spoil(id: str, value: str = value) -> None:
            for table in ("message", "log"):
                with suppress(holdfast.StoreError):  # the type does not take it, or no such column
                    change = (
                        f"UPDATE holdfast.{table} SET {column} = {value} WHERE id = %(id)s::uuid"
                    )
                    store._db.rows(f"{change} RETURNING 1", {"id": id})

        probe(hf, clock, spoil, f"q{n}")


MONGO_VALUES = [
    ("to", float("nan")),
    ("to", 2**62),
    ("to", -1),
    ("st", [1]),
    ("pt", "oops"),
    ("rk", [1]),
    ("at", None),
    ("pr", 2**62),
    ("hi", b"\xff"),
    ("la", "oops"),
    ("tk", 1.5),
]


@pytest.mark.parametrize("store_name", ["mongo"], indirect=True)
@pytest.mark.parametrize(("field", "value"), MONGO_VALUES, ids=str)
def test_no_field_of_a_document_stops_the_others_on_mongo(
    hf: Holdfast, clock: ManualClock, field: str, value: Any
) -> None:
    store: Any = hf.store

    def spoil(id: str) -> None:
        for name in ("messages", "log"):
            found = {"_id": {"$regex": f"/{id}"}}
            store._db.get(name).update_many(found, {"$set": {field: value}})

    probe(hf, clock, spoil, "orders")


@pytest.mark.parametrize("store_name", ["redis"], indirect=True)
@pytest.mark.parametrize("kind", ["m", "e", "k", "d", "z", "r", "s", "a", "b"])
@pytest.mark.parametrize("value", [b"", b"oops", b"\xff\xfe", b"-1", b"9" * 30])
def test_no_key_with_a_strange_entry_stops_the_others_on_redis(
    hf: Holdfast, clock: ManualClock, kind: str, value: bytes
) -> None:
    """The odd message's own field where there is one, else one more member or entry."""
    store: Any = hf.store

    def spoil(id: str) -> None:
        home, db = store._keys.home("orders", 1), store._db
        if kind in ("m", "e"):
            db.run("HSET", home.key(kind), id, value)
        elif kind == "k":
            for call in db.run("HKEYS", home.key("k")):
                db.run("HSET", home.key("k"), call, value)
        elif kind in ("d", "z", "b"):
            for flag in "01":
                db.run("ZADD", home.key(kind + flag), 1, value)
        elif kind == "r":
            for flag in "01":
                db.run("ZADD", home.key(f"r{flag}.0"), 1, value)
        elif kind == "a":
            with suppress(holdfast.StoreError):
                db.run("XADD", home.key("a0"), "*", "i", value)
        else:
            with suppress(holdfast.StoreError):
                db.run("XADD", home.key("s0.0"), "*", value, value)

    probe(hf, clock, spoil, "orders")
