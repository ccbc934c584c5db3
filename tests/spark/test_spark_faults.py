"""Drivers and executors die by kill -9, stores go away: the sink holds each message once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Holdfast, Outgoing
from holdfast.testing import wait_until
from servers.postgres import PostgresServer, running

HERE = Path(__file__).parent
PATIENCE_S = 180.0
"""For what a loaded machine takes to start a JVM, not for what is promised."""
STREAM_POINTS = (
    *("after-reserve:1", "before-seal:1", "after-seal:2", "in-read:2"),
    *("before-settle:1", "in-settle:1", "after-reserve:2"),
)
RUN_POINTS = ("after-stage:1", "after-sink:1", "after-publish:1", "in-settle:1")
SHARE = {
    "sqlite": slice(0, None, 3),
    "postgres": slice(None),
    "redis": slice(1, None, 3),
    "mongo": slice(2, None, 3),
}
"""Which of the points each store sees. Every death costs the start of a JVM; the order in which a
batch is reserved, sealed and settled is the same code on every store. With --long: all."""


class Rig:
    """A queue, a sink, and a driver that is started again and again."""

    def __init__(self, url: str, folder: Path, mode: str, **more: Any) -> None:
        self.hf = holdfast.connect(url)
        self.queue = self.hf.queue("work", max_attempts=3, backoff=Backoff(base=0.05, max=0.05))
        self.sink = str(folder / "sink")
        self.folder = folder
        self.told = {
            "url": url,
            "queue": "work",
            "mode": mode,
            "sink": self.sink,
            "checkpoint": str(folder / "checkpoint"),
            "max": 400,
            **more,
        }
        self.sent: list[str] = []
        self.taken: list[str] = []
        self.driver: subprocess.Popen[str] | None = None
        self.logs = 0

    def send(self, n: int) -> None:
        first = len(self.sent)
        for start in range(first, first + n, 1000):
            part = range(start, min(start + 1000, first + n))
            sent = self.queue.enqueue_many([Outgoing(number) for number in part])
            self.sent += [message.id for message in sent]

    def start(self, die_at: str = "") -> None:
        """Until it runs; it may be dead by then if it had to die early."""
        Path(self.told["checkpoint"] + ".deaths").unlink(missing_ok=True)
        self.logs += 1
        log = (self.folder / f"driver-{self.logs}.log").open("w")
        self.driver = subprocess.Popen(
            [sys.executable, str(HERE / "driver.py"), json.dumps({**self.told, "die_at": die_at})],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        log.close()

    def kill(self) -> None:
        assert self.driver is not None
        with suppress(ProcessLookupError):
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()

    def wait_for_death(self) -> None:
        assert self.driver is not None
        assert self.driver.wait(PATIENCE_S) == -signal.SIGKILL, self.log()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            assert self.driver is None or self.driver.poll() is None, self.log()
            return condition()

        wait_until(holds, PATIENCE_S)

    def runs(self) -> int:
        return sum(query.run for query in self.queries())

    def queries(self) -> list[Any]:
        from holdfast import batches

        return batches.queries(self.hf.context)

    def is_empty(self) -> bool:
        stats = self.queue.stats()
        return not (stats.ready or stats.delayed or stats.leased)

    def stop(self) -> None:
        assert self.driver is not None
        os.kill(self.driver.pid, signal.SIGTERM)
        self.driver.wait(PATIENCE_S)

    def log(self) -> str:
        return (self.folder / f"driver-{self.logs}.log").read_text()[-6000:]

    def compete(self, stop: threading.Event) -> None:
        """A plain consumer beside the stream, and the sweeper."""
        while not stop.wait(0.2):
            for lease in self.queue.lease(1):
                self.queue.ack(lease)
                self.taken.append(lease.id)
            self.hf.sweep()

    def logged(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for finished in self.queue.log():
            found[finished.message.id] += 1
        return found


@pytest.fixture
def rig_of(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    with ExitStack() as after:

        def make(mode: str, **more: Any) -> Rig:
            rig = Rig(store_url, tmp_path, mode, **more)
            after.callback(rig.hf.close)
            after.callback(lambda: rig.driver is not None and rig.kill())
            return rig

        yield make


@contextmanager
def competing(rig: Rig) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=rig.compete, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def sink_ids(spark: Any, rig: Rig) -> Counter[str]:
    rows = spark.read.parquet(rig.sink).groupBy("id").count().collect()
    return Counter({row["id"]: row["count"] for row in rows})


def each_once(spark: Any, rig: Rig, *, dead: int = 0) -> None:
    """The ledger: in the sink, or with the competitor, or dead; once, and once in the log."""
    stats = rig.queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, dead)
    lost = {entry.message.id for entry in rig.queue.dlq.browse()}
    arrived = sink_ids(spark, rig) + Counter(rig.taken)
    assert arrived == Counter({id: 1 for id in rig.sent if id not in lost})
    assert rig.logged() == arrived


@pytest.fixture
def share(store_name: str, request: pytest.FixtureRequest) -> slice:
    return slice(None) if request.config.getoption("--long") else SHARE[store_name]


@pytest.mark.promise("SPARK-1", "SPARK-9")
def test_a_driver_that_dies_at_every_point(
    rig_of: Callable[..., Rig], spark: Any, share: slice
) -> None:
    rig = rig_of("stream")
    with competing(rig):
        for point in STREAM_POINTS[share]:
            rig.send(800)
            rig.start(point)
            rig.wait_for_death()
        rig.start()
        rig.wait_until(rig.is_empty)
        rig.stop()
    each_once(spark, rig)


@pytest.mark.promise("SPARK-1", "SPARK-2", "SPARK-5")
def test_handlers_whose_driver_dies_between_the_steps_of_a_batch(
    rig_of: Callable[..., Rig], spark: Any, share: slice
) -> None:
    rig = rig_of("handlers")
    points = RUN_POINTS[share]
    for point in points:
        rig.send(500)
        rig.start(point)
        rig.wait_for_death()
    rig.start()
    rig.wait_until(rig.is_empty)
    rig.stop()
    each_once(spark, rig, dead=5 * len(points))
    for entry in rig.queue.dlq.browse():
        message = entry.message
        assert message.attempts == 3
        assert {error.message for error in message.errors} == {f"never {message.payload}"}


@pytest.mark.long
@pytest.mark.promise("SPARK-1")
@pytest.mark.parametrize("mode", ["stream", "handlers"])
def test_twenty_thousand_messages_and_fifteen_kills(
    rig_of: Callable[..., Rig], spark: Any, mode: str
) -> None:
    rig = rig_of(mode, max=1500)
    rng = random.Random(15)
    with competing(rig) if mode == "stream" else ExitStack():
        for _ in range(15):
            rig.send(1200)
            before = rig.runs()
            rig.start()
            rig.wait_until(lambda before=before: rig.runs() > before)
            time.sleep(rng.uniform(0.0, 4.0))  # anywhere in what it does
            rig.kill()
        rig.send(2000)
        rig.start()
        rig.wait_until(rig.is_empty)
        rig.stop()
    each_once(spark, rig, dead=0 if mode == "stream" else 200)


def executors_of(driver: int) -> list[int]:
    """The executors that a driver on local-cluster started, by their command lines."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                group = os.getpgid(int(folder.name))
                if b"CoarseGrainedExecutorBackend" in command and group == driver:
                    found.append(int(folder.name))
    return found


