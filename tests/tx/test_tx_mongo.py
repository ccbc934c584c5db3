"""Enqueue and ack inside the caller's own transaction, on a replica set of MongoDB."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

import holdfast
from holdfast import (
    Fail,
    Holdfast,
    InvalidArgument,
    Lease,
    LeaseLost,
    Outgoing,
    Queue,
    QueueNotFound,
    Retry,
    Settled,
    StoreUnavailable,
)
from holdfast.queue import queue as queue_module
from holdfast.stores.mongo import wake
from holdfast.testing import wait_until
from servers import mongo


@pytest.fixture(params=["mongo"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def hf(mongo_url: str, store_name: str) -> Iterator[Holdfast]:
    with holdfast.connect(mongo_url) as hf:
        yield hf


@pytest.fixture
def queue(hf: Holdfast) -> Queue:
    return hf.queue("orders")


CLIENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "son": {"document_class": SON, "tz_aware": True},
    "raw": {"document_class": RawBSONDocument},
    "reads elsewhere": {"readPreference": "secondaryPreferred", "w": 1},
}


@pytest.fixture(params=CLIENTS)
def client(
    request: pytest.FixtureRequest, mongo_url: str, hf: Holdfast
) -> Iterator[MongoClient[Any]]:
    """The caller's own, made as they like it."""
    with MongoClient(mongo_url, **CLIENTS[request.param]) as client:
        client.get_default_database().create_collection("sale")
        yield client


@pytest.fixture
def mine(mongo_url: str, hf: Holdfast) -> Iterator[MongoClient[Any]]:
    with MongoClient(mongo_url) as client:
        client.get_default_database().create_collection("sale")
        yield client


def sale(client: MongoClient[Any]) -> Collection[Any]:
    return client.get_default_database()["sale"]


def sales(client: MongoClient[Any]) -> list[int]:
    return sorted(doc["_id"] for doc in sale(client).find())


def begin(session: ClientSession) -> None:
    from pymongo import ReadPreference

    session.start_transaction(read_preference=ReadPreference.PRIMARY)


class Undone(Exception):
    pass


@pytest.mark.promise("TX-1")
def test_an_enqueue_commits_with_the_callers_writes(queue: Queue, client: MongoClient[Any]) -> None:
    with client.start_session() as session:
        begin(session)
        sale(client).insert_one({"_id": 1}, session=session)
        sent = queue.enqueue({"sale": 1}, key="k", headers={"a": "b"}, within=session)
        sale(client).insert_one({"_id": 2}, session=session)
        assert (queue.stats().ready, queue.lease(), sales(client)) == (0, [], [])  # not seen yet
        session.commit_transaction()
    assert queue.get(sent.id) == sent
    assert (queue.stats().ready, sales(client)) == (1, [1, 2])


@pytest.mark.promise("TX-1")
def test_an_enqueue_rolls_back_with_the_callers_writes(
    queue: Queue, client: MongoClient[Any]
) -> None:
    with client.start_session() as session:
        begin(session)
        sale(client).insert_one({"_id": 1}, session=session)
        queue.enqueue({"sale": 1}, within=session)
        session.abort_transaction()
    assert (list(queue.browse()), queue.stats().ready, sales(client)) == ([], 0, [])


@pytest.mark.promise("TX-1")
def test_an_enqueue_may_be_the_first_thing_in_a_transaction(
    queue: Queue, mine: MongoClient[Any]
) -> None:
    with mine.start_session() as session:
        with pytest.raises(Undone), session.start_transaction():  # noqa: PT012
            queue.enqueue_many([1, 2], within=session)
            sale(mine).insert_one({"_id": 1}, session=session)
            raise Undone
        assert (list(queue.browse()), queue.stats().ready, sales(mine)) == ([], 0, [])
        with session.start_transaction():
            queue.enqueue_many([3, Outgoing(4, delay=60)], within=session)
            assert queue.stats().ready == 0
    assert (queue.stats().ready, queue.stats().delayed) == (1, 1)
    assert [lease.message.payload for lease in queue.lease(10)] == [3]


