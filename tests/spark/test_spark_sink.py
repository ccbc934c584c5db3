"""Bulk enqueue from Spark: all that a row says, and nothing twice when a task or batch repeats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import Holdfast, Message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FAR = datetime(2100, 1, 1, 12, 30, tzinfo=UTC)
JSON = "application/json"
OWN = "0190a6e0-0000-7000-8000-000000000001"
COLUMNS = (
    "id string, payload string, body binary, content_type string, key string, type string, "
    "headers map<string,string>, priority int, delay double, available_at timestamp, "
    "ack_timeout double, max_attempts int"
)


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(store_url) as made:
        made.queue("orders")
        yield made


def write(frame: DataFrame, url: str, **options: Any) -> None:
    given = {"url": url, "queue": "orders", **options}
    frame.write.format("holdfast").mode("append").options(**given).save()


def waiting(hf: Holdfast, queue: str = "orders") -> list[Message]:
    states = ("ready", "delayed")
    return [entry.message for state in states for entry in hf.queue(queue).browse(state)]


def counts(hf: Holdfast) -> tuple[int, int]:
    stats = hf.queue("orders").stats()
    return stats.ready, stats.done


def consume(hf: Holdfast, n: int) -> None:
    leases = hf.queue("orders").lease(n)
    assert len(leases) == n
    hf.queue("orders").settle(leases)


@pytest.mark.promise("SPARK-4", "SPARK-9")
def test_all_columns_become_fields_and_nulls_are_left_open(
    hf: Holdfast, store_url: str, spark: SparkSession
) -> None:
    names = [column.strip().split()[0] for column in COLUMNS.split(", ")]
    rows: list[dict[str, Any]] = [
        {
            "id": OWN,
            "payload": '{"n": [1, "ž"]}',
            "key": "k",
            "type": "new",
            "headers": {"a": "1", "b": ""},
            "priority": 7,
            "delay": 3600.5,
            "ack_timeout": 2.5,
            "max_attempts": 9,
        },
        {"payload": '"alone"'},
        {"payload": "a,ž", "content_type": "text/csv"},
        {"body": bytearray(b"\x00\xff")},
        {"body": bytearray(b"PK"), "content_type": "application/zip"},
        {"payload": "1", "available_at": FAR},
        {"payload": '"twin"'},
        {"payload": '"twin"'},
    ]
    data = [tuple(row.get(name) for name in names) for row in rows]
    frame = spark.createDataFrame(data, COLUMNS).coalesce(1)
    write(frame, store_url)
    found = waiting(hf)
    said = [(m.body, m.content_type, m.key, m.type, m.headers, m.priority) for m in found]
    plain = (None, None, {}, 0)
    assert sorted(said, key=str) == sorted(
        [
            ('{"n": [1, "ž"]}'.encode(), JSON, "k", "new", {"a": "1", "b": ""}, 7),
            (b'"alone"', JSON, *plain),
            ("a,ž".encode(), "text/csv", *plain),
            (b"\x00\xff", "application/octet-stream", *plain),
            (b"PK", "application/zip", *plain),
            (b"1", JSON, *plain),
            (b'"twin"', JSON, *plain),
            (b'"twin"', JSON, *plain),
        ],
        key=str,
    )
    limits = Counter((m.ack_timeout, m.max_attempts, m.attempts) for m in found)
    assert limits == Counter({(2.5, 9, 0): 1, (None, None, 0): 7})
    full = hf.queue("orders").get(OWN)
    assert full.key == "k"
    waits = {m.id: m.available_at - m.enqueued_at for m in found if m.body != b"1"}
    assert waits == {id: 3_600_500 if id == OWN else 0 for id in waits}
    (later,) = (m for m in found if m.body == b"1")
    assert later.available_at == FAR.timestamp() * 1000

    # The same rows again are new ones, but for an id that the queue holds.
    write(frame, store_url)
    again = Counter(message.body for message in waiting(hf))
    assert again == Counter(
        {
            rows[0]["payload"].encode(): 1,
            b'"alone"': 2,
            "a,ž".encode(): 2,
            b"\x00\xff": 2,
            b"PK": 2,
            b"1": 2,
            b'"twin"': 4,
        }
    )


@pytest.mark.promise("SPARK-4")
def test_a_named_write_is_done_once(hf: Holdfast, store_url: str, spark: SparkSession) -> None:
    hf.queue("others")
    frame = spark.range(0, 60, 1, 2).selectExpr("CAST(id AS string) AS payload")
    write(frame, store_url, writeId="2026-05-01", payloadFormat="text")
    assert counts(hf) == (60, 0)
    assert {m.content_type for m in waiting(hf)} == {"text/plain"}
    assert {m.body for m in waiting(hf)} == {str(n).encode() for n in range(60)}
    consume(hf, 20)
    write(frame, store_url, writeId="2026-05-01", payloadFormat="text")
    assert counts(hf) == (40, 20)
    write(frame, store_url, writeId="2026-05-01", queue="others")
    write(frame, store_url, writeId="2026-05-02")
    assert (counts(hf), len(waiting(hf, "others"))) == ((100, 20), 60)


class Task:
    """One partition of a write, as often and as far as the test says. Chunks are of four rows."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from pyspark.sql.types import StructType

        from holdfast.spark import options, sink

        monkeypatch.setattr(sink, "CHUNK", 4)
        given = options.parse({"url": url, "queue": "orders"}, options.SINK)
        schema = StructType.fromDDL("payload string")
        self._sink = sink.BatchSink(given, schema, overwrite=False)

    def run(self, payloads: Sequence[Any], size: int = 3, dies: bool = False) -> tuple[int, int]:
        written = self._sink.write(self._rows(payloads, size, dies))
        return written.rows, written.held

    def _rows(self, payloads: Sequence[Any], size: int, dies: bool) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for start in range(0, len(payloads), size):
            texts = [json.dumps(payload) for payload in payloads[start : start + size]]
            yield pa.RecordBatch.from_pydict({"payload": pa.array(texts, pa.string())})
        if dies:
            raise RuntimeError("this task dies")


