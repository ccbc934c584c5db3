"""What goes wrong with a MongoDB: each case has its own error, which says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import holdfast
from holdfast import (
    Holdfast,
    HoldfastError,
    InvalidArgument,
    Outgoing,
    Queue,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from holdfast.stores.contract import BatchEnd, ReserveAsk
from holdfast.stores.mongo import store
from holdfast.stores.mongo.counts import MARK_STALE_MS
from holdfast.testing import ManualClock, wait_until
from servers.mongo import FAST, HOST, MongoServer, running, with_database
from tests.plugins.stores import OwnServer

SECRET = "Gr4nite~Secret"
WRONG = "Wr0ng~Secret"
OUT_OF_DISK = 14031


def with_options(url: str, **options: Any) -> str:
    parts = urlsplit(url)
    asks = {**dict(parse_qsl(parts.query)), **options}
    return parts._replace(query=urlencode(asks, quote_via=quote)).geturl()


def everything_said(error: BaseException) -> str:
    """As a log would show it: with its causes."""
    return "".join(traceback.format_exception(error)) + repr(error)


def counts(queue: Queue) -> tuple[int, int, int, int]:
    stats = queue.stats()
    return stats.ready, stats.delayed, stats.leased, stats.done


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def mongo_server(own_server: OwnServer) -> str:
    """Its tests read the server's counters."""
    return own_server(running(options=FAST))


@pytest.fixture
def db(mongo_url: str) -> Iterator[Database[Any]]:
    with MongoClient(mongo_url) as client:
        yield client.get_default_database()


@pytest.fixture(scope="module")
def guarded() -> Iterator[MongoServer]:
    """A server that asks everybody for a password."""
    with running(password=SECRET, options=FAST) as server:
        yield server


@pytest.fixture(scope="module")
def breakable() -> Iterator[MongoServer]:
    """A server that can be told to fail."""
    with running(parameters={"enableTestCommands": "1"}, options=FAST) as server:
        yield server


@pytest.fixture(scope="module")
def breakable_alone() -> Iterator[MongoServer]:
    with running(parameters={"enableTestCommands": "1"}, set_name=None, options=FAST) as server:
        yield server


@contextmanager
def failing(server: MongoServer, *commands: str, times: int = 1, **how: Any) -> Iterator[None]:
    """The next such commands of a store fail at the server, as told."""
    data = {"failCommands": list(commands), "appName": "holdfast", **how}
    with MongoClient(server.url) as admin:
        mode = {"times": times} if times else "alwaysOn"
        admin.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
        yield
        admin.admin.command("configureFailPoint", "failCommand", mode="off")


# Who may


def test_a_wrong_password_is_an_error_that_does_not_show_it(guarded: MongoServer) -> None:
    url = guarded.url_for("root", WRONG)
    with pytest.raises(StoreError, match=r"[Aa]uthentication failed.*Check user") as refused:
        holdfast.connect(url)
    assert not isinstance(refused.value, StoreUnavailable)  # trying again will not help
    assert WRONG not in everything_said(refused.value)


def test_a_password_that_is_missing(guarded: MongoServer) -> None:
    with pytest.raises(StoreError, match=r"requires authentication.*Check user") as refused:
        holdfast.connect(guarded.url_for())
    assert not isinstance(refused.value, StoreUnavailable)


def test_the_right_password_is_all_it_takes(guarded: MongoServer) -> None:
    role = {"role": "readWrite", "db": "right"}
    url = with_database(guarded.add_user("maker", "a:/?#[]@%b", [role]), "right")
    with holdfast.connect(url) as hf:
        hf.queue("orders").enqueue(1)
        assert hf.queue("orders").stats().ready == 1


def test_who_may_do_nothing_here_is_told_so(guarded: MongoServer) -> None:
    url = with_database(guarded.add_user("stranger", SECRET + "1", ["read"]), "ours")
    with pytest.raises(StoreError, match="what this user may do") as refused:
        holdfast.connect(url)
    assert not isinstance(refused.value, StoreUnavailable)
    assert SECRET + "1" not in everything_said(refused.value)
    with MongoClient(guarded.url) as admin:
        assert "ours" not in admin.list_database_names()


