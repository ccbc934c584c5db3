"""Archive, report, redrive and copy on executors in processes of their own, some of which die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Outgoing
from holdfast.stores.contract import spec_of
from holdfast.testing import wait_until
from tests.spark.lakes import once, shop
from tests.spark.test_spark_faults_around import executors_of

HERE = Path(__file__).parent
PATIENCE_S = 300.0


@pytest.mark.extended
@pytest.mark.promise("SPARK-7", "SPARK-8", "SPARK-9")
def test_executors_die_while_messages_move(postgres_url: str, tmp_path: Path, spark: Any) -> None:
    _moving(postgres_url, tmp_path, spark, 2000, 400.0)


@pytest.mark.soak
@pytest.mark.promise("SPARK-7")
def test_two_hundred_thousand_are_redriven_though_an_executor_dies(
    postgres_url: str, tmp_path: Path, spark: Any
) -> None:
    _moving(postgres_url, tmp_path, spark, 200_000, None)


def _moving(url: str, folder: Path, spark: Any, n: int, rate: float | None) -> None:
    from holdfast import spark as hs

    target = f"sqlite:///{folder}/target.db"
    told = json.dumps({"url": url, "target": target, "folder": str(folder), "rate": rate})
    with holdfast.connect(url) as hf, (folder / "driver.log").open("w+") as log:
        queue = shop(hf)
        sent = _dead(queue, n)
        driver = subprocess.Popen(
            [sys.executable, str(HERE / "lake_cluster.py"), told],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _kill_one(driver, lambda: queue.stats().ready > n // 10, log)
            with holdfast.connect(target) as there:
                _kill_one(driver, lambda: _waiting(there) > n // 10, log)
            assert driver.wait(PATIENCE_S) == 0, _text(log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        said = [json.loads(line) for line in _text(log).splitlines() if line.startswith("{")]
        assert said == [{"redriven": n, "total": n}, {"copied": n}]
        rows = hs.outcomes(spark, str(folder / "receipt")).collect()
        assert once(sent) == once(row["id"] for row in rows) and len(rows) == n
        assert {row["outcome"] for row in rows} == {"redriven"}
        with holdfast.connect(target) as there:
            for one in (hf, there):
                found = [entry.message for entry in one.queue("orders").browse()]
                assert len(found) == n and once(m.id for m in found) == once(sent)
                assert all(m.redriven == 1 and m.payload["fixed"] for m in found)
                assert one.queue("orders").stats().dead == 0


def _dead(queue: holdfast.Queue, n: int) -> list[str]:
    sent: list[str] = []
    for first in range(0, n, 1000):
        part = range(first, min(n, first + 1000))
        sent += [m.id for m in queue.enqueue_many([Outgoing({"n": k}) for k in part])]
        for lease in queue.lease(1000):
            queue.fail(lease, f"no rate for {lease.message.payload['n']}")
    return sent


def _waiting(hf: holdfast.Holdfast) -> int:
    return hf.queue("orders").stats().ready if spec_of(hf.store, "orders") else 0


def _kill_one(driver: subprocess.Popen[bytes], when: Any, log: Any) -> None:
    def due() -> bool:
        assert driver.poll() is None or when(), _text(log)
        return when()

    wait_until(due, PATIENCE_S)
    for victim in executors_of(driver.pid)[:1]:
        os.kill(victim, signal.SIGKILL)


def _text(log: Any) -> str:
    log.seek(0)
    return log.read()[-6000:]
