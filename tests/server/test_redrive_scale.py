"""A redrive of very many dead letters holds little, and lets others in between."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import holdfast
from tests.server.rig import Program

CHUNK = 5000
MEMORY_MIB = 200


@pytest.mark.promise("DEAD-9")
@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_redrive_of_many_over_grpc_holds_little_and_others_lease_meanwhile(
    tmp_path: Path, count: int
) -> None:
    url = f"sqlite:///{tmp_path}/test.db"
    with holdfast.connect(url) as hf:
        hf.queue("orders")
        for start in range(0, count, CHUNK):
            hf.queue("orders.dlq").enqueue_many(range(start, min(count, start + CHUNK)))
        hf.queue("others").enqueue_many(range(1000))
    with Program(url) as server, holdfast.connect(server.grpc) as remote:
        before = _peak_mib(server.process.pid)
        going = threading.Thread(target=lambda: done.append(remote.redrive("orders.dlq")))
        done: list[holdfast.Redriven] = []
        going.start()
        leased_meanwhile = 0
        others = remote.queue("others", create=False)
        while going.is_alive():
            for lease in others.lease():
                others.ack(lease)
                leased_meanwhile += 1
        going.join()
        assert [redriven.redriven for redriven in done] == [count]
        assert leased_meanwhile > 10
        assert _peak_mib(server.process.pid) - before < MEMORY_MIB
        assert remote.queue("orders", create=False).stats().ready == count


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no peak memory is known")
