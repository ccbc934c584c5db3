"""A real MongoDB that is killed, stopped, half open or steps down, and processes that die."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import holdfast
from holdfast import (
    Done,
    Fail,
    Holdfast,
    Outgoing,
    Retry,
    Settled,
    StoreUnavailable,
)
from holdfast.queue import queue as queue_module
from holdfast.stores.contract import LeaseAsk
from holdfast.stores.mongo import sessions, wake
from holdfast.testing import ManualClock, wait_until
from servers.mongo import MongoServer, drop_database, running, with_database
from tests.plugins.sampling import more

sys.path.insert(0, str(Path(__file__).parent))
import storm
import victim
from mongo_place import SOON_OVER, STALE_MS, MongoPlace
from proxy import Proxy
from storm import (
    KILLED,
    SWEEP,
    GoAway,
    at_once,
    check_worker_goes_on,
    half_open,
    insistent,
    killed,
    stopped,
)


@pytest.fixture(params=["mongo"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def own_server() -> Iterator[MongoServer]:
    """Never the one that HOLDFAST_TEST_MONGO_URL names: this one is killed."""
    with running(parameters=SOON_OVER) as server:
        yield server


@pytest.fixture
def place(
    own_server: MongoServer, store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MongoPlace]:
    monkeypatch.setenv(*SWEEP)
    url = with_database(own_server.url, f"test_{secrets.token_hex(6)}")
    place = MongoPlace(url, tmp_path / "ledger", own_server)
    yield place
    place.close()
    if own_server._process.poll() is not None:  # a test failed while it was down
        own_server.start()
    drop_database(own_server.url, place.database)


@pytest.fixture
def hf(place: MongoPlace) -> Iterator[Holdfast]:
    with holdfast.connect(place.url, ack_timeout=60) as hf:
        hf.queue("orders")
        yield hf


@pytest.fixture
def proxy(own_server: MongoServer) -> Iterator[Proxy]:
    proxy = Proxy(own_server.port)
    yield proxy
    proxy.close()


# The store goes away


def stepped_down(place: MongoPlace, proxy: Proxy) -> Callable[[], None]:
    """No primary, though every connection stays. It is elected again when we say so."""
    place.client.admin.command("replSetStepDown", 600, force=True)
    return lambda: elected(place)


def elected(place: MongoPlace) -> None:
    with MongoClient(place.url_at(place.server.port)) as direct:
        direct.admin.command("replSetFreeze", 0)
        wait_until(lambda: direct.admin.command("hello")["isWritablePrimary"], timeout=60)


@pytest.mark.promise("HANDLER-7", "LIFE-1")
@pytest.mark.parametrize("go_away", [killed, *more(stopped, half_open, stepped_down)])
def test_a_worker_goes_on_when_its_store_comes_back(
    place: MongoPlace, go_away: GoAway, caplog: pytest.LogCaptureFixture
) -> None:
    check_worker_goes_on(place, go_away, caplog)


@pytest.mark.parametrize("go_away", [killed, stopped])
def test_calls_after_a_restart_do_not_get_a_dead_connection(
    place: MongoPlace, hf: Holdfast, proxy: Proxy, go_away: GoAway
) -> None:
    """All connections lay idle meanwhile, so nobody needs to be told."""
    orders = hf.queue("orders")
    at_once(*[lambda n=n: orders.enqueue(n) for n in range(5)])
    go_away(place, proxy)()
    said = at_once(*[lambda n=n: orders.enqueue(n) for n in range(5)])
    assert len(said) == 5
    assert orders.stats().ready == 10


@pytest.mark.promise("LIFE-1", "LIFE-2")
def test_a_killed_server_comes_back_with_every_message_in_its_state(
    place: MongoPlace, hf: Holdfast
) -> None:
    orders = hf.queue("orders")
    orders.enqueue_many([Outgoing(n, priority=n % 3, delay=60 * (n % 5 == 4)) for n in range(100)])
    leases = orders.lease(40)
    orders.settle(leases[:10])
    orders.settle([(lease, Retry("x", delay=n % 2 * 60)) for n, lease in enumerate(leases[10:20])])
    orders.settle([(lease, Fail("x")) for lease in leases[20:30]])
    again = orders.lease(5, batch="b")
    orders.dlq.lease(3)
    hf.redrive("orders.dlq", 4)
    before = place.look()
    place.kill()
    place.start()
    assert place.look() == before
    hf.store.tidy(hf.context.clock.now() + STALE_MS, log_before=None)
    place.check_counts(hf, before)
    assert orders.settle(leases[:10]) == [Settled.ALREADY] * 10
    assert orders.settle([*leases[30:], *again]) == [Settled.APPLIED] * 15
    place.check_counts(hf, place.look())


def test_a_direct_connection_to_a_replica_set_is_accepted(place: MongoPlace, proxy: Proxy) -> None:
    with holdfast.connect(place.url_at(proxy.port)) as hf:
        hf.queue("orders").enqueue_many(range(3))
        assert len(hf.queue("orders").lease(3)) == 3


# Cut in the middle of a call


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cut_off(place: MongoPlace, proxy: Proxy, clock: ManualClock) -> Iterator[Holdfast]:
    """Over a network that can lose what is said."""
    url = place.url_at(proxy.port)
    with holdfast.connect(url, clock=clock, ack_timeout=60, max_attempts=5) as hf:
        hf.queue("orders")
        yield hf


LOST = pytest.mark.parametrize("answer", [False, True], ids=["request lost", "answer lost"])


@LOST
@pytest.mark.parametrize("command", ["insert", "commitTransaction"])
@pytest.mark.promise("LIFE-4", "LIFE-1")
def test_an_enqueue_that_broke_off_is_repeated(
    place: MongoPlace, cut_off: Holdfast, proxy: Proxy, command: str, answer: bool
) -> None:
    """By the store itself: a transaction knows whether it was committed."""
    orders, items = cut_off.queue("orders"), victim.batch_of(100)
    orders.enqueue("before")
    (held,) = orders.lease()
    orders.ack(held)
    proxy.lose(command.encode(), answer=answer)
    sent = insistent(lambda: orders.enqueue_many(items))
    assert len({message.id for message in sent}) == 100
    place.check_whole(cut_off, {message.id for message in sent} | {held.message.id})


OUTCOMES = {
    "ack": Done(),
    "ack with result": Done({"a": 1}),
    "nack": Retry("x"),
    "nack at once": Retry("x", delay=0),
    "fail": Fail("x"),
}


@LOST
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.promise("LIFE-1")
def test_a_settlement_that_broke_off_is_repeated(
    place: MongoPlace, cut_off: Holdfast, proxy: Proxy, outcome: str, answer: bool
) -> None:
    orders = cut_off.queue("orders")
    accepted = {message.id for message in orders.enqueue_many(range(20))}
    moves = [(lease, OUTCOMES[outcome]) for lease in orders.lease(10)]
    proxy.lose(b"commitTransaction", answer=answer)
    answers = insistent(lambda: orders.settle(moves))
    assert set(answers) <= {Settled.APPLIED, Settled.ALREADY}
    place.check_whole(cut_off, accepted)
    assert orders.stats().leased == 0
    assert orders.settle(moves) == [Settled.ALREADY] * 10


OWNER = b"\x02ow\x00"
"""The field that only the write of a lease has."""


@pytest.mark.promise("LIFE-1", "OVERDUE-1", "LIFE-12")
@LOST
def test_a_lease_whose_answer_was_lost_comes_back_after_its_deadline(
    place: MongoPlace, cut_off: Holdfast, proxy: Proxy, clock: ManualClock, answer: bool
) -> None:
    """It never runs again by itself, and its count is put right when it is stale."""
    orders = cut_off.queue("orders")
    accepted = {message.id for message in orders.enqueue_many(range(10))}
    proxy.lose(OWNER, answer=answer)
    with pytest.raises(StoreUnavailable):
        orders.lease(10)
    leases = orders.lease(20)
    assert len(leases) == (0 if answer else 10)
    clock.advance(59)
    assert cut_off.sweep().requeued == 0
    clock.advance(2)
    assert cut_off.sweep().requeued == 10
    place.check_whole(cut_off, accepted)
    clock.advance(3600)
    leases = orders.lease(20)
    assert {lease.message.id for lease in leases} == accepted
    assert {lease.message.attempts for lease in leases} == {2}
    place.check_whole(cut_off, accepted)


# A process dies in the middle


@contextmanager
def dead_transaction(place: MongoPlace, action: str, nth: int) -> Iterator[None]:
    """Of a process that was killed before it committed its nth. Whatever is done meanwhile must not
    have waited for the server to end it, as it does after a minute."""
    lifetime = "transactionLifetimeLimitSeconds"
    place.client.admin.command("setParameter", 1, **{lifetime: 60})
    try:
        process = place.process(action, "commitTransaction before", str(nth))
        assert process.wait(60) == KILLED
        yield
        sessions = place.client.admin.aggregate([{"$currentOp": {"idleSessions": True}}])
        assert any("transaction" in session for session in sessions), "the server has ended it"
    finally:
        place.client.admin.command("setParameter", 1, **{lifetime: int(SOON_OVER[lifetime])})
        place.client.admin.command("killAllSessions", [])


@pytest.mark.promise("LIFE-1", "LIFE-8")
@pytest.mark.parametrize(("action", "nth"), [("ack", 2), ("nack", 2), ("fail", 3)])
def test_a_worker_killed_in_a_transaction_leaves_its_neighbours_alone(
    place: MongoPlace, action: str, nth: int
) -> None:
    """What it was settling stays locked by the server, and nothing else does. The transactions
    before that one opened its slots."""
    with victim.connect(place.url) as hf:
        orders = hf.queue("orders", ack_timeout=60)
        accepted = {message.id for message in orders.enqueue_many(range(100))}
        with dead_transaction(place, action, nth):
            leases = orders.lease(100)
            assert len(leases) == 90
            assert orders.settle(leases) == [Settled.APPLIED] * 90
            accepted |= {message.id for message in orders.enqueue_many(range(10))}
            assert len(orders.lease(100)) == 10
            with holdfast.connect(place.url) as another:
                assert another.queue("orders").stats().done == 90
                another.queue("orders").enqueue("another")
                (lease,) = another.queue("orders").lease(wait=5)
                accepted.add(lease.message.id)
                another.queue("orders").ack(lease)
        place.check_whole(hf, accepted)


SECRET = "a secret"
DEFAULT = {"transactionLifetimeLimitSeconds": "60"}
"""Of a MongoDB that nobody has configured. The servers of other tests end transactions sooner."""
ORDINARY = [{"role": "readWrite", "db": "shop"}]


@pytest.fixture(scope="module")
def default_server() -> Iterator[MongoServer]:
    with running(parameters=DEFAULT, password=SECRET) as server:
        yield server


@pytest.fixture
def user(default_server: MongoServer) -> Callable[[], str]:
    """The URL of one more user, without any right but those on the database."""

    def add() -> str:
        url = default_server.add_user(f"user-{secrets.token_hex(4)}", SECRET, ORDINARY)
        return with_database(url, "shop")

    return add


@pytest.fixture
def shop(
    default_server: MongoServer, store_name: str, user: Callable[[], str], tmp_path: Path
) -> Iterator[MongoPlace]:
    place = MongoPlace(user(), tmp_path / "ledger", default_server)
    yield place
    place.close()
    drop_database(default_server.url, "shop")


def killed_in_its(place: MongoPlace, action: str, nth: int) -> Holdfast:
    """Beside it, a connection to a queue with ten messages that are overdue, and ten that a process
    had leased when it was killed just before it committed what became of them."""
    hf = victim.connect(place.url)
    orders = hf.queue("orders", ack_timeout=1, max_attempts=50)
    orders.enqueue_many(range(20))
    process = place.process(action, "commitTransaction before", str(nth))
    assert process.wait(60) == KILLED
    now = time(hf)
    assert len(hf.store.lease(LeaseAsk("orders", 10, "gone", "a", 1000), now)) == 10
    wait_until(lambda: time(hf) > now + 1000)
    assert orders.stats().leased == 20
    return hf


def time(hf: Holdfast) -> int:
    return hf.context.clock.now()


KILLED_IN = pytest.mark.parametrize(
    ("action", "nth"),
    [
        ("ack", 2),
        pytest.param("nack", 2, marks=pytest.mark.extended),
        pytest.param("fail", 3, marks=pytest.mark.extended),
    ],
)


@pytest.mark.promise("OVERDUE-2", "LIFE-1", "LIFE-8")
@KILLED_IN
def test_a_sweep_takes_back_what_a_worker_held_that_was_killed_in_its_ack(
    shop: MongoPlace, action: str, nth: int
) -> None:
    """At once, though the server would keep it locked for a minute."""
    with killed_in_its(shop, action, nth) as hf:
        assert hf.sweep().requeued == 20
        orders = hf.queue("orders")
        leases = orders.lease(20)
        assert {lease.message.attempts for lease in leases} == {2}
        assert orders.settle(leases) == [Settled.APPLIED] * 20
        assert (orders.stats().leased, orders.stats().done) == (0, 20)


@pytest.mark.promise("OVERDUE-2")
def test_a_lease_takes_back_what_a_worker_held_that_was_killed_in_its_ack(shop: MongoPlace) -> None:
    with killed_in_its(shop, "ack", 2) as hf:
        assert len(hf.queue("orders").lease(20)) == 20


@pytest.mark.promise("LIFE-8")
def test_a_sweep_passes_over_what_it_may_not_end(shop: MongoPlace, user: Callable[[], str]) -> None:
    """A transaction of another user. Its neighbours need not wait for the server to end it."""
    with killed_in_its(shop, "ack", 2), victim.connect(user()) as other:
        assert other.sweep().requeued == 10
        stats = other.queue("orders").stats()
        assert (stats.ready, stats.leased) == (10, 10)
        shop.client.admin.command("killSessions", [])  # all of the user's own
        wait_until(lambda: other.sweep().requeued == 10)


def test_a_missing_right_is_said_once(
    shop: MongoPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OperationFailure("not authorized on admin to execute this", 13)

    with killed_in_its(shop, "ack", 2) as hf:
        with monkeypatch.context() as patch:
            patch.setattr(sessions.Sessions, "_abandoned", refuse)
            assert hf.sweep().requeued == 10
            assert hf.sweep().requeued == 0
        assert caplog.text.count("could not be ended") == 1
        assert hf.sweep().requeued == 10


@pytest.mark.promise("OVERDUE-5", "LIFE-1")
def test_a_process_that_lives_runs_again_what_a_sweep_ended(
    shop: MongoPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped for a while in the transaction: its ack of what is overdue has lost, and what
    else it was doing is done."""
    hf = victim.connect(shop.url)
    orders = hf.queue("orders", ack_timeout=1, max_attempts=50)
    orders.enqueue_many(range(2))
    late, fresh = orders.lease(2)
    orders.extend(fresh, 60)
    swept, commit = list[int](), hf.store._db._commit
    wait_until(lambda: time(hf) > late.deadline)

    def slow(session: Any, until: float) -> None:
        if not swept:
            with victim.connect(shop.url) as other:
                wait_until(lambda: swept.append(other.sweep().requeued) or swept[-1] == 1)
        commit(session, until)

    monkeypatch.setattr(hf.store._db, "_commit", slow)
    assert orders.settle([late, fresh]) == [Settled.STALE, Settled.APPLIED]
    assert (orders.stats().ready, orders.stats().done) == (1, 1)
    hf.close()


