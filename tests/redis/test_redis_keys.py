"""Every script touches the keys that it names, in one slot; what a queue leaves behind: nothing."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot

import holdfast
from holdfast import Done, Holdfast, Outgoing, Queue, StoreError
from holdfast.model.message import ErrorInfo, History, new_ids
from holdfast.model.moves import State
from holdfast.model.queues import partition_claim
from holdfast.rules.outcome import Extend, Fail, Release, Retry
from holdfast.stores.contract import (
    BatchEnd,
    ByPartition,
    Cut,
    Event,
    LeaseAsk,
    ReserveAsk,
    View,
    batch_in,
    held_in,
)
from holdfast.stores.redis import scripts
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.scripts import Script
from holdfast.testing import ManualClock

SCRIPTS: dict[str, Script] = {
    name: value for name, value in vars(scripts).items() if isinstance(value, Script)
}

# Before a script: what it calls must name only keys among KEYS.
WATCH = """
local declared = {}
for _, name in ipairs(KEYS) do declared[name] = true end
local MANY = { UNLINK = true, DEL = true, EXISTS = true }
local SECOND = { XINFO = true, XGROUP = true, OBJECT = true }
local function watched(run)
  return function(...)
    local words, from, to = { ... }, 2, 2
    if MANY[words[1]] then to = #words end
    if SECOND[words[1]] then from, to = 3, 3 end
    if words[1] == 'XREADGROUP' then
      while words[from - 1] ~= 'STREAMS' do from = from + 1 end
      to = from
    end
    for i = from, to do
      if not declared[words[i]] then
        error('UNDECLARED ' .. words[1] .. ' ' .. tostring(words[i]))
      end
    end
    return run(...)
  end
