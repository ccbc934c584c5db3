"""A lease that a claim fences is several steps here: what others do between them, and who dies
there. And the counts of partitions, which are kept beside those of the queue."""

from __future__ import annotations

import random
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import holdfast
from holdfast import Done, Fail, Holdfast, Outgoing, Queue, Release, Retry
from holdfast.model.moves import State
from holdfast.model.queues import partition_claim
from holdfast.rules.lifecycle import partition_of
from holdfast.stores.contract import (
    BatchEnd,
    ByPartition,
    LeaseAsk,
    Purge,
    ReserveAsk,
    View,
    batch_in,
)
from holdfast.stores.mongo import layout, leasing
from holdfast.stores.mongo.counts import MARK_STALE_MS
from holdfast.testing import ManualClock

TTL = 15_000
CHAOS_S = 4.0
STATES = {"ready": layout.READY, "delayed": layout.DELAYED, "leased": layout.LEASED}


@pytest.fixture(params=["mongo", "mongo-standalone"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def another(store_url: str, clock: ManualClock) -> Iterator[Callable[[], Holdfast]]:
    opened: list[Holdfast] = []

    def connect() -> Holdfast:
        opened.append(holdfast.connect(store_url, clock=clock, ack_timeout=30))
        return opened[-1]

    yield connect
    for hf in opened:
        hf.close()


@pytest.fixture
def hf(another: Callable[[], Holdfast]) -> Holdfast:
    return another()


@pytest.fixture
def db(store_url: str, hf: Holdfast) -> Iterator[Database[Any]]:
    with MongoClient(store_url) as client:
        yield client.get_default_database()


def ask(owner: str, epoch: int, limit: int = 10) -> LeaseAsk:
    return LeaseAsk(
        "orders", limit, owner, secrets.token_hex(8), 10**9, (0,), None, epochs=(epoch,)
    )


def reserve_ask(owner: str, epoch: int, limit: int = 10) -> ReserveAsk:
    return ReserveAsk("orders", limit, owner, secrets.token_hex(8), "batch", (0,), (epoch,))


def own(hf: Holdfast, owner: str, later: int = 0) -> int:
    now = hf.context.clock.now() + later
    claim = hf.store.claim(partition_claim("orders", 0), owner, TTL, now)
    assert claim is not None
    return claim.epoch


def lease(hf: Holdfast, owner: str, epoch: int, limit: int = 10, later: int = 0) -> list[Any]:
    found = hf.store.lease(ask(owner, epoch, limit), hf.context.clock.now() + later)
    return [each.message.payload for each in found]


def held(hf: Holdfast) -> list[Any]:
    page = hf.store.browse(View("orders", State.LEASED), None, 100, hf.context.clock.now())
    return sorted(entry.message.payload for entry in page.entries)


class Steps:
    """Of a handle: what others do before its lease writes, before it looks again, and before it
    confirms; each once. Or it dies there."""

    NAMES = {"write": "claim_fenced", "look again": "_stands", "confirm": "_confirm"}

    def __init__(self, hf: Holdfast) -> None:
        self._leasing = hf.store._leasing
        self.done: list[str] = []

    def before(self, step: str, act: Callable[[], None]) -> None:
        name = self.NAMES[step]
        whole = getattr(self._leasing, name)

        def wrapped(*args: Any) -> Any:
            setattr(self._leasing, name, whole)
            act()
            self.done.append(step)
            return whole(*args)

        setattr(self._leasing, name, wrapped)


class Died(BaseException):
    pass


def die() -> None:
    raise Died


def same_counts(hf: Holdfast, db: Database[Any], *names: str) -> None:
    """What each partition is said to hold, beside what is there."""
    for name in names or ("orders", "orders.dlq"):
        q = db["holdfast.queues"].find_one({"_id": name})["qid"]
        for depth in hf.store.stats(ByPartition(name), 0):
            for field, state in STATES.items():
                asked = {"q": q, "st": state, "pt": depth.partition}
                there = db["holdfast.messages"].count_documents(asked)
                assert getattr(depth, field) == there, (name, depth, field)


@pytest.mark.promise("PART-3", "PART-6")
@pytest.mark.parametrize("step", Steps.NAMES)
def test_who_took_the_claim_gets_the_head_whenever_the_old_owner_comes(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any], step: str
) -> None:
    """N takes the claim of O between two steps of O's lease, takes over what it then sees, and
    leases. O has nothing that N has not seen; nothing is given out of order, nor lost."""
    queue, slow = hf.queue("orders", ordered=True), another()
    queue.enqueue_many(range(6))
    first = own(slow, "o")
    seen: list[Any] = []
    taken: list[Any] = []

    def take_over() -> None:
        second = own(hf, "n", TTL)
        seen.extend(held(hf))
        assert second == 2
        taken.extend(lease(hf, "n", second, 3, TTL))

    steps = Steps(slow)
    steps.before(step, take_over)
    got = lease(slow, "o", first, 4)
    assert steps.done == [step]
    assert got == []
    assert taken == [0, 1, 2]
    assert set(held(hf)) == {0, 1, 2}
    assert lease(hf, "n", 2, 10, TTL) == [3, 4, 5]
    same_counts(hf, db)
    docs = list(db["holdfast.messages"].find())
    assert [doc["at"] for doc in docs] == [1] * 6
    assert not any("fe" in doc for doc in docs)


@pytest.mark.promise("PART-3")
def test_a_lease_that_is_confirmed_was_seen_by_whoever_comes_after(
    hf: Holdfast, another: Callable[[], Holdfast]
) -> None:
    """N's claim falls between O's second look and its confirmation: N sees the leases, and lets
    them be. They are O's."""
    queue, slow = hf.queue("orders", ordered=True), another()
    queue.enqueue_many(range(6))
    first = own(slow, "o")
    seen: list[Any] = []

    def look() -> None:
        own(hf, "n", TTL)
        seen.extend(held(hf))

    Steps(slow).before("confirm", look)
    assert lease(slow, "o", first, 4) == [0, 1, 2, 3]
    assert seen == [0, 1, 2, 3]
    assert lease(hf, "n", 2, 10, TTL) == [4, 5]


@pytest.mark.promise("PART-3", "PART-6")
@pytest.mark.parametrize("step", ["look again", "confirm"])
@pytest.mark.parametrize("holds", [False, True])
def test_what_a_dead_owner_took_and_nobody_got_is_the_head_of_the_line(
    hf: Holdfast,
    another: Callable[[], Holdfast],
    db: Database[Any],
    clock: ManualClock,
    step: str,
    holds: bool,
) -> None:
    queue, slow = hf.queue("orders"), another()
    queue.enqueue_many(range(6))
    nacked = queue.lease(1)
    queue.nack(nacked[0], "no", delay=0)
    first, now = own(slow, "o"), clock.now()
    Steps(slow).before(step, die)
    wanted = (reserve_ask if holds else ask)("o", first, 4)
    with pytest.raises(Died):
        slow.store.lease(wanted, now)
    assert held(hf) == [0, 1, 2, 3]
    assert batch_in(hf.store, "orders", "batch", None, 10) == []
    assert hf.store.stats(ByPartition("orders"), now)[0].leased >= 4, "who comes after must look"
    second = own(hf, "n", TTL)
    assert lease(hf, "n", second, 5, TTL) == [0, 1, 2, 3, 4]
    docs = {doc["bd"]: doc for doc in db["holdfast.messages"].find()}
    assert [docs[str(n).encode()]["at"] for n in range(6)] == [2, 1, 1, 1, 1, 0]
    assert hf.queue("orders").settle([(nacked[0], Retry("no", delay=0))]) == ["stale"]
    clock.advance(MARK_STALE_MS / 1000)
    hf.store.tidy(clock.now(), log_before=None)
    same_counts(hf, db)


def test_what_is_given_back_is_as_it_was(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any], clock: ManualClock
) -> None:
    """Also the answer to a call that is repeated."""
    queue, slow = hf.queue("orders"), another()
    queue.enqueue_many(range(2))
    (nacked,) = queue.lease(1)
    queue.nack(nacked, "no", delay=0)
    before = {doc["_id"]: doc for doc in db["holdfast.messages"].find()}
    first, now = own(slow, "o"), clock.now()
    Steps(slow).before("look again", lambda: None if own(hf, "n", TTL) == 2 else die())
    assert slow.store.lease(reserve_ask("o", first), now + 5) == 0
    for doc in db["holdfast.messages"].find():
        was = before[doc["_id"]]
        kept = ("q", "st", "pt", "rk", "pl", "sq", "at", "fl", "tk", "vb", "la", "ba", "fw")
        assert {name: doc.get(name) for name in kept} == {name: was.get(name) for name in kept}
    assert queue.settle([(nacked, Retry("no", delay=0))]) == ["already"]
    assert hf.store.look()["damaged"] == []
    same_counts(hf, db)


