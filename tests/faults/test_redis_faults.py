"""A real Redis that is killed, stopped, half open or cut off, and processes that die."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest

import holdfast
from holdfast import Fail, Holdfast, Lease, Outgoing, Retry, Settled, StoreUnavailable
from holdfast.queue import queue as queue_module
from holdfast.rules.outcome import Done
from holdfast.stores.redis import scripts, waiting
from holdfast.testing import ManualClock, wait_until
from servers.redis import ALWAYS, RedisServer, drop_prefix, running
from tests.plugins.sampling import more
from tests.soon import soon

sys.path.insert(0, str(Path(__file__).parent))
import storm
import victim
from proxy import Proxy
from redis_place import RedisPlace
from storm import (
    KILLED,
    SWEEP,
    GoAway,
    at_once,
    check_worker_goes_on,
    forked,
    half_open,
    insistent,
    killed,
    stopped,
)

PATIENT_S = 100
"""A time-out of the URL that lets a consumer wait for a notice as long as a test may take."""


@pytest.fixture(params=["redis"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """Never the one that HOLDFAST_TEST_REDIS_URL names: this one is killed."""
    with running(settings=ALWAYS) as server:
        yield server


@pytest.fixture
def place(
    own_server: RedisServer, store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisPlace]:
    monkeypatch.setenv(*SWEEP)
    url = f"{own_server.url}?prefix=test-{secrets.token_hex(6)}"
    place = RedisPlace(url, tmp_path / "ledger", own_server)
    yield place
    place.close()
    if own_server._process.poll() is not None:  # a test failed while it was down
        own_server.start()
    drop_prefix(own_server.url, place.prefix)


@pytest.fixture
def hf(place: RedisPlace) -> Iterator[Holdfast]:
    with holdfast.connect(place.url, ack_timeout=60) as hf:
        hf.queue("orders")
        yield hf


@pytest.fixture
def proxy(own_server: RedisServer) -> Iterator[Proxy]:
    proxy = Proxy(own_server.port)
    yield proxy
    proxy.close()


# The store goes away


@pytest.mark.promise("HANDLER-7", "LIFE-1")
@pytest.mark.parametrize("go_away", [killed, *more(stopped, half_open)])
def test_a_worker_goes_on_when_its_store_comes_back(
    place: RedisPlace, go_away: GoAway, caplog: pytest.LogCaptureFixture
) -> None:
    check_worker_goes_on(place, go_away, caplog)


@pytest.mark.parametrize("go_away", [killed, stopped])
def test_calls_after_a_restart_do_not_get_a_dead_connection(
    place: RedisPlace, hf: Holdfast, proxy: Proxy, go_away: GoAway
) -> None:
    """All connections lay idle meanwhile, so nobody needs to be told."""
    orders, now = hf.queue("orders"), hf.context.clock.now()
    hf.store.wait(["orders"], now, 0.01)  # the notice of a new queue
    waits = [threading.Thread(target=hf.store.wait, args=(["orders"], now, 0.5)) for _ in range(5)]
    for thread in waits:
        thread.start()
    wait_until(lambda: place.blocked() == 5)
    for thread in waits:
        thread.join()
    go_away(place, proxy)()
    said = at_once(*[lambda n=n: orders.enqueue(n) for n in range(5)])
    assert orders.stats().ready == len(said) == 5


@pytest.mark.promise("LIFE-1", "LIFE-2")
def test_a_killed_server_comes_back_with_every_message_in_its_state(
    place: RedisPlace, hf: Holdfast
) -> None:
    """With every script that moves messages having run: none is in the file by half."""
    orders = hf.queue("orders")
    orders.enqueue_many([Outgoing(n, priority=n % 3, delay=60 * (n % 5 == 4)) for n in range(100)])
    leases = orders.lease(40)
    orders.settle(leases[:10])
    orders.settle([(lease, Retry("x", delay=n % 2 * 60)) for n, lease in enumerate(leases[10:20])])
    orders.settle([(lease, Fail("x")) for lease in leases[20:30]])
    again = orders.lease(5, batch="b")
    orders.dlq.lease(3)
    hf.redrive("orders.dlq", 4)
    before, counts = place.look(), hf.stats()
    place.kill()
    place.start()
    assert place.look() == before
    assert [(s.ready, s.delayed, s.leased, s.dead, s.done) for s in hf.stats()] == [
        (s.ready, s.delayed, s.leased, s.dead, s.done) for s in counts
    ]
    assert orders.settle(leases[:10]) == [Settled.ALREADY] * 10
    assert orders.settle([*leases[30:], *again]) == [Settled.APPLIED] * 15
    place.look()


# Cut in the middle of a call


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cut_off(place: RedisPlace, proxy: Proxy, clock: ManualClock) -> Iterator[Holdfast]:
    """Over a network that can lose what is said; the server knows every script."""
    url = place.url_at(proxy.port)
    with holdfast.connect(url, clock=clock, ack_timeout=60, max_attempts=5) as hf:
        for script in (scripts.ENQUEUE, scripts.LEASE, scripts.SETTLE, scripts.FINISH):
            hf.store._db.run("SCRIPT", "LOAD", script.text)
        hf.queue("orders")
        yield hf


LOST = pytest.mark.parametrize("answer", [False, True], ids=["request lost", "answer lost"])


@LOST
@pytest.mark.promise("LIFE-4", "LIFE-1")
def test_an_enqueue_that_broke_off_is_repeated(
    place: RedisPlace, cut_off: Holdfast, proxy: Proxy, answer: bool
) -> None:
    orders, items = cut_off.queue("orders"), victim.batch_of(100)
    proxy.lose(scripts.ENQUEUE.sha.encode(), answer=answer)
    with pytest.raises(StoreUnavailable):
        orders.enqueue_many(items)
    sent = orders.enqueue_many(items)
    assert [message.duplicate for message in sent] == [answer] * 100
    assert len({message.id for message in sent}) == 100
    place.check_whole(cut_off, {message.id for message in sent})


OUTCOMES = {
    "ack": Done(),
    "ack with result": Done({"a": 1}),
    "nack": Retry("x"),
    "nack at once": Retry("x", delay=0),
    "fail": Fail("x"),
}


@LOST
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.promise("LIFE-1", "RETRY-7")
def test_a_settlement_that_broke_off_is_repeated(
    place: RedisPlace, cut_off: Holdfast, proxy: Proxy, outcome: str, answer: bool
) -> None:
    orders = cut_off.queue("orders")
    accepted = {message.id for message in orders.enqueue_many(range(20))}
    moves = [(lease, OUTCOMES[outcome]) for lease in orders.lease(10)]
    script = scripts.FINISH if isinstance(OUTCOMES[outcome], Done) else scripts.SETTLE
    proxy.lose(script.sha.encode(), answer=answer)
    with pytest.raises(StoreUnavailable):
        orders.settle(moves)
    assert orders.settle(moves) == [Settled.ALREADY if answer else Settled.APPLIED] * 10
    place.check_whole(cut_off, accepted)
    assert orders.stats().leased == 0


@pytest.mark.promise("LIFE-1", "OVERDUE-1")
def test_a_lease_whose_answer_was_lost_comes_back_after_its_deadline(
    place: RedisPlace, cut_off: Holdfast, proxy: Proxy, clock: ManualClock
) -> None:
    orders = cut_off.queue("orders")
    accepted = {message.id for message in orders.enqueue_many(range(10))}
    proxy.lose(scripts.LEASE.sha.encode(), answer=True)
    with pytest.raises(StoreUnavailable):
        orders.lease(10)
    assert (orders.stats().leased, orders.lease(10)) == (10, [])
    clock.advance(59)
    assert cut_off.sweep().requeued == 0
    clock.advance(2)
    assert cut_off.sweep().requeued == 10
    place.check_whole(cut_off, accepted)
    clock.advance(3600)
    leases = orders.lease(20)
    assert {lease.message.id for lease in leases} == accepted
    assert {lease.message.attempts for lease in leases} == {2}


def test_a_lease_that_the_server_did_not_hear_has_taken_nothing(
    place: RedisPlace, cut_off: Holdfast, proxy: Proxy
) -> None:
    orders = cut_off.queue("orders")
    orders.enqueue_many(range(10))
    proxy.lose(scripts.LEASE.sha.encode(), answer=False)
    with pytest.raises(StoreUnavailable):
        orders.lease(10)
    assert [lease.message.payload for lease in orders.lease(10)] == list(range(10))


# Everything at once


STORM = pytest.mark.promise("HANDLER-7", "HANDLER-6", "LIFE-1", "LIFE-4")


@STORM
def test_server_and_workers_killed_under_load(place: RedisPlace) -> None:
    storm.storm(place, messages=2000, workers=2, worker_kills=2, server_kills=1)


@STORM
def test_a_server_restarted_under_load(place: RedisPlace) -> None:
    storm.storm(
        place,
        messages=2000,
        workers=1,
        server_kills=2,
        take_down=place.server.stop,
    )


@pytest.mark.soak
@STORM
def test_twenty_thousand_while_server_and_workers_are_killed(place: RedisPlace) -> None:
    figures = storm.storm(place, messages=20_000, workers=4, worker_kill_every=0.5, server_kills=3)
    print(figures)  # with -s, for those who want to know
    assert figures.worker_kills >= 3


# Producers


CHUNKS = [
    ("enqueue before", 1, 0),
    ("enqueue sent", 1, 250),
    ("enqueue before", 3, 500),
    ("enqueue sent", 3, 750),
    ("enqueue after", 4, 1000),
]


@pytest.mark.promise("LIFE-3", "LIFE-4")
@pytest.mark.parametrize(("point", "nth", "stored"), CHUNKS)
def test_a_large_batch_is_stored_in_whole_chunks_and_may_be_repeated(
    place: RedisPlace, hf: Holdfast, point: str, nth: int, stored: int
) -> None:
    items = victim.batch_of(1000)
    assert place.process("batch", point, str(nth)).wait(60) == KILLED
    place.check_whole(hf, {str(item.id) for item in items[:stored]})
    sent = hf.queue("orders").enqueue_many(items)
    assert [message.duplicate for message in sent] == [n < stored for n in range(1000)]
    place.check_whole(hf, {str(item.id) for item in items})
    assert [entry.message.payload for entry in hf.queue("orders").browse()] == list(range(1000))


# Many at once


def patient(place: RedisPlace) -> RedisPlace:
    place.url = place.url_at(place.server.port, timeout=PATIENT_S)
    return place


@pytest.fixture
def twenty(place: RedisPlace) -> Iterator[list[Holdfast]]:
    """Each with connections of its own."""
    with ExitStack() as stack:
        url = patient(place).url
        all = [stack.enter_context(holdfast.connect(url, ack_timeout=600)) for _ in range(20)]
        all[0].queue("orders")
        yield all


@pytest.mark.promise("LIFE-8")
def test_twenty_consumers_share_two_thousand_messages(
    place: RedisPlace, twenty: list[Holdfast]
) -> None:
    accepted = {message.id for message in twenty[0].queue("orders").enqueue_many(range(2000))}

    def consume(hf: Holdfast) -> list[str]:
        orders, taken = hf.queue("orders"), []
        while leases := orders.lease(7):
            taken += [lease.message.id for lease in leases]
        return taken

    taken = list(chain(*at_once(*[lambda hf=hf: consume(hf) for hf in twenty])))
    assert len(taken) == 2000 and set(taken) == accepted
    place.check_whole(twenty[0], accepted)


# Who waits is told


@pytest.fixture
def only_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: what arrives was told."""
    monkeypatch.setattr(waiting, "LOOK_S", 600.0)
    monkeypatch.setattr(queue_module, "WAIT_STEP_S", 600.0)