def test_who_may_only_read_may_look(guarded: MongoServer, clock: ManualClock) -> None:
    url = with_database(guarded.url, "readable")
    with holdfast.connect(url, clock=clock) as hf:
        sent = hf.queue("orders").enqueue(1)
    role = {"role": "read", "db": "readable"}
    url = with_database(guarded.add_user("reader", SECRET, [role]), "readable")
    with holdfast.connect(url, clock=clock) as hf:
        queue = hf.queue("orders")
        assert [entry.message.id for entry in queue.browse()] == [sent.id]
        calls: list[Callable[[], Any]] = [queue.lease, lambda: queue.enqueue(2), queue.purge]
        for call in (*calls, queue.pause):
            with pytest.raises(StoreError, match="what this user may do") as refused:
                call()
            assert not isinstance(refused.value, StoreUnavailable)
        assert queue.stats().ready == 1


# Whether it is there


def test_a_store_that_was_closed_says_so(mongo_url: str) -> None:
    hf = holdfast.connect(mongo_url)
    queue = hf.queue("orders")
    queue.enqueue(1)
    hf.close()
    hf.close()
    calls: list[Callable[[], Any]] = [lambda: queue.enqueue(1), queue.lease, queue.stats]
    for call in calls:
        with pytest.raises(StoreUnavailable, match="closed"):
            call()


def test_a_primary_that_stepped_down_is_waited_for(clock: ManualClock) -> None:
    with running(options=FAST) as server, MongoClient(server.url) as admin:  # noqa: SIM117
        with holdfast.connect(server.url, clock=clock) as hf:
            queue = hf.queue("orders")
            sent = [message.id for message in queue.enqueue_many([1, 2, 3])]
            (held,) = queue.lease()
            admin.admin.command("replSetStepDown", 1, force=True)

            def tried() -> bool:
                try:
                    sent.append(queue.enqueue("after").id)
                except StoreUnavailable:
                    return False
                return True

            wait_until(tried, timeout=60)
            queue.ack(held)
            assert [lease.id for lease in queue.lease(10)] == sent[1:]
            assert counts(queue) == (0, 0, 3, 1)


GONE = ".*(refused|reset by peer)"
"""A connection made while the server was ending is reset."""


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_that_was_restarted_is_found_again(how: str, clock: ManualClock) -> None:
    with running() as server:
        url = with_options(server.url, serverSelectionTimeoutMS=300, timeout=1)
        with holdfast.connect(url, clock=clock) as hf:
            queue = hf.queue("orders")
            sent = queue.enqueue_many(range(5))
            (held,) = queue.lease()
            getattr(server, how)()
            calls: list[Callable[[], Any]] = [lambda: queue.enqueue(1), queue.lease, queue.stats]
            for call in (*calls, lambda: queue.ack(held)):
                with pytest.raises(StoreUnavailable, match=f"{HOST}:{server.port}{GONE}") as away:
                    call()
                assert len(str(away.value)) < 300
            server.start()
            wait_until(lambda: reached(hf), timeout=30)
            queue.ack(held)
            sent.append(queue.enqueue("after"))
            leases = queue.lease(10)
            assert [lease.id for lease in leases] == [message.id for message in sent[1:]]
            queue.settle(leases)
            clock.advance(MARK_STALE_MS / 1000)  # a count that the kill took is made up for
            hf.store.tidy(clock.now(), log_before=None)
            assert counts(queue) == (0, 0, 0, 6)


def reached(hf: Holdfast) -> bool:
    """The driver looks for a server that went away every half second."""
    try:
        return bool(hf.store.time())
    except StoreUnavailable:
        return False


@pytest.mark.parametrize("command", ["insert", "update", "commitTransaction", "find", "aggregate"])
def test_a_connection_that_breaks_is_made_anew(
    breakable: MongoServer, command: str, clock: ManualClock
) -> None:
    """What may be repeated is; a call that fails stored all of its own or nothing."""
    with holdfast.connect(with_database(breakable.url, f"cut_{command}"), clock=clock) as hf:
        queue = hf.queue("orders")
        for n in range(3):
            with failing(breakable, command, closeConnection=True):
                queue.enqueue_many([n, n])
            with failing(breakable, command, closeConnection=True):
                queue.settle(queue.lease(1))
        assert counts(queue) == (3, 0, 0, 3)


def test_a_conflict_is_tried_again(breakable: MongoServer) -> None:
    with holdfast.connect(with_database(breakable.url, "conflicts")) as hf:
        queue = hf.queue("orders")
        label = ["TransientTransactionError"]
        with failing(breakable, "insert", times=3, errorCode=112, errorLabels=label):
            queue.enqueue_many([1, 2])
        with failing(breakable, "commitTransaction", times=3, errorCode=112, errorLabels=label):
            queue.settle(queue.lease(1))
        assert counts(queue) == (1, 0, 0, 1)


# What it can hold