end
local watched_call, watched_pcall = watched(redis.call), watched(redis.pcall)
"""


def watching(text: str) -> str:
    text = text.replace("redis.call", "watched_call").replace("redis.pcall", "watched_pcall")
    return WATCH + text


@pytest.fixture(params=["redis", "redis-cluster"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Sequence[str]]]:
    """Every script is watched; the keys of each call of it, by its name."""
    seen: dict[str, list[Sequence[str]]] = {name: [] for name in SCRIPTS}
    names: dict[str, str] = {}
    for name, script in SCRIPTS.items():
        text = watching(script.text)
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        monkeypatch.setattr(script, "text", text)
        monkeypatch.setattr(script, "sha", sha)
        names[sha] = name
    run, run_each = Connections.script, Connections.scripts

    def noted(self: Connections, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        seen[names[script.sha]].append(keys)
        return run(self, script, keys, args)

    def noted_each(self: Connections, script: Script, calls: Sequence[Any]) -> list[Any]:
        seen[names[script.sha]] += [keys for keys, _ in calls]
        return run_each(self, script, calls)

    monkeypatch.setattr(Connections, "script", noted)
    monkeypatch.setattr(Connections, "scripts", noted_each)
    return seen


@pytest.fixture
def admin(store_url: str) -> Iterator[Any]:
    parts = urlsplit(store_url)
    if parts.scheme == "redis":
        with Redis.from_url(parts._replace(query="").geturl()) as client:
            yield client
        return
    hosts = [host.rpartition(":") for host in parts.netloc.split(",")]
    nodes = [ClusterNode(host, int(port)) for host, _, port in hosts]
    with RedisCluster(startup_nodes=nodes) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(store_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(store_url, clock=clock) as opened:
        yield opened


def prefix_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["prefix"][0]


def keys_of(admin: Any, prefix: str) -> set[str]:
    return {key.decode() for key in admin.scan_iter(f"{prefix}:*")}


def send(hf: Holdfast, queue: Queue) -> None:
    """Fresh ones of every kind, delayed ones, and those that were somewhere before."""
    queue.enqueue_many(Outgoing(n, key=str(n), priority=n % 10) for n in range(40))
    queue.enqueue_many([Outgoing(1, delay=5, priority=n) for n in range(3)], receipt="once")
    queue.enqueue_many([Outgoing(2, ack_timeout=9.0), Outgoing(3, delay=50, ack_timeout=9.0)])
    assert len(queue.enqueue_many([4, 5], receipt="once")) == 2  # kept: nothing is stored
    now = hf.context.clock.now()
    one, two, three, four = (
        msgspec.structs.replace(queue.enqueue("first", delay=99), id=id) for id in new_ids(4, now)
    )
    past = History(errors=(ErrorInfo("no", "ERROR", now, 1, "me"),), source="orders")
    replace = msgspec.structs.replace
    hf.store.enqueue(
        [
            replace(one, attempts=2, history=past, available_at=now, first_leased_at=now),
            replace(two, attempts=2, history=past),
            replace(three, queue=queue.dlq.name, history=past, available_at=now),
            replace(four, queue=queue.dlq.name, history=past),
        ],
        now,
        receipt="twice",
    )


def look(hf: Holdfast, queue: Queue) -> None:
    now = hf.context.clock.now()
    for each in (queue, queue.dlq):
        each.stats()
        for state in State:
            entries = list(each.browse(state))
            held_in(hf.store, each.name, [entry.message.id for entry in entries])
            hf.store.split(View(each.name, state), 3, now)
        hf.store.stats(ByPartition(each.name), now)
        hf.store.wait([each.name], now, 0.001, [0, 2])
    hf.store.wait([queue.name, queue.dlq.name], now, 0.001)
    hf.store.time()
    hf.stats()


def every_outcome(queue: Queue) -> None:
    for _ in range(2):  # those of the first time, and those that came back
        leases = queue.lease(30, owner="me")
        outcomes = [
            Retry("no", delay=0), Retry("no", delay=5), Release(), Extend(60), Fail("bad"),
            Done({"n": 1}), Done(),
        ]  # fmt: skip
        pairs = [(lease, outcomes[n % 7]) for n, lease in enumerate(leases)]
        assert set(queue.settle(pairs)) == {"applied"}
        again = [pair for pair in pairs if not isinstance(pair[1], Extend)]
        assert set(queue.settle(again)) <= {"already", "stale"}
        queue.settle(queue.lease(10, partitions=[1]))


def in_batches(hf: Holdfast, queue: Queue) -> None:
    now, held = hf.context.clock.now(), 0
    queue.enqueue_many(Outgoing(n, key=str(n), priority=n % 3) for n in range(30))
    for name, limit in (("a batch", 5), ("another", 9)):
        ask = ReserveAsk(queue.name, limit, "me", secrets.token_hex(8), name)
        held += hf.store.lease(ask, now)
    assert held == 14
    assert hf.store.settle(BatchEnd(queue.name, "a batch", 3, "COMPLETED"), now) == 3
    rest = batch_in(hf.store, queue.name, "a batch", None, 100)
    queue.settle([(lease, Release()) for lease in rest])
    assert hf.store.settle(BatchEnd(queue.name, "another", 100, None), now) == 9
    queue.dlq.settle(queue.dlq.lease(2, batch="dead"))


def owned(hf: Holdfast, queue: Queue) -> None:
    keep, now = hf.store, hf.context.clock.now()
    for each in (queue, queue.dlq):
        claim = keep.claim(partition_claim(each.name, 1), "me", 60_000, now)
        assert claim is not None
        epochs = (claim.epoch, 1)
        ask = LeaseAsk(each.name, 3, "me", secrets.token_hex(8), 1000, (1, 0), epochs=epochs)
        leases = keep.lease(ask, now)
        assert {lease.message.partition for lease in leases} <= {1}
        each.settle([(lease, Release()) for lease in leases])


def out_of_time(hf: Holdfast, queue: Queue, clock: ManualClock) -> None:
    queue.lease(5)
    queue.dlq.lease(2)
    clock.advance(3600)
    assert hf.sweep().requeued > 0
    assert hf.redrive(queue.dlq.name, 2).redriven == 2
    hf.redrive(queue.dlq.name)


def others(hf: Holdfast) -> None:
    keep = hf.store
    assert keep.put_record("kind", "a", b"1", 0, 1)
    assert keep.put_record("kind", "a", b"2", 1, 2)
    keep.put_record("kind", "b", b"1", None, 3)
    keep.put_record("kind", "b", None, None, 3)
    assert [record.name for record in keep.records("receipt")] == ["orders/once", "twice"]
    assert keep.drop_records("kind", limit=9) == 1
    assert keep.drop_records("receipt", limit=9) == 2
    assert keep.claim("lock", "me", 1000, 1) is not None
    keep.publish([Event("type", 1, {})])
    assert len(hf.subscribe(0).next(1)) > 0


def in_topic(hf: Holdfast) -> None:
    """One step for all groups."""
    groups, now = [hf.queue(f"topic@{name}") for name in ("a", "b")], hf.context.clock.now()
    first = groups[0].enqueue("first", delay=5)
    for at, id in zip((now, now + 5), new_ids(2, now), strict=True):
        copies = [
            msgspec.structs.replace(first, id=id, queue=name, available_at=at)
            for name in ("topic@a", "topic@b", "topic@b.dlq")
        ]
        hf.store.enqueue(copies, now, receipt=id)
        assert {*hf.store.enqueue(copies, now, receipt=id)} == {"held"}
    hf.store.drop_records("receipt", limit=9)
    for group in groups:
        group.delete(force=True)


def from_elsewhere(hf: Holdfast, queue: Queue) -> None:
    now, last = hf.context.clock.now(), list(queue.log())[-1]
    message = msgspec.structs.replace(last.message, id=next(new_ids(1, now)))
    row = msgspec.structs.replace(last, message=message, finished_at=now)
    assert [hf.store.restore("orders", [row], now) for _ in range(2)] == [1, 0]


def life(hf: Holdfast, clock: ManualClock) -> Iterator[str]:
    """All that can be done with a queue; a name for each part of it, once it is done."""
    queue = hf.queue("orders", partitions=3)
    send(hf, queue)
    look(hf, queue)
    yield "sent"
    every_outcome(queue)
    look(hf, queue)
    yield "worked on"
    clock.advance(10)
    every_outcome(queue)
    in_batches(hf, queue)
    owned(hf, queue)
    yield "held"
    out_of_time(hf, queue, clock)
    look(hf, queue)
    yield "swept"
    others(hf)
    queue.pause()
    queue.resume()
    hf.queue("orders", max_attempts=5, partitions=4)
    send(hf, queue)
    in_topic(hf)
    from_elsewhere(hf, queue)
    hf.store.drop([Cut("orders", 100, keep=3)])
    hf.store.drop([Cut("orders", 100, before=clock.now() + 1)])
    hf.store.tidy(clock.now(), log_before=None)
    yield "tidied"
    queue.lease(10, batch="left")
    assert queue.purge() > 0
    queue.dlq.purge()
    send(hf, queue)
    look(hf, queue)
    yield "purged"
    queue.lease(10)
    queue.dlq.lease(1)
    queue.delete(force=True)
    yield "deleted"


@pytest.mark.promise("PART-10")
def test_a_script_touches_no_key_but_those_it_names(
    watch: dict[str, list[Sequence[str]]], hf: Holdfast, clock: ManualClock
) -> None:
    parts = list(life(hf, clock))
    assert parts == ["sent", "worked on", "held", "swept", "tidied", "purged", "deleted"]
    assert [name for name, calls in watch.items() if not calls] == []


@pytest.mark.promise("PART-10")
def test_the_keys_of_a_script_lie_in_one_slot(
    watch: dict[str, list[Sequence[str]]], hf: Holdfast, clock: ManualClock
) -> None:
    for _ in life(hf, clock):
        pass
    slots = {
        (name, len({key_slot(key.encode()) for key in keys}))
        for name, calls in watch.items()
        for keys in calls
    }
    assert slots == {(name, 1) for name in SCRIPTS}


@pytest.mark.parametrize(
    "text",
    [
        "return redis.call('GET', 'other')",
        "return redis.pcall('XINFO', 'GROUPS', 'other')",
        "return redis.call('UNLINK', KEYS[1], 'other')",
        "return redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', 'other', '>')",
        "local call = redis.call; return call('ZADD', 'other', 1, 'a')",
    ],
)
def test_the_watch_bites(hf: Holdfast, text: str) -> None:
    db: Connections = hf.store._db  # pyright: ignore
    with pytest.raises(StoreError, match=r"UNDECLARED .* other"):
        db.script(Script(watching(text)), ["mine"], [])
    assert db.script(Script(watching("return redis.call('GET', KEYS[1])")), ["mine"], []) is None


def test_no_key_of_ours_ever_ends_by_itself(
    hf: Holdfast, clock: ManualClock, store_url: str, admin: Any
) -> None:
    for part in life(hf, clock):
        keys = keys_of(admin, prefix_of(store_url))
        assert {key: admin.pttl(key) for key in keys} == dict.fromkeys(keys, -1), part
        assert keys


def test_a_queue_that_is_deleted_leaves_no_key(
    hf: Holdfast, clock: ManualClock, store_url: str, admin: Any
) -> None:
    prefix = prefix_of(store_url)
    hf.queue("other").enqueue(1)
    before: dict[str, set[str]] = {
        part: {key for key in keys_of(admin, prefix) if "{orders}" in key}
        for part in life(hf, clock)
    }
    assert {part: bool(keys) for part, keys in before.items()} == {
        part: part != "deleted" for part in before
    }
    left = {key.partition(":{.}:")[2] or key for key in keys_of(admin, prefix)}
    home = f"{prefix}:{{other}}:"
    assert left == {
        "meta", "homes", "claims", "event", "events",
        *(home + kind for kind in ("c", "m", "s0.0", "a0", "a1", "w0", "w1")),
    }  # fmt: skip


@pytest.mark.parametrize("force", [False, True])
def test_a_queue_made_again_holds_nothing_of_the_one_before(
    hf: Holdfast, clock: ManualClock, force: bool
) -> None:
    queue = hf.queue("orders", partitions=2)
    sent = queue.enqueue_many([Outgoing(n, priority=n) for n in range(10)])
    queue.settle(queue.lease(10))
    if force:
        sent += queue.enqueue_many([Outgoing(n, delay=n) for n in range(10)])
        queue.lease(3)
    queue.delete(force=force)
    again = hf.queue("orders")
    assert again.stats() == msgspec.structs.replace(
        again.stats(), ready=0, delayed=0, leased=0, dead=0, done=0
    )
    assert held_in(hf.store, "orders", [message.id for message in sent]) == []
    assert list(again.log()) == []
    answers = again.enqueue_many(Outgoing(n, id=message.id) for n, message in enumerate(sent))
    assert [message.duplicate for message in answers] == [False] * len(sent)


CALLS: dict[str, Callable[[Queue], Any]] = {
    "enqueue": lambda queue: queue.enqueue_many(range(600)),
    "lease": lambda queue: queue.lease(600),
    "settle": lambda queue: queue.settle(queue.lease(600)),
    "purge": lambda queue: queue.purge(),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_one_script_moves_is_bounded(
    watch: dict[str, list[Sequence[str]]], hf: Holdfast, call: str
) -> None:
    """While one runs, nobody else is served."""
    queue = hf.queue("orders")
    queue.enqueue_many(range(600))
    before = sum(map(len, watch.values()))
    CALLS[call](queue)
    assert sum(map(len, watch.values())) - before >= 3
