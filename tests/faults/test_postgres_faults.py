"""A real PostgreSQL that is killed, stopped, half open or fought over, and processes that die."""

from __future__ import annotations

import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

import holdfast
from holdfast import Done, Holdfast, Outgoing, Retry, Settled, StoreUnavailable
from holdfast.queue import queue as queue_module
from holdfast.stores.postgres import wake
from holdfast.testing import wait_until
from servers.postgres import Missing, PostgresServer, drop_schema, running
from tests.plugins.sampling import more

sys.path.insert(0, str(Path(__file__).parent))
import storm
import victim
from proxy import Proxy
from storm import (
    SWEEP,
    GoAway,
    at_once,
    check_worker_goes_on,
    end,
    forked,
    half_open,
    insistent,
    killed,
    stopped,
)

DURABLE = {"fsync": "off", "full_page_writes": "off"}
"""What is committed outlives a killed server: the machine itself stays up."""


class Place(storm.Place):
    server: PostgresServer

    def __init__(self, server: PostgresServer, ledger: Path) -> None:
        super().__init__(server, ledger)
        self.schema = f"test_{uuid.uuid4().hex[:12]}"
        self.url = self.url_at(server.port)

    def url_at(self, port: int, **options: Any) -> str:
        said = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={self.schema}{said}"

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # a child that saw its parent die, and ended by itself
            self.server.kill()

    def start(self) -> None:
        """Children of the killed one may hold on to its memory for a moment."""

        def started() -> bool:
            try:
                self.server.start()
            except Missing as error:
                if "shared memory block" not in str(error):
                    raise
                return False
            return True

        wait_until(started, timeout=60)

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url) as db:
            return db.execute(statement.replace("holdfast.", f"{self.schema}.")).fetchall()

    def listeners(self) -> set[int]:
        listen = f"""query = 'LISTEN "{self.schema}"'"""
        return {pid for (pid,) in self.select(f"SELECT pid FROM pg_stat_activity WHERE {listen}")}

    def check_finished(self, ids: Sequence[str]) -> int:
        with holdfast.connect(self.url) as hf:
            check_counts(self, hf)
            assert self.select("SELECT count(*) FROM holdfast.message") == [(0,)]
            log = [done.message.id for done in hf.queue("orders").log()]
            assert len(log) == len(ids) and set(log) == set(ids)
            logged = self.select("SELECT sum(logged) FROM holdfast.delta")
            assert logged == self.select("SELECT count(*) FROM holdfast.log") == [(len(ids),)]
            assert self.handled() == set(ids), "in the log, but not handled"
            return hf.queue("orders").stats().done