@pytest.mark.promise("PART-6")
def test_a_look_that_passed_over_what_was_given_back_meanwhile_begins_anew(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any]
) -> None:
    """O, which believes that it has the claim still, holds the head when N looks; when N looks
    again, O has given it back."""
    queue, slow = hf.queue("orders", ordered=True), another()
    queue.enqueue_many(range(6))
    first, second = own(slow, "o"), own(hf, "n", TTL)
    wrote, looked = threading.Event(), threading.Event()
    got: list[list[Any]] = []
    late = threading.Thread(target=lambda: got.append(lease(slow, "o", first, 3)))
    ground, look = slow.store._leasing.ground, hf.store._leasing.look

    def ground_of_before(_: Any, ask: LeaseAsk, now: int) -> leasing.Ground:
        slow.store._leasing.ground = ground
        return leasing.Ground(ask, due=False, marked=[])

    def wait() -> None:
        wrote.set()
        assert looked.wait(30)

    def look_meanwhile(*args: Any, **options: Any) -> leasing.Look:
        hf.store._leasing.look = look
        late.start()
        assert wrote.wait(30)
        found = look(*args, **options)
        assert len(found.docs) == 3, "the first three are passed over"
        looked.set()
        late.join(30)
        return found

    slow.store._leasing.ground = ground_of_before
    Steps(slow).before("look again", wait)
    hf.store._leasing.look = look_meanwhile
    assert lease(hf, "n", second, 6, TTL) == [0, 1, 2, 3, 4, 5]
    assert got == [[]]
    same_counts(hf, db)


