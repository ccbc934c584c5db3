"""Mixed load with slowloris, endless headers, giant pages and 2,000 idle connections.

HOLDFAST_TEST_ATTACK_SECONDS sets how long the attack lasts (600 for the long form). The figures are
printed with `-s`; how long calls take is not asserted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import holdfast
from holdfast.errors import HoldfastError
from tests.server.attack import GIANT
from tests.server.rig import Program

SECONDS = float(os.environ.get("HOLDFAST_TEST_ATTACK_SECONDS", "10"))
CLIENTS = 2
GROWTH_MAX_MIB = 700
"""Unread answers (256 MiB), and what 24 threads may read from the store meanwhile."""


class Honest:
    """Clients that enqueue, lease and ack in turn, and note how long each call took."""

    def __init__(self, url: str) -> None:
        self.times: list[float] = []
        self.errors: list[HoldfastError] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(url,)) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, url: str) -> None:
        with holdfast.connect(url) as hf:
            queue = hf.queue("honest")
            while not self._stop.is_set():
                try:
                    self._time(lambda: queue.enqueue({"n": 1}))
                    for lease in self._time(queue.lease):
                        self._time(lambda lease=lease: queue.ack(lease))
                except HoldfastError as error:
                    self.errors.append(error)

    def _time(self, call):  # type: ignore[no-untyped-def]
        begun = time.perf_counter()
        answer = call()
        self.times.append(time.perf_counter() - begun)
        return answer

    def stop(self) -> str:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.times.sort()
        p50, p99 = (self.times[int(len(self.times) * part)] * 1000 for part in (0.5, 0.99))
        return f"{len(self.times)} calls, p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(x.split()[1]) / 1024 for x in status.splitlines() if x.startswith("VmHWM"))


@pytest.mark.extended
@pytest.mark.promise("SERVER-5")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_honest_clients_are_served_while_others_attack(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/attack.db"
    with holdfast.connect(url) as hf:
        hf.queue("honest")
        for _ in range(8):
            hf.queue("giant").enqueue_many(["x" * 1_000_000] * 8)
    with Program(url) as program:
        honest = Honest(program.http)
        honest._stop.wait(max(2.0, SECONDS / 4))
        quiet = honest.stop()
        assert honest.errors == []
        before = memory_mib(program.process.pid)
        at = urlsplit(program.http)
        command = [sys.executable, "-m", "tests.server.attack", str(at.hostname), str(at.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attackers:
            assert attackers.stdout is not None
            assert attackers.stdout.readline() == "begun\n"
            honest = Honest(program.http)
            honest._stop.wait(SECONDS)
            attacked = honest.stop()
            attackers.kill()
        grown = memory_mib(program.process.pid) - before
    print(f"\nquiet: {quiet}\nunder attack: {attacked}")
    print(f"memory: {before:.0f} MiB, and {grown:.0f} MiB more at most; {GIANT} giant readers")
    assert honest.errors == []
    assert grown < GROWTH_MAX_MIB