@pytest.mark.promise("LIFE-8")
def test_a_process_killed_while_it_opens_a_slot_keeps_nobody_from_it(
    place: MongoPlace, hf: Holdfast
) -> None:
    with victim.connect(place.url) as other:
        other.queue("orders").enqueue_many(range(10))
    with dead_transaction(place, "produce", 1):
        for _ in range(3):
            with holdfast.connect(place.url) as other:
                other.queue("orders").enqueue("x")
                assert len(other.queue("orders").lease()) == 1


@pytest.mark.promise("LIFE-8")
def test_a_purge_that_died_does_not_keep_others_from_what_comes_after(place: MongoPlace) -> None:
    with victim.connect(place.url) as hf:
        orders = hf.queue("orders")
        orders.enqueue_many(range(10))
        assert place.process("purge", "delete:messages after", "1").wait(60) == KILLED
        marked = place.get("counts").find_one({"do": {"$gt": ""}})
        assert marked is not None, "it was to die before it had counted"
        orders.enqueue("after")
        (lease,) = orders.lease()
        assert lease.message.payload == "after"
        orders.ack(lease)
        still = place.get("counts").find_one({"_id": marked["_id"]})
        assert still == marked, "somebody had to put that right first"
        place.check_whole(hf, {lease.message.id})