@pytest.mark.parametrize("kind", ["set", "alone"])
def test_a_full_disk_takes_nothing(
    breakable: MongoServer, breakable_alone: MongoServer, kind: str
) -> None:
    server = breakable if kind == "set" else breakable_alone
    with holdfast.connect(with_database(server.url, "full")) as hf:
        queue = hf.queue("orders")
        queue.enqueue(1)
        (lease,) = queue.lease()
        with failing(server, "insert", errorCode=OUT_OF_DISK):  # noqa: SIM117
            with pytest.raises(StoreFull, match="Nothing was stored"):
                queue.enqueue_many([2, 3])
        queue.ack(lease)
        queue.enqueue(4)
        assert [each.message.payload for each in queue.lease(10)] == [4]


@pytest.mark.promise("LIFE-3")
@pytest.mark.parametrize("kind", ["set", "alone"])
def test_a_receipt_is_not_kept_for_what_was_not_stored(
    breakable: MongoServer, breakable_alone: MongoServer, kind: str
) -> None:
    """Else the call that is repeated would be told that all is well."""
    server = breakable if kind == "set" else breakable_alone
    with holdfast.connect(with_database(server.url, "receipts")) as hf:
        queue = hf.queue("orders")
        with (
            failing(
                server, "insert", errorCode=OUT_OF_DISK, namespace="receipts.holdfast.messages"
            ),
            pytest.raises(StoreFull),
        ):
            queue.enqueue_many([1, 2], receipt="once")
        queue.enqueue_many([1, 2], receipt="once")
        queue.enqueue_many([1, 2], receipt="once")
        assert [lease.message.payload for lease in queue.lease(10)] == [1, 2]


@pytest.fixture
def roomy_url() -> Iterator[str]:
    """Of a server whose cache holds a transaction of many megabytes."""
    with running(options={**FAST, "wiredTigerCacheSizeGB": "1"}) as server:
        yield server.url


def test_a_batch_that_is_too_large_for_the_cache_is_refused_whole(mongo_url: str) -> None:
    with holdfast.connect(mongo_url) as hf:
        queue = hf.queue("orders")
        with pytest.raises(StoreFull, match="send it in smaller batches"):
            queue.enqueue_many(["x" * 2**19] * 300)
        assert counts(queue) == (0, 0, 0, 0)
        queue.enqueue_many(["x" * 2**19] * 3)
        assert counts(queue) == (3, 0, 0, 0)


def test_a_document_that_is_too_large_is_named(roomy_url: str) -> None:
    with holdfast.connect(roomy_url, payload_max=32 * 2**20) as hf:
        queue = hf.queue("orders")
        for payloads in (["x" * 17 * 2**20], [1, "x" * 17 * 2**20, 2]):
            with pytest.raises(InvalidArgument, match="16 MiB") as refused:
                queue.enqueue_many(payloads)
            assert refused.value.field == "payload"
        queue.enqueue("x" * 15 * 2**20)
        queue.enqueue_many(["x" * 2**20] * 20)
        queue.enqueue_many(["x" * n * 2**20 for n in (5, 11, 6, 9, 9)])  # each is small enough
        assert counts(queue) == (26, 0, 0, 0)


def test_a_validator_that_somebody_added_is_named(mongo_url: str, db: Database[Any]) -> None:
    with holdfast.connect(mongo_url) as hf:
        queue = hf.queue("orders")
        db.command("collMod", "holdfast.messages", validator={"pr": {"$lt": 9}})
        with pytest.raises(StoreError, match="failed validation"):
            queue.enqueue_many([1, Outgoing(2, priority=9)])
        assert counts(queue) == (0, 0, 0, 0)
        queue.enqueue(3)


@pytest.mark.promise("LIFE-4")
@pytest.mark.parametrize("kind", ["mongo", "mongo-standalone"])
def test_a_repeated_enqueue_is_stored_once_however_many_repeat_it(
    request: pytest.FixtureRequest, kind: str
) -> None:
    url = request.getfixturevalue("mongo_url" if kind == "mongo" else "mongo_standalone_url")
    with holdfast.connect(url) as hf:
        queue = hf.queue("orders")
        ids = [queue.enqueue(n, delay=60).id for n in range(5)]
        queue.purge()

        def repeat(n: int) -> list[bool]:
            order = ids if n % 2 else ids[::-1]
            return [m.duplicate for m in queue.enqueue_many(Outgoing(n, id=id) for id in order)]

        with ThreadPoolExecutor(8) as pool:
            answers = [answer for answers in pool.map(repeat, range(16)) for answer in answers]
        assert answers.count(False) == 5
        assert sorted(entry.message.id for entry in queue.browse()) == sorted(ids)
        assert counts(queue) == (5, 0, 0, 0)


