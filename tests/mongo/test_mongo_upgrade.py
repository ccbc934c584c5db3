"""A database that an older version filled is brought up to date, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import holdfast
from holdfast import Done, Fail, Holdfast, Outgoing, Queue
from holdfast.model.moves import State
from holdfast.stores.mongo import layout
from holdfast.stores.mongo.rows import write_log
from holdfast.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(mongo_url: str) -> Iterator[Database[Any]]:
    with MongoClient(mongo_url) as client:
        yield client.get_default_database()


@pytest.fixture
def hf(mongo_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(mongo_url, clock=clock, ack_timeout=60) as hf:
        yield hf


def age(db: Database[Any]) -> None:
    """As a version left it that also worked on a standalone server."""
    db["holdfast.meta"].update_one({"_id": "schema"}, {"$unset": {"whole": ""}})


def fill(queue: Queue) -> dict[str, set[str]]:
    """Messages in every state, by state."""
    sent = queue.enqueue_many([*range(6), Outgoing(6, delay=3600)])
    done, dead, leased = queue.lease(2), queue.lease(1), queue.lease(1)
    queue.settle([(lease, Done()) for lease in done])
    queue.settle([(lease, Fail("x")) for lease in dead])
    return {
        "ready": {message.id for message in sent[4:6]},
        "delayed": {sent[6].id},
        "leased": {lease.id for lease in leased},
        "dead": {lease.id for lease in dead},
        "done": {lease.id for lease in done},
    }


def found(queue: Queue) -> dict[str, set[str]]:
    look = {state: {e.message.id for e in queue.browse(state)} for state in State}
    dead = {entry.message.id for entry in queue.dlq.browse()}
    return {
        "ready": look[State.READY],
        "delayed": look[State.DELAYED],
        "leased": look[State.LEASED],
        "dead": dead,
        "done": {done.message.id for done in queue.log()},
    }


def counted(queue: Queue) -> dict[str, int]:
    stats = queue.stats()
    return {name: getattr(stats, name) for name in ("ready", "delayed", "leased", "dead", "done")}


def sizes(states: dict[str, set[str]]) -> dict[str, int]:
    return {name: len(ids) for name, ids in states.items()}


def reopened(mongo_url: str, clock: ManualClock) -> Holdfast:
    return holdfast.connect(mongo_url, clock=clock)


@pytest.mark.promise("LIFE-1", "LIFE-12")
def test_every_message_stays_in_its_state(
    hf: Holdfast, db: Database[Any], mongo_url: str, clock: ManualClock
) -> None:
    filled = fill(hf.queue("orders"))
    age(db)
    with reopened(mongo_url, clock) as new:
        assert found(new.queue("orders")) == filled
        assert counted(new.queue("orders")) == sizes(filled)


@pytest.mark.promise("LIFE-1", "LIFE-12", "LOG-1")
def test_what_was_done_and_not_taken_out_is_done(
    hf: Holdfast, db: Database[Any], mongo_url: str, clock: ManualClock
) -> None:
    """A process died on a standalone server, after the row in the log and before the delete."""
    queue = hf.queue("orders")
    filled = fill(queue)
    (held,) = db["holdfast.messages"].find({"st": layout.LEASED})
    db["holdfast.log"].insert_one(write_log(held, clock.now(), "COMPLETED", "ack", clock.now()))
    age(db)
    with reopened(mongo_url, clock) as new:
        filled["done"] |= filled["leased"]
        filled["leased"] = set()
        assert found(new.queue("orders")) == filled
        assert counted(new.queue("orders")) == sizes(filled)
        clock.advance(61)
        assert new.sweep().requeued == 0


@pytest.mark.promise("LIFE-1", "LIFE-12", "DEAD-3")
@pytest.mark.parametrize("old_is_there", [True, False])
def test_a_move_that_broke_off_is_ended(
    hf: Holdfast, db: Database[Any], mongo_url: str, clock: ManualClock, old_is_there: bool
) -> None:
    """A process died on a standalone server while it moved a dead letter to another queue."""
    queue, other = hf.queue("orders"), hf.queue("others")
    filled = fill(queue)
    messages = db["holdfast.messages"]
    dlq, to = (db["holdfast.queues"].find_one({"_id": name}) for name in ("orders.dlq", "others"))
    dead = messages.find_one({"q": dlq["qid"]})
    (id,) = filled["dead"]
    key = f"{to['home']}/{id}"
    half = {"tk": "move", "st": layout.LEASED, "dl": 10_000, "la": 0, "ow": "a move"}
    of = {"of": dead["_id"], "st": layout.READY}
    messages.insert_one({**dead, **half, "_id": key, "q": to["qid"], "mf": of})
    messages.update_one({"_id": dead["_id"]}, {"$set": {"mo": "move"}})
    gates = db["holdfast.counts"]
    gates.update_one({"_id": f"{to['qid']}/gate/0"}, {"$inc": {"l": 1}})
    if not old_is_there:
        messages.delete_one({"_id": dead["_id"]})
        gates.update_one({"_id": f"{dlq['qid']}/gate/0"}, {"$inc": {"r": -1}})
        filled["dead"] = set()
    age(db)
    with reopened(mongo_url, clock) as new:
        there = [entry.message.id for entry in new.queue("others").browse()]
        assert there == ([] if old_is_there else [id])
        assert counted(new.queue("others"))["ready"] == len(there)
        assert counted(new.queue("others"))["leased"] == 0
        assert found(new.queue("orders")) == filled
        assert counted(new.queue("orders")) == sizes(filled)
        left = messages.count_documents({"$or": [{"mo": "move"}, {"mf": {"$exists": True}}]})
        assert left == 0
    assert other.name == "others"


def test_a_queue_that_was_to_be_deleted_and_was_not_stays(
    hf: Holdfast, db: Database[Any], mongo_url: str, clock: ManualClock
) -> None:
    filled = fill(hf.queue("orders"))
    q = db["holdfast.queues"].find_one({"_id": "orders"})["qid"]
    db["holdfast.meta"].insert_one({"_id": f"gone/{q}", "q": q, "on": 0})
    age(db)
    with reopened(mongo_url, clock) as new:
        new.store.tidy(clock.now(), log_before=None)
        assert found(new.queue("orders")) == filled


def test_it_is_looked_for_once(hf: Holdfast, db: Database[Any], mongo_url: str) -> None:
    assert db["holdfast.meta"].find_one({"_id": "schema"})["whole"] is True
    age(db)
    holdfast.connect(mongo_url).close()
    assert db["holdfast.meta"].find_one({"_id": "schema"})["whole"] is True
