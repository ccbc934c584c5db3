"""The Python of docs/lake.md, run as it stands there: only the addresses are others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOC = Path(__file__).parents[2] / "docs/lake.md"
POSTGRES, REDIS = "postgresql://app@db.example/shop", "redis://cache.example/0"


@pytest.mark.extended
@pytest.mark.promise("SPARK-9")
def test_what_is_written_runs(
    spark: SparkSession,
    postgres_url: str,
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    opening, archive, report, redrive, copy, monitor = (
        block.replace(POSTGRES, postgres_url)
        .replace(REDIS, redis_url)
        .replace('"/lake', f'"{tmp_path}/lake')
        for block in blocks
    )
    for url in (postgres_url, redis_url):
        with holdfast.connect(url) as hf:
            hf.queue("alerts")
            _past(hf.queue("orders", max_attempts=1))
    names: dict[str, Any] = {}
    exec(opening, names)
    assert names["spark"] is spark
    try:
        for block in (archive, report, redrive, monitor):
            exec(block, names)
        names["query"].stop()
        _as_told(names)
        with holdfast.connect(f"sqlite:///{tmp_path}/target.db") as target:
            exec(copy, {**names, "hf": target})
            stats = target.queue("orders").stats()
            assert (stats.done, stats.dead, stats.ready) == (5, 5, 0)
    finally:
        names["hf"].close()
    said = capsys.readouterr().out
    assert "report.html 2.0" in said and "no rate for" in said


def _past(queue: holdfast.Queue) -> None:
    """Five orders that were done, and five of customers 5 to 9 that died."""
    queue.enqueue_many({"order": n, "customer": {"id": n}} for n in range(10))
    for lease in queue.lease(10):
        n = lease.message.payload["order"]
        if n < 5:
            queue.ack(lease)
        else:
            queue.fail(lease, f"no rate for customer {n}")


def _as_told(names: dict[str, Any]) -> None:
    assert names["log"].count() == 5
    orders = names["hf"].queue("orders")
    assert [entry.message.payload for entry in orders.browse()] == [{"order": 7, "country": "CH"}]
    assert orders.stats().dead == 4
