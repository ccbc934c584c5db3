"""Queries that die anywhere, beside plain consumers and sweeps: every message ends up once.

The query is Spark's: a log of offsets that is written before a batch runs, a log of commits after
it, and a sink that keeps what a batch wrote under the batch's number, so that a batch that runs
again replaces it. Dead processes are the rule here, and some are only slow.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import FailedPrecondition, Holdfast, Outgoing, Queue, Settled
from holdfast.stores.contract import Store
from holdfast.testing import ManualClock
from holdfast.testing.conformance.fixtures import clock, hf, store
from holdfast.work.handlers import Problem, Verdict
from holdfast.work.ledger import (
    LEFTOVER_MS,
    RESERVED_MS,
    STRAY_MS,
    VERDICT,
    Batches,
    Judged,
    Offset,
    OnLost,
    judge,
    publish,
    queries,
    read,
    sweep,
)
from tests.plugins.sampling import more

sys.path.insert(0, str(Path(__file__).parent))
from flaky import Died, Flaky

__all__ = ["clock", "hf", "store"]  # fixtures

LIMIT = 7


class Checkpoint:
    """What is on the query's own disk, and what its sink shows."""

    def __init__(self) -> None:
        self.offsets: dict[int, Offset] = {}
        self.commits: set[int] = set()
        self.sink: dict[int, list[str]] = {}

    def write_offset(self, n: int, end: Offset) -> None:
        if n in self.offsets:
            raise Died("another process has written this offset")
        self.offsets[n] = end

    def commit(self, n: int) -> None:
        if n in self.commits:
            raise Died("another process has committed this batch")
        self.commits.add(n)

    def add(self, n: int, rows: list[str]) -> None:
        """A sink with a log of its own: what a finished batch wrote stays."""
        if n not in self.commits:
            self.sink[n] = rows


Verdicts = Callable[[str], Verdict] | None
Driver = Generator[str, None, None]


def drive(
    hf: Holdfast, store: Store, disk: Checkpoint, verdicts: Verdicts, on_lost: OnLost, tag: str
) -> Driver:
    """One process of a query, in the order of Spark's calls; it may be stopped at every yield."""
    at = replace(hf.context, store=store)
    batches = Batches(
        at, "orders", part_rows=3, on_lost=on_lost, needs_verdicts=verdicts is not None
    )
    n = max(disk.offsets, default=-1)
    start, open = disk.offsets.get(n, Offset()), n >= 0 and n not in disk.commits
    yield "opened"
    if open:
        yield from _run(at, batches, disk, n, start, verdicts, tag)
    while True:
        end = batches.reserve(start, LIMIT)
        yield "idle" if end is None else "reserved"
        if end is None:
            continue
        n += 1
        disk.write_offset(n, end)
        yield "logged"
        yield from _run(at, batches, disk, n, end, verdicts, tag)
        start = end


def _run(
    at: holdfast.queue.context.Context,
    batches: Batches,
    disk: Checkpoint,
    n: int,
    end: Offset,
    verdicts: Verdicts,
    tag: str,
) -> Driver:
    rows: list[str] = []
    for piece, part in enumerate(batches.seal(end)):
        yield "sealed"
        for leases in read(at, "orders", part.name):
            told = [(lease, verdicts(lease.id) if verdicts else Verdict()) for lease in leases]
            rows += [lease.id for lease, verdict in told if not verdict.problems]
            if verdicts:
                judged = [Judged(lease, verdict) for lease, verdict in told]
                judge(at, end.hold, f"{tag}-{n}", piece, judged)
    yield "read"
    disk.add(n, rows)
    yield "written"
    if verdicts and rows_are_held(at, end):
        publish(at, end.query, end.hold, f"{tag}-{n}")
    yield "published"
    disk.commit(n)
    yield "committed"