@pytest.mark.promise("TX-1")
def test_a_large_batch_commits_or_rolls_back_as_well(queue: Queue, mine: MongoClient[Any]) -> None:
    with mine.start_session() as session:
        session.start_transaction()
        queue.enqueue_many(range(3000), within=session)
        session.abort_transaction()
        assert queue.stats().ready == 0
        with session.start_transaction():
            queue.enqueue_many(range(3000), within=session)
        assert queue.stats().ready == 3000
        leases = queue.lease(3000)
        session.start_transaction()
        assert queue.settle(leases, within=session) == [Settled.APPLIED] * 3000
        session.abort_transaction()
    assert queue.stats().leased == 3000


@pytest.mark.promise("TX-1")
def test_an_id_that_is_held_is_told_inside_and_ends_nothing(
    queue: Queue, mine: MongoClient[Any]
) -> None:
    """An error would end the transaction."""
    kept = queue.enqueue("first")
    with mine.start_session() as session, session.start_transaction():
        again = queue.enqueue("second", id=kept.id, within=session)
        queue.enqueue_many([Outgoing(1, id=kept.id), Outgoing(2)], within=session)
        queue.enqueue_many([3], receipt="once", within=session)
        queue.enqueue_many([3], receipt="once", within=session)
        sale(mine).insert_one({"_id": 1}, session=session)
    assert (again.duplicate, again.payload) == (True, "first")
    assert sales(mine) == [1]
    assert [entry.message.payload for entry in queue.browse()] == ["first", 2, 3]
    assert queue.stats().ready == 3


