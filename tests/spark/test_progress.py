"""What is reported of a batch: log lines and metrics, with the numbers of the store."""

from __future__ import annotations

import logging
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast import Holdfast, InvalidArgument
from holdfast.spark import progress, runner
from holdfast.spark.progress import Batch, batches_of, cause_of, flush, line, metrics, watch
from holdfast.testing import wait_until
from holdfast.work.ledger import Past, queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.connect(f"sqlite:///{tmp_path}/test.db", max_attempts=2) as hf:
        hf.queue("orders", backoff=holdfast.Backoff(base=60, jitter="none"))

        @hf.handler("orders")
        def handle(payload):
            if payload == "bad":
                raise ValueError("this one is bad")
            if payload == "never":
                raise holdfast.Fail("will not do", code="NEVER")

        yield hf


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def values(query: str) -> dict[str, float]:
    """Metrics of one query, without the buckets."""
    pattern = rf'^holdfast_spark_(\w+){{[^}}]*query="{query}"[^}}]*}} (\S+)$'
    found = re.findall(pattern, metrics().decode(), re.MULTILINE)
    return {name: float(value) for name, value in found if not name.endswith("bucket")}


def said(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level]


def test_batches_with_failures(
    spark: SparkSession,
    hf: Holdfast,
    tmp_path: Path,
    port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "holdfast.spark")
    queue = hf.queue("orders")
    queue.enqueue_many([1, 2, "bad", "never"])
    queue.enqueue(3, delay=600)
    common = {"checkpoint": str(tmp_path / "checkpoint"), "spark": spark, "name": "shop"}
    query = runner.run(hf, "orders", wait=False, metrics_port=port, **common)
    try:
        wait_until(lambda: said(caplog), 120)
        assert re.fullmatch(
            r"shop: batch 1: 4 messages in [\d.]+ s \([\d.]+/s\): 2 done, 1 to be retried, 1 dead"
            r"; 0 ready, 2 delayed",
            said(caplog)[0],
        )
        [record] = queries(hf.context)
        now = values(record.id)
        assert now.items() >= {
            "rows_total": 4, "done_total": 2, "retried_total": 1, "dead_total": 1,
            "backlog": 2, "oldest_seconds": 0, "batch_seconds_count": 1,
        }.items()  # fmt: skip
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        labels = f'name="shop",query="{record.id}",queue="orders"'
        assert f"holdfast_spark_done_total{{{labels}}} 2.0" in text
        assert "# TYPE holdfast_spark_done_total counter" in text
    finally:
        query.stop()
    flush(str(query.runId), 60)
    assert "backlog" not in values(record.id), "of a query that ended nothing is known"
    assert len(said(caplog)) == 1, "an idle query says nothing"

    # Another run of the same query: totals go on.
    queue.enqueue_many([4, 5])
    again = runner.run(hf, "orders", until_empty=True, **common)
    flush(str(again.runId), 60)
    assert ": batch 2: 2 messages in " in said(caplog)[1]
    assert "2 done, 0 to be retried, 0 dead" in said(caplog)[1]
    assert values(record.id).items() >= {"rows_total": 6, "done_total": 4, "dead_total": 1}.items()
    assert said(caplog, logging.ERROR) == []


def test_a_query_that_fails(
    spark: SparkSession, hf: Holdfast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "py4j")
    hf.queue("orders").enqueue(1)

    def broken(frame: object, number: int) -> None:
        raise RuntimeError("the sink is full")

    query = runner.run(
        hf, "orders", checkpoint=str(tmp_path / "c"), spark=spark, sink=broken, wait=False
    )
    with pytest.raises(Exception, match="sink is full") as failed:
        query.awaitTermination()
    assert cause_of(str(failed.value)) == "RuntimeError: the sink is full"
    flush(str(query.runId), 60)
    ours = [r.getMessage() for r in caplog.records if r.name == "holdfast.spark"]
    assert ours == ["orders: ended by an error: RuntimeError: the sink is full"]


def test_a_plain_stream(
    spark: SparkSession, hf: Holdfast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.spark")
    watch(spark)
    watch(spark)
    hf.queue("orders").enqueue_many([1, 2, 3])
    stream = spark.readStream.format("holdfast").options(url=hf.url, queue="orders").load()
    writer = stream.writeStream.format("noop").queryName("plain").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    query.awaitTermination()
    flush(str(query.runId), 60)
    [once] = said(caplog)
    assert once.startswith("plain: batch 1: 3 messages in ")


def test_a_query_of_something_else_is_not_ours(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.spark")
    watch(spark)
    stream = spark.readStream.format("rate").option("rowsPerSecond", "5").load()
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    flush(str(query.runId), 60)
    assert caplog.records == []


def test_a_port_that_is_taken(spark: SparkSession) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidArgument, match="metrics_port"):
            watch(spark, taken.getsockname()[1])


def test_totals_do_not_go_backwards() -> None:
    totals = progress._Totals()
    labels = ("q", "n", "orders")
    totals.set(labels, 10, 2, 1)
    totals.set(labels, 9, 2, 1)  # a record that was read before the other
    [rows, done, *_] = totals.collect()
    assert ([s.value for s in rows.samples], [s.value for s in done.samples]) == ([13], [10])


def test_a_line() -> None:
    batch = Batch("run", "shop", "q1", 12, 50_000, 2.0, {})
    past = Past(12, 50_000, 49_990, 8, 2, 2100, 0)
    told = {"ready": 1200, "delayed": 8, "oldestAgeMs": 3400}
    assert line(batch, past, told) == (
        "shop: batch 12: 50,000 messages in 2.0 s (25,000/s): 49,990 done, 8 to be retried, 2 dead"
        "; 1,200 ready, 8 delayed, oldest 3.4 s"
    )
    assert line(Batch("run", "", "q1", 1, 3, 1.5, {}), None, {}) == (
        "q1: batch 1: 3 messages in 1.5 s (2.0/s)"
    )


def test_what_spark_tells() -> None:
    end = '{"query": "q1", "batch": 3, "hold": "h"}'
    source = {"endOffset": end, "latestOffset": None, "numInputRows": 5}
    told = {"runId": "r", "name": None, "batchDuration": 1500, "durationMs": {}}
    [batch] = batches_of({**told, "sources": [source, {"endOffset": 7, "numInputRows": 1}]})
    assert batch == Batch("r", "", "q1", 3, 5, 1.5, {})


NESTED = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Reason: An exception was \
raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "runner.py", line 1, in _batch
    outcomes.write.parquet(stage)
py4j.protocol.Py4JJavaError: An error occurred while calling o95.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.X
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 9, in main
ModuleNotFoundError: No module named 'shop'

\tat org.apache.spark.api.python.Y
"""
JAVA = """\
Traceback (most recent call last):
  File "runner.py", line 1, in _batch
py4j.protocol.Py4JJavaError: An error occurred while calling o95.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.X
Caused by: java.io.IOException: No space left on device
\tat java.base/Z
"""
CHAINED = """\
Failed when the Python data source performs latestOffset: Traceback (most recent call last):
  File "a.py", line 1
    x
    ^
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 1
holdfast.batches.StaleCheckpoint: query q1 has settled batch 3
 SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (NESTED, "ModuleNotFoundError: No module named 'shop'"),
        (JAVA, "IOException: No space left on device"),
        (CHAINED, "StaleCheckpoint: query q1 has settled batch 3"),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: so SQLSTATE: XX000", "so"),
        ("", ""),
    ],
)
def test_the_cause(text: str, cause: str) -> None:
    assert cause_of(text) == cause
