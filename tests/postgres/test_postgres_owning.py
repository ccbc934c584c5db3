"""Two at once: who takes a claim and who leases by it, who enqueues and who adds partitions."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import Holdfast, Outgoing
from holdfast.model.moves import State
from holdfast.model.queues import partition_claim
from holdfast.rules.lifecycle import partition_of
from holdfast.stores.contract import ByPartition, Claim, LeaseAsk, View
from holdfast.stores.kit import specs
from holdfast.stores.postgres import PostgresStore, leasing, queues, statements
from holdfast.telemetry.observe import unobserved
from holdfast.testing import ManualClock, wait_until

TTL = 15_000


@pytest.fixture(params=["postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(postgres_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(postgres_url, clock=clock) as hf:
        yield hf


@pytest.fixture
def another(postgres_url: str, clock: ManualClock) -> Iterator[Callable[[], Holdfast]]:
    opened: list[Holdfast] = []

    def connect() -> Holdfast:
        opened.append(holdfast.connect(postgres_url, clock=clock))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


@pytest.fixture
def beside(postgres_server: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction of somebody else."""
    with psycopg.connect(postgres_server) as db:
        yield db
        db.rollback()


class Meanwhile:
    """A call in a thread, which has to wait for something."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.answer: Any = None
        self._thread = threading.Thread(target=lambda: self._run(call), daemon=True)
        self._thread.start()
        self._thread.join(0.3)
        assert self._thread.is_alive(), "it did not wait"

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.answer = call()
        except Exception as error:
            self.answer = error

    def end(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.answer


def claim(hf: Holdfast, part: int, owner: str, now: int) -> Claim | None:
    return hf.store.claim(partition_claim("orders", part), owner, TTL, now)


def ask(owner: str, part: int, epoch: int, limit: int = 10) -> LeaseAsk:
    token = secrets.token_hex(8)
    return LeaseAsk("orders", limit, owner, token, 30_000, (part,), epochs=(epoch,))


def leased(hf: Holdfast, now: int) -> set[str]:
    page = hf.store.browse(View("orders", State.LEASED), None, 1000, now)
    return {entry.message.id for entry in page.entries}


def filled(hf: Holdfast, partitions: int, n: int = 6) -> list[str]:
    """The ids of partition 0, in order."""
    queue = hf.queue("orders", partitions=partitions, ordered=True)
    key = next(k for i in range(1000) if partition_of(k := f"k{i}", "", partitions) == 0)
    return [message.id for message in queue.enqueue_many(Outgoing(i, key=key) for i in range(n))]


@pytest.mark.promise("PART-3")
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_claim_waits_for_a_lease_under_way_and_then_sees_it(
    hf: Holdfast,
    beside: psycopg.Connection[Any],
    clock: ManualClock,
    partitions: int,
    store_name: str,
) -> None:
    ids, now = filled(hf, partitions), clock.now()
    claim(hf, 0, "a", now)
    statement = leasing.LEASES[True, partitions > 1]
    bind = leasing.lease_bind(ask("a", 0, 1, limit=2), now, partitions > 1)
    assert len(beside.execute(hf.store._sql(statement), bind).fetchall()) == 2
    taking = Meanwhile(lambda: claim(hf, 0, "b", now + TTL))
    beside.commit()
    taken = taking.end()
    assert (taken.owner, taken.epoch) == ("b", 2)
    assert leased(hf, now) == set(ids[:2])


@pytest.mark.promise("PART-3")
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("owner", ["a", "b"])
def test_a_lease_waits_for_a_claim_under_way(
    hf: Holdfast,
    beside: psycopg.Connection[Any],
    clock: ManualClock,
    owner: str,
    partitions: int,
    store_name: str,
) -> None:
    """Taken over: it gives nothing. Renewed: it gives."""
    ids, now = filled(hf, partitions), clock.now()
    claim(hf, 0, "a", now)
    at = now + TTL if owner == "b" else now + 1
    bind = {"name": partition_claim("orders", 0), "owner": owner, "ttl": TTL, "now": at}
    beside.execute(hf.store._sql(statements.CLAIM), bind)
    leasing = Meanwhile(lambda: hf.store.lease(ask("a", 0, 1), now))
    beside.commit()
    got = [lease.id for lease in leasing.end()]
    assert got == ([] if owner == "b" else ids)
    assert leased(hf, now) == set(got)


@pytest.mark.promise("PART-3")
def test_after_a_take_over_no_lease_of_the_owner_before_appears(
    hf: Holdfast, another: Callable[[], Holdfast], clock: ManualClock, store_name: str
) -> None:
    filled(hf, 3, n=600)
    old, new, now = another(), another(), clock.now()
    epoch, stop, given = [1], threading.Event(), list[str]()
    claim(old, 0, "a", now)

    def lease() -> None:
        while not stop.is_set():
            given.extend(lease.id for lease in old.store.lease(ask("a", 0, epoch[0], 1), now))

    threads = [threading.Thread(target=lease) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(1, 40):
            wait_until(lambda: given)
            taken = claim(new, 0, "b", now + turn * 2 * TTL)
            assert taken is not None
            seen = leased(new, now)
            assert not stop.wait(0.02)
            assert leased(new, now) == seen
            wait_until(lambda seen=seen: len(given) == len(seen))
            given.clear()
            new.queue("orders").settle(
                [
                    entry.lease
                    for entry in new.store.browse(
                        View("orders", State.LEASED), None, 1000, now
                    ).entries
                    if entry.lease
                ]
            )
            again = claim(old, 0, "a", now + (turn * 2 + 1) * TTL)
            assert again is not None
            epoch[0] = again.epoch
            if new.queue("orders").stats().ready < 50:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.promise("PART-6")
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("written", [False, True])
def test_what_is_locked_is_waited_for_and_not_passed_over(
    hf: Holdfast,
    beside: psycopg.Connection[Any],
    clock: ManualClock,
    written: bool,
    partitions: int,
    store_name: str,
) -> None:
    ids, now = filled(hf, partitions), clock.now()
    claim(hf, 0, "a", now)
    held = "UPDATE holdfast.message SET attempts = attempts WHERE id = %s"
    beside.execute(hf.store._sql(held), (ids[0],))
    leasing = Meanwhile(lambda: hf.store.lease(ask("a", 0, 1, limit=3), now))
    if written:
        beside.commit()
    else:
        beside.rollback()
    assert [lease.id for lease in leasing.end()] == ids[:3]
    assert hf.store.stats(ByPartition("orders"), now)[0].leased == 3


@pytest.mark.promise("PART-6")
def test_what_is_due_and_locked_is_waited_for(
    hf: Holdfast, beside: psycopg.Connection[Any], clock: ManualClock, store_name: str
) -> None:
    queue = hf.queue("orders", ordered=True)
    first = queue.enqueue("later", delay=5).id
    second = queue.enqueue("now").id
    clock.advance(5)
    claim(hf, 0, "a", clock.now())
    beside.execute(
        hf.store._sql("SELECT 1 FROM holdfast.message WHERE id = %s FOR UPDATE"), (first,)
    )
    leasing = Meanwhile(lambda: hf.store.lease(ask("a", 0, 1), clock.now()))
    beside.commit()
    assert [lease.id for lease in leasing.end()] == [first, second]


# A second partition


@pytest.mark.promise("PART-7")
def test_a_queue_that_grows_waits_for_who_is_enqueueing(
    hf: Holdfast,
    another: Callable[[], Holdfast],
    beside: psycopg.Connection[Any],
    store_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(specs, "SPEC_S", 3600.0)
    other = another()
    queue = hf.queue("orders")
    before = queue.enqueue("before").id
    inside = queue.enqueue("inside", within=beside).id
    growing = Meanwhile(lambda: other.queue("orders", partitions=4))
    beside.commit()
    assert not isinstance(growing.end(), Exception)
    after = queue.enqueue("after").id  # with settings that are remembered
    assert [lease.id for lease in other.queue("orders").lease(10, partitions=[0])] == [
        before,
        inside,
        after,
    ]


@pytest.mark.promise("PART-7")
@pytest.mark.parametrize("fenced", [False, True])
def test_who_remembers_one_partition_is_given_no_other(
    hf: Holdfast,
    another: Callable[[], Holdfast],
    clock: ManualClock,
    fenced: bool,
    store_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(specs, "SPEC_S", 3600.0)
    old, other = hf.queue("orders"), another()
    claim(hf, 0, "a", clock.now())
    epochs = (1,) if fenced else None
    assert hf.store.lease(_of(0, epochs), clock.now()) == []
    assert old.spec.partitions == 1
    other.queue("orders", partitions=4)
    sent = other.queue("orders").enqueue_many(range(20))
    assert all(message.partition for message in sent)
    late = old.enqueue("late").id
    assert [lease.id for lease in hf.store.lease(_of(0, epochs), clock.now())] == [late]
    claim(hf, 3, "a", clock.now())
    third = {message.id for message in sent if message.partition == 3}
    assert {lease.id for lease in hf.store.lease(_of(3, epochs), clock.now())} == third


@pytest.mark.promise("PART-7")
def test_who_has_seen_the_depths_of_new_partitions_has_their_settings(
    hf: Holdfast,
    another: Callable[[], Holdfast],
    clock: ManualClock,
    store_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(specs, "SPEC_S", 3600.0)
    queue = hf.queue("orders", partitions=2)
    assert queue.spec.partitions == 2
    another().queue("orders", partitions=4)
    assert queue.spec.partitions == 2
    assert len(hf.store.stats(ByPartition("orders"), clock.now())) == 6
    assert (queue.spec.partitions, queue.spec.starts) == (6, (0, 2))


def _of(part: int, epochs: tuple[int, ...] | None) -> LeaseAsk:
    return LeaseAsk("orders", 100, "a", secrets.token_hex(8), 30_000, (part,), epochs=epochs)


@pytest.mark.promise("PART-7")
def test_everything_that_a_growing_queue_holds_is_found_by_its_partition(
    hf: Holdfast,
    another: Callable[[], Holdfast],
    clock: ManualClock,
    store_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queues, "SPLIT_MAX", 7)
    queue = hf.queue("orders")
    queue.enqueue_many(Outgoing(n, priority=n % 3, delay=60 if n % 2 else None) for n in range(100))
    held = queue.lease(20)
    for lease in held[:5]:
        queue.fail(lease)
    another().queue("orders", partitions=2)
    for lease in held[5:10]:
        queue.release(lease)
    queue.settle(held[10:])
    clock.advance(60)
    depths = hf.store.stats(ByPartition("orders"), clock.now())
    assert [(depth.ready, depth.delayed, depth.leased) for depth in depths] == [
        (85, 0, 0),
        (0, 0, 0),
        (0, 0, 0),
    ]
    wait_until(lambda: queue.spec.partitions == 3)
    assert len(hf.queue("orders.dlq").lease(100, partitions=[0])) == 5
    assert len(queue.lease(100, partitions=[0])) == 85


@pytest.mark.promise("PART-7")
def test_a_queue_grows_while_others_enqueue_lease_and_give_back(
    hf: Holdfast, another: Callable[[], Holdfast], store_name: str
) -> None:
    hf.queue("orders")
    stop, lock = threading.Event(), threading.Lock()
    sent, done, raised = list[str](), list[str](), list[Exception]()

    def produce() -> None:
        mine = another().queue("orders")
        while not stop.is_set():
            ids = [message.id for message in mine.enqueue_many(range(20))]
            with lock:
                sent.extend(ids)

    def consume() -> None:
        mine = another().queue("orders")
        while not stop.is_set():
            leases = mine.lease(15)
            for lease in leases[:3]:
                mine.release(lease)
            mine.settle(leases[3:])
            with lock:
                done.extend(lease.id for lease in leases[3:])

    def kept(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=kept, args=(work,)) for work in [produce, consume] * 3]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(done) > 100)
    hf.queue("orders", partitions=4)
    grown = len(done)
    wait_until(lambda: len(done) > grown + 100)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert raised == []
    rest = list[str]()
    now = hf.context.clock.now()
    ready = {depth.partition: depth.ready for depth in hf.store.stats(ByPartition("orders"), now)}
    for part, n in ready.items():
        found = list[str]()
        while leases := hf.queue("orders").lease(10_000, partitions=[part]):
            found += [lease.id for lease in leases]
        assert len(found) == n, part
        rest += found
    assert sorted(done + rest) == sorted(sent)
    assert len(ready) == 5


def test_who_waits_for_a_partition_does_not_look_all_the_time(
    hf: Holdfast, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(hf, 3)
    monkeypatch.setattr(PostgresStore, "look_again_s", 0.1)
    looks = list[str]()
    store = unobserved(hf.store)
    run = store._db.rows
    store._db.rows = lambda statement, bind: looks.append(statement) or run(statement, bind)
    stop = threading.Event()

    def tell() -> None:
        while not stop.wait(0.002):
            hf.store._wake._topics.tell(["orders"])

    telling = threading.Thread(target=tell)
    telling.start()
    hf.store.wait(["orders"], clock.now(), 0.5, partitions=[1, 2])
    stop.set()
    telling.join()
    assert 1 < looks.count(statements.READY_IN) <= 6
