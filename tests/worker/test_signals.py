"""SIGTERM once and twice, on a real process."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.testing import finished, wait_until

SCRIPT = """
import logging, os, sys, time
import holdfast

logging.basicConfig(filename=f"{sys.argv[2]}/log", level=logging.INFO)
hf = holdfast.connect(sys.argv[1])

@hf.handler("orders")
def handle(n):
    open(f"{sys.argv[2]}/started-{n}", "w").close()
    while not os.path.exists(f"{sys.argv[2]}/go"):
        time.sleep(0.005)

sys.exit(0 if hf.work(concurrency=2) else 1)
"""


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(tmp_path: Path, store_name: str) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as hf:
        hf.queue("orders").enqueue_many(range(5))
        yield hf


@pytest.fixture
def worker(url: str, hf: Holdfast, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, url, str(tmp_path)])
    wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2, timeout=30)
    yield process
    process.kill()
    process.wait()


@pytest.mark.promise("HANDLER-5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_handlers_finish(
    hf: Holdfast, worker: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    worker.send_signal(number)
    queue = hf.queue("orders")
    wait_until(lambda: "stopping" in (tmp_path / "log").read_text())
    assert worker.poll() is None
    (tmp_path / "go").touch()
    assert worker.wait(30) == 0
    assert sorted(done.message.payload for done in finished(hf, "orders")) == [0, 1]
    assert [entry.message.attempts for entry in queue.browse()] == [0, 0, 0]
    assert queue.stats().leased == 0


@pytest.mark.promise("HANDLER-5")
def test_the_second_signal_stops_at_once(
    hf: Holdfast, worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    queue = hf.queue("orders")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in (tmp_path / "log").read_text())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 128 + signal.SIGTERM
    assert (queue.stats().leased, queue.stats().done) == (2, 0)  # they become overdue


@pytest.mark.promise("HANDLER-5")
def test_a_signal_that_another_thread_receives(
    hf: Holdfast, worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """The system chooses who does: any of them, right after the process was stopped and went on."""
    (tmp_path / "go").touch()
    queue = hf.queue("orders")
    wait_until(lambda: queue.stats().done == 5)
    others = [int(task.name) for task in Path(f"/proc/{worker.pid}/task").iterdir()]
    others.remove(worker.pid)
    assert ctypes.CDLL(None).tgkill(worker.pid, max(others), signal.SIGTERM) == 0
    assert worker.wait(30) == 0
