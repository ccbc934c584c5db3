"""The demo's shop, worked by a worker and by Spark: the same log, the same dead letters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Outgoing
from holdfast.stores.contract import spec_of
from holdfast.testing import wait_until

ORDERS = 60
PATIENCE_S = 180.0
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
WAYS = {
    "worker": ["work", "holdfast.demo.shop:hf", "--concurrency", "4"],
    "spark": ["spark", "work", "holdfast.demo.shop:hf", "--queue", "orders"],
}


def work(way: str, folder: Path) -> dict[str, Any]:
    """The orders of the demo, worked until none is left; what became of each."""
    folder.mkdir()
    url = f"sqlite:///{folder}/shop.db"
    with holdfast.connect(url) as hf:
        command = [HOLDFAST, *WAYS[way]]
        if way == "spark":
            command += ["--master", "local[2]", "--checkpoint", str(folder / "checkpoint")]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "SHOP_URL": url}
            )
        try:
            wait_until(lambda: spec_of(hf.store, "orders") is not None, PATIENCE_S)
            hf.queue("orders").enqueue_many(orders())
            wait_until(lambda: is_worked_off(hf, process, folder), PATIENCE_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (folder / "log").read_text()
        finally:
            process.kill()
            process.wait()
        return what_became(hf)


def orders() -> list[Outgoing]:
    from holdfast.demo.plan import order

    ids = [f"01890000-0000-7000-8000-{n:012x}" for n in range(1, ORDERS + 1)]
    return [Outgoing(order(n), id=id) for n, id in enumerate(ids, 1)]


def is_worked_off(hf: Holdfast, process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "log").read_text()
    stats = hf.queue("orders").stats()
    return stats.done + stats.dead == ORDERS and not stats.leased


def what_became(hf: Holdfast) -> dict[str, Any]:
    queue = hf.queue("orders")
    seen: dict[str, Any] = {}
    for row in queue.log():
        message = row.message
        said = [
            (error.code, error.message, error.attempt, error.handler) for error in message.errors
        ]
        seen[message.id] = (row.status, message.attempts, row.result, said)
    for entry in queue.dlq.browse():
        message = entry.message
        said = [
            (error.code, error.message, error.attempt, error.handler) for error in message.errors
        ]
        seen[message.id] = ("dead", message.attempts, message.reason, said)
    return seen


@pytest.mark.extended
@pytest.mark.promise("SPARK-5")
def test_the_shop_on_spark_has_the_log_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{tmp_path}/imported.db")  # for `demo.plan` alone
    by_worker = work("worker", tmp_path / "worker")
    by_spark = work("spark", tmp_path / "spark")
    assert len(by_worker) == ORDERS
    assert {row[0] for row in by_worker.values()} == {"COMPLETED", "dead"}
    assert by_spark == by_worker