@pytest.mark.promise("LIFE-12")
@pytest.mark.parametrize("point", ["update:messages after", "update:messages before"])
def test_a_lease_that_died_between_mark_and_count_is_put_right(
    place: MongoPlace, hf: Holdfast, point: str
) -> None:
    orders = hf.queue("orders")
    accepted = {message.id for message in orders.enqueue_many(range(30))}
    assert place.process("promote", point, "1").wait(60) == KILLED
    place.wait_until_victims_are_gone()
    marked = list(place.get("counts").find({"do": {"$gt": ""}}))
    assert len(marked) == 1
    hf.store.tidy(marked[0]["ds"] + 9_000, log_before=None)  # it may live
    assert place.get("counts").count_documents({"do": {"$gt": ""}}) == 1
    hf.store.tidy(marked[0]["ds"] + STALE_MS, log_before=None)
    leased = 10 if point.endswith("after") else 0
    stats = orders.stats()
    assert (stats.ready, stats.leased) == (30 - leased, leased)
    place.check_whole(hf, accepted)


@pytest.mark.promise("LIFE-12")
def test_counts_are_put_right_while_others_work(place: MongoPlace, hf: Holdfast) -> None:
    """Somebody is always at it: the repair finds a moment between."""
    orders = hf.queue("orders")
    orders.enqueue_many(range(2000))
    assert place.process("promote", "update:messages after", "1").wait(60) == KILLED
    place.wait_until_victims_are_gone()
    (mark,) = place.get("counts").find({"do": {"$gt": ""}})
    known = {"_id": mark["_id"], "do": mark["do"]}
    place.get("counts").update_one(known, {"$set": {"ds": mark["ds"] - STALE_MS}})
    enough = threading.Event()

    def busy() -> None:
        while not enough.is_set():
            orders.settle([(lease, Retry("x", delay=0)) for lease in orders.lease(1)])

    def is_put_right() -> bool:
        hf.store.tidy(hf.context.clock.now(), log_before=None)
        return place.get("counts").count_documents(known) == 0

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(is_put_right, timeout=30)
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    place.check_counts(hf, place.look())