def wait_all(
    pool: ThreadPoolExecutor, place: RedisPlace, all: list[Holdfast], already: int = 0
) -> list[Future[list[Lease]]]:
    """All of them wait when this returns, and the notice of the new queue is used up."""
    waiting = [
        pool.submit(insistent, lambda hf=hf: hf.queue("orders").lease(wait=60)) for hf in all
    ]
    wait_until(lambda: place.blocked() == len(all) + already, timeout=30)
    return waiting


def got(waiting: list[Future[list[Lease]]], timeout: float = 20) -> list[str]:
    return [lease.message.id for each in waiting for lease in each.result(timeout)]


@pytest.mark.promise("LIFE-8", "LIFE-9")
def test_twenty_waiting_consumers_get_one_message_each(
    place: RedisPlace, twenty: list[Holdfast], hf: Holdfast, only_notices: None
) -> None:
    with ThreadPoolExecutor(20) as pool:
        waiting = wait_all(pool, place, twenty)
        sent = [hf.queue("orders").enqueue(n).id for n in range(20)]
        assert sorted(got(waiting)) == sorted(sent)
        assert [len(each.result()) for each in waiting] == [1] * 20


@pytest.mark.promise("LIFE-8", "LIFE-9")
def test_a_batch_reaches_every_waiting_consumer(
    place: RedisPlace, twenty: list[Holdfast], hf: Holdfast, only_notices: None
) -> None:
    """One notice: whoever takes it passes it on."""
    with ThreadPoolExecutor(20) as pool:
        waiting = wait_all(pool, place, twenty)
        sent = [message.id for message in hf.queue("orders").enqueue_many(range(20))]
        assert sorted(got(waiting)) == sorted(sent)


