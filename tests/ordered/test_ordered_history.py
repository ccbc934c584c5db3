"""Many consumers of one ordered queue that come, go, are killed and frozen; then their history."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Backoff, Holdfast, Outgoing
from holdfast.testing import wait_until
from servers import SHARED

sys.path.insert(0, str(Path(__file__).parent))
import history
from history import Life

HERE = Path(__file__).parent
LEASE_MS, RENEW_MS, REBALANCE_MS = 3000, 300, 500
TIMES = {
    "HOLDFAST_PARTITION_LEASE_MS": str(LEASE_MS),
    "HOLDFAST_PARTITION_RENEW_MS": str(RENEW_MS),
    "HOLDFAST_PARTITION_REBALANCE_MS": str(REBALANCE_MS),
    "HOLDFAST_OVERDUE_CHECK_INTERVAL_MS": "500",
}
CONSUMERS = 6


@pytest.fixture(params=SHARED)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


class Crowd:
    """Consumers, each a process of its own, and what was done to them."""

    def __init__(self, url: str, notes: Path) -> None:
        self.url, self.notes = url, notes
        notes.touch()
        self.lives: dict[str, Life] = {}
        self.alive: dict[str, subprocess.Popen[bytes]] = {}
        self.names: dict[int, str] = {}
        self.frozen: list[threading.Timer] = []

    def join(self, *args: str) -> str:
        name = f"c{len(self.lives)}"
        self.lives[name] = Life(name)
        command = [sys.executable, str(HERE / "consumer.py"), self.url, str(self.notes), name]
        env = {**os.environ, **TIMES}
        with self.notes.with_suffix(f".{name}").open("wb") as output:
            process = subprocess.Popen([*command, *args], stderr=output, env=env)
        self.alive[name], self.names[process.pid] = process, name
        return name

    def leave(self, name: str) -> None:
        process = self.alive[name]
        process.send_signal(signal.SIGTERM)
        said = self.notes.with_suffix(f".{name}")
        early = process.wait(60) == -signal.SIGTERM and f" {name} " not in self.notes.read_text()
        del self.alive[name]
        assert early or process.returncode == 0, said.read_text()[-2000:]

    def kill(self, name: str) -> None:
        process = self.alive.pop(name)
        process.kill()
        process.wait()
        self.lives[name].killed_at = time.monotonic_ns()

    def freeze(self, name: str, seconds: float) -> None:
        """It goes on by itself when the time is over; nothing else is done to it meanwhile."""
        process = self.alive.pop(name)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        since = time.monotonic_ns()

        def thaw() -> None:
            until = time.monotonic_ns()  # later than asked for, where the machine is busy
            if until - since > LEASE_MS * 1_000_000:
                self.lives[name].frozen.append((since, until))
            process.send_signal(signal.SIGCONT)
            self.alive[name] = process

        timer = threading.Timer(seconds, thaw)
        timer.start()
        self.frozen.append(timer)

    def close(self) -> None:
        for timer in self.frozen:
            timer.join()
        for process in self.alive.values():
            process.kill()
            process.wait()


def is_stopped(pid: int) -> bool:
    """Each of its threads: a signal takes a moment to arrive."""
    stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


@pytest.fixture
def crowd(store_url: str, tmp_path: Path) -> Iterator[Crowd]:
    crowd = Crowd(store_url, tmp_path / "notes")
    yield crowd
    crowd.close()


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(store_url) as hf:
        backoff = Backoff(base=0.02, max=0.2)
        hf.queue("orders", partitions=4, ordered=True, max_attempts=60, backoff=backoff)
        yield hf


def produce(hf: Holdfast, n: int, keys: int, done: Callable[[int], None]) -> threading.Thread:
    """Number n has key n mod `keys`; so many at a time that consumers are busy until the end."""

    def run() -> None:
        queue, step = hf.queue("orders"), max(keys, n // 40)
        for start in range(0, n, step):
            queue.enqueue_many(
                Outgoing(i, key=f"k{i % keys}") for i in range(start, min(n, start + step))
            )
            done(start)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def chaos(crowd: Crowd, rng: random.Random, over: Callable[[], bool]) -> dict[str, int]:
    did = {"join": 0, "leave": 0, "kill": 0, "blink": 0, "freeze": 0}
    while not over():
        what = rng.choice(sorted(did)) if len(crowd.alive) > 2 else "join"
        name = rng.choice(sorted(crowd.alive)) if crowd.alive else ""
        if what == "join":
            if len(crowd.alive) >= CONSUMERS:
                continue
            crowd.join()
        elif what == "leave":
            crowd.leave(name)
        elif what == "kill":
            crowd.kill(name)
        elif what == "blink":
            crowd.freeze(name, 0.2)
        elif what == "freeze":
            crowd.freeze(name, LEASE_MS / 1000 + 1.5)
        did[what] += 1
        time.sleep(rng.uniform(0.1, 0.6))  # chaos has a pace
    return did


def finished(hf: Holdfast, n: int) -> Callable[[], bool]:
    queue = hf.queue("orders")

    def over() -> bool:
        stats = queue.stats()
        return stats.done + stats.dead >= n

    return over


def check(hf: Holdfast, crowd: Crowd, n: int, keys: int) -> tuple[int, int]:
    """Nothing lost, one at a time, in order, nothing settled by who lost it."""
    queue = hf.queue("orders")
    rows = list(queue.log())
    dead = {entry.message.payload for entry in queue.dlq.browse()}
    assert queue.stats().lag == 0
    done = [row.message.payload for row in rows]
    assert len(done) == len(set(done)), "finished twice"
    assert sorted([*done, *dead]) == list(range(n)), "lost, or in two places"
    settled = {
        (crowd.names[int((row.consumer or "").split(":")[1])], message.payload, message.attempts)
        for row in rows
        if (message := row.message)
    }
    notes = history.read(crowd.notes)
    found = history.runs(notes, crowd.lives, settled)
    owners = history.check_one_at_a_time(found)
    lost = [note for note in notes if note.what == "lost"]
    history.check_order(found, dead, keys, crowd.lives, lost)
    return owners, history.check_frozen(found, crowd.lives, settled)


def storm(hf: Holdfast, crowd: Crowd, n: int, keys: int, seed: int, patience: float) -> None:
    producer = produce(hf, n, keys, lambda _: None)
    for _ in range(3):
        crowd.join()
    over = finished(hf, n)
    did = chaos(crowd, random.Random(seed), over)
    producer.join()
    wait_until(over, patience)
    for timer in crowd.frozen:
        timer.join()
    for name in sorted(crowd.alive):
        crowd.leave(name)  # whoever was frozen has said all that it had to say
    owners, in_hand = check(hf, crowd, n, keys)
    print(f"{n} messages, {did}, {owners} changes of owner, {in_hand} in hand when frozen")
    assert owners > 0


@pytest.mark.promise("PART-3", "PART-5", "PART-6")
def test_order_and_one_owner_hold_whatever_happens_to_consumers(hf: Holdfast, crowd: Crowd) -> None:
    storm(hf, crowd, 5_000, 60, seed=7, patience=60)


@pytest.mark.soak
@pytest.mark.promise("PART-3", "PART-5", "PART-6")
def test_a_hundred_thousand_messages_of_two_hundred_keys(hf: Holdfast, crowd: Crowd) -> None:
    storm(hf, crowd, 100_000, 200, seed=11, patience=300)


@pytest.mark.promise("PART-7")
def test_partitions_are_added_under_load(hf: Holdfast, crowd: Crowd) -> None:
    n, keys = 8_000, 80
    halfway = threading.Event()

    def grow(start: int) -> None:
        if start >= n // 2 and not halfway.is_set():
            hf.queue("orders", partitions=16)
            halfway.set()

    for _ in range(3):
        crowd.join()
    producer = produce(hf, n, keys, grow)
    wait_until(halfway.is_set, 60)
    crowd.join()
    producer.join()
    wait_until(finished(hf, n), 120)
    check(hf, crowd, n, keys)
    used = {note.partition for note in history.read(crowd.notes)}
    assert used & set(range(4)) and len(used & set(range(4, 20))) > 8


@pytest.mark.promise("PART-3", "PART-4")
@pytest.mark.parametrize("store_name", [name for name in SHARED if name != "sqlite"])
def test_consumers_whose_clocks_are_wrong_by_a_minute(hf: Holdfast, crowd: Crowd) -> None:
    """The store's clock counts. (On SQLite all are on one machine, and have the same clock.)"""
    n, keys, queue = 3_000, 30, hf.queue("orders")
    for args in ((), ("60",), ("-60",)):
        crowd.join(*args)

    def owned() -> list[int]:
        owners = [part.owner for part in queue.partitions()]
        return sorted(owners.count(owner) for owner in set(owners) - {None})

    wait_until(lambda: owned() == [1, 1, 2], 60)
    producer = produce(hf, n, keys, lambda _: None)
    crowd.kill("c1")
    producer.join()
    wait_until(finished(hf, n), 60)
    check(hf, crowd, n, keys)
