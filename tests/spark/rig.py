"""A stream whose driver is killed and started again and again, and the ledger of what it did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Outgoing
from holdfast.testing import wait_until
from servers import SHARED

HERE = Path(__file__).parent
PATIENCE_S = 180.0
"""For what a loaded machine takes to start a JVM, not for what is promised."""
STREAM_POINTS = (
    *("after-reserve:1", "before-seal:1", "after-seal:2", "in-read:2"),
    *("before-settle:1", "in-settle:1", "after-reserve:2"),
)
RUN_POINTS = ("after-stage:1", "after-sink:1", "after-publish:1", "in-settle:1")
SHARE = {name: slice(n, None, len(SHARED)) for n, name in enumerate(SHARED)}
"""Which of the points each store sees. Every death costs the start of a JVM; the order in which a
batch is reserved, sealed and settled is the same code on every store. With --soak: all."""


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
        from holdfast.work import ledger

        return ledger.queries(self.hf.context)

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
    """Which of the points a driver dies at."""
    return slice(None) if request.config.getoption("--soak") else SHARE[store_name]