@pytest.mark.promise("LIFE-9")
def test_a_waiting_consumer_is_told_by_another_process(
    place: RedisPlace, twenty: list[Holdfast], only_notices: None
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = wait_all(pool, place, twenty[:1])
        assert place.process("produce").wait(30) == 0
        assert len(got(waiting)) == 1


@pytest.mark.promise("LIFE-9")
@pytest.mark.parametrize("lost", ["connection", "server"])
def test_a_waiting_consumer_is_told_after_its_connection_was_lost(
    place: RedisPlace, proxy: Proxy, hf: Holdfast, only_notices: None, lost: str
) -> None:
    url = place.url_at(proxy.port, timeout=PATIENT_S)
    with holdfast.connect(url) as cut, ThreadPoolExecutor(1) as pool:
        waiting = wait_all(pool, place, [cut])
        (before,) = waiters(place)
        if lost == "server":
            place.kill()
            place.start()
        else:
            proxy.cut()
        wait_until(lambda: waiters(place) - {before}, timeout=30)
        assert not waiting[0].done()
        sent = hf.queue("orders").enqueue("news")
        assert got(waiting) == [sent.id]


def waiters(place: RedisPlace) -> set[str]:
    return {client["addr"] for client in place.db.client_list() if client["cmd"] == "blpop"}


@pytest.mark.promise("LIFE-9")
def test_a_notice_that_a_killed_consumer_took_is_made_good_by_a_look(
    place: RedisPlace,
    twenty: list[Holdfast],
    hf: Holdfast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was the first in line of fifty-one, and told nobody."""
    monkeypatch.setattr("holdfast.queue.queue.WAIT_STEP_S", 600)  # the look must be the store's
    victim.connect(place.url).close()
    hf.store.wait(["orders"], hf.context.clock.now(), 0.01)  # the notice of a new queue
    first = place.process("wait", "blpop after", "1")
    wait_until(lambda: place.blocked() == 1)
    with ThreadPoolExecutor(50) as pool:
        waiting = wait_all(pool, place, (twenty * 3)[:50], already=1)
        sent = [hf.queue("orders").enqueue(0).id]
        assert first.wait(30) == KILLED
        wait_until(lambda: any(each.done() for each in waiting), timeout=30)
        sent += [hf.queue("orders").enqueue(n).id for n in range(1, 50)]
        assert sorted(got(waiting)) == sorted(sent)


@pytest.mark.promise("LIFE-9")
def test_a_wait_for_what_is_due_in_a_millisecond_ends(place: RedisPlace) -> None:
    """Redis before 7.0.8 takes a time-out of 0.001 s for none at all."""
    clock = ManualClock()
    with holdfast.connect(place.url, clock=clock) as hf:
        hf.queue("orders").enqueue(1, delay=0.001)
        hf.store.wait(["orders"], clock.now(), 5)  # the notice of the enqueue
        soon(lambda: hf.store.wait(["orders"], clock.now(), 600))


# A process that forks


@pytest.mark.promise("LIFE-2")
def test_parent_and_forked_child_share_a_store(place: RedisPlace, hf: Holdfast) -> None:
    forked(place, "enqueue")
    stored = [entry.message.payload for entry in hf.queue("orders").browse()]
    assert stored == ["before", "child", "parent"]


@pytest.mark.promise("LIFE-2")
def test_parent_and_forked_child_each_get_their_own_answers(
    place: RedisPlace, hf: Holdfast
) -> None:
    forked(patient(place), "mixed")
    stored = [entry.message.payload for entry in hf.queue("orders").browse()]
    assert sorted(stored) == sorted(f"{who} {n}" for who in ("child", "parent") for n in range(300))


@pytest.mark.promise("LIFE-9")
def test_a_forked_child_that_closes_leaves_its_parent_connected(
    place: RedisPlace, hf: Holdfast
) -> None:
    forked(patient(place), "close")


@pytest.mark.promise("LIFE-9")
def test_a_forked_child_that_waits_is_told(place: RedisPlace, hf: Holdfast) -> None:
    forked(patient(place), "wait")