@pytest.fixture
def task(spark: SparkSession, store_url: str, hf: Holdfast, monkeypatch: Any) -> Task:
    return Task(store_url, monkeypatch)


@pytest.mark.promise("SPARK-4")
def test_a_repeated_task_adds_nothing(task: Task, hf: Holdfast) -> None:
    rows = [1, 2, 2, 2, 3, 4, 4, 5, 6, 7]
    assert task.run(rows) == (10, 0)
    sent = [message.id for message in waiting(hf)]
    assert Counter(message.payload for message in waiting(hf)) == Counter(rows)
    assert task.run(rows, size=7) == (0, 10)
    consume(hf, 7)
    assert task.run(rows) == (0, 10)
    consume(hf, 3)
    assert task.run(rows, size=1) == (0, 10)
    assert counts(hf) == (0, 10)
    assert sorted(finished.message.id for finished in hf.queue("orders").log()) == sorted(sent)


@pytest.mark.promise("SPARK-4")
def test_a_task_that_died_half_way_goes_on(task: Task, hf: Holdfast) -> None:
    rows = list(range(10))
    with pytest.raises(RuntimeError, match="dies"):
        task.run(rows[:9], dies=True)
    assert counts(hf) == (8, 0)
    consume(hf, 6)
    assert task.run(rows) == (2, 8)
    assert counts(hf) == (4, 6)
    assert task.run(rows) == (0, 10)
    everything = [f.message.payload for f in hf.queue("orders").log()]
    everything += [message.payload for message in waiting(hf)]
    assert sorted(everything) == rows


@pytest.mark.promise("SPARK-4")
def test_a_repeated_task_may_get_its_rows_in_another_order(task: Task, hf: Holdfast) -> None:
    """As after a shuffle."""
    task.run([1, 2, 3, 3])
    consume(hf, 4)
    assert task.run([3, 1, 3, 2]) == (0, 4)
    assert counts(hf) == (0, 4)


@pytest.mark.promise("SPARK-4")
def test_a_repeated_task_of_several_chunks_may_get_its_rows_in_another_order(
    task: Task, hf: Holdfast
) -> None:
    """What is still there is known by its content. (What was consumed is known by its chunk, which
    is another one now: see docs/adr/0008.)"""
    task.run([1, 2, 3, 4, 5, 6, 7, 8])
    assert task.run([8, 1, 7, 2, 6, 3, 5, 4]) == (0, 8)
    assert counts(hf) == (8, 0)


PROGRAM = """
import json, sys, time
import holdfast
from holdfast.spark.sessions import session

told = json.loads(sys.argv[1])
conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}
spark = session("repeated", "local[2,3]", conf)

def dies_once(url):
    def rows(batches):
        from pyspark import TaskContext
        for batch in batches:
            yield batch
        if TaskContext.get().attemptNumber() == 0:
            queue = holdfast.connect(url).queue("orders")
            until = time.monotonic() + 60
            while queue.stats().ready < 5000 and time.monotonic() < until:
                time.sleep(0.01)
            for lease in queue.lease(100):
                queue.ack(lease)
            raise RuntimeError("this attempt dies")
    return rows

for url in told["urls"]:
    rows = spark.range(0, 8000, 1, 1)
    rows = rows.selectExpr("CAST(id AS string) AS payload", "repeat('k', 99) AS key")
    rows = rows.mapInArrow(dies_once(url), rows.schema)
    rows.write.format("holdfast").mode("append").options(url=url, queue="orders").save()
spark.stop()
"""


@pytest.mark.extended
@pytest.mark.promise("SPARK-4")
def test_a_task_that_spark_repeats(tmp_path: Path, postgres_url: str) -> None:
    urls = [f"sqlite:///{tmp_path}/test.db", postgres_url]
    for url in urls:
        with holdfast.connect(url) as hf:
            hf.queue("orders")
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "program.py", json.dumps({"urls": urls})],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stderr.count("this attempt dies") >= 2
    for url in urls:
        with holdfast.connect(url) as hf:
            assert counts(hf) == (7900, 100)
            found = [message.payload for message in waiting(hf)]
            found += [finished.message.payload for finished in hf.queue("orders").log()]
            assert sorted(found) == list(range(8000))


@pytest.mark.promise("SPARK-4")
def test_a_repeated_batch_of_a_stream_adds_nothing(
    hf: Holdfast, store_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    for name in ("a", "b"):
        (lines / f"{name}.txt").write_text("".join(f"{name}{n}\n" for n in range(10)))

    def run() -> None:
        source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(lines))
        query = (
            source.selectExpr("to_json(struct(value)) AS payload")
            .writeStream.format("holdfast")
            .option("url", store_url)
            .option("queue", "orders")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    run()
    expected = Counter({f"{name}{n}": 1 for name in "ab" for n in range(10)})
    assert Counter(message.payload["value"] for message in waiting(hf)) == expected
    consume(hf, 15)
    for name in ("1", ".1.crc"):
        (tmp_path / "c" / "commits" / name).unlink(missing_ok=True)
    (lines / "c.txt").write_text("c0\n")
    run()
    assert counts(hf) == (6, 15)
    found = Counter(message.payload["value"] for message in waiting(hf))
    found += Counter(f.message.payload["value"] for f in hf.queue("orders").log())
    assert found == expected + Counter(["c0"])