@pytest.mark.promise("LIFE-12", "TX-1")
def test_a_gate_that_nobody_used_for_long_stays(place: MongoPlace, hf: Holdfast) -> None:
    """What is counted in the caller's transaction is counted there, an hour later as well."""
    orders, gates = hf.queue("orders"), {"_id": {"$regex": "^1/gate/"}}
    before = place.get("counts").count_documents(gates)
    for hours in range(1, 4):
        for n in range(10):
            with place.client.start_session() as session, session.start_transaction():
                orders.enqueue(n, within=session)
        hf.store.tidy(hf.context.clock.now() + hours * 3_600_000, log_before=None)
        assert place.get("counts").count_documents(gates) == before
        assert orders.stats().ready == hours * 10


@pytest.mark.promise("LIFE-12")
def test_who_lives_leaves_no_mark(place: MongoPlace, hf: Holdfast) -> None:
    orders = hf.queue("orders")
    orders.enqueue_many([Outgoing(n, delay=0.001 * (n % 2)) for n in range(10)])
    wait_until(lambda: orders.stats().delayed == 0)
    orders.settle(orders.lease(8))
    assert orders.purge() == 2
    place.check_counts(hf, place.look())


@pytest.mark.promise("LIFE-1")
def test_one_that_goes_back_has_no_batch(place: MongoPlace, hf: Holdfast) -> None:
    orders = hf.queue("orders")
    accepted = {message.id for message in orders.enqueue_many(range(6))}
    orders.settle([(lease, Retry("x")) for lease in orders.lease(3, batch="b")])
    orders.settle([(lease, Fail("x")) for lease in orders.lease(3, batch="b")])
    place.check_whole(hf, accepted)


