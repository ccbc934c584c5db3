"""Servers that go away and processes that die under load: what the tests of servers share."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import victim
from proxy import Proxy

import holdfast
from holdfast import Backoff, Holdfast, Outgoing, StoreUnavailable
from holdfast.testing import wait_until
from holdfast.work.worker import Worker

HERE = Path(__file__).parent
KILLED = -signal.SIGKILL
SWEEP = ("HOLDFAST_OVERDUE_CHECK_INTERVAL_MS", "200")
T = TypeVar("T")


class Place:
    """One fresh store on a server that may be killed."""

    url: str
    process_url: str | None = None
    """For processes, where the server is to tell them from others."""

    def __init__(self, server: Any, ledger: Path) -> None:
        self.server = server
        self.ledger = ledger
        self._processes: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        """End what a failed test has left running."""
        for process in self._processes:
            end(process)

    def url_at(self, port: int, **options: Any) -> str:
        raise NotImplementedError

    def check_finished(self, ids: Sequence[str]) -> int:
        """Each is once in the log and nowhere else, and some handler has finished it. How many the
        store says are done."""
        raise NotImplementedError

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def process(self, action: str, *point: str) -> subprocess.Popen[bytes]:
        script = str(HERE / "victim.py")
        url = self.process_url or self.url
        command = [sys.executable, script, action, url, str(self.ledger), *point]
        with Path(f"{self.ledger}.errors").open("ab") as errors:
            self._processes.append(subprocess.Popen(command, stderr=errors))
        return self._processes[-1]

    def errors(self) -> str:
        return Path(f"{self.ledger}.errors").read_text()

    def handled(self) -> set[str]:
        return set(self.ledger.read_text().split())


@contextmanager
def working(worker: Worker) -> Iterator[None]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """What each returned; all of them begin together, each in a thread of its own."""
    barrier = threading.Barrier(len(acts), timeout=60)

    def run(act: Callable[[], Any]) -> Any:
        barrier.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return [future.result() for future in [pool.submit(run, act) for act in acts]]


def nothing_left(hf: Holdfast, *, dead: bool = False) -> bool:
    try:
        stats = hf.queue("orders").stats()
    except StoreUnavailable:
        return False
    return stats.ready + stats.delayed + stats.leased + dead * stats.dead == 0


def insistent(call: Callable[[], T]) -> T:
    """Said again until the store is there."""
    while True:
        with suppress(StoreUnavailable):
            return call()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def forked(place: Place, action: str) -> None:
    command = [sys.executable, str(HERE / "forked.py"), action, place.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


# The store goes away

GoAway = Callable[[Place, Proxy], Callable[[], None]]
"""Returns how it comes back."""


def killed(place: Place, proxy: Proxy) -> Callable[[], None]:
    place.kill()
    return place.start


def stopped(place: Place, proxy: Proxy) -> Callable[[], None]:
    place.server.stop()
    return place.start


def half_open(place: Place, proxy: Proxy) -> Callable[[], None]:
    proxy.stall()
    return proxy.resume


def check_worker_goes_on(place: Place, go_away: GoAway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="holdfast.worker")
    go_on = threading.Event()
    begun: list[int] = []
    with ExitStack() as stack:
        proxy = Proxy(place.server.port)
        stack.callback(proxy.close)
        url = place.url_at(proxy.port, timeout=1)
        hf = stack.enter_context(holdfast.connect(url, ack_timeout=5, backoff=Backoff(base=0.01)))
        orders = hf.queue("orders", max_attempts=50)
        out = os.open(place.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        stack.callback(os.close, out)

        @hf.handler("orders")
        def handle(n: int, message: holdfast.Message) -> None:
            begun.append(n)
            if n >= 100:
                go_on.wait()
            os.write(out, f"{message.id}\n".encode())

        worker = hf.worker(concurrency=4)
        ids = [message.id for message in orders.enqueue_many(range(300))]
        stack.enter_context(working(worker))
        stack.callback(go_on.set)
        wait_until(lambda: orders.stats().done == 100)
        wait_until(lambda: len(begun) >= 104)  # four are in hand
        assert worker.health().ready

        come_back = go_away(place, proxy)
        back = stack.enter_context(ExitStack())
        back.callback(come_back)
        go_on.set()  # its handlers finish what they have while nobody can be told

        def failed(doing: str) -> int:
            return sum(f"{doing} failed, again in" in message for message in caplog.messages)

        wait_until(lambda: failed("settle") >= 2, timeout=60)
        health = worker.health()
        assert not health.ready
        assert f"settle: {url.partition(':')[0]}://127.0.0.1" in health.why

        back.close()
        wait_until(lambda: worker.health().ready, timeout=60)

        late = [Outgoing(n, id=str(uuid.uuid4())) for n in range(100)]
        insistent(lambda: orders.enqueue_many(late))
        ids += [item.id for item in late]
        wait_until(lambda: nothing_left(hf), timeout=60)
        assert place.check_finished(ids) == len(ids)
        assert worker.health() == holdfast.work.worker.Health(True)


# Everything at once


class Producer:
    """Enqueues under ids of its own, and says it again until it was heard. Never far ahead."""

    AHEAD = 1000
    BATCHES = (50, 300)

    def __init__(self, hf: Holdfast, messages: int) -> None:
        self.ids = [str(uuid.uuid4()) for _ in range(messages)]
        self.accepted = 0
        self.repeated = 0
        self._dice = random.Random(2)
        self._orders = hf.queue("orders")
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        while self.accepted < len(self.ids):
            with suppress(StoreUnavailable):
                wait_until(self._has_room, timeout=120)
                self._enqueue()

    def _has_room(self) -> bool:
        stats = self._orders.stats()
        return stats.ready + stats.delayed + stats.leased < self.AHEAD

    def _enqueue(self) -> None:
        size = self._dice.choice(self.BATCHES)
        numbers = range(self.accepted, min(self.accepted + size, len(self.ids)))
        batch = [Outgoing(n, id=self.ids[n]) for n in numbers]
        while True:
            try:
                self._orders.enqueue_many(batch)
                break
            except StoreUnavailable:
                self.repeated += len(batch)
        self.accepted += len(batch)


class Workers:
    """Processes, of which one at random is killed and followed by another."""

    def __init__(self, place: Place, count: int) -> None:
        self.kills = 0
        self._place = place
        self._dice = random.Random(1)
        self._running = [place.process("work") for _ in range(count)]
        self._enough = threading.Event()
        self._reaper: threading.Thread | None = None

    def kill_one(self) -> None:
        process = self._running.pop(self._dice.randrange(len(self._running)))
        process.kill()
        code = process.wait()
        # One that was started while the server was down has said so and ended by itself.
        assert code == KILLED or "StoreUnavailable" in self._place.errors()
        self.kills += code == KILLED
        self._running.append(self._place.process("work"))

    def kill_every(self, seconds: float) -> None:
        def reap() -> None:
            while not self._enough.wait(seconds):
                self.kill_one()

        self._reaper = threading.Thread(target=reap)
        self._reaper.start()

    def end(self) -> None:
        self._enough.set()
        if self._reaper is not None:
            self._reaper.join()
        for process in self._running:
            end(process)


class Figures(msgspec.Struct, frozen=True):
    """Of a storm: for those who want to know more than that it passed."""

    seconds: float
    worker_kills: int
    repeated: int
    """Messages of calls whose answer was lost, said again."""
    handled: int
    """More than there are messages by those that a killed one had begun, or not told about."""


def storm(
    place: Place,
    *,
    messages: int,
    workers: int,
    server_kills: int,
    worker_kills: int = 0,
    worker_kill_every: float | None = None,
    take_down: Callable[[], None] | None = None,
) -> Figures:
    """Kills happen at even distances on the producer's way, or so often; the server's between."""
    began = time.monotonic()
    kills = sorted(
        [(messages * (n + 1) // (worker_kills + 1), "worker") for n in range(worker_kills)]
        + [(messages * (n + 1) // (server_kills + 1) - 25, "server") for n in range(server_kills)]
    )
    with ExitStack() as stack:
        hf = stack.enter_context(victim.connect(place.url))
        out = victim.register(hf, str(place.ledger))
        stack.callback(os.close, out)
        processes = Workers(place, workers)
        stack.callback(processes.end)
        own = hf.worker(concurrency=4)
        stack.enter_context(working(own))
        producer = stack.enter_context(Producer(hf, messages))
        if worker_kill_every is not None:
            processes.kill_every(worker_kill_every)
        for at, whom in kills:
            wait_until(lambda at=at: producer.accepted >= at, timeout=120)
            if whom == "server":
                (take_down or place.kill)()
                wait_until(lambda: not own.health().ready, timeout=60)
                assert own.health().why
                place.start()
            else:
                processes.kill_one()
        wait_until(lambda: producer.accepted == messages, timeout=120)
        wait_until(lambda: own.health().ready, timeout=60)
        processes.end()
        wait_until(lambda: nothing_left(hf), timeout=120)
        insistent(lambda: hf.redrive("orders.dlq"))
        wait_until(lambda: nothing_left(hf, dead=True), timeout=120)
        done = place.check_finished(producer.ids)
        # A call whose answer was lost, repeated after its messages were finished, counts again.
        assert messages <= done <= messages + producer.repeated
        handled = len(place.ledger.read_text().split())
        return Figures(time.monotonic() - began, processes.kills, producer.repeated, handled)