# How safe a write must be


def test_more_servers_than_there_are(mongo_url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"[Nn]ot enough data-bearing nodes"):  # noqa: SIM117
        with holdfast.connect(with_options(mongo_url, w=2, wtimeoutMS=200)) as hf:
            hf.queue("orders").enqueue(1)
    with holdfast.connect(mongo_url) as hf:
        assert {spec.name for spec in hf.queues()} in (set(), {"orders", "orders.dlq"})


def test_a_second_server_that_is_away(clock: ManualClock) -> None:
    """The time-out of the URL is kept to; what was written before it is whole."""
    with running(options=FAST) as server, MongoClient(server.url) as admin:
        with holdfast.connect(server.url, clock=clock) as hf:
            queue = hf.queue("orders")
            queue.enqueue_many([1, 2])
        config = admin.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        away = {"_id": 1, "host": f"{HOST}:1", "priority": 0, "votes": 0}
        config["members"].append(away)
        admin.admin.command("replSetReconfig", config)
        url = with_options(server.url, w=2, wtimeoutMS=200, timeout=5)
        with holdfast.connect(url, clock=clock) as hf:
            queue = Queue(hf.context, "orders")
            with pytest.raises(StoreUnavailable, match=r"not by as many servers as asked for"):
                queue.enqueue_many([3, 4])
            with pytest.raises(StoreUnavailable, match=r"not by as many servers as asked for"):
                queue.lease(1)
            assert {spec.name for spec in hf.queues()} == {"orders", "orders.dlq"}
            there = [entry.message.payload for entry in queue.browse()]
            assert there in ([1, 2], [2], [1, 2, 3, 4], [2, 3, 4])
        with holdfast.connect(server.url + "&w=1", clock=clock) as hf:
            queue = hf.queue("orders")
            clock.advance(60)
            hf.sweep()
            hf.store.tidy(clock.now(), log_before=None)
            found = [lease.message.payload for lease in queue.lease(10)]
            assert sorted(found) in ([1, 2], [1, 2, 3, 4])
            assert counts(queue) == (0, 0, len(found), 0)


# What it holds


def test_a_layout_of_a_newer_holdfast(mongo_url: str, db: Database[Any]) -> None:
    holdfast.connect(mongo_url).close()
    for kept in ({"version": 99}, {"version": 99, "store": {"another": "kind"}}):
        meta = {"_id": "schema", **kept}
        db["holdfast.meta"].replace_one({"_id": "schema"}, meta)
        with pytest.raises(SchemaTooNew, match=r"layout 99.*pip install --upgrade holdfast"):
            holdfast.connect(mongo_url)
        assert db["holdfast.meta"].find_one({"_id": "schema"}) == meta


@pytest.mark.parametrize(
    "kept",
    [{}, {"version": "1"}, {"version": 0, "store": "x"}, {"version": -1, "store": "x"},
     {"version": 1}, {"version": 1, "store": 5}, {"version": 1.5, "store": "x"},
     {"version": True, "store": "x"}, {"version": None}],
    ids=str,
)  # fmt: skip
def test_a_layout_that_is_not_ours(mongo_url: str, db: Database[Any], kept: dict[str, Any]) -> None:
    db["holdfast.meta"].replace_one({"_id": "schema"}, kept)
    with pytest.raises(StoreCorrupt, match=r"holdfast\.meta is not Holdfast's"):
        holdfast.connect(mongo_url)
    assert db["holdfast.meta"].find_one({"_id": "schema"}) == {"_id": "schema", **kept}


def test_a_collection_of_somebody_else_where_the_view_would_be(new_mongo_url: str) -> None:
    """Theirs is kept as it is; everything but the view works."""
    with MongoClient(new_mongo_url) as client:
        theirs = client.get_default_database()["holdfast.tasks"]
        theirs.insert_one({"_id": 1, "theirs": True})
        try:
            with holdfast.connect(new_mongo_url) as hf:
                hf.queue("orders").enqueue(1)
        except StoreError as refused:
            assert "holdfast.tasks" in str(refused)  # noqa: PT017
        assert list(theirs.find()) == [{"_id": 1, "theirs": True}]