@pytest.mark.promise("LIFE-7")
def test_only_what_is_due_is_made_ready(place: MongoPlace, clock: ManualClock) -> None:
    with holdfast.connect(place.url, clock=clock) as hf:
        orders = hf.queue("orders")
        orders.enqueue_many([Outgoing(n, delay=n) for n in (5, 6, 60)])
        clock.advance(6)
        assert [lease.message.payload for lease in orders.lease(10)] == [5, 6]
        assert orders.stats().delayed == 1


@pytest.mark.promise("DEAD-1")
def test_nothing_is_put_into_a_queue_that_another_deleted(place: MongoPlace, hf: Holdfast) -> None:
    """Though whoever does has just used it, and remembers it."""
    with holdfast.connect(place.url) as other:
        theirs = other.queue("orders")
        theirs.enqueue(1)
        (lease,) = theirs.lease()
        hf.queue("orders").delete(force=True)
        with pytest.raises(holdfast.QueueNotFound):
            theirs.enqueue(2)
        with pytest.raises(holdfast.QueueNotFound):
            theirs.lease()
        with pytest.raises(holdfast.QueueNotFound):
            theirs.ack(lease)
    assert [place.get(kind).count_documents({}) for kind in ("messages", "log")] == [0, 0]


# Everything at once


STORM = pytest.mark.promise("HANDLER-7", "HANDLER-6", "LIFE-1", "LIFE-4")