@pytest.fixture(params=["postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """Never the one that HOLDFAST_TEST_POSTGRES_URL names: this one is killed."""
    with running(settings=DURABLE) as server:
        yield server


@pytest.fixture
def place(
    own_server: PostgresServer, store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.setenv(*SWEEP)
    place = Place(own_server, tmp_path / "ledger")
    yield place
    place.close()
    try:
        drop_schema(own_server.url, place.schema)
    except psycopg.OperationalError:  # a test failed while it was down
        place.start()


@pytest.fixture
def hf(place: Place) -> Iterator[Holdfast]:
    with holdfast.connect(place.url, ack_timeout=60) as hf:
        hf.queue("orders")
        yield hf


def check_counts(place: Place, hf: Holdfast) -> None:
    """What hf.stats() says is what the tables hold."""
    found: Counter[tuple[str, str]] = Counter()
    states = {0: "waiting", 1: "waiting", 2: "leased"}
    for name, state, n in place.select(
        "SELECT name, state, count(*) FROM holdfast.message JOIN holdfast.queue USING (qid) "
        "GROUP BY name, state"
    ):
        found[name, states[state]] += n
    said: Counter[tuple[str, str]] = Counter()
    for stats in [*hf.stats(), hf.queue("orders.dlq").stats()]:
        said[stats.queue, "waiting"] = stats.ready + stats.delayed
        said[stats.queue, "leased"] = stats.leased
    assert +said == found
    dead = found["orders.dlq", "waiting"] + found["orders.dlq", "leased"]
    assert hf.queue("orders").stats().dead == dead


# The store goes away


@pytest.mark.promise("HANDLER-7", "LIFE-1")
@pytest.mark.parametrize("go_away", [killed, half_open, *more(stopped)])
def test_a_worker_goes_on_when_its_store_comes_back(
    place: Place, go_away: GoAway, caplog: pytest.LogCaptureFixture
) -> None:
    check_worker_goes_on(place, go_away, caplog)


@pytest.mark.parametrize("go_away", [killed, stopped])
def test_calls_after_a_restart_do_not_get_a_dead_connection(
    place: Place, hf: Holdfast, go_away: GoAway
) -> None:
    """The pool's connections all lay idle meanwhile, so nobody needs to be told."""
    orders = hf.queue("orders")
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(hf.store._db.use())
    come_back = go_away(place, cast(Proxy, None))
    come_back()
    for n in range(10):
        orders.enqueue(n)
    assert orders.stats().ready == 10


def test_a_server_that_falls_silent_after_the_login_is_not_waited_for(place: Place) -> None:
    """The connection is open, its settings are not made: the first call must end as any other."""
    with ExitStack() as stack:
        proxy = Proxy(place.server.port)
        stack.callback(proxy.close)
        connecting = threading.Thread(
            target=lambda: ended.append(_attempt(place.url_at(proxy.port, timeout=1)))
        )
        ended: list[Exception | None] = []
        proxy.stall_when(SETTING)
        connecting.start()
        connecting.join(30)
        hung = connecting.is_alive()
        proxy.cut()
        connecting.join()
        assert not hung, "no limit on how long a connection is prepared"
        assert isinstance(ended[0], StoreUnavailable)


SETTING = b"SET enable_seqscan"


def _attempt(url: str) -> Exception | None:
    try:
        holdfast.connect(url).close()
    except Exception as error:
        return error
    return None


# Everything at once


STORM = pytest.mark.promise("HANDLER-7", "HANDLER-6", "LIFE-1", "LIFE-4")


@STORM
def test_server_and_workers_killed_under_load(place: Place) -> None:
    storm.storm(place, messages=2000, workers=2, worker_kills=2, server_kills=1)


@pytest.mark.soak
@STORM
def test_twenty_thousand_while_server_and_workers_are_killed(place: Place) -> None:
    storm.storm(place, messages=20_000, workers=4, worker_kills=30, server_kills=3)


# Who waits hears again


@pytest.fixture
def only_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: what arrives was told."""
    monkeypatch.setattr(wake, "LOOK_S", 600.0)
    monkeypatch.setattr(wake, "BLIND_LOOK_S", 600.0)
    monkeypatch.setattr(queue_module, "WAIT_STEP_S", 600.0)


@pytest.mark.promise("LIFE-9")
@pytest.mark.parametrize("lost", ["server", "listening connection"])
def test_a_waiting_consumer_is_told_after_its_connection_was_lost(
    place: Place, hf: Holdfast, only_notices: None, lost: str
) -> None:
    with holdfast.connect(place.url) as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(insistent, lambda: hf.queue("orders").lease(wait=30))
        wait_until(lambda: len(place.listeners()) == 1)
        (before,) = place.listeners()
        if lost == "server":
            place.kill()
            place.start()
        else:
            place.select(f"SELECT pg_terminate_backend({before})")
        wait_until(lambda: len(place.listeners() - {before}) == 1, timeout=30)
        assert not waiting.done()
        sent = insistent(lambda: other.queue("orders").enqueue("news", id=uuid.uuid4()))
        assert [lease.message.id for lease in waiting.result(60)] == [sent.id]


# Many at once


OUTCOMES: dict[str, tuple[Any, Any]] = {
    "acks": (None, None),
    "acks with results": (Done(1), Done(1)),
    "nacks": (Retry("x", delay=0), Retry("x", delay=0)),
    "acks against nacks": (None, Retry("x", delay=60)),
}


@pytest.mark.promise("LIFE-1")
@pytest.mark.parametrize("outcomes", OUTCOMES)
def test_batches_settled_in_opposite_order(place: Place, hf: Holdfast, outcomes: str) -> None:
    orders = hf.queue("orders", max_attempts=50)
    first, second = OUTCOMES[outcomes]
    applied = 0
    for _ in range(50):
        orders.enqueue_many(range(60))
        leases = orders.lease(60)
        one = [lease if first is None else (lease, first) for lease in leases[:40]]
        two = [lease if second is None else (lease, second) for lease in reversed(leases[20:])]
        said = at_once(lambda one=one: orders.settle(one), lambda two=two: orders.settle(two))
        mine = dict(zip([lease.message.id for lease in leases[:40]], said[0], strict=True))
        theirs = dict(
            zip([lease.message.id for lease in reversed(leases[20:])], said[1], strict=True)
        )
        for lease in leases:
            id = lease.message.id
            answers = [answer[id] for answer in (mine, theirs) if id in answer]
            assert answers.count(Settled.APPLIED) == 1, answers
        applied += len(leases)
        if second is not None and outcomes == "nacks":
            assert orders.purge() == 60
    check_counts(place, hf)
    stats = orders.stats()
    if outcomes == "nacks":
        assert (stats.ready, stats.leased, stats.done) == (0, 0, 0)
    else:
        assert stats.done + stats.delayed == applied == 50 * 60


@pytest.mark.promise("LIFE-3", "LIFE-4")
@pytest.mark.parametrize("size", [60, 600], ids=["small", "large"])
@pytest.mark.parametrize("timeout", [10, 1], ids=["patient", "impatient"])
def test_the_same_ids_enqueued_in_opposite_order(place: Place, timeout: int, size: int) -> None:
    """With a time-out of 1 s a lock is given up before the server looks for a deadlock."""
    with holdfast.connect(place.url_at(place.server.port, timeout=timeout)) as hf:
        orders = hf.queue("orders")
        for _ in range(50):
            items = [Outgoing(n, id=uuid.uuid4()) for n in range(size)]
            one, two = items[: size * 2 // 3], items[: size // 3 - 1 : -1]
            said = at_once(
                lambda one=one: orders.enqueue_many(one), lambda two=two: orders.enqueue_many(two)
            )
            fresh = Counter(message.id for message in chain(*said) if not message.duplicate)
            assert fresh == Counter(str(item.id) for item in items)
            assert len(orders.lease(size + 1)) == size
        check_counts(place, hf)
    held = place.select("SELECT count(*), count(DISTINCT id) FROM holdfast.message")
    assert held == [(50 * size, 50 * size)]


@pytest.fixture
def fifty(place: Place) -> Iterator[list[Holdfast]]:
    """One for each of 50 consumers: five processes' worth of connections, ten threads on each."""
    with ExitStack() as stack:
        url = place.url_at(place.server.port, pool_size=20)
        five = [stack.enter_context(holdfast.connect(url, ack_timeout=600)) for _ in range(5)]
        five[0].queue("orders")
        yield five * 10


@pytest.mark.promise("LIFE-8")
def test_fifty_consumers_share_five_thousand_messages(place: Place, fifty: list[Holdfast]) -> None:
    accepted = {message.id for message in fifty[0].queue("orders").enqueue_many(range(5000))}

    def consume(hf: Holdfast) -> list[str]:
        orders, taken = hf.queue("orders"), []
        while leases := orders.lease(7):
            taken += [lease.message.id for lease in leases]
        return taken

    taken = list(chain(*at_once(*[lambda hf=hf: consume(hf) for hf in fifty])))
    assert len(taken) == 5000 and set(taken) == accepted
    assert fifty[0].queue("orders").stats().leased == 5000
    check_counts(place, fifty[0])


@pytest.mark.promise("LIFE-8", "LIFE-9")
def test_fifty_waiting_consumers_get_one_message_each(
    place: Place, fifty: list[Holdfast], hf: Holdfast
) -> None:
    def consume(each: Holdfast) -> list[str]:
        return [lease.message.id for lease in each.queue("orders").lease(wait=30)]

    with ThreadPoolExecutor(50) as pool:
        waiting = [pool.submit(consume, each) for each in fifty]
        wait_until(lambda: len(place.listeners()) == 5, timeout=30)
        sent = [hf.queue("orders").enqueue(n).id for n in range(50)]
        got = [future.result() for future in waiting]
    assert all(len(ids) == 1 for ids in got)
    assert sorted(chain(*got)) == sorted(sent)


@contextmanager
def locked(place: Place, which: str) -> Iterator[None]:
    """An open transaction of somebody else holds these rows."""
    with psycopg.connect(place.server.url) as db:
        statement = f"SELECT seq FROM {place.schema}.message WHERE {which} FOR UPDATE"
        assert len(db.execute(statement.encode()).fetchall()) == 10
        yield


@pytest.mark.promise("LIFE-8")
@pytest.mark.parametrize("due", [False, True], ids=["ready", "delayed and due"])
def test_nobody_waits_for_rows_that_another_has_locked(place: Place, due: bool) -> None:
    with holdfast.connect(place.url_at(place.server.port, timeout=1)) as hf:
        orders = hf.queue("orders")
        first = [Outgoing(n, delay=0.001 if due else None) for n in range(10)]
        state = 1 if due else 0
        orders.enqueue_many(first)
        with locked(place, f"state = {state}"):
            orders.enqueue_many(range(10, 20))
            if due:
                wait_until(lambda: orders.stats().delayed == 0)
            leases = orders.lease(5)
            assert [lease.message.payload for lease in leases] == [10, 11, 12, 13, 14]
            assert orders.settle(leases) == [Settled.APPLIED] * 5
            assert orders.stats().ready == 15
        assert [lease.message.payload for lease in orders.lease(10)] == list(range(10))


@pytest.mark.promise("LIFE-8")
def test_nobody_goes_empty_handed_while_another_makes_messages_due(
    place: Place, fifty: list[Holdfast]
) -> None:
    """There is plenty for everybody: a consumer that is told "nothing" would stop too early."""
    for _ in range(10):
        many = [Outgoing(n, delay=0.001 if n % 2 else None) for n in range(1000)]
        fifty[0].queue("orders").enqueue_many(many)
        wait_until(lambda: fifty[0].queue("orders").stats().delayed == 0)
        queues = [hf.queue("orders") for hf in fifty[:10]]
        taken = at_once(*[lambda orders=orders: orders.lease(10) for orders in queues])
        assert [len(leases) for leases in taken] == [10] * 10
        fifty[0].queue("orders").purge()


# Producers


@pytest.mark.promise("LIFE-3", "LIFE-2")
@pytest.mark.parametrize("whom", ["producer", "server"])
def test_a_batch_is_stored_whole_or_not_at_all(place: Place, whom: str) -> None:
    victim.connect(place.url).close()
    for _ in range(3):
        with holdfast.connect(place.url) as hf, ExitStack() as stack:
            orders = hf.queue("orders")
            enough = orders.stats().ready + 10 * sum(victim.SIZES)
            for _ in range(3):
                stack.callback(end, place.process("flood"))
            wait_until(lambda o=orders, n=enough: o.stats().ready > n, timeout=30)
            if whom == "server":
                place.kill()
                place.start()
    # What a killed one had sent may still be on its way.
    wait_until(lambda: not place.select(OTHERS_AT_WORK))
    with holdfast.connect(place.url) as hf:
        stored = Counter(entry.message.payload for entry in hf.queue("orders").browse())
        check_counts(place, hf)
    assert stored == {batch: int(batch.split("-")[2]) for batch in stored}
    acknowledged = set(place.ledger.read_text().split())
    assert acknowledged <= set(stored)
    assert len(set(stored) - acknowledged) <= 9  # the last batch of each


OTHERS_AT_WORK = """
SELECT pid FROM pg_stat_activity
WHERE backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()
"""


# A process that forks


@pytest.mark.promise("LIFE-2")
def test_parent_and_forked_child_share_a_store(place: Place, hf: Holdfast) -> None:
    forked(place, "enqueue")
    stored = [entry.message.payload for entry in hf.queue("orders").browse()]
    assert stored == ["before", "child", "parent"]


@pytest.mark.promise("LIFE-9")
def test_a_forked_child_that_closes_leaves_its_parent_connected(place: Place, hf: Holdfast) -> None:
    forked(place, "close")


@pytest.mark.promise("LIFE-9")
def test_a_forked_child_that_waits_is_told(place: Place, hf: Holdfast) -> None:
    forked(place, "wait")
