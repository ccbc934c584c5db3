"""What an operator sees with redis-cli is what `holdfast stats` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from redis import Redis

import holdfast
from holdfast import Holdfast, Outgoing, Queue
from holdfast.cli import root
from holdfast.stores.contract import View, overdue_in
from holdfast.stores.redis import store
from holdfast.telemetry.observe import unobserved
from holdfast.testing import ManualClock
from servers.redis import running

GROUP = "holdfast"


@pytest.fixture
def admin(redis_server: str) -> Iterator[Redis]:
    with Redis.from_url(redis_server, decode_responses=True) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(redis_url: str, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect(redis_url, clock=clock) as opened:
        yield opened


class Seen:
    """A home as redis-cli shows it."""

    def __init__(self, admin: Redis, url: str) -> None:
        self._admin = admin
        self._home = f"{parse_qs(urlsplit(url).query)['prefix'][0]}:{{orders}}:"

    def keys(self, kind: str) -> list[str]:
        escaped = self._home.replace("[", "\\[")
        return sorted(self._admin.scan_iter(f"{escaped}{kind}"))

    def lanes(self) -> list[str]:
        return self.keys("s*.*")

    def streams(self) -> list[str]:
        return [*self.lanes(), *self.keys("a[01]")]

    def length(self, streams: list[str]) -> int:
        return sum(self._admin.xlen(stream) for stream in streams)

    def pending(self, streams: list[str]) -> int:
        return sum(self._admin.xpending(stream, GROUP)["pending"] for stream in streams)

    def count(self, kind: str) -> int:
        return sum(self._admin.zcard(key) for key in self.keys(kind))

    def groups(self) -> list[tuple[str, int]]:
        """Of each stream: the name of its group, and how much of it is held."""
        found = [group for each in self.streams() for group in self._admin.xinfo_groups(each)]
        return [(group["name"], group["pending"]) for group in found]

    def held(self) -> dict[str, int]:
        """By consumer, over every stream."""
        by: dict[str, int] = {}
        for stream in self.streams():
            for each in self._admin.xinfo_consumers(stream, GROUP):
                by[each["name"]] = by.get(each["name"], 0) + each["pending"]
        return by

    def consumers(self) -> set[tuple[str, str]]:
        return {
            (stream.removeprefix(self._home), each["name"])
            for stream in self.streams()
            for each in self._admin.xinfo_consumers(stream, GROUP)
        }

    def counts(self) -> dict[str, int]:
        """As docs/redis.md tells an operator to count."""
        lanes = self.lanes()
        return {
            "ready": self.length(lanes) - self.pending(lanes) + self.count("r0.*"),
            "delayed": self.count("z0"),
            "leased": self.pending([*lanes, *self.keys("a0")]),
            "dead": self.count("r1.*") + self.count("z1") + self.count("d1"),
        }


@pytest.fixture
def seen(admin: Redis, redis_url: str) -> Seen:
    return Seen(admin, redis_url)


def counts(queue: Queue) -> dict[str, int]:
    stats = queue.stats()
    return {name: getattr(stats, name) for name in ("ready", "delayed", "leased", "dead")}


def busy(hf: Holdfast) -> Queue:
    """Several partitions and priorities; some of everything."""
    queue = hf.queue("orders", partitions=3, max_attempts=5)
    queue.enqueue_many(Outgoing(n, key=str(n), priority=n % 4 * 3) for n in range(60))
    queue.enqueue_many(Outgoing(n, delay=3600 + n, priority=5) for n in range(7))
    for lease in queue.lease(6, owner="never"):
        queue.fail(lease)
    for lease in queue.lease(4, owner="later"):
        queue.nack(lease, "no", delay=3600)
    queue.settle(queue.lease(5, owner="done"))
    for lease in queue.lease(6, owner="again"):
        queue.nack(lease, "no", delay=0)
    for lease in queue.dlq.lease(2, owner="undertaker"):
        queue.dlq.nack(lease, "still dead", delay=3600)
    assert len(queue.lease(9, owner="one")) == 9
    assert len(queue.lease(11, owner="two", partitions=[0, 2])) == 11
    assert len(queue.dlq.lease(1, owner="three")) == 1
    return queue


def test_the_streams_tell_the_same_as_stats(hf: Holdfast, seen: Seen) -> None:
    queue = busy(hf)
    assert seen.counts() == counts(queue)
    assert counts(queue) == {"ready": 25, "delayed": 11, "leased": 20, "dead": 6}
    assert queue.dlq.stats().leased == seen.pending(seen.keys("a1")) == 1
    assert queue.dlq.stats().delayed == seen.count("z1") == 2
    assert queue.dlq.stats().ready == seen.count("r1.*") == 3
    assert len(seen.lanes()) > 6


def test_what_came_again_is_seen_as_well_as_what_is_new(hf: Holdfast, seen: Seen) -> None:
    busy(hf)
    again = seen.pending(seen.keys("a0"))
    new = seen.pending(seen.lanes())
    assert again > 0
    assert new > 0
    assert again + new == seen.count("d0") == 20


def test_the_command_tells_the_same_as_the_streams(redis_url: str, seen: Seen) -> None:
    with holdfast.connect(redis_url) as hf:
        busy(hf)
    result = CliRunner().invoke(root, ["--url", redis_url, "stats", "--json"])
    assert (result.stderr, result.exit_code) == ("", 0)
    (row,) = map(json.loads, result.stdout.splitlines())
    assert {name: row[name] for name in seen.counts()} == seen.counts()
    assert row["leased"] == 20


def test_every_step_keeps_the_two_alike(hf: Holdfast, seen: Seen, clock: ManualClock) -> None:
    queue = busy(hf)
    steps: list[Any] = [
        lambda: queue.settle(queue.lease(3)),
        lambda: [queue.release(lease) for lease in queue.lease(3)],
        lambda: [queue.nack(lease, delay=9999) for lease in queue.lease(3)],
        lambda: [queue.extend(lease, 60) for lease in queue.lease(3)],
        lambda: hf.redrive("orders.dlq", 2),
        lambda: (clock.advance(600), hf.sweep()),
        lambda: hf.store.tidy(clock.now(), log_before=None),
        lambda: queue.enqueue_many([1, Outgoing(2, delay=5000)]),
        queue.purge,
    ]
    told = [counts(queue)]
    for step in steps:
        step()
        assert seen.counts() == counts(queue)
        told.append(counts(queue))
    assert len({str(each) for each in told}) > 6


def test_the_consumers_are_the_owners(hf: Holdfast, seen: Seen) -> None:
    queue = busy(hf)
    held = {name: n for name, n in seen.held().items() if n}
    assert held == {"one": 9, "two": 11, "three": 1}
    leases = [entry.lease for entry in queue.browse("leased") if entry.lease]
    by = {name: sum(lease.owner == name for lease in leases) for name in ("one", "two")}
    assert by == {"one": 9, "two": 11}


def test_worked_off_every_stream_is_empty(hf: Holdfast, seen: Seen, clock: ManualClock) -> None:
    queue = busy(hf)
    clock.advance(7200)
    hf.sweep()
    for each in (queue, queue.dlq):
        while leases := each.lease(100, owner="last"):
            each.settle(leases)
    assert counts(queue) == {"ready": 0, "delayed": 0, "leased": 0, "dead": 0}
    assert seen.counts() == counts(queue)
    assert seen.length(seen.streams()) == 0
    assert seen.groups() == [(GROUP, 0)] * len(seen.streams())
    for kind in ("m", "x", "e", "k", "kn", "d0", "d1", "z0", "z1", "b0", "b1", "r*"):
        assert seen.keys(kind) == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds nothing is gone at once."""
    monkeypatch.setattr(store, "CONSUMER_IDLE_MS", -1)
    monkeypatch.setattr(store, "CONSUMERS_EVERY_S", -1.0)


