"""Documents as people see and edit them: nonsense is skipped and reported, the view tells the rest,
and the counts are right again after processes that died between a write and its count."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from bson import ObjectId, Timestamp
from pymongo import MongoClient, monitoring
from pymongo.database import Database

import holdfast
from holdfast import Backoff, Fail, Holdfast, Outgoing, Queue, Retry, Settled
from holdfast.model.message import ErrorInfo
from holdfast.model.moves import State
from holdfast.rules import lifecycle
from holdfast.stores.contract import BatchEnd, Cut, ReserveAsk, View, batch_in
from holdfast.stores.mongo import layout
from holdfast.stores.mongo.counts import MARK_STALE_MS
from holdfast.stores.mongo.settling import SMALL_BYTES
from holdfast.testing import ManualClock
from holdfast.work.sweeper import Sweeper
from servers.mongo import with_database
from tests.plugins.sampling import one_of_each

GONE = object()
"""In place of a value: the field is taken away."""
PAGES_MAX = 20


@pytest.fixture(params=["mongo"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def shared(mongo_server: str) -> Iterator[Database[Any]]:
    """One database for all of them: to make one takes longer than a test."""
    name = f"test_{secrets.token_hex(6)}"
    with MongoClient(mongo_server, tz_aware=True) as client:
        yield client[name]
        client.drop_database(name)


@pytest.fixture
def db(shared: Database[Any]) -> Iterator[Database[Any]]:
    """What an operator has in hand."""
    yield shared
    for kind in ("messages", "log", "queues", "counts", "records", "claims", "events"):
        shared[f"holdfast.{kind}"].delete_many({})


@pytest.fixture
def url(db: Database[Any], mongo_server: str) -> str:
    return with_database(mongo_server, db.name)


@pytest.fixture
def hf(url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(url, clock=clock, ack_timeout=30, retention=3600) as opened:
        yield opened


def edit(db: Database[Any], kind: str, id: str, **changes: Any) -> None:
    change: dict[str, Any] = {}
    for name, value in changes.items():
        if value is GONE:
            change.setdefault("$unset", {})[name] = ""
        else:
            change.setdefault("$set", {})[name] = value
    found = db[f"holdfast.{kind}"].update_one({"_id": {"$regex": f"/{id}$"}}, change)
    assert found.modified_count == 1


def key_in(db: Database[Any], kind: str, id: str) -> str:
    return db[f"holdfast.{kind}"].find_one({"_id": {"$regex": f"/{id}$"}})["_id"]


def pages(hf: Holdfast, queue: Queue, state: State, limit: int = 1) -> list[Any]:
    """All payloads, page by page; a walk that goes in circles is found out."""
    seen: list[Any] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = hf.store.browse(View(queue.name, state), after, limit, hf.context.clock.now())
        seen += [entry.message.payload for entry in page.entries]
        after = page.after
        if after is None:
            return seen
    raise AssertionError(f"{state} never ends: {seen}")


def look_at_all(hf: Holdfast, queue: Queue) -> None:
    """Every question that can be asked; none may fail."""
    now = hf.context.clock.now()
    for each in (queue, queue.dlq):
        for state in State:
            assert sorted(pages(hf, each, state, 1)) == sorted(pages(hf, each, state, 100))
            hf.store.split(View(each.name, state), 2, now)
        each.stats()
    hf.store.look()


def damaged(hf: Holdfast) -> list[Any]:
    return hf.store.look()["damaged"]


def tick(hf: Holdfast) -> None:
    Sweeper(hf.context, hf._settings).tick()


def taken(queue: Queue) -> list[Any]:
    """What can be leased, one by one; each is settled."""
    found: list[Any] = []
    for _ in range(PAGES_MAX):
        leases = queue.lease()
        if not leases:
            return sorted(found, key=str)
        answers = queue.settle(leases)
        found += [
            lease.message.payload
            for lease, answer in zip(leases, answers, strict=True)
            if answer is Settled.APPLIED
        ]
    raise AssertionError(f"it is leased again and again: {found}")


WRONG: list[tuple[str, Any]] = [
    ("at", "three"), ("at", 2.5), ("at", GONE),
    ("bd", "text"), ("bd", 5), ("bd", GONE),
    ("hd", 5),
    ("hi", 7),
    ("pl", "first"), ("pl", GONE),
    ("sq", "first"), ("sq", GONE),
    ("ea", "yesterday"), ("ea", GONE), ("ea", datetime(2020, 1, 1, tzinfo=UTC)),
    ("av", "tomorrow"), ("av", GONE), ("av", datetime(2020, 1, 1, tzinfo=UTC)),
    ("av", float("nan")),
    ("pt", "x"), ("pt", GONE), ("pt", 99), ("pt", 0.5),
    ("rk", "x"), ("rk", GONE), ("rk", 8.5),
    ("pr", "high"),
    ("to", "long"), ("mx", "many"), ("bo", 3), ("ky", 5), ("fl", "never"),
    ("st", "ready"), ("st", GONE), ("st", 7),
    ("q", "orders"), ("q", GONE),
]  # fmt: skip
INSIDE: list[tuple[str, Any]] = [
    ("hd", "no json"), ("hi", "no json"), ("hi", '{"errors": 5}'),
    ("bo", "no json"), ("bo", '{"base": "x"}'), ("bo", '{"who": 1}'),
]  # fmt: skip
"""Text that is no nonsense until it is read."""
HELD: list[tuple[str, Any]] = [
    ("dl", "soon"), ("dl", GONE), ("dl", None), ("dl", 1.5), ("dl", float("nan")),
    ("dl", datetime(2020, 1, 1, tzinfo=UTC)),
    ("tk", 5), ("tk", GONE), ("la", "now"), ("la", GONE), ("ow", 5), ("ow", GONE),
]  # fmt: skip
LOGGED: list[tuple[str, Any]] = [
    *((name, value) for name, value in WRONG if name not in ("pl", "rk", "st")),
    ("fa", "then"), ("fa", GONE), ("fa", None), ("fa", 1.5),
    ("fa", datetime(2020, 1, 1, tzinfo=UTC)),
    ("ss", GONE), ("ss", 5), ("rs", "text"), ("rs", 5), ("la", "now"), ("ow", 5),
]  # fmt: skip


def name_of(value: Any) -> str:
    return "gone" if value is GONE else str(value)[:12]


def at_every(*tables: list[tuple[str, Any]]) -> Any:
    return pytest.mark.parametrize(
        ("field", "value"),
        one_of_each([pair for table in tables for pair in table], lambda pair: pair[0]),
        ids=name_of,
    )


@at_every(WRONG, INSIDE)
def test_nonsense_in_line_is_passed_by(
    hf: Holdfast, db: Database[Any], field: str, value: Any
) -> None:
    queue = hf.queue("orders")
    _, odd, _ = queue.enqueue_many([1, 2, 3])
    edit(db, "messages", odd.id, **{field: value})
    key = db["holdfast.messages"].find_one({"_id": {"$regex": f"/{odd.id}$"}})["_id"]
    look_at_all(hf, queue)
    found = taken(queue)
    look_at_all(hf, queue)
    assert {1, 3} <= set(found) <= {1, 2, 3}
    if 2 not in found:
        assert damaged(hf) == [key]
        assert queue.stats().ready <= 1
    tick(hf)
    assert queue.enqueue(4).payload == 4
    assert taken(queue) == [4]


@at_every(WRONG, INSIDE)
def test_nonsense_that_is_delayed_is_passed_by(
    hf: Holdfast, clock: ManualClock, db: Database[Any], field: str, value: Any
) -> None:
    queue = hf.queue("orders")
    _, odd, _ = queue.enqueue_many([Outgoing(n, delay=5) for n in (1, 2, 3)])
    edit(db, "messages", odd.id, **{field: value})
    key = key_in(db, "messages", odd.id)
    look_at_all(hf, queue)
    assert set(taken(queue)) <= {2}
    hf.store.wait(["orders"], clock.now(), 0.001)
    clock.advance(6)
    look_at_all(hf, queue)
    found = taken(queue)
    assert {1, 3} <= {*found, *(lease.message.payload for lease in queue.lease(9))} <= {1, 2, 3}
    hf.store.wait(["orders"], clock.now(), 0.001)
    look_at_all(hf, queue)
    if 2 not in found and queue.stats().done < 3:
        assert damaged(hf) == [key]
    tick(hf)


@at_every(WRONG, INSIDE, HELD)
def test_nonsense_that_is_leased_stops_no_sweep(
    hf: Holdfast, clock: ManualClock, db: Database[Any], field: str, value: Any
) -> None:
    queue = hf.queue("orders")
    _, odd, _ = queue.enqueue_many([1, 2, 3])
    held = queue.lease(3)
    edit(db, "messages", odd.id, **{field: value})
    key = key_in(db, "messages", odd.id)
    look_at_all(hf, queue)
    clock.advance(31)
    look_at_all(hf, queue)
    swept = hf.sweep()
    assert swept.requeued in (2, 3)
    look_at_all(hf, queue)
    assert hf.sweep().requeued == 0
    found = taken(queue)
    assert {1, 3} <= set(found) <= {1, 2, 3}
    if 2 not in found:
        assert damaged(hf) == [key]
    assert set(queue.settle(held)) <= {Settled.STALE, Settled.APPLIED}
    tick(hf)


ENDS: list[Any] = [
    holdfast.Done(),
    Retry("no", delay=5),
    Fail("never"),
    holdfast.Extend(60),
    holdfast.Release(),
]


@at_every(WRONG, INSIDE, HELD)
def test_nonsense_made_while_it_is_held_fails_none_of_its_batch(
    hf: Holdfast, db: Database[Any], field: str, value: Any
) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(range(3 * len(ENDS)))
    leases = queue.lease(100)
    for n, end in enumerate(ENDS):
        mine = leases[3 * n : 3 * n + 3]
        edit(db, "messages", mine[1].id, **{field: value})
        answers = queue.settle([(lease, end) for lease in mine])
        assert (answers[0], answers[2]) == (Settled.APPLIED, Settled.APPLIED)
    look_at_all(hf, queue)


@at_every(WRONG, INSIDE, HELD)
def test_nonsense_in_a_batch_stops_neither_reading_nor_finishing_it(
    hf: Holdfast, clock: ManualClock, db: Database[Any], field: str, value: Any
) -> None:
    queue = hf.queue("orders")
    _, odd, _ = queue.enqueue_many([1, 2, 3])
    now = clock.now()
    assert hf.store.lease(ReserveAsk("orders", 10, "me", "token", "some"), now) == 3
    edit(db, "messages", odd.id, **{field: value})
    key = key_in(db, "messages", odd.id)
    read = [lease.message.payload for lease in batch_in(hf.store, "orders", "some", None, 10)]
    assert {1, 3} <= set(read) <= {1, 2, 3}
    assert hf.store.settle(BatchEnd("orders", "some", 10, "COMPLETED"), now) in (2, 3)
    done = pages(hf, queue, State.LOG)
    assert set(done) <= set(read) | {2}
    assert 2 in done or key in damaged(hf) or field == "q"
    if 2 not in read:
        assert 2 not in done, "nobody has seen it"
    look_at_all(hf, queue)


@at_every(WRONG, INSIDE)
def test_nonsense_among_the_dead_stops_no_redrive(
    hf: Holdfast, db: Database[Any], field: str, value: Any
) -> None:
    queue = hf.queue("orders")
    _, odd, _ = queue.enqueue_many([1, 2, 3])
    queue.settle([(lease, Fail("bad")) for lease in queue.lease(3)])
    edit(db, "messages", odd.id, **{field: value})
    key = key_in(db, "messages", odd.id)
    look_at_all(hf, queue)
    assert hf.redrive("orders.dlq").redriven in (2, 3)
    assert hf.redrive("orders.dlq").redriven == 0
    found = taken(queue)
    assert {1, 3} <= set(found) <= {1, 2, 3}
    if 2 not in found and field not in ("hd", "hi", "bo"):
        assert damaged(hf) == [key]


@at_every(LOGGED, INSIDE)
def test_nonsense_in_the_log_stops_no_reader_and_no_trimming(
    hf: Holdfast, clock: ManualClock, db: Database[Any], field: str, value: Any
) -> None:
    queue = hf.queue("orders")
    _, odd, _ = queue.enqueue_many([1, 2, 3])
    leases = queue.lease(3)
    queue.settle([(lease, holdfast.Done("fine")) for lease in leases])
    edit(db, "log", odd.id, **{field: value})
    key = key_in(db, "log", odd.id)
    look_at_all(hf, queue)
    found = pages(hf, queue, State.LOG)
    assert {1, 3} <= set(found) <= {1, 2, 3}
    if 2 not in found and (field, value) not in INSIDE and field != "rs":
        assert damaged(hf) == [key]
    assert queue.settle(leases) == [Settled.ALREADY] * 3
    assert len(queue.replay(since=0)) == len(found)
    queue.purge()
    hf.store.drop([Cut("orders", 100, keep=3)])
    clock.advance(3601)
    tick(hf)
    assert set(pages(hf, queue, State.LOG)) <= {2}
    hf.queue("orders", duplicate_window=0).enqueue(2, id=odd.id)
    assert taken(queue) == [2]


FOREIGN: list[dict[str, Any]] = [
    {},
    {"_id": 5},
    {"_id": "x"},
    {"_id": "1/x"},
    {"st": 0},
    {"st": 1, "av": 0},
    {"st": 2, "dl": 0},
    {"st": 0, "pt": 0, "rk": 9, "pl": Timestamp(1, 1)},
    {"st": 0, "pt": 0, "rk": 9, "pl": Timestamp(1, 1), "_id": "x", "sq": Timestamp(1, 1), "pr": 0,
     "ea": 1, "av": 1, "at": 0, "bd": b"1"},
    {"st": 1, "pt": 0, "rk": 9, "pl": Timestamp(1, 1), "_id": "1/x", "sq": Timestamp(1, 1), "pr": 0,
     "ea": 1, "av": 1, "at": 0, "bd": b"1"},
    {"st": 2, "pt": 0, "rk": 9, "pl": Timestamp(1, 1), "_id": "x", "sq": Timestamp(1, 1), "pr": 0,
     "ea": 1, "av": 1, "at": 0, "bd": b"1", "tk": "t", "dl": 1, "la": 1, "ow": "me"},
    {"st": 0, "pt": 0, "qid": 1},
    {"st": 0, "pt": 0, "qid": "x", "paused": True},
]  # fmt: skip


@pytest.mark.parametrize("doc", FOREIGN, ids=lambda doc: "-".join(doc) or "empty")
@pytest.mark.parametrize("ours", [True, False])
def test_documents_of_somebody_else_are_left_alone(
    hf: Holdfast, clock: ManualClock, db: Database[Any], doc: dict[str, Any], ours: bool
) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many([1, 2])
    q = db["holdfast.queues"].find_one({"_id": "orders"})["qid"] if ours else 77
    made = db["holdfast.messages"].insert_one({"_id": ObjectId(), "q": q, **doc}).inserted_id
    look_at_all(hf, queue)
    assert taken(queue) == [1, 2]
    hf.store.wait(["orders"], clock.now(), 0.001)
    queue.enqueue(3)
    queue.lease()
    clock.advance(31)
    assert hf.sweep().requeued == 1
    assert taken(queue) == [3]
    assert damaged(hf) == [made]
    tick(hf)
    look_at_all(hf, queue)


def test_a_sweep_goes_on_behind_a_batch_of_nonsense(
    url: str, clock: ManualClock, db: Database[Any]
) -> None:
    with holdfast.connect(url, clock=clock, ack_timeout=30) as hf:
        hf._settings = msgspec.structs.replace(hf._settings, requeue_batch_size=2)
        queue = hf.queue("orders")
        sent = queue.enqueue_many(range(8))
        for _ in sent:
            queue.lease()
            clock.advance(0.001)
        for message in sent[:5]:
            edit(db, "messages", message.id, bd="text")
        clock.advance(31)
        assert hf.sweep().requeued == 3
        assert taken(queue) == [5, 6, 7]
        assert len(damaged(hf)) == 5
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.done) == (0, 0, 0, 3)


def test_what_is_sound_is_not_reported(hf: Holdfast, clock: ManualClock) -> None:
    """Wherever it has been meanwhile."""
    queue = hf.queue("orders", partitions=3)
    queue.enqueue_many([
        Outgoing(n, key=str(n), priority=n % 10, headers={"a": "b"}, type="t", ack_timeout=7.5,
                 max_attempts=9, backoff=Backoff(base=2))
        for n in range(20)
    ])  # fmt: skip
    leases = queue.lease(20)
    queue.settle([(lease, Retry("no", delay=0)) for lease in leases[:4]])
    queue.settle([(lease, Retry("no", delay=5)) for lease in leases[4:8]])
    queue.settle([(lease, Fail("no")) for lease in leases[8:10]])
    queue.settle([(lease, holdfast.Release()) for lease in leases[10:12]])
    queue.settle([(lease, holdfast.Done({"a": 1})) for lease in leases[12:14]])
    assert damaged(hf) == []
    clock.advance(8)
    assert hf.sweep().requeued == 6
    hf.redrive("orders.dlq", 1)
    queue.lease(3, batch="some")
    queue.replay(since=0)
    assert damaged(hf) == []


def test_a_whole_line_of_nonsense_is_passed_in_one_call(hf: Holdfast, db: Database[Any]) -> None:
    queue = hf.queue("orders")
    sent = queue.enqueue_many(range(60))
    ids = [{"_id": {"$regex": f"/{message.id}$"}} for message in sent[:59]]
    db["holdfast.messages"].update_many({"$or": ids}, {"$set": {"bd": "text"}})
    assert [lease.message.payload for lease in queue.lease(1)] == [59]
    assert queue.stats().ready == 0
    assert len(damaged(hf)) == 10


class Asked(monitoring.CommandListener):
    """How many looks at the line were sent."""

    def __init__(self) -> None:
        self.looks = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.looks += event.command_name == "aggregate"

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@pytest.mark.promise("LIFE-9")
@pytest.mark.parametrize(("field", "value"), [("pt", "x"), ("pt", 99), ("pt", GONE), ("av", "x")])
def test_who_waits_does_not_spin_on_nonsense(
    url: str, db: Database[Any], field: str, value: Any, store_name: str
) -> None:
    asked = Asked()
    monitoring.register(asked)
    try:
        with holdfast.connect(url) as hf:
            queue = hf.queue("orders")
            odd = queue.enqueue("odd", delay=0.01 if field == "av" else None)
            edit(db, "messages", odd.id, **{field: value})
            assert queue.lease() == []
            before = asked.looks
            assert queue.lease(wait=1.0) == []
            assert asked.looks - before < 120  # two for each look, fifty looks a second at most
    finally:
        monitoring._LISTENERS.command_listeners.remove(asked)


def test_a_queue_whose_settings_are_nonsense_is_named(hf: Holdfast, db: Database[Any]) -> None:
    hf.queue("good").enqueue(1)
    hf.queue("orders")
    for field, value in (("policy", "no json"), ("policy", 5), ("partitions", "x"),
                         ("partitions", GONE), ("qid", GONE), ("home", GONE), ("revision", GONE),
                         ("qid", "x")):  # fmt: skip
        kept = db["holdfast.queues"].find_one({"_id": "orders"})
        change = {"$unset": {field: ""}} if value is GONE else {"$set": {field: value}}
        db["holdfast.queues"].update_one({"_id": "orders"}, change)
        with holdfast.connect(hf.store._where.uri, clock=hf.context.clock) as other:
            good = Queue(other.context, "good")
            assert good.stats().ready == 1
            (lease,) = good.lease()
            good.release(lease)
            for call in (
                lambda: Queue(other.context, "orders").stats(),
                lambda: other.queue("orders"),
            ):
                with pytest.raises(holdfast.StoreCorrupt, match=r"orders.*not written by Holdfast"):
                    call()
        db["holdfast.queues"].replace_one({"_id": "orders"}, kept)


# The view for people


def rows(db: Database[Any], **asked: Any) -> list[dict[str, Any]]:
    return list(db["holdfast.tasks"].find(asked).sort("_id", 1))


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("size", [10, SMALL_BYTES, SMALL_BYTES + 1])
def test_a_message_comes_whole_to_another_queue(
    hf: Holdfast, db: Database[Any], clock: ManualClock, size: int, times: int
) -> None:
    """A small one is written anew; a large one, or one that a batch has twice, is changed."""
    queue, messages = hf.queue("orders"), db["holdfast.messages"]
    queue.enqueue(b"x" * size, key="k", headers={"h": "1"}, priority=3)
    mine = [1, Timestamp(7, 1), ObjectId(), 2.5]
    messages.update_one({}, {"$set": {"a colleague's": mine}})
    before = messages.find_one({})
    (lease,) = queue.lease()
    move = lifecycle.failed(lease, [ErrorInfo("no", "E", clock.now(), 1)], clock.now())
    answers = hf.store.settle([move] * times, clock.now())
    assert answers == [Settled.APPLIED, Settled.ALREADY][:times]
    dead = messages.find_one({})
    assert (dead["er"], dead["at"], dead["a colleague's"]) == ("no", 1, mine)
    assert dead["pl"] > before["sq"], "to the end of the line"
    assert (queue.stats().ready, queue.stats().leased, queue.stats().dead) == (0, 0, 1)
    assert hf.redrive("orders.dlq").redriven == 1
    after = messages.find_one({})
    assert after["pl"] == before["sq"]
    stays = {name: value for name, value in before.items() if name not in ("pl", "av", "ua", "vb")}
    assert {name: after.get(name) for name in stays} == stays
    assert (queue.stats().ready, queue.stats().dead) == (1, 0)


def test_the_view_tells_in_words_that_people_know(
    hf: Holdfast, clock: ManualClock, db: Database[Any]
) -> None:
    queue = hf.queue("orders")
    began = clock.now()
    sent = queue.enqueue(
        {"n": 1}, key="k", type="sale", headers={"a": "b"}, priority=3,
        backoff=Backoff(base=7, jitter="none"),
    )  # fmt: skip
    (row,) = rows(db)
    assert (row["id"], row["queue"], row["status"], row["attempts"]) == (
        sent.id, "orders", "pending", 0,
    )  # fmt: skip
    assert (row["created_at"], row["updated_at"]) == (at(began), at(began))
    assert (row["key"], row["type"], row["priority"], row["partition"]) == ("k", "sale", 3, 0)
    assert "7" in row["backoff_policy"] and "base" in row["backoff_policy"]
    assert not {"next_retry_at", "error", "deadline", "owner", "finished_at"} & {
        name for name, value in row.items() if value is not None
    }

    clock.advance(1)
    (lease,) = queue.lease(owner="me")
    (row,) = rows(db, status="processing")
    assert (row["attempts"], row["owner"], row["deadline"]) == (1, "me", at(lease.deadline))
    assert row["updated_at"] == at(clock.now())

    clock.advance(1)
    queue.nack(lease, "no luck")
    (row,) = rows(db, status="pending")
    assert (row["attempts"], row["error"]) == (1, "no luck")
    assert row["next_retry_at"] == at(clock.now() + 7000)
    assert row["updated_at"] == at(clock.now())
    assert "owner" not in row and "deadline" not in row

    clock.advance(7)
    (lease,) = queue.lease()
    assert "next_retry_at" not in rows(db)[0]
    queue.fail(lease, "never")
    (row,) = rows(db, status="failed")
    assert (row["queue"], row["error"], row["attempts"]) == ("orders.dlq", "never", 2)

    hf.redrive("orders.dlq")
    (row,) = rows(db, status="pending")
    assert row["queue"] == "orders"
    clock.advance(1)
    queue.settle(queue.lease())
    (row,) = rows(db, status="done")
    assert (row["id"], row["queue"]) == (sent.id, "orders")
    assert (row["created_at"], row["finished_at"]) == (at(began), at(clock.now()))
    assert row["updated_at"] == at(clock.now())
    assert rows(db, created_at={"$gte": at(began), "$lt": at(began + 1)}) == [row]


def test_the_view_shows_the_rest_beside_nonsense(hf: Holdfast, db: Database[Any]) -> None:
    queue = hf.queue("orders")
    sent = queue.enqueue_many([*range(12), Outgoing("late", delay=60)])
    queue.settle(queue.lease(1))
    queue.lease(1)
    for message, (field, value) in zip(
        sent[2:],
        [("ea", "yesterday"), ("ea", 5), ("ea", GONE), ("st", "x"), ("at", []), ("q", "x"),
         ("pl", 1), ("bd", 1), ("la", "x"), ("ua", "x"), ("av", "x")],
        strict=True,
    ):  # fmt: skip
        edit(db, "messages", message.id, **{field: value})
    db["holdfast.messages"].insert_many([{"_id": 5}, {"_id": "x"}, {"fa": "x", "st": 1, "av": []}])
    edit(db, "log", sent[0].id, fa="x")
    seen = {row.get("id"): row["status"] for row in rows(db)}
    assert {message.id for message in sent} <= set(seen)
    assert seen[sent[1].id] == "processing"
    assert seen[sent[6].id] == "pending"


def test_the_view_of_a_clock_that_began_at_nought(url: str, db: Database[Any]) -> None:
    """Small numbers are stored as numbers of another kind."""
    with holdfast.connect(url, clock=ManualClock(5)) as hf:
        hf.queue("orders").enqueue(1, delay=2)
    (row,) = rows(db)
    assert (row["created_at"], row["next_retry_at"]) == (at(5), at(2005))


# Counts


def counted(hf: Holdfast, db: Database[Any], queue: Queue) -> dict[str, tuple[int, int]]:
    """What the stats say, beside what is there."""
    q = db["holdfast.queues"].find_one({"_id": queue.name})["qid"]
    stats = queue.stats()
    return {
        name: (getattr(stats, name), db["holdfast.messages"].count_documents({"q": q, "st": state}))
        for name, state in (
            ("ready", layout.READY), ("delayed", layout.DELAYED), ("leased", layout.LEASED)
        )
    }  # fmt: skip


VICTIM = """
import os, signal, sys
import holdfast
from holdfast.stores.mongo import counts
from holdfast.testing import ManualClock
from servers.mongo import with_database
url, moment, act, now = sys.argv[1:]
hf = holdfast.connect(url, clock=ManualClock(int(now)), ack_timeout=30)
queue = hf.queue("orders")
whole = getattr(counts.Counts, moment)
def die(self, *args):
    if moment == "mark":
        whole(self, *args)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(counts.Counts, moment, die)