def rows_are_held(at: holdfast.queue.context.Context, end: Offset) -> bool:
    """A batch that was given back before it was sealed is empty: there is nothing to judge."""
    return any(query.id == end.query and query.hold == end.hold for query in queries(at))


class World:
    """A queue, one query on it, a competitor, the sweeper, and dice."""

    def __init__(
        self, hf: Holdfast, clock: ManualClock, seed: int, judged: bool, on_lost: OnLost
    ) -> None:
        self.hf, self.clock, self.dice = hf, clock, Random(seed)
        self.queue: Queue = hf.queue("orders", partitions=2, max_attempts=30)
        self.disk = Checkpoint()
        self.on_lost: OnLost = on_lost
        self.verdicts = self._verdict if judged else None
        self.drivers: list[tuple[Driver, Flaky]] = []
        self.graves: list[Flaky] = []
        self.sent: list[str] = []
        self.acked: list[str] = []
        self.leases: list[holdfast.Lease] = []
        self.born = 0

    def _verdict(self, id: str) -> Verdict:
        """Not the same each time: a handler that depends on the weather."""
        kind = self.dice.random()
        if kind < 0.7:
            return Verdict()
        return Verdict(problems=(Problem("x", "X"),), fatal=kind > 0.95, delay=kind)

    def live(self, steps: int) -> None:
        acts = [self.produce, self.compete, self.tick, self.start, self.kill, self.late]
        for _ in range(steps):
            if self.dice.random() < 0.6:
                self.drive()
            else:
                self.dice.choice(acts)()

    def produce(self) -> None:
        some = [
            Outgoing(
                n, priority=self.dice.randrange(3), key=str(n), delay=self.dice.choice([None, 3])
            )
            for n in range(self.dice.randrange(1, 12))
        ]
        self.sent += [message.id for message in self.queue.enqueue_many(some)]

    def compete(self) -> None:
        self.leases += self.queue.lease(self.dice.randrange(1, 4))
        while self.leases and self.dice.random() < 0.7:
            lease = self.leases.pop(self.dice.randrange(len(self.leases)))
            how = self.dice.random()
            if how < 0.6:
                if self.queue.settle([lease]) == [Settled.APPLIED]:
                    self.acked.append(lease.id)
            elif how < 0.8:
                self.queue.settle([(lease, holdfast.Retry("no", delay=1))])
            # else: it forgets it

    def tick(self) -> None:
        self.clock.advance(self.dice.choice([0, 1, 5, RESERVED_MS / 1000, RESERVED_MS / 1000 + 40]))
        self.hf.sweep()

    def start(self) -> None:
        """A new process. The one before may be dead, or live on for a while without knowing."""
        if self.drivers and (self.verdicts or self.dice.random() < 0.7):
            self.kill()  # with verdicts, two at once would need a sink that asks who writes
        self.born += 1
        flaky = Flaky(self.hf.store)
        if self.dice.random() < 0.6:
            flaky.fail(
                None, self.dice.randrange(1, 60), self.dice.choice(["before", "after", "late"])
            )
        driver = drive(self.hf, flaky, self.disk, self.verdicts, self.on_lost, f"p{self.born}")
        self.drivers.append((driver, flaky))

    def kill(self) -> None:
        if self.drivers:
            self.graves.append(self.drivers.pop(self.dice.randrange(len(self.drivers)))[1])

    def late(self) -> None:
        for flaky in self.graves:
            flaky.now_they_come()
        self.graves = []

    def drive(self) -> None:
        if not self.drivers:
            self.start()
        self.step(self.dice.randrange(len(self.drivers)))

    def step(self, pick: int) -> str:
        driver, flaky = self.drivers[pick]
        try:
            return next(driver)
        except (Died, FailedPrecondition) as error:  # killed, fenced, or beaten to the log
            del self.drivers[pick]
            self.graves.append(flaky)
            return repr(error)

    def end(self) -> None:
        """Everything is worked off by one last process that nothing happens to."""
        self.drivers, self.leases = [], []
        self.late()
        last = drive(
            self.hf, self.hf.store, self.disk, self.verdicts and _works, self.on_lost, "last"
        )
        for _ in range(300):
            if next(last) == "idle":
                stats = self.queue.stats()
                if not (stats.ready or stats.delayed or stats.leased):
                    break
                self.clock.advance(61)
                self.hf.sweep()
        self.clock.advance(STRAY_MS / 1000)
        assert sweep(self.hf.context, self.clock.now()) == 0

    def check(self, exactly: bool) -> None:
        stats = self.queue.stats()
        assert (stats.ready, stats.delayed, stats.leased) == (0, 0, 0)
        dead = [entry.message.id for entry in self.queue.dlq.browse()]
        sunk = [id for rows in self.disk.sink.values() for id in rows]
        everywhere = Counter(sunk) + Counter(self.acked) + Counter(dead)
        assert set(everywhere) == set(self.sent)
        logged = [finished.message.id for finished in self.queue.log()]
        assert sorted(logged + dead) == sorted(self.sent)
        if exactly:
            assert max(everywhere.values(), default=1) == 1
            assert sorted(sunk + self.acked) == sorted(logged)
        assert all(not query.hold and not query.held for query in queries(self.hf.context))
        self.clock.advance(LEFTOVER_MS / 1000 + 1)
        sweep(self.hf.context, self.clock.now())
        assert self.hf.store.records(VERDICT) == []


