"""Lease, settle, overdue and stats keep to their indexes and cost the same at any depth."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Outgoing, Queue
from holdfast.stores.contract import Cut, View, overdue_in
from holdfast.testing import ManualClock

SHALLOW, DEEP = 1_000, 100_000


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Holdfast]:
    """Two queues in one file, never analysed: `shallow` and, a hundred times as deep, `deep`."""
    file: Path = tmp_path_factory.mktemp("plans") / "plans.db"
    with holdfast.connect(f"sqlite:///{file}", clock=clock) as hf:
        for name, n in (("shallow", SHALLOW), ("deep", DEEP)):
            queue = hf.queue(name)
            for start in range(0, n, 10_000):
                size = min(10_000, n - start)
                queue.enqueue_many(
                    Outgoing(i, priority=i % 10, delay=3600 if i % 2 else None) for i in range(size)
                )
            for _ in range(0, n // 10, 1000):
                queue.lease(min(1000, n // 10))
            queue.settle(queue.lease(100))
        yield hf


def steps(hf: Holdfast, act: Callable[[], Any]) -> int:
    """Instructions of SQLite's virtual machine: what an act costs, whatever the machine does."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connections: list[sqlite3.Connection] = [
        hf.store._db._writer,
        hf.store._db._reader,
    ]
    for connection in connections:
        connection.set_progress_handler(count, 10)
    act()
    for connection in connections:
        connection.set_progress_handler(None, 0)
    return counted


ACTS: dict[str, Callable[[Holdfast, Queue], Any]] = {
    "lease and release": lambda hf, queue: [queue.release(lease) for lease in queue.lease(50)],
    "lease and ack": lambda hf, queue: queue.settle(queue.lease(50)),
    "lease one": lambda hf, queue: queue.release(queue.lease()[0]),
    "enqueue": lambda hf, queue: queue.enqueue_many(range(50)),
    "overdue": lambda hf, queue: overdue_in(hf.store, queue.name, 0, 100),
    "stats": lambda hf, queue: queue.stats(),
    "first page": lambda hf, queue: hf.store.browse(View(queue.name), None, 20, 0),
    "a page further on": lambda hf, queue: hf.store.browse(
        View(queue.name),
        f"5.{hf.store.browse(View(queue.name), None, 1, 0).end}",
        20,
        0,
    ),
    "delayed": lambda hf, queue: hf.store.browse(
        View(queue.name, holdfast.State.DELAYED), None, 20, 0
    ),
    "trim": lambda hf, queue: hf.store.drop([Cut(queue.name, 100, before=1, keep=10**6)]),
    "queues with something overdue": lambda hf, queue: hf.store.queues(overdue=0),
}


@pytest.mark.promise("LIFE-12", "OVERDUE-4")
@pytest.mark.parametrize("act", ACTS)
def test_it_costs_the_same_at_any_depth(queues: Holdfast, act: str, store_name: str) -> None:
    shallow, deep = (
        steps(queues, lambda name=name: ACTS[act](queues, queues.queue(name)))
        for name in ("shallow", "deep")
    )
    assert deep <= shallow * 1.3 + 10, f"{shallow} steps at {SHALLOW}, {deep} at {DEEP}"


@pytest.mark.promise("LIFE-12")
def test_the_counters_equal_a_full_count(queues: Holdfast, store_name: str) -> None:
    reader = queues.store._db._reader
    for name in ("shallow", "deep"):
        counted = dict(
            reader.execute(
                "SELECT state, count(*) FROM holdfast_message JOIN holdfast_queue USING (qid) "
                "WHERE name = ? GROUP BY state",
                (name,),
            ).fetchall()
        )
        stats = queues.queue(name).stats()
        assert [counted.get(n, 0) for n in range(3)] == [stats.ready, stats.delayed, stats.leased]