@pytest.mark.promise("TX-2")
def test_an_ack_commits_or_rolls_back_with_the_callers_writes(
    queue: Queue, client: MongoClient[Any]
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    with client.start_session() as session:
        begin(session)
        sale(client).insert_one({"_id": 1}, session=session)
        queue.ack(lease, within=session)
        assert (queue.stats().leased, queue.stats().done) == (1, 0)
        session.abort_transaction()
        assert (queue.stats().leased, queue.stats().done, sales(client)) == (1, 0, [])
        begin(session)
        queue.ack(lease, result="sold", within=session)
        sale(client).insert_one({"_id": 1}, session=session)
        session.commit_transaction()
    assert (queue.stats().leased, queue.stats().done, sales(client)) == (0, 1, [1])
    assert [done.result for done in queue.log()] == ["sold"]


@pytest.mark.promise("TX-2")
def test_a_settle_commits_or_rolls_back_with_the_callers_writes(
    queue: Queue, client: MongoClient[Any]
) -> None:
    queue.enqueue_many([1, 2, 3])
    leases = queue.lease(3)
    ends = [leases[0], (leases[1], Retry("later", delay=60)), (leases[2], Fail("never"))]
    with client.start_session() as session:
        begin(session)
        sale(client).insert_one({"_id": 1}, session=session)
        assert queue.settle(ends, within=session) == [Settled.APPLIED] * 3
        session.abort_transaction()
        stats = queue.stats()
        assert (stats.leased, stats.delayed, stats.dead, stats.done) == (3, 0, 0, 0)
        assert sorted(entry.lease.id for entry in queue.browse("leased")) == sorted(
            lease.id for lease in leases
        )
        begin(session)
        sale(client).insert_one({"_id": 2}, session=session)
        assert queue.settle(ends, within=session) == [Settled.APPLIED] * 3
        session.commit_transaction()
    stats = queue.stats()
    assert (stats.leased, stats.delayed, stats.dead, stats.done) == (0, 1, 1, 1)
    assert sales(client) == [2]


@pytest.mark.promise("TX-2")
def test_a_repeated_ack_does_not_commit_the_callers_writes_twice(
    queue: Queue, mine: MongoClient[Any]
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    with mine.start_session() as session:
        with session.start_transaction():
            sale(mine).insert_one({"_id": 1}, session=session)
            queue.ack(lease, within=session)
        session.start_transaction()
        sale(mine).insert_one({"_id": 2}, session=session)
        with pytest.raises(LeaseLost, match="settled before"):
            queue.ack(lease, within=session)
        session.abort_transaction()
    assert sales(mine) == [1]
    queue.ack(lease)  # without writes of one's own there is nothing to lose


@pytest.mark.promise("TX-2")
def test_a_lost_lease_can_still_be_rolled_back_or_committed(
    queue: Queue, mine: MongoClient[Any]
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    queue.release(lease)
    with mine.start_session() as session:
        session.start_transaction()
        sale(mine).insert_one({"_id": 1}, session=session)
        with pytest.raises(LeaseLost):
            queue.ack(lease, within=session)
        session.abort_transaction()
        assert sales(mine) == []
        with session.start_transaction():
            sale(mine).insert_one({"_id": 2}, session=session)
            with pytest.raises(LeaseLost):
                queue.ack(lease, within=session)
    assert sales(mine) == [2]
    assert queue.stats().ready == 1


@pytest.mark.promise("TX-1")
def test_a_queue_that_is_not_there_leaves_the_transaction_whole(
    hf: Holdfast, mine: MongoClient[Any]
) -> None:
    gone = hf.queue("gone")
    gone.delete()
    with mine.start_session() as session, session.start_transaction():
        sale(mine).insert_one({"_id": 1}, session=session)
        with pytest.raises(QueueNotFound, match="gone"):
            gone.enqueue(1, within=session)
    assert sales(mine) == [1]


# Conflicts


@pytest.mark.promise("TX-2")
def test_with_transaction_runs_again_what_met_another(queue: Queue, mine: MongoClient[Any]) -> None:
    """Two that end one lease: one waits for nobody, it is run again and is told who won."""
    queue.enqueue(1)
    (lease,) = queue.lease()
    runs: list[int] = []
    with mine.start_session() as first, mine.start_session() as second:
        first.start_transaction()
        queue.ack(lease, within=first)

        def work(session: ClientSession) -> list[Settled]:
            runs.append(len(runs))
            sale(mine).insert_one({"_id": len(runs)}, session=session)
            if len(runs) == 2:
                first.commit_transaction()
            return queue.settle([(lease, Retry("no"))], within=session)

        assert second.with_transaction(work) in ([Settled.STALE], [Settled.ALREADY])
    assert len(runs) >= 2
    assert sales(mine) == [len(runs)]  # of the last run only
    assert (queue.stats().done, queue.stats().leased) == (1, 0)


@pytest.mark.promise("TX-1")
def test_the_same_id_in_two_transactions_is_stored_once(
    queue: Queue, mine: MongoClient[Any]
) -> None:
    id = queue.enqueue("made to have an id").id
    queue.purge()
    runs: list[int] = []
    with mine.start_session() as first, mine.start_session() as second:
        first.start_transaction()
        queue.enqueue("first", id=id, within=first)

        def work(session: ClientSession) -> bool:
            runs.append(len(runs))
            if len(runs) == 2:
                first.commit_transaction()
            return queue.enqueue("second", id=id, within=session).duplicate

        assert second.with_transaction(work) is True
    assert len(runs) >= 2
    assert [entry.message.payload for entry in queue.browse()] == ["first"]
    assert queue.stats().ready == 1


@pytest.mark.promise("TX-1")
def test_a_conflict_without_with_transaction_is_an_error_of_ours_and_of_the_driver(
    queue: Queue, mine: MongoClient[Any]
) -> None:
    queue.enqueue(1)
    (lease,) = queue.lease()
    with mine.start_session() as first, mine.start_session() as second:
        first.start_transaction()
        queue.ack(lease, within=first)
        second.start_transaction()
        with pytest.raises(StoreUnavailable) as lost:
            queue.ack(lease, within=second)
        assert lost.value.has_error_label("TransientTransactionError")
        first.abort_transaction()
        second.abort_transaction()
    queue.ack(lease)


@pytest.mark.promise("TX-1")
def test_many_callers_at_once_store_each_of_theirs(queue: Queue, mine: MongoClient[Any]) -> None:
    def produce(n: int) -> None:
        with mine.start_session() as session:
            for i in range(5):
                key = n * 5 + i

                def work(session: ClientSession, key: int = key) -> None:
                    sale(mine).insert_one({"_id": key}, session=session)
                    queue.enqueue(key, within=session)

                session.with_transaction(work)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sales(mine) == list(range(30))
    assert sorted(entry.message.payload for entry in queue.browse()) == list(range(30))
    assert queue.stats().ready == 30


@pytest.mark.promise("TX-1")
def test_a_queue_that_is_deleted_while_a_transaction_is_open(
    hf: Holdfast, queue: Queue, mine: MongoClient[Any]
) -> None:
    with mine.start_session() as session:
        session.start_transaction()
        sale(mine).find_one({}, session=session)  # from here on it sees all as it is now
        queue.delete()

        with pytest.raises((StoreUnavailable, QueueNotFound)):
            queue.enqueue(1, within=session)
        if session.in_transaction:
            session.abort_transaction()
    assert hf.queue("orders").stats().ready == 0
    assert list(hf.queue("orders").browse()) == []


@pytest.mark.promise("TX-1", "LIFE-9")
@pytest.mark.parametrize("deed", ["enqueue", "retry"])
def test_a_waiting_consumer_is_woken_by_the_commit(
    mongo_url: str, queue: Queue, mine: MongoClient[Any], deed: str, monkeypatch: Any
) -> None:
    """By the change stream: it would look by itself only in an hour."""
    if deed == "retry":
        queue.enqueue("again")
    held = queue.lease()
    with holdfast.connect(mongo_url) as other:
        got: list[Lease] = []
        theirs = other.queue("orders")
        other.store._wake.watch([])
        wait_until(lambda: other.store._wake._hearing)
        monkeypatch.setattr(wake, "LOOK_S", 3600.0)
        monkeypatch.setattr(queue_module, "WAIT_STEP_S", 3600.0)
        waiter = threading.Thread(target=lambda: got.extend(theirs.lease(wait=30)))
        waiter.start()
        wait_until(lambda: other.store._wake._news._waiters)
        with mine.start_session() as session:
            session.start_transaction()
            if deed == "enqueue":
                queue.enqueue("now", within=session)
            else:
                queue.settle([(held[0], Retry("no", delay=0))], within=session)
            assert got == []
            session.commit_transaction()
        waiter.join(25)
        assert len(got) == 1


# Refusals


def calls(queue: Queue, lease: Lease, within: Any) -> list[Callable[[], Any]]:
    return [
        lambda: queue.enqueue(1, within=within),
        lambda: queue.enqueue_many([1], within=within),
        lambda: queue.ack(lease, within=within),
        lambda: queue.settle([lease], within=within),
    ]


@pytest.mark.promise("TX-1", "TX-2")
def test_a_session_that_is_not_in_a_transaction_is_refused(
    queue: Queue, mine: MongoClient[Any]
) -> None:
    queue.enqueue("leased")
    (lease,) = queue.lease()
    ended = mine.start_session()
    ended.end_session()
    with mine.start_session() as never, mine.start_session() as over:
        with over.start_transaction():
            queue.enqueue("in time", delay=60, within=over)
        for within, problem in (
            (never, "no transaction"),
            (over, "no transaction"),
            (ended, "has ended"),
            (mine, "ClientSession"),
            (mine.get_default_database(), "ClientSession"),
            ("session", "ClientSession"),
            (object(), "ClientSession"),
        ):
            for call in calls(queue, lease, within):
                with pytest.raises(InvalidArgument, match=f"within: .*{problem}") as refused:
                    call()
                assert refused.value.field == "within"
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.done) == (0, 1, 1, 0)


@pytest.mark.promise("TX-1")
def test_a_session_of_another_server_is_refused(hf: Holdfast, queue: Queue, mongo_url: str) -> None:
    queue.enqueue("leased")
    (lease,) = queue.lease()
    with mongo.running(options=mongo.FAST) as other:  # noqa: SIM117
        with MongoClient(other.url) as elsewhere, elsewhere.start_session() as session:
            for call in calls(queue, lease, session):
                session.start_transaction()
                with pytest.raises(InvalidArgument, match="within: the session is not on"):
                    call()
                session.abort_transaction()
            # and where there is another store of that name
            holdfast.connect(mongo.with_database(other.url, mongo_url_database(mongo_url))).close()
            session.start_transaction()
            with pytest.raises(InvalidArgument, match="within: the session is not on"):
                queue.enqueue(1, within=session)
            session.abort_transaction()
    with (
        mongo.running(set_name=None, options=mongo.FAST) as standalone,
        MongoClient(standalone.url) as elsewhere,
        elsewhere.start_session() as session,
    ):
        session.start_transaction()
        with pytest.raises(InvalidArgument, match="within"):
            queue.enqueue(1, within=session)
        session.abort_transaction()
    assert (queue.stats().ready, queue.stats().leased) == (0, 1)


def mongo_url_database(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]