@pytest.mark.parametrize("n", range(3))
def test_many_may_make_the_store_at_once(new_mongo_url: str, n: int) -> None:
    def use(n: int) -> int:
        with holdfast.connect(new_mongo_url) as hf:
            hf.queue("orders").enqueue(n)
            return n

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(use, range(6))) == list(range(6))
    with holdfast.connect(new_mongo_url) as hf:
        assert hf.queue("orders").stats().ready == 6


def test_a_standalone_refuses_what_needs_a_replica_set_and_says_so(
    mongo_standalone_url: str,
) -> None:
    with (
        holdfast.connect(mongo_standalone_url) as hf,
        MongoClient(mongo_standalone_url) as client,
        client.start_session() as session,
    ):
        queue = hf.queue("orders")
        queue.enqueue(1)
        (lease,) = queue.lease()
        session.start_transaction()
        for call in (
            lambda: queue.enqueue(2, within=session),
            lambda: queue.ack(lease, within=session),
        ):
            with pytest.raises(InvalidArgument, match=r"within: transactions need a replica set"):
                call()
        queue.ack(lease)
        assert counts(queue) == (0, 0, 0, 1)


def test_nothing_else_is_raised_than_our_errors(breakable: MongoServer) -> None:
    """Whatever code a server gives: a HoldfastError with a text and its cause."""
    with holdfast.connect(with_database(breakable.url, "codes") + "&timeout=1") as hf:
        queue = hf.queue("orders")
        for code in (2, 13, 43, 50, 112, 121, 246, 292, 10107, 11600, 14031, 17280):
            for command in ("find", "insert"):
                with failing(breakable, command, times=0, errorCode=code):
                    try:
                        queue.enqueue(code)
                        queue.lease()
                    except HoldfastError as error:
                        assert len(str(error)) > 20  # noqa: PT017
                        assert "full error" not in str(error)  # noqa: PT017
                        assert "Topology" not in str(error)  # noqa: PT017


# Forks

FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
import holdfast
hf = holdfast.connect(sys.argv[1])
queue = hf.queue("orders")
queue.enqueue_many(range(40))
held = queue.lease(2)
child = os.fork()
if not child:
    try:
        queue.settle(held[:1])
        for _ in range(5):
            queue.settle(queue.lease(2))
        queue.enqueue_many(range(5))
        assert queue.lease(1, wait=5)
        if sys.argv[2] == "close":
            hf.close()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
for _ in range(5):
    queue.settle(queue.lease(2))
queue.enqueue_many(range(5))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert queue.lease(1, wait=5)
queue.settle(held[1:])
stats = queue.stats()
assert (stats.ready + stats.done, stats.leased) == (48, 2), stats
assert stats.done >= 12, stats
hf.close()
"""


@pytest.mark.promise("LIFE-2")
@pytest.mark.parametrize("how", ["close", "leave"])
def test_parent_and_forked_child_share_a_store(mongo_url: str, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, mongo_url, how],
        capture_output=True, text=True, check=False, timeout=60, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "ready", "done"), [("enqueue", 3, 0), ("ack", 1, 1), ("finish", 1, 1)]
)
def test_what_cannot_be_cut_waits_until_a_slow_rival_lets_go(
    mongo_url: str,
    db: Database[Any],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    ready: int,
    done: int,
) -> None:
    monkeypatch.setattr(store, "CONFLICT_S", 0.0)
    with holdfast.connect(mongo_url) as hf, ThreadPoolExecutor(1) as threads:
        queue, now = hf.queue("orders"), hf.context.clock.now()
        queue.enqueue_many(range(2))
        if call == "ack":
            (lease,) = queue.lease()
        if call == "finish":
            hf.store.lease(ReserveAsk("orders", 1, "me", "t", "b"), now)
        calls: dict[str, Callable[[], Any]] = {
            "enqueue": lambda: queue.enqueue(2),
            "ack": lambda: queue.ack(lease),
            "finish": lambda: hf.store.settle(BatchEnd("orders", "b", 10, "COMPLETED"), now),
        }
        with db.client.start_session() as rival:
            rival.start_transaction()
            db["holdfast.messages"].update_many({}, {"$set": {"x": 1}}, session=rival)
            db["holdfast.counts"].update_many({}, {"$inc": {"f": 1}}, session=rival)
            before = _aborted(db)
            waiting = threads.submit(calls[call])
            wait_until(lambda: _aborted(db) >= before + 3 or waiting.done())
            assert not waiting.done()
            rival.abort_transaction()
        waiting.result()
        assert (queue.stats().ready, queue.stats().done) == (ready, done)


def _aborted(db: Database[Any]) -> int:
    return db.client.admin.command("serverStatus")["transactions"]["totalAborted"]