@pytest.mark.promise("SPARK-1", "SPARK-9")
def test_an_executor_that_dies(postgres_url: str, tmp_path: Path, spark: Any) -> None:
    rig = Rig(postgres_url, tmp_path, "stream", master="local-cluster[2,1,1024]", max=1000)
    try:
        rig.send(1000)
        rig.start()
        rig.wait_until(lambda: rig.queue.stats().done >= 1000)
        for _ in range(3):
            rig.send(2000)
            done = rig.queue.stats().done
            rig.wait_until(lambda: rig.queue.stats().leased > 0)
            victims = executors_of(rig.driver.pid if rig.driver else 0)
            assert victims
            os.kill(victims[0], signal.SIGKILL)
            rig.wait_until(lambda done=done: rig.queue.stats().done >= done + 2000)
        rig.wait_until(rig.is_empty)
        rig.stop()
        each_once(spark, rig)
    finally:
        rig.kill()
        rig.hf.close()


@pytest.mark.promise("SPARK-1")
def test_a_postgres_that_is_restarted(tmp_path: Path, spark: Any) -> None:
    with running(settings={"fsync": "off"}) as server:
        assert isinstance(server, PostgresServer)
        rig = Rig(server.url, tmp_path, "stream", max=1000)
        try:
            rig.send(500)
            rig.start()
            rig.wait_until(lambda: rig.queue.stats().done >= 500)
            for _ in range(3):
                rig.send(3000)
                rig.wait_until(lambda: rig.queue.stats().leased > 0)
                server.kill()
                server.start()
            rig.wait_until(lambda: _empty_now(rig.hf, rig))
            rig.stop()
            each_once(spark, rig)
        finally:
            rig.kill()
            rig.hf.close()


def _empty_now(hf: Holdfast, rig: Rig) -> bool:
    with suppress(holdfast.StoreUnavailable):
        return rig.is_empty()
    return False