@pytest.mark.usefixtures("impatient")
def test_consumers_that_hold_nothing_are_forgotten(hf: Holdfast, seen: Seen) -> None:
    queue = busy(hf)
    before = seen.consumers()
    holding = {name for name, n in seen.held().items() if n}
    assert {name for _, name in before} > holding
    told = counts(queue)
    hf.store.tidy(0, log_before=None)
    assert {name for _, name in seen.consumers()} == holding == {"one", "two", "three"}
    assert seen.consumers() < before
    assert seen.counts() == told == counts(queue)


@pytest.mark.usefixtures("impatient")
def test_a_consumer_that_holds_a_message_is_never_forgotten(
    hf: Holdfast, seen: Seen, clock: ManualClock
) -> None:
    queue = busy(hf)
    ids = {entry.message.id for entry in queue.browse("leased")}
    for _ in range(3):
        hf.store.tidy(clock.now(), log_before=None)
    assert {entry.message.id for entry in queue.browse("leased")} == ids
    assert sum(seen.held().values()) == 21
    clock.advance(60)
    assert hf.sweep().requeued == 21
    assert sum(seen.held().values()) == 0
    hf.store.tidy(clock.now(), log_before=None)
    assert seen.consumers() == set()
    assert ids < {lease.id for lease in queue.lease(100)}


def test_a_consumer_that_was_just_here_is_kept(hf: Holdfast, seen: Seen) -> None:
    busy(hf)
    before = seen.consumers()
    hf.store.tidy(0, log_before=None)
    assert seen.consumers() == before


@pytest.mark.usefixtures("impatient")
def test_forgetting_consumers_of_a_queue_without_messages(hf: Holdfast, seen: Seen) -> None:
    hf.queue("orders")
    hf.store.tidy(0, log_before=None)
    assert seen.consumers() == set()


@pytest.mark.promise("OVERDUE-4")
def test_ten_thousand_that_are_not_overdue_hide_none_that_is(clock: ManualClock) -> None:
    """It is found by its deadline, and the others are not even read."""
    with (
        running() as server,
        Redis.from_url(server.url) as admin,
        holdfast.connect(server.url, clock=clock) as hf,
    ):
        queue = hf.queue("orders", ack_timeout=7 * 24 * 3600)
        queue.enqueue_many(range(10_000))
        assert len(queue.lease(10_000)) == 10_000
        late = queue.enqueue("late", ack_timeout=1.0)
        assert [lease.id for lease in queue.lease(1)] == [late.id]
        assert overdue_in(hf.store, "orders", clock.now(), 10) == []
        clock.advance(2)
        assert [lease.id for lease in overdue_in(hf.store, "orders", clock.now(), 10)] == [late.id]
        admin.config_resetstat()
        assert hf.sweep().requeued == 1
        calls = sum(each["calls"] for each in admin.info("commandstats").values())
        assert 10 < calls < 200
        assert [lease.id for lease in queue.lease(10)] == [late.id]
        assert queue.stats().leased == 10_001


def test_a_page_reads_no_more_than_it_shows(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a script reads, Redis serves nobody: a redrive looks at a page for every batch."""
    queue = hf.queue("orders")
    queue.enqueue_many(range(100))
    read, asked = hf.store._read, list[Any]()

    def noted(name: str, what: str, *args: Any) -> Any:
        asked.append(args[2])
        return read(name, what, *args)

    monkeypatch.setattr(unobserved(hf.store), "_read", noted)
    page = hf.store.browse(View("orders"), None, 20, hf.context.clock.now())
    assert len(page.entries) == 20 and page.after is not None
    assert asked == [21], "one more says whether there is a next page"
