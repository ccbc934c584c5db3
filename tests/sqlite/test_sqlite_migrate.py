"""A file of an earlier version is brought up to date with all that it holds."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Fail, Holdfast, Outgoing, Retry, State
from holdfast.stores.sqlite import store
from holdfast.stores.sqlite.store import migrations
from holdfast.testing import ManualClock

OLD = 3
"""Since then, an id may have several rows in the log."""


def contents(hf: Holdfast) -> dict[str, Any]:
    """Every message and log row of every queue, whole."""
    found: dict[str, Any] = {}
    for spec in hf.queues():
        for state in State:
            entries = list(hf.queue(spec.name, create=False).browse(state))
            found[f"{spec.name} {state}"] = [
                (entry.message, entry.place, entry.lease, entry.finished) for entry in entries
            ]
    return found


def fill(hf: Holdfast, clock: ManualClock) -> list[holdfast.Lease]:
    """Messages in every state, some of which have come far; the leases that are open."""
    queue, ordered = hf.queue("orders", max_attempts=5), hf.queue("lines", ordered=True)
    queue.enqueue_many(Outgoing(n, priority=n % 10, key=f"k{n}") for n in range(40))
    queue.settle([(lease, Fail("bad")) for lease in queue.lease(5)])
    queue.settle(queue.lease(10))
    queue.settle([(lease, Retry("later", delay=60)) for lease in queue.lease(5)])
    clock.advance(1)
    ordered.enqueue_many(Outgoing(n, key="k") for n in range(3))
    queue.enqueue("delayed", delay=30, headers={"a": "b"})
    hf.topic("news").bind("mail")
    hf.topic("news").publish("hello")
    return queue.lease(4)


@pytest.fixture
def filled(tmp_path: Path) -> tuple[str, dict[str, Any], list[holdfast.Lease], ManualClock]:
    """A file of version 3, made by its own scripts, and what it holds."""
    clock, now = ManualClock(), tmp_path / "now.db"
    with holdfast.connect(f"sqlite:///{now}", clock=clock) as hf:
        leases = fill(hf, clock)
        held = contents(hf)
    old = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
    for script in migrations()[:OLD]:
        old.executescript(script)
    old.execute("ATTACH ? AS now", (str(now),))
    names = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name LIKE 'holdfast_%'"
    for (name,) in old.execute(names).fetchall():
        old.execute(f"DELETE FROM main.{name}")
        old.execute(f"INSERT INTO main.{name} SELECT * FROM now.{name}")
    old.execute("REPLACE INTO main.holdfast_meta VALUES ('version', ?)", (OLD,))
    old.close()
    return f"sqlite:///{tmp_path}/old.db", held, leases, clock


def test_a_filled_file_of_version_3_is_migrated(filled: Any) -> None:
    url, held, leases, clock = filled
    with holdfast.connect(url, clock=clock) as hf:
        assert contents(hf) == held
        assert len(held["orders log"]) == 10 and len(held["orders.dlq ready"]) == 5
        queue = hf.queue("orders", create=False)
        assert queue.settle(leases) == ["applied"] * 4
        assert queue.settle(leases) == ["already"] * 4
        done = held["orders log"][0][0].id
        (again,) = queue.enqueue_many([Outgoing("again", id=done)])
        assert again.duplicate  # finished within the window
        assert hf.redrive("orders.dlq").redriven == 5
        clock.advance(2 * 86_400)
        queue.enqueue_many([Outgoing("again", id=done, priority=9)])
        queue.settle(queue.lease(100))
        rows = [row.message.payload for row in queue.log() if row.message.id == done]
        assert len(rows) == 2 and rows[1] == "again"
        assert hf.queue("news@mail", create=False).lease()[0].message.payload == "hello"


def test_processes_that_migrate_at_once_lose_nothing(filled: Any) -> None:
    url, held, _, clock = filled
    code = f"import holdfast; holdfast.connect({url!r}).queue('orders', create=False).stats()"
    starting = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait() for process in starting] == [0] * 4
    with holdfast.connect(url, clock=clock) as hf:
        assert contents(hf) == held


def test_a_process_that_comes_second_goes_by_what_the_first_has_done(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the version before the first one committed, and gets the write lock after that."""
    url, held, _, clock = filled
    read, seen = store._version, list[int]()

    def version(db: sqlite3.Cursor) -> int:
        seen.append(read(db))
        return 0 if len(seen) == 1 else seen[-1]

    monkeypatch.setattr(store, "_version", version)
    with holdfast.connect(url, clock=clock) as hf:
        assert contents(hf) == held
    assert seen == [OLD, OLD]
