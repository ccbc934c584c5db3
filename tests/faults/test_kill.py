"""kill -9 at random and at named points. A ledger of what was accepted proves nothing lost."""

from __future__ import annotations

import random
import secrets
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Holdfast, Outgoing, State
from holdfast.testing import ManualClock, wait_until
from servers import mongo
from tests.plugins.sampling import one_of_each

sys.path.insert(0, str(Path(__file__).parent))
import storm
from mongo_place import SOON_OVER, MongoPlace
from redis_place import RedisPlace
from storm import KILLED, SWEEP, nothing_left

from holdfast.stores.contract import overdue_in


class SqlitePlace(storm.Place):
    def __init__(self, file: Path, ledger: Path) -> None:
        super().__init__(None, ledger)
        self.file = file
        self.url = f"sqlite:///{file}"

    def check_whole(self, hf: Holdfast, accepted: set[str]) -> None:
        """Each accepted message is in exactly one place, and the counters say the same."""
        places = [id for ids in everywhere(hf).values() for id in ids]
        assert len(places) == len(set(places)), "a message is in two places"
        assert set(places) == accepted, "a message was lost, or came from nowhere"
        database = sqlite3.connect(self.file)
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

    def check_finished(self, ids: Sequence[str]) -> int:
        with holdfast.connect(self.url) as hf:
            self.check_whole(hf, set(ids))
            log = [done.message.id for done in hf.queue("orders").log()]
            assert len(log) == len(ids) and set(log) == set(ids)
            assert self.handled() == set(ids), "in the log, but no handler finished it"
            return hf.queue("orders").stats().done


