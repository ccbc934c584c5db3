"""kill -9 at random and at named points. A ledger of what was accepted proves nothing lost."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Holdfast, State
from holdfast.testing import wait_until

VICTIM = Path(__file__).with_name("victim.py")
KILLED = -signal.SIGKILL
FAST = {**os.environ, "HOLDFAST_OVERDUE_CHECK_INTERVAL_MS": "200"}


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def file(tmp_path: Path, store_name: str) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def hf(file: Path) -> Iterator[Holdfast]:
    with holdfast.connect(f"sqlite:///{file}", ack_timeout=1, backoff=Backoff(base=0.01)) as hf:
        hf.queue("orders", max_attempts=50)
        yield hf


def start(action: str, file: Path, *point: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(VICTIM), action, str(file), f"{file}.ledger", *point]
    return subprocess.Popen(command, env=FAST, stderr=subprocess.DEVNULL)


def everywhere(hf: Holdfast) -> dict[str, list[str]]:
    """Every id the store holds, by place; finished ones under "log"."""
    found: dict[str, list[str]] = {}
    for queue in (hf.queue("orders"), hf.queue("orders.dlq")):
        for state in State:
            name = "log" if state is State.LOG else f"{queue.name} {state}"
            found.setdefault(name, []).extend(e.message.id for e in queue.browse(state))
    return found


def check_whole(hf: Holdfast, file: Path, accepted: set[str]) -> None:
    """Each accepted message is in exactly one place, and the counters say the same."""
    places = [id for ids in everywhere(hf).values() for id in ids]
    assert len(places) == len(set(places)), "a message is in two places"
    assert set(places) == accepted, "a message was lost, or came from nowhere"
    database = sqlite3.connect(file)
    counted = database.execute(
        "SELECT qid, part, sum(state = 0), sum(state = 1), sum(state = 2) "
        "FROM holdfast_message GROUP BY qid, part"
    ).fetchall()
    depth = database.execute(
        "SELECT qid, part, ready, delayed, leased FROM holdfast_depth "
        "WHERE ready OR delayed OR leased"
    ).fetchall()
    (damage,) = database.execute("PRAGMA integrity_check").fetchone()
    database.close()
    assert sorted(counted) == sorted(depth)
    assert damage == "ok"


def finish(hf: Holdfast, file: Path) -> None:
    """Let one worker that nobody kills do the rest, its sweeper included."""
    queue = hf.queue("orders")
    worker = start("work", file)
    wait_until(lambda: _waiting(queue.stats()) == 0, timeout=60)
    hf.redrive("orders.dlq")
    wait_until(lambda: _waiting(queue.stats()) + queue.stats().dead == 0, timeout=60)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def _waiting(stats: Any) -> int:
    return stats.ready + stats.delayed + stats.leased


def check_finished(hf: Holdfast, file: Path, accepted: set[str]) -> None:
    check_whole(hf, file, accepted)
    log = [done.message.id for done in hf.queue("orders").log()]
    assert len(log) == len(accepted) and set(log) == accepted
    assert hf.queue("orders").stats().done == len(accepted)
    handled = set(Path(f"{file}.ledger").read_text().split())
    assert handled == accepted, "in the log, but no handler finished it"


POINTS = {
    "work": [
        ("UPDATE holdfast_message SET\n  state = 2", 1),
        ("COMMIT", 1),
        ("COMMIT", 2),
        ("COMMIT", 3),
        ("BEGIN IMMEDIATE", 2),
        ("BEGIN IMMEDIATE", 3),
        ("INSERT OR IGNORE INTO holdfast_log", 1),
        ("INSERT OR IGNORE INTO holdfast_log", 5),
        ("DELETE FROM holdfast_message", 1),
        ("DELETE FROM holdfast_message", 3),
        ("UPDATE holdfast_message SET home", 1),
        ("UPDATE holdfast_message SET home", 3),
        ("INSERT INTO holdfast_depth", 2),
        ("INSERT INTO holdfast_depth", 4),
        ("UPDATE holdfast_meta", 1),
    ],
    "sweep": [
        ("UPDATE holdfast_message SET home", 1),
        ("UPDATE holdfast_message SET home", 7),
        ("INSERT INTO holdfast_depth", 1),
        ("COMMIT", 1),
        ("BEGIN IMMEDIATE", 2),
        ("INSERT INTO holdfast_event", 1),
    ],
    "redrive": [
        ("UPDATE holdfast_message SET home", 1),
        ("UPDATE holdfast_message SET home", 3),
        ("COMMIT", 1),
        ("BEGIN IMMEDIATE", 2),
    ],
}
NAMED = [(action, *point) for action, points in POINTS.items() for point in points]


@pytest.mark.promise("LIFE-1", "HANDLER-6", "HANDLER-8", "LOG-1", "RETRY-4", "DEAD-3", "OVERDUE-1")
@pytest.mark.parametrize(("action", "statement", "nth"), NAMED, ids=lambda part: str(part)[:40])
def test_killed_at_a_named_point(
    hf: Holdfast, file: Path, action: str, statement: str, nth: int
) -> None:
    queue = hf.queue("orders")
    accepted = {message.id for message in queue.enqueue_many(range(100))}
    if action == "sweep":
        for lease in queue.lease(20):
            queue.extend(lease, 0.001)
        wait_until(lambda: len(hf.store.overdue("orders", hf.context.clock.now(), 50)) == 20)
    if action == "redrive":
        for lease in queue.lease(10):
            queue.fail(lease)
    assert start(action, file, statement, str(nth)).wait(60) == KILLED
    check_whole(hf, file, accepted)
    finish(hf, file)
    check_finished(hf, file, accepted)


@pytest.mark.promise("LIFE-2", "LIFE-3", "LIFE-1")
@pytest.mark.parametrize(
    ("statement", "nth", "batches"),
    [
        ("INSERT INTO holdfast_message", 1, 0),
        ("INSERT INTO holdfast_message", 30, 1),
        ("COMMIT", 3, 2),
        ("INSERT INTO holdfast_depth", 4, 3),
        ("BEGIN IMMEDIATE", 5, 4),
    ],
)
def test_a_producer_killed_in_a_batch_stored_all_or_none_of_it(
    hf: Holdfast, file: Path, statement: str, nth: int, batches: int
) -> None:
    assert start("produce", file, statement, str(nth)).wait(60) == KILLED
    stored = [entry.message.payload for entry in hf.queue("orders").browse()]
    assert stored == list(range(batches * 20))
    assert hf.queue("orders").stats().ready == batches * 20


def kill_while_working(
    hf: Holdfast, file: Path, *, workers: int, messages: int, kills: int, every: float
) -> None:
    queue = hf.queue("orders")
    accepted: set[str] = set()
    dice = random.Random(1)
    running = [start("work", file) for _ in range(workers)]
    try:
        for round in range(kills):
            batch = range(round * messages // kills, (round + 1) * messages // kills)
            accepted |= {message.id for message in queue.enqueue_many(batch)}
            done = queue.stats().done
            wait_until(lambda done=done: queue.stats().done > done, timeout=60)
            _pause(every)
            victim = running.pop(dice.randrange(len(running)))
            victim.kill()
            assert victim.wait() == KILLED
            running.append(start("work", file))
    finally:
        for worker in running:
            worker.kill()
            worker.wait()
    check_whole(hf, file, accepted)
    finish(hf, file)
    check_finished(hf, file, accepted)
    assert len(accepted) == messages


def _pause(seconds: float) -> None:
    """Between two kills: the one thing here that is about time itself."""
    threading.Event().wait(seconds)


@pytest.mark.promise("LIFE-1", "LIFE-8", "HANDLER-6", "HANDLER-8")
def test_workers_killed_at_random(hf: Holdfast, file: Path) -> None:
    kill_while_working(hf, file, workers=4, messages=1500, kills=10, every=0.2)


@pytest.mark.long
@pytest.mark.promise("LIFE-1", "LIFE-8", "HANDLER-6", "HANDLER-8")
def test_twenty_workers_one_killed_every_second_for_a_minute(hf: Holdfast, file: Path) -> None:
    kill_while_working(hf, file, workers=20, messages=20_000, kills=60, every=1.0)