def _works(id: str) -> Verdict:
    return Verdict()


SEEDS = {
    store: {"short": range(short), "long": range(short, short + long)}
    for store, short, long in [
        ("memory", 50, 300),
        ("sqlite", 10, 60),
        ("postgres", 3, 20),
        ("redis", 3, 20),
        ("redis-cluster", 2, 10),
        ("mongo", 2, 10),
    ]
}


@pytest.mark.parametrize("length", ["short", pytest.param("long", marks=pytest.mark.extended)])
@pytest.mark.parametrize("how", ["plain", "judged", "redeliver"])
def test_every_message_ends_up_once(
    store_factory: Callable[[], Store],
    store_name: str,
    how: str,
    length: str,
) -> None:
    store = store_factory()
    for seed in SEEDS[store_name][length]:
        clock = ManualClock()
        with_queue = holdfast.connect(store, clock=clock, rng=Random(seed), retention=0)
        on_lost: OnLost = "redeliver" if how == "redeliver" else "hold"
        world = World(with_queue, clock, seed, how == "judged", on_lost)
        try:
            world.live(120)
            world.end()
            world.check(exactly=how != "redeliver")
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        world.queue.delete(force=True)
        for query in queries(with_queue.context):
            store.put_record("query", query.id, None, None, 0)


@pytest.mark.parametrize("when", ["after", *more("before", "late")])
@pytest.mark.parametrize("judged", [False, True])
def test_a_process_that_dies_at_any_call(
    hf: Holdfast, clock: ManualClock, when: str, judged: bool
) -> None:
    """The first call, the second, and so on, until one process comes through."""
    n, came_through = 0, False
    while not came_through:
        n += 1
        world = World(hf, clock, n, judged, "hold")
        world.sent = [m.id for m in world.queue.enqueue_many(range(2 * LIMIT))]
        flaky = Flaky(hf.store)
        flaky.fail(None, n, when)
        verdicts = _works if judged else None
        world.drivers.append((drive(hf, flaky, world.disk, verdicts, "hold", "first"), flaky))
        while world.drivers and world.step(0) != "idle":
            pass
        came_through = not flaky.died
        world.end()
        sent = set(world.sent)
        stats = world.queue.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0), n
        sunk = [id for rows in world.disk.sink.values() for id in rows]
        assert sorted(sunk) == sorted(sent), n
        logged = [f.message.id for f in world.queue.log() if f.message.id in sent]
        assert sorted(logged) == sorted(sent), n
    assert n > 20