@pytest.fixture(params=["sqlite", "redis", "mongo"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def mongo_soon_over() -> Iterator[str]:
    """Where nobody waits for a minute until the server gives up what a killed one had begun."""
    with mongo.running(parameters=SOON_OVER) as server:
        yield server.url


@pytest.fixture
def place(
    store_name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    monkeypatch.setenv(*SWEEP)
    if store_name == "redis":
        place = RedisPlace(request.getfixturevalue("redis_url"), tmp_path / "ledger")
    elif store_name == "mongo":
        server = request.getfixturevalue("mongo_soon_over")
        url = mongo.with_database(server, f"test_{secrets.token_hex(6)}")
        place = MongoPlace(url, tmp_path / "ledger")
    else:
        place = SqlitePlace(tmp_path / "jobs.db", tmp_path / "ledger")
    with closing(place):
        yield place


@pytest.fixture
def hf(place: Any) -> Iterator[Holdfast]:
    with holdfast.connect(place.url, ack_timeout=1, backoff=Backoff(base=0.01)) as hf:
        hf.queue("orders", max_attempts=50)
        yield hf


def everywhere(hf: Holdfast) -> dict[str, list[str]]:
    """Every id the store holds, by place; finished ones under "log". All at one instant: a delayed
    message that became ready between two looks would be seen by neither."""
    found: dict[str, list[str]] = {}
    still = holdfast.connect(hf.store, clock=ManualClock(hf.context.clock.now()))
    for queue in (still.queue("orders"), still.queue("orders.dlq")):
        for state in State:
            name = "log" if state is State.LOG else f"{queue.name} {state}"
            found.setdefault(name, []).extend(e.message.id for e in queue.browse(state))
    return found


def finish(hf: Holdfast, place: Any) -> None:
    """Let one worker that nobody kills do the rest, its sweeper included."""
    worker = place.process("work")
    wait_until(lambda: nothing_left(hf), timeout=60)
    hf.redrive("orders.dlq")
    wait_until(lambda: nothing_left(hf, dead=True), timeout=60)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


POINTS = {
    "work": [
        ("UPDATE holdfast_message SET\n  state = 2", 1),
        ("COMMIT", 1),
        ("COMMIT", 2),
        ("COMMIT", 3),
        ("BEGIN IMMEDIATE", 2),
        ("BEGIN IMMEDIATE", 3),
        ("INSERT INTO holdfast_log", 1),
        ("INSERT INTO holdfast_log", 5),
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
    "nack": [("UPDATE holdfast_message SET home", 4), ("COMMIT", 2)],
    "exhaust": [("UPDATE holdfast_message SET home", 4), ("COMMIT", 2)],
    "fail": [("UPDATE holdfast_message SET home", 4), ("COMMIT", 2)],
    "promote": [("UPDATE holdfast_message SET", 2), ("COMMIT", 1)],
}
SCRIPTS = {
    "work": [("lease", 2), ("finish", 1), ("settle", 1)],
    "sweep": [("settle", 1)],
    "redrive": [("settle", 1)],
    "ack": [("finish", 1)],
    "nack": [("settle", 1)],
    "exhaust": [("settle", 1)],
    "fail": [("settle", 1)],
    "promote": [("lease", 1)],
}
MOMENTS = ("before", "sent", "after")
COMMANDS = [
    ("update:messages before", 2),
    ("update:messages after", 2),
    ("update:counts after", 3),
    ("delete:messages after", 1),
    ("insert:log after", 1),  # a worker that is quick settles all with one of them
    ("commitTransaction before", 3),
    ("commitTransaction after", 4),
]
"""Of a worker on MongoDB. Around each command of each call: see test_mongo_kill.py."""
NAMED = [
    *[("sqlite", action, *point) for action, points in POINTS.items() for point in points],
    *[
        ("redis", action, f"{script} {moment}", nth)
        for action, scripts in SCRIPTS.items()
        for script, nth in scripts
        for moment in MOMENTS
    ],
    *[("mongo", "work", *point) for point in COMMANDS],
]


@pytest.mark.promise(
    "LIFE-1", "HANDLER-6", "HANDLER-8", "LOG-1", "RETRY-4", "RETRY-7", "DEAD-3", "OVERDUE-1"
)
@pytest.mark.parametrize(
    ("store_name", "action", "statement", "nth"),
    one_of_each(NAMED, lambda case: case[:2]),
    ids=lambda part: str(part)[:40],
)
def test_killed_at_a_named_point(
    hf: Holdfast, place: Any, action: str, statement: str, nth: int
) -> None:
    queue = hf.queue("orders")
    accepted = {message.id for message in queue.enqueue_many(messages_for(action))}
    if action == "sweep":
        for lease in queue.lease(20):
            queue.extend(lease, 0.001)
        wait_until(lambda: len(overdue_in(hf.store, "orders", hf.context.clock.now(), 50)) == 20)
    if action == "redrive":
        for lease in queue.lease(10):
            queue.fail(lease)
    if action == "promote":
        wait_until(lambda: queue.stats().delayed == 0)
    process = place.process(action, statement, str(nth))
    if action == "work":
        accepted |= feed(hf, process)
    assert process.wait(60) == KILLED
    place.check_whole(hf, accepted)
    finish(hf, place)
    assert place.check_finished(sorted(accepted)) == len(accepted)


FED_MAX = 300


def feed(hf: Holdfast, process: Popen[bytes]) -> set[str]:
    """A worker that has done it all gets one more, until it dies: how many it settles at once is
    its own affair, so a call for acks alone may not have come yet. What was accepted."""
    accepted: set[str] = set()
    while len(accepted) < FED_MAX:
        wait_until(lambda: process.poll() is not None or nothing_left(hf), timeout=60)
        if process.poll() is not None:
            return accepted
        accepted.add(hf.queue("orders").enqueue(1).id)
    raise AssertionError(f"the worker never came to its end in {FED_MAX} messages")


def messages_for(action: str) -> list[Outgoing]:
    """Those that fail at their first try have more than one when this is about the last."""
    return [
        Outgoing(
            n,
            delay=0.001 if action == "promote" else None,
            max_attempts=1 if action == "exhaust" and n % 7 else None,
        )
        for n in range(100)
    ]


BATCHES = [
    ("sqlite", "INSERT INTO holdfast_message", 1, 0),
    ("sqlite", "INSERT INTO holdfast_message", 30, 1),
    ("sqlite", "COMMIT", 3, 2),
    ("sqlite", "INSERT INTO holdfast_depth", 4, 3),
    ("sqlite", "BEGIN IMMEDIATE", 5, 4),
    ("redis", "enqueue before", 1, 0),
    ("redis", "enqueue sent", 1, 1),
    ("redis", "enqueue after", 3, 3),
    ("redis", "enqueue before", 5, 4),
    ("mongo", "insert:messages before", 1, 0),
    ("mongo", "insert:messages after", 1, 0),
    ("mongo", "commitTransaction before", 3, 1),
    ("mongo", "commitTransaction after", 4, 3),
]


@pytest.mark.promise("LIFE-2", "LIFE-3", "LIFE-1")
@pytest.mark.parametrize(
    ("store_name", "statement", "nth", "batches"), one_of_each(BATCHES, lambda case: case[0])
)
def test_a_producer_killed_in_a_batch_stored_all_or_none_of_it(
    hf: Holdfast, place: Any, statement: str, nth: int, batches: int
) -> None:
    assert place.process("produce", statement, str(nth)).wait(60) == KILLED
    stored = [entry.message for entry in hf.queue("orders").browse()]
    assert [message.payload for message in stored] == list(range(batches * 20))
    assert hf.queue("orders").stats().ready == batches * 20
    place.check_whole(hf, {message.id for message in stored})


def kill_while_working(
    hf: Holdfast, place: Any, *, workers: int, messages: int, kills: int, every: float
) -> None:
    queue = hf.queue("orders")
    accepted: set[str] = set()
    dice = random.Random(1)
    running = [place.process("work") for _ in range(workers)]
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
            running.append(place.process("work"))
    finally:
        for worker in running:
            storm.end(worker)
    place.check_whole(hf, accepted)
    finish(hf, place)
    assert place.check_finished(sorted(accepted)) == len(accepted) == messages


def _pause(seconds: float) -> None:
    """Between two kills: the one thing here that is about time itself."""
    threading.Event().wait(seconds)


@pytest.mark.promise("LIFE-1", "LIFE-8", "HANDLER-6", "HANDLER-8")
def test_workers_killed_at_random(hf: Holdfast, place: Any) -> None:
    kill_while_working(hf, place, workers=4, messages=1500, kills=10, every=0.2)


@pytest.mark.soak
@pytest.mark.promise("LIFE-1", "LIFE-8", "HANDLER-6", "HANDLER-8")
def test_twenty_workers_one_killed_every_second_for_a_minute(hf: Holdfast, place: Any) -> None:
    kill_while_working(hf, place, workers=20, messages=20_000, kills=60, every=1.0)
