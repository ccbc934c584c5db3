"""What a partition holds, whose it is, and who waits for it: as Redis keeps it."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from redis import Redis

import holdfast
from holdfast import Holdfast, Outgoing, Queue
from holdfast.model.moves import State
from holdfast.model.queues import partition_claim
from holdfast.rules.lifecycle import partition_of
from holdfast.rules.outcome import Done, Extend, Fail, Release, Retry
from holdfast.stores.contract import BatchEnd, ByPartition, Purge, ReserveAsk
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.keys import Home, Keys
from holdfast.stores.redis.scripts import LEASE, Script
from holdfast.stores.redis.waiting import LOOK_S
from holdfast.testing import ManualClock

STATES = (State.READY, State.DELAYED, State.LEASED)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(redis_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(redis_url, clock=clock) as opened:
        yield opened


@pytest.fixture
def other(redis_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    """Another process."""
    with holdfast.connect(redis_url, clock=clock) as opened:
        yield opened


@pytest.fixture
def admin(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(urlsplit(redis_url)._replace(query="").geturl()) as client:  # pyright: ignore
        yield client


@pytest.fixture
def home(redis_url: str) -> Home:
    return Keys(parse_qs(urlsplit(redis_url).query)["prefix"][0]).home("orders", 4)


def held(queue: Queue) -> dict[State, Counter[int]]:
    """Of each state how many there are in each partition, one by one."""
    return {
        state: Counter(entry.message.partition for entry in queue.browse(state)) for state in STATES
    }


def told(hf: Holdfast, queue: Queue) -> dict[State, Counter[int]]:
    depths = hf.store.stats(ByPartition(queue.name), hf.context.clock.now())
    return {
        state: Counter({d.partition: n for d in depths if (n := getattr(d, state.value))})
        for state in STATES
    }


def kept(admin: Redis, home: Home, flag: str) -> tuple[Counter[int], Counter[int]]:
    """What the store has counted: delayed ones, and those that are leased again."""
    stored: dict[bytes, bytes] = admin.hgetall(home.key("c"))  # pyright: ignore
    late, again = Counter[int](), Counter[int]()
    for name, n in stored.items():
        for kind, counts in ((b"late", late), (b"again", again)):
            if name.startswith(kind + flag.encode()) and int(n):
                counts[int(name.rpartition(b".")[2])] = int(n)
    return late, again


@pytest.mark.promise("PART-9")
@pytest.mark.parametrize("seed", range(4))
def test_what_is_counted_is_what_is_there(
    hf: Holdfast, clock: ManualClock, admin: Redis, home: Home, seed: int
) -> None:
    rng, now = random.Random(seed), clock.now
    queue = hf.queue("orders", partitions=rng.choice([1, 3]), max_attempts=3)
    outcomes: list[Callable[[], Any]] = [
        lambda: Retry("no", delay=rng.choice([0, 0, 5])), Release, lambda: Extend(60),
        lambda: Fail("bad"), lambda: Done(1), Done,
    ]  # fmt: skip

    def send() -> None:
        queue.enqueue_many(
            Outgoing(n, priority=rng.choice([0, 0, 4]), delay=rng.choice([0, 0, 3, 30]))
            for n in range(rng.randrange(30))
        )

    def work() -> None:
        of = rng.choice([queue, queue, queue.dlq])
        parts = rng.choice([None, None, [0], [1, 2]])
        leases = of.lease(rng.randrange(1, 40), batch=rng.choice([None, "b"]), partitions=parts)
        some = rng.sample(leases, rng.randrange(len(leases) + 1))
        same = rng.choice([Done, None])  # many acks that end alike take another way
        of.settle([(lease, (same or rng.choice(outcomes))()) for lease in some])

    steps: list[Callable[[], Any]] = [
        send, send, work, work, work, work,
        lambda: clock.advance(rng.choice([1, 4])),
        lambda: clock.advance(100) or hf.sweep(),
        lambda: hf.redrive("orders.dlq", 3),
        lambda: hf.store.settle(BatchEnd("orders", "b", 5, None), now()),
        lambda: hf.store.drop(Purge(rng.choice(["orders", "orders.dlq"]), 7)),
    ]  # fmt: skip
    for n in range(120):
        rng.choice(steps)()
        if n == 60:
            hf.queue("orders", partitions=rng.choice([4, 5]))
        for of, flag in ((queue, "0"), (queue.dlq, "1")):
            late, again = kept(admin, home, flag)
            assert late.total() == admin.zcard(home.key("z" + flag))
            assert again.total() == admin.xlen(home.key("a" + flag))
            assert told(hf, of) == held(of)
            assert kept(admin, home, flag)[1] == again
            assert kept(admin, home, flag)[0] == held(of)[State.DELAYED]


@pytest.mark.promise("PART-9")
def test_what_nobody_counted_is_counted_once(
    hf: Holdfast, clock: ManualClock, admin: Redis, home: Home
) -> None:
    """As a Holdfast that did not count left it."""
    queue = hf.queue("orders", partitions=4)
    queue.enqueue_many(Outgoing(n, delay=n % 3) for n in range(2000))
    clock.advance(1)
    queue.lease(700)
    names = [f"{kind}0.{part}" for kind in ("late", "again") for part in range(4)]
    assert admin.hdel(home.key("c"), *names)
    queue.enqueue("one more", delay=9)
    queue.nack(queue.lease(1)[0], delay=9)
    wrong = kept(admin, home, "0")
    for _ in range(2):
        assert told(hf, queue) == held(queue)
    assert kept(admin, home, "0") != wrong
    assert sum(told(hf, queue)[State.LEASED].values()) == 700


def test_settings_that_an_older_version_wrote_are_read(
    hf: Holdfast, other: Holdfast, admin: Redis, home: Home
) -> None:
    hf.queue("orders", partitions=2)
    stored: bytes = admin.hget(home.key("c"), "spec0")  # pyright: ignore
    plain = msgspec.json.decode(stored)
    del plain["ordered"], plain["starts"]
    admin.hset(home.key("c"), "spec0", msgspec.json.encode(plain))
    spec = other.queue("orders").spec
    assert (spec.partitions, spec.ordered, spec.starts) == (2, False, (0,))
    other.queue("orders", partitions=3)
    assert other.queue("orders").spec.starts == (0, 2)


def test_a_claim_on_a_partition_goes_with_its_queue(
    hf: Holdfast, clock: ManualClock, admin: Redis, home: Home
) -> None:
    store, now, name = hf.store, clock.now(), partition_claim("orders", 1)
    assert store.claim(name, "me", 1000, now) is None  # there is no such queue
    assert admin.exists(home.key("o")) == 0
    queue = hf.queue("orders", partitions=2)
    assert store.claim(name, "me", 1000, now) is not None
    assert admin.hkeys(home.key("o")) == [b"0#1"]
    queue.delete(force=True)
    assert admin.exists(home.key("o")) == 0
    assert store.claims([name]) == [None]
    assert store.claim(name, "me", 1000, now) is None
    assert admin.exists(home.key("o")) == 0


def test_a_lease_from_a_few_partitions_names_their_lanes_only(
    hf: Holdfast, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.queue("orders", partitions=64).enqueue_many(range(100))
    seen, run = list[int](), Connections.script

    def noted(self: Connections, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if script is LEASE:
            seen.append(len(keys))
        return run(self, script, keys, args)

    monkeypatch.setattr(Connections, "script", noted)
    hf.queue("orders").lease(1)
    hf.queue("orders").lease(1, partitions=[3, 5])
    assert max(seen[:-1]) > 640
    assert seen[-1] < 64 + 2 * 10 + 20


@pytest.mark.promise("PART-7")
def test_who_remembers_fewer_partitions_finishes_a_batch_of_more(
    hf: Holdfast, other: Holdfast, clock: ManualClock
) -> None:
    queue, now = hf.queue("orders"), clock.now()
    queue.enqueue_many(range(10))
    queue.lease(5, batch="b")
    grown = other.queue("orders", partitions=4)
    grown.enqueue_many(range(20))
    ask = ReserveAsk("orders", 100, "me", secrets.token_hex(8), "b")
    assert other.store.lease(ask, now) == 25
    assert hf.store._home("orders").parts == 1
    assert hf.store.settle(BatchEnd("orders", "b", 100, "COMPLETED"), now) == 30
    known = [store._home("orders").parts for store in (hf.store, other.store)]
    assert known[0] == known[1], "a cluster wants every lane to be named"
    assert (queue.stats().done, queue.stats().leased) == (30, 0)


class Waiting:
    def __init__(self, hf: Holdfast, queue: str, parts: list[int]) -> None:
        now = hf.context.clock.now()
        self.ended = 0.0
        self._wait = lambda: hf.store.wait([queue], now, 30, parts)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._wait()
        self.ended = time.monotonic()

    def is_over(self, seconds: float = 10.0) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


def key_in(part: int, of: int) -> str:
    return next(key for n in range(10_000) if partition_of(key := f"k{n}", "", of) == part)


def test_each_who_waits_for_a_partition_is_woken_by_its_own(hf: Holdfast, other: Holdfast) -> None:
    queue = hf.queue("orders", partitions=3)
    waits = [Waiting(hf, "orders", [part]) for part in range(3)]
    again = Waiting(other, "orders", [0, 1])
    anything = threading.Thread(target=lambda: other.store.wait(["orders"], 0, 30), daemon=True)
    anything.start()
    for part in (2, 0, 1):
        assert not waits[part].is_over(0.1)
        queue.enqueue("x", key=key_in(part, 3))
        begun = time.monotonic()
        assert waits[part].is_over()
        assert waits[part].ended - begun < LOOK_S / 2
        anything.join(10)
        assert not anything.is_alive()
    assert again.is_over()


@pytest.mark.parametrize("how", ["nack", "later", "delayed", "redrive", "resume", "dead"])
def test_who_waits_for_a_partition_is_woken_by_what_comes_back(
    hf: Holdfast, other: Holdfast, how: str
) -> None:
    queue = hf.queue("orders", partitions=3)
    for n in range(3):
        queue.enqueue(n, key=key_in(1, 3))
    one, two, three = queue.lease(3)
    queue.fail(three)
    if how == "resume":
        queue.release(one)
        queue.pause()
    waiting = Waiting(other, "orders.dlq" if how == "dead" else "orders", [1])
    wrong = Waiting(other, "orders", [0, 2])
    if how == "dead":
        queue.dlq.purge()
    assert how == "dead" or not waiting.is_over(0.15)
    begun, pause = time.monotonic(), 0.0
    match how:
        case "nack":
            queue.nack(two, delay=0)
        case "later":
            queue.nack(two, delay=0.5)
            pause = 0.5
        case "delayed":
            queue.enqueue("x", key=key_in(1, 3), delay=0.5)
            pause = 0.5
        case "redrive":
            hf.redrive("orders.dlq")
        case "resume":
            queue.resume()
        case _:
            queue.fail(one)
    assert waiting.is_over()
    if how != "dead":
        # Its clock went on while it waited, ours stood still.
        assert pause - 0.3 <= waiting.ended - begun < pause + LOOK_S / 2
    assert not wrong.is_over(0.05)
    queue.enqueue("x", key=key_in(0, 3))
    assert wrong.is_over()