@STORM
def test_server_and_workers_killed_under_load(place: MongoPlace) -> None:
    storm.storm(place, messages=2000, workers=2, worker_kills=2, server_kills=1)


@STORM
@pytest.mark.extended
def test_a_primary_that_steps_down_under_load(place: MongoPlace) -> None:
    place.start = lambda: elected(place)  # type: ignore[method-assign]
    storm.storm(
        place,
        messages=2000,
        workers=1,
        server_kills=2,
        take_down=lambda: stepped_down(place, None) and None,
    )


@pytest.mark.soak
@STORM
def test_twenty_thousand_while_server_and_workers_are_killed(place: MongoPlace) -> None:
    figures = storm.storm(place, messages=20_000, workers=4, worker_kill_every=1.0, server_kills=3)
    print(figures)  # with -s, for those who want to know
    assert figures.worker_kills >= 3


# Who waits hears again


@pytest.fixture
def only_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: what arrives was told."""
    monkeypatch.setattr(wake, "LOOK_S", 600.0)
    monkeypatch.setattr(wake, "BLIND_LOOK_S", 600.0)
    monkeypatch.setattr(wake, "IDLE_S", 600.0)
    monkeypatch.setattr(queue_module, "WAIT_STEP_S", 600.0)


@pytest.mark.promise("LIFE-9")
@pytest.mark.parametrize("lost", ["connection", *more("server", "primary")])
def test_a_waiting_consumer_is_told_after_its_connection_was_lost(
    place: MongoPlace, proxy: Proxy, hf: Holdfast, only_notices: None, lost: str
) -> None:
    with holdfast.connect(place.url_at(proxy.port)) as cut, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(insistent, lambda: cut.queue("orders").lease(wait=60))
        wait_until(lambda: cut.store._wake._hearing, timeout=30)
        if lost == "server":
            place.kill()
            place.start()
        elif lost == "primary":
            stepped_down(place, proxy)()
        else:
            proxy.cut()
        wait_until(lambda: cut.store._wake._hearing, timeout=30)
        assert not waiting.done()
        sent = insistent(lambda: hf.queue("orders").enqueue("news"))
        assert sent.id in [lease.message.id for lease in waiting.result(60)]


# Many at once


@pytest.mark.promise("LIFE-8")
@pytest.mark.parametrize("again", [False, *more(True)], ids=["fresh", "again"])
def test_twenty_consumers_share_two_thousand_messages(
    place: MongoPlace, hf: Holdfast, again: bool
) -> None:
    orders = hf.queue("orders", max_attempts=5)
    accepted = {message.id for message in orders.enqueue_many(range(2000))}
    if again:
        for leases in [orders.lease(1000), orders.lease(1000)]:
            orders.settle([(lease, Retry("x", delay=0)) for lease in leases])

    def consume() -> list[str]:
        taken: list[str] = []
        while leases := orders.lease(7):
            taken += [lease.message.id for lease in leases]
        return taken

    taken = list(chain(*at_once(*[consume] * 20)))
    assert len(taken) == 2000 and set(taken) == accepted
    place.check_whole(hf, accepted)


@pytest.mark.promise("FENCE-2")
@pytest.mark.parametrize("leased", [False, True], ids=["ready", "leased again"])
def test_an_ack_after_another_process_gave_the_message_back(
    place: MongoPlace, hf: Holdfast, leased: bool
) -> None:
    """Whoever leased it may ack without a look, if it is still so."""
    orders = hf.queue("orders")
    accepted = {message.id for message in orders.enqueue_many(range(4))}
    leases = orders.lease(4)
    with holdfast.connect(place.url) as other:
        theirs = other.queue("orders")
        theirs.settle([(lease, Retry("x", delay=0)) for lease in leases[:2]])
        again = theirs.lease(2) if leased else []
        assert orders.settle(leases) == [Settled.STALE] * 2 + [Settled.APPLIED] * 2
        place.check_whole(hf, accepted)
        assert theirs.settle(again) == [Settled.APPLIED] * len(again)
    assert orders.stats().done == 2 + len(again)


@pytest.mark.promise("LIFE-1")
@pytest.mark.parametrize("outcomes", [(None, None), (None, Retry("x", delay=60))], ids=str)
def test_batches_settled_in_opposite_order(
    place: MongoPlace, hf: Holdfast, outcomes: tuple[Any, Any]
) -> None:
    orders = hf.queue("orders", max_attempts=50)
    for _ in range(20):
        orders.enqueue_many(range(60))
        leases = orders.lease(60)
        first, second = [
            [lease if outcome is None else (lease, outcome) for lease in part]
            for outcome, part in zip(outcomes, (leases[:40], leases[:19:-1]), strict=True)
        ]
        said = at_once(lambda one=first: orders.settle(one), lambda two=second: orders.settle(two))
        answers = [*said[0][:20], *said[1][:20]]
        assert answers == [Settled.APPLIED] * 40
        for mine, theirs in zip(said[0][20:], reversed(said[1][20:]), strict=True):
            assert [mine, theirs].count(Settled.APPLIED) == 1
    place.check_counts(hf, place.look())