@pytest.mark.promise("PART-6")
def test_a_look_that_passed_over_what_is_pending_begins_anew(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any]
) -> None:
    """O writes between N's first step and its look, and dies."""
    queue, slow = hf.queue("orders", ordered=True), another()
    queue.enqueue_many(range(6))
    first, second = own(slow, "o"), own(hf, "n", TTL)
    look = hf.store._leasing.look
    slow.store._leasing.ground = lambda _, ask, now: leasing.Ground(ask, due=False, marked=[])
    Steps(slow).before("look again", die)

    def look_after(*args: Any, **options: Any) -> leasing.Look:
        hf.store._leasing.look = look
        with pytest.raises(Died):
            lease(slow, "o", first, 3)
        return look(*args, **options)

    hf.store._leasing.look = look_after
    assert lease(hf, "n", second, 6, TTL) == [0, 1, 2, 3, 4, 5]


@pytest.mark.promise("PART-6")
def test_one_of_the_head_that_somebody_takes_meanwhile_is_not_given_twice(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any]
) -> None:
    queue, other = hf.queue("orders"), another().queue("orders")
    queue.enqueue_many(range(6))
    epoch = own(hf, "n")
    Steps(hf).before("write", lambda: other.settle(other.lease(2)))
    assert lease(hf, "n", epoch, 4) == [2, 3, 4, 5]
    same_counts(hf, db)