print("ready", flush=True)
queue.lease(3)
"""
"""Dies after the mark and before the write, or after the write and before the count."""


@pytest.mark.promise("LIFE-12", "LIFE-1")
@pytest.mark.parametrize("act", ["lease", "promote"])
@pytest.mark.parametrize("moment", ["mark", "unmark"])
def test_counts_are_right_again_after_a_death_between_write_and_count(
    hf: Holdfast, url: str, clock: ManualClock, db: Database[Any], moment: str, act: str,
    store_name: str,
) -> None:  # fmt: skip
    queue = hf.queue("orders")
    queue.enqueue_many([Outgoing(n, delay=1 if act == "promote" else None) for n in range(10)])
    clock.advance(1)
    done = subprocess.run(
        [sys.executable, "-c", VICTIM, url, moment, act, str(clock.now())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "ready\n"), done.stderr
    moved = db["holdfast.messages"].count_documents({"st": {"$in": [0, 2]}})
    assert (moved == 0) == (moment == "mark" and act == "promote")
    tick(hf)  # too early: somebody may still be at it
    assert db["holdfast.counts"].count_documents({"do": {"$gt": ""}}) == 1
    queue.enqueue("meanwhile")
    queue.settle(queue.lease(1))
    clock.advance(MARK_STALE_MS / 1000)
    tick(hf)
    assert db["holdfast.counts"].count_documents({"do": {"$gt": ""}}) == 0
    for stats, there in counted(hf, db, queue).values():
        assert stats == there
    assert queue.stats().done == 1
    clock.advance(31)
    hf.sweep()
    assert len(taken(queue)) == 10
    assert all(pair == (0, 0) for pair in counted(hf, db, queue).values())
    assert queue.stats().done == 11


@pytest.mark.promise("LIFE-12")
def test_a_count_that_comes_after_the_repair_is_counted_once(
    hf: Holdfast, url: str, clock: ManualClock, db: Database[Any], store_name: str
) -> None:
    """Somebody who was not dead, only slow."""
    queue = hf.queue("orders")
    queue.enqueue_many(range(10))
    with holdfast.connect(url, clock=ManualClock(clock.now())) as slow:
        counts, unmark = slow.store._counts, slow.store._counts.unmark

        def later(*args: Any) -> None:
            clock.advance(MARK_STALE_MS / 1000)
            tick(hf)
            assert queue.stats().leased == 4
            unmark(*args)

        counts.unmark = later
        assert len(slow.queue("orders").lease(4)) == 4
        counts.unmark = unmark
        clock.advance(MARK_STALE_MS / 1000)
        tick(hf)
        assert all(stats == there for stats, there in counted(hf, db, queue).values())
        assert (queue.stats().ready, queue.stats().leased) == (6, 4)


@pytest.mark.promise("LIFE-12")
def test_a_write_that_comes_after_the_repair_is_counted_as_well(
    hf: Holdfast, url: str, clock: ManualClock, db: Database[Any], store_name: str
) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(range(10))
    with holdfast.connect(url, clock=ManualClock(clock.now())) as slow:
        claim = slow.store._leasing.claim

        def later(*args: Any) -> Any:
            clock.advance(MARK_STALE_MS / 1000)
            tick(hf)
            assert queue.stats().leased == 0
            return claim(*args)

        slow.store._leasing.claim = later
        assert len(slow.queue("orders").lease(4)) == 4
        clock.advance(MARK_STALE_MS / 1000)
        tick(hf)
        assert (queue.stats().ready, queue.stats().leased) == (6, 4)


@pytest.mark.promise("LIFE-12")
def test_counts_of_processes_that_are_gone_are_kept(
    url: str, hf: Holdfast, clock: ManualClock, db: Database[Any], store_name: str
) -> None:
    queue = hf.queue("orders")
    for n in range(5):  # noqa: B007
        with holdfast.connect(url, clock=clock) as other:
            other.queue("orders").enqueue_many(range(3))
            other.queue("orders").settle(other.queue("orders").lease(1))
    before = db["holdfast.counts"].count_documents({})
    clock.advance(601)
    tick(hf)
    assert db["holdfast.counts"].count_documents({}) < before
    assert (queue.stats().ready, queue.stats().leased, queue.stats().done) == (10, 0, 5)
    assert queue.enqueue("on with a slot that was folded away")
    assert queue.stats().ready == 11


@pytest.mark.promise("LIFE-12")
def test_a_call_that_broke_off_in_this_process_is_repaired_as_well(
    hf: Holdfast, clock: ManualClock, db: Database[Any], store_name: str
) -> None:
    queue = hf.queue("orders")
    queue.enqueue_many(range(10))
    unmark = hf.store._counts.unmark

    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    hf.store._counts.unmark = broken
    with pytest.raises(KeyboardInterrupt):
        queue.lease(3)
    hf.store._counts.unmark = unmark
    assert len(queue.lease(2)) == 2
    clock.advance(MARK_STALE_MS / 1000)
    tick(hf)
    assert (queue.stats().ready, queue.stats().leased) == (5, 5)
