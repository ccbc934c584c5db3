"""Ordered queues on Spark: a task for each partition, keys in order, failed ones held back."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import Backoff, Holdfast, Message, Outgoing, Retry
from holdfast.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 120.0
KEYS, COUNT = 6, 36


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(store_url, max_attempts=5, backoff=Backoff(base=0.2, max=0.2)) as made:
        queue = made.queue("orders", partitions=3, ordered=True)
        queue.enqueue_many(Outgoing({"n": n}, key=f"k{n % KEYS}") for n in range(COUNT))
        yield made


def is_done(hf: Holdfast) -> bool:
    return hf.queue("orders").stats().lag == 0


@pytest.mark.promise("PART-6", "SPARK-4")
def test_handlers_on_spark_keep_a_key_in_order(
    hf: Holdfast, spark: SparkSession, tmp_path: Path
) -> None:
    from holdfast import spark as hs

    notes = str(tmp_path / "notes")

    @hf.handler("orders")
    def handle(payload: dict[str, Any], message: Message) -> None:
        n, failed = payload["n"], payload["n"] % 11 == 3 and message.attempts < 2
        out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        line = f"{message.key} {message.partition} {n} {'failed' if failed else 'done'}\n"
        os.write(out, line.encode())
        os.close(out)
        if failed:
            raise Retry("not this time")

    query = hs.run(
        hf, "orders", checkpoint=str(tmp_path / "c"), spark=spark, wait=False, max_messages=15
    )
    wait_until(lambda: query.exception() or is_done(hf), PATIENCE_S)
    query.stop()
    assert query.exception() is None
    done: dict[str, list[int]] = defaultdict(list)
    for line in Path(notes).read_text().splitlines():
        key, _, n, how = line.split()
        expected = int(key[1:]) + KEYS * len(done[key])
        assert int(n) == expected, f"{line}: {expected} comes first"
        if how == "done":
            done[key].append(int(n))
    assert sum(map(len, done.values())) == COUNT
    attempts = {row.message.payload["n"]: row.message.attempts for row in hf.queue("orders").log()}
    assert attempts == {n: 2 if n % 11 == 3 else 1 for n in range(COUNT)}


@pytest.mark.promise("PART-6", "SPARK-4")
def test_a_transformation_of_frames_holds_a_failed_key_back(
    hf: Holdfast, spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from holdfast import spark as hs

    @hs.transform(hf, "orders", schema="n int", frame=True)
    def convert(frame: DataFrame) -> DataFrame:
        n = F.get_json_object("payload", "$.n").cast("int")
        wrong = (n == 8) & (F.col("attempts") < 2)
        return frame.select("id", n.alias("n"), F.when(wrong, "not yet").alias("error"))

    sink = str(tmp_path / "sink")
    query = convert.run(sink=sink, checkpoint=str(tmp_path / "c"), spark=spark, wait=False)
    wait_until(lambda: query.exception() or is_done(hf), PATIENCE_S)
    query.stop()
    assert query.exception() is None
    rows = spark.read.parquet(sink).select("n", "batch").collect()
    batches = {row["n"]: row["batch"] for row in rows}
    assert sorted(batches) == list(range(COUNT))
    first = min(batches.values())
    assert {n for n, batch in batches.items() if batch != first} == set(range(8, COUNT, KEYS))
    attempts = {row.message.payload["n"]: row.message.attempts for row in hf.queue("orders").log()}
    assert attempts == {n: 2 if n == 8 else 1 for n in range(COUNT)}