@pytest.mark.promise("PART-3", "PART-6")
def test_owners_that_change_all_the_time_get_every_message_in_order(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any], clock: ManualClock
) -> None:
    """Threads take the claim from each other at any moment, and lease by whatever epoch they had.
    What was got at an epoch lies behind all that was got before, and each new owner saw that."""
    queue, n = hf.queue("orders", ordered=True), 400
    queue.enqueue_many(range(n))
    got: dict[int, list[int]] = defaultdict(list)
    seen: dict[int, set[int]] = {}
    until = monotonic() + CHAOS_S

    def work(who: int) -> None:
        mine, rng, epoch, now = another(), random.Random(who), 0, 0
        while monotonic() < until:
            if rng.random() < 0.2:
                clock.advance(TTL / 1000)
                now = clock.now()
                claim = mine.store.claim(partition_claim("orders", 0), str(who), TTL, now)
                if claim is not None:
                    epoch = claim.epoch
                    page = mine.store.browse(View("orders", State.LEASED), None, n, now)
                    seen[epoch] = {entry.message.payload for entry in page.entries}
            leases = mine.store.lease(ask(str(who), epoch, rng.randint(1, 4)), now)
            got[epoch] += [each.message.payload for each in leases]

    threads = [threading.Thread(target=work, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    clock.advance(TTL / 1000)
    last = own(hf, "last")
    got[last] += lease(hf, "last", last, n)
    order = [payload for epoch in sorted(got) for payload in got[epoch]]
    assert order == list(range(n))
    for epoch, there in seen.items():
        before = {payload for older in got if older < epoch for payload in got[older]}
        assert before <= there
    assert len([epoch for epoch in got if got[epoch]]) > 3
    same_counts(hf, db)


# Counts


def key_in(part: int, of: int) -> str:
    return next(key for n in range(10_000) if partition_of(key := f"k{n}", "", of) == part)


def busy(hf: Holdfast, queue: Queue, clock: ManualClock, n: int = 60) -> None:
    """Everything that moves messages."""
    queue.enqueue_many(Outgoing(i, key=f"k{i}", delay=i % 4 or None) for i in range(n))
    clock.advance(2)
    ends: list[Any] = [Done(), Retry("x", delay=3), Retry("x", delay=0), Fail("x"), Release()]
    leases = queue.lease(n // 2)
    queue.settle([(lease, ends[i % 5]) for i, lease in enumerate(leases[:-3])])
    hf.store.lease(ReserveAsk(queue.name, 7, "x", secrets.token_hex(8), "b"), clock.now())
    hf.store.settle(BatchEnd(queue.name, "b", 4, "COMPLETED"), clock.now())
    hf.redrive(queue.dlq.name, 2)
    clock.advance(31)
    hf.sweep()
    queue.lease(5)


@pytest.mark.promise("PART-9")
@pytest.mark.parametrize("partitions", [1, 3])
def test_every_partition_is_counted_whatever_moves(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any], clock: ManualClock,
    partitions: int,
) -> None:  # fmt: skip
    queue = hf.queue("orders", partitions=partitions)
    busy(hf, queue, clock)
    same_counts(hf, db)
    another().queue("orders", partitions=4)
    clock.advance(1)
    with_more = another()
    busy(with_more, with_more.queue("orders"), clock)
    same_counts(hf, db)
    hf.store.drop(Purge("orders", 11))
    same_counts(hf, db)
    clock.advance(601)
    hf.store.tidy(clock.now(), log_before=None)
    same_counts(hf, db)
    for slot in db["holdfast.counts"].find({"r": {"$exists": True}}).limit(1):
        died = {"do": "x", "ds": clock.now(), "r": 5, "r1": 7, "l2": -1}
        db["holdfast.counts"].update_one({"_id": slot["_id"]}, {"$set": died})
    clock.advance(MARK_STALE_MS / 1000)
    hf.store.tidy(clock.now(), log_before=None)
    same_counts(hf, db)


@pytest.mark.promise("PART-9")
def test_the_partitions_are_counted_right_when_many_race(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any], clock: ManualClock
) -> None:
    """Several write at the same messages, and each has a part of them."""
    queue = hf.queue("orders", partitions=5)
    queue.enqueue_many(Outgoing(n, delay=1 + n % 3) for n in range(2000))
    clock.advance(9)
    handles, got = [another() for _ in range(4)], Counter[int]()

    def work(who: int) -> None:
        mine = handles[who].queue("orders")
        while leases := mine.lease(40):
            got[who] += len(leases)
            mine.settle(leases[:20])
            if who == 0:
                handles[0].store.drop(Purge("orders", 30))
        hold = ReserveAsk("orders", 40, "x", secrets.token_hex(8), "b")
        handles[who].store.lease(hold, clock.now())

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got.total()
    clock.advance(MARK_STALE_MS / 1000)
    hf.store.tidy(clock.now(), log_before=None)  # of a race that nobody can tell the end of
    same_counts(hf, db)
    assert queue.stats().ready == 0


@pytest.mark.promise("PART-9")
def test_a_store_of_before_is_counted_by_the_next_sweep(
    hf: Holdfast, another: Callable[[], Holdfast], db: Database[Any], clock: ManualClock
) -> None:
    hf.queue("one").enqueue_many(range(5))
    queue = hf.queue("orders", partitions=3)
    busy(hf, queue, clock)
    db["holdfast.meta"].update_one({"_id": "schema"}, {"$set": {"version": 1}})
    db["holdfast.messages"].drop_index("fenced")
    parts = [f"{name}{part}" for name in "rdl" for part in (1, 2)]
    db["holdfast.counts"].update_many({}, {"$unset": dict.fromkeys(parts, "")})
    db["holdfast.queues"].update_many({}, {"$unset": {"ordered": "", "starts": ""}})
    new = another()
    spec = new.queue("orders").spec
    assert (spec.partitions, spec.starts, spec.ordered) == (3, (0,), False)
    assert "fenced" in db["holdfast.messages"].index_information()
    assert db["holdfast.meta"].find_one({"_id": "schema"})["version"] == layout.VERSION
    new.queue("orders").settle(new.queue("orders").lease(3))
    new.store.tidy(clock.now(), log_before=None)
    same_counts(new, db, "one", "orders", "orders.dlq")
    assert not db["holdfast.counts"].count_documents({"do": {"$gt": ""}})


# Waiting


def test_who_waits_for_a_partition_makes_ready_what_is_due_in_others(
    hf: Holdfast, clock: ManualClock
) -> None:
    """Else it would find something due again and again, and come back each time."""
    queue = hf.queue("orders", partitions=3)
    queue.enqueue(1, key=key_in(2, 3), delay=1)
    clock.advance(2)
    hf.store.wait(["orders"], clock.now(), 0.2, partitions=[0])
    assert hf.store._leasing.anything(hf.store._queues.must_exist("orders"), [2]).docs
    waited = threading.Event()

    def wait() -> None:
        hf.store.wait(["orders"], clock.now(), 60, partitions=[2])
        waited.set()

    threading.Thread(target=wait, daemon=True).start()
    assert waited.wait(10)
