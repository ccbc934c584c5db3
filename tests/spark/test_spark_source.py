"""A queue as a stream: each message once in a folder, whoever restarts, copies or loses a query."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import Holdfast, Outgoing
from holdfast.testing import ManualClock, wait_until
from holdfast.work import ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PATIENCE_S = 60.0
"""For what a loaded machine takes, not for what is promised."""
HOUR_S = 3600


class Rig:
    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.folder = folder
        self.hf = holdfast.connect(url)
        self.queue = self.hf.queue("orders", ack_timeout=0.2)
        self.started: list[StreamingQuery] = []

    def send(self, n: int) -> list[str]:
        return [message.id for message in self.queue.enqueue_many(range(n))]

    def stream(self, **options: Any) -> DataFrame:
        source = self.spark.readStream.format("holdfast").option("url", self.url)
        return source.option("queue", "orders").options(**options).load()

    def start(
        self, checkpoint: str = "c", sink: Any = None, *, until_empty: bool = True, **options: Any
    ) -> StreamingQuery:
        """Into a folder of Parquet, or into a function of each batch."""
        writer = self.stream(**options).writeStream.option(
            "checkpointLocation", str(self.folder / checkpoint)
        )
        if callable(sink):
            writer = writer.foreachBatch(sink)
        else:
            writer = writer.format("parquet").option("path", str(self.folder / (sink or "sink")))
        if until_empty:
            writer = writer.trigger(availableNow=True)
        self.started.append(query := writer.start())
        return query

    def run(self, checkpoint: str = "c", sink: Any = None, **options: Any) -> StreamingQuery:
        query = self.start(checkpoint, sink, **options)
        assert query.awaitTermination(PATIENCE_S)
        return query

    def fails(self, checkpoint: str = "c", sink: Any = None, **options: Any) -> str:
        from pyspark.errors import StreamingQueryException

        with pytest.raises(StreamingQueryException) as failed:
            self.run(checkpoint, sink, **options)
        return str(failed.value)

    def rows(self, sink: str = "sink") -> list[dict[str, Any]]:
        """Every row of every file: more than Spark, which knows which files are committed, sees."""
        import pyarrow.parquet as pq

        rows = pq.read_table(str(self.folder / sink)).to_pylist()
        return [{**row, "headers": dict(row["headers"])} for row in rows]

    def ids(self, sink: str = "sink") -> Counter[str]:
        return Counter(row["id"] for row in self.rows(sink))

    def counts(self) -> tuple[int, int, int, int, int]:
        stats = self.queue.stats()
        return stats.ready, stats.delayed, stats.leased, stats.dead, stats.done

    def logged(self) -> list[tuple[str, str | None, str, int]]:
        found = [(f.message.id, f.consumer, f.status, f.message.attempts) for f in self.queue.log()]
        return sorted(found)

    def query(self) -> ledger.Query:
        (query,) = ledger.queries(self.hf.context)
        return query

    def later(self, seconds: float) -> Holdfast:
        """The same store, as seen by somebody for whom it is later."""
        clock = ManualClock(self.hf.context.clock.now() + round(seconds * 1000))
        return holdfast.connect(self.url, clock=clock)


@pytest.fixture
def rig(spark: SparkSession, store_url: str, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(spark, store_url, tmp_path)
    yield made
    for query in made.started:
        query.stop()
    made.hf.close()


def once(ids: list[str]) -> Counter[str]:
    return Counter(dict.fromkeys(ids, 1))


@pytest.mark.promise("SPARK-1", "SPARK-9")
def test_every_message_once_in_a_folder_and_a_restart_goes_on(rig: Rig) -> None:
    ids = rig.send(25)
    rig.run(maxMessagesPerTrigger=10, slices=2)
    query = rig.query()
    assert rig.ids() == once(ids)
    assert rig.counts() == (0, 0, 0, 0, 25)
    assert rig.logged() == sorted((id, f"spark:{query.id}", "COMPLETED", 1) for id in ids)
    assert [(past.batch, past.rows, past.done) for past in query.history] == [
        (1, 10, 10),
        (2, 10, 10),
        (3, 5, 5),
    ]

    shutil.copytree(rig.folder / "c", rig.folder / "old")
    more = rig.send(7)
    rig.run(maxMessagesPerTrigger=10)
    again = rig.query()
    assert rig.ids() == once(ids + more)
    assert rig.counts() == (0, 0, 0, 0, 32)
    assert {consumer for _, consumer, *_ in rig.logged()} == {f"spark:{again.id}"}
    assert (again.id, again.run, again.settled, again.done) == (query.id, query.run + 1, 4, 32)

    rig.send(2)
    text = rig.fails("old")
    assert "StaleCheckpoint" in text and "an old copy?" in text
    assert (rig.ids(), rig.counts()) == (once(ids + more), (2, 0, 0, 0, 32))


@pytest.mark.promise("SPARK-1")
def test_all_that_a_message_says_arrives(rig: Rig) -> None:
    sent = rig.queue.enqueue_many(
        [
            Outgoing(
                {"n": 1, "t": "žluť"},
                key="k",
                type="new",
                priority=7,
                headers={"a": "1", "b": ""},
                ack_timeout=2.5,
                max_attempts=9,
            ),
            Outgoing("plain ž", content_type="text/plain"),
            Outgoing(b"\x00\xff"),
            Outgoing(None),
        ]
    )
    rig.run()
    empty = {
        "queue": "orders",
        "partition": 0,
        "key": None,
        "type": None,
        "payload": None,
        "body": None,
        "content_type": "application/json",
        "headers": {},
        "priority": 0,
        "attempts": 1,
        "max_attempts": None,
        "ack_timeout": None,
        "errors": [],
    }
    rows = {row.pop("id"): row for row in rig.rows()}
    for message in sent:
        for name, at in (
            ("enqueued_at", message.enqueued_at),
            ("available_at", message.available_at),
        ):
            assert round(rows[message.id].pop(name).timestamp() * 1000) == at
    assert rows == {
        sent[0].id: {
            **empty,
            "payload": '{"n":1,"t":"žluť"}',
            "key": "k",
            "type": "new",
            "priority": 7,
            "headers": {"a": "1", "b": ""},
            "ack_timeout": 2.5,
            "max_attempts": 9,
        },
        sent[1].id: {**empty, "payload": "plain ž", "content_type": "text/plain"},
        sent[2].id: {
            **empty,
            "body": b"\x00\xff",
            "content_type": "application/octet-stream",
        },
        sent[3].id: {**empty, "payload": "null"},
    }


@pytest.mark.promise("SPARK-1", "SPARK-6")
def test_two_queries_share_a_queue_and_an_idle_one_holds_nothing(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.start(name, f"sink-{name}", until_empty=False, maxMessagesPerTrigger=5)
    sent: list[str] = []

    def both_had_some() -> bool:
        found = ledger.queries(rig.hf.context)
        return sum(query.done > 0 for query in found) == 2

    for _ in range(20):
        sent += rig.send(40)
        # Nothing comes after the last of them: what is held is settled all the same.
        empty = (0, 0, 0, 0, len(sent))
        wait_until(lambda empty=empty: rig.counts() == empty, PATIENCE_S)
        if both_had_some():
            break
    for query in rig.started:
        query.stop()
    assert rig.ids("sink-a") + rig.ids("sink-b") == once(sent)
    consumers = {consumer for _, consumer, *_ in rig.logged()}
    assert consumers == {f"spark:{query.id}" for query in ledger.queries(rig.hf.context)}
    assert len(consumers) == 2
    assert Counter(id for id, *_ in rig.logged()) == once(sent)


@pytest.mark.promise("SPARK-1")
def test_a_copy_of_a_query_fences_the_first_off(rig: Rig) -> None:
    from pyspark.errors import StreamingQueryException

    ids = rig.send(3)
    first = rig.start("c", until_empty=False)
    wait_until(lambda: rig.counts() == (0, 0, 0, 0, 3), PATIENCE_S)
    shutil.copytree(rig.folder / "c", rig.folder / "copy")
    # Within one JVM Spark itself ends the older of two queries of one id: call it another.
    metadata = rig.folder / "copy" / "metadata"
    metadata.write_text(json.dumps({"id": "00000000-0000-4000-8000-000000000000"}))
    (rig.folder / "copy" / ".metadata.crc").unlink(missing_ok=True)

    second = rig.start("copy", "sink-copy", until_empty=False)
    with pytest.raises(StreamingQueryException, match="taken up by another process"):
        first.awaitTermination(PATIENCE_S)
    assert "QueryFenced" in str(first.exception())
    more = rig.send(4)
    wait_until(lambda: rig.counts() == (0, 0, 0, 0, 7), PATIENCE_S)
    assert second.isActive
    second.stop()
    assert (rig.ids(), rig.ids("sink-copy")) == (once(ids), once(more))
    assert rig.query().run == 2


class Broken:
    """A sink that takes some batches, and fails at the next."""

    def __init__(self, good: int) -> None:
        self.good = good
        self.seen: list[tuple[int, list[str]]] = []

    def __call__(self, frame: DataFrame, number: int) -> None:
        ids = sorted(row.id for row in frame.collect())
        if len(self.seen) >= self.good:
            raise RuntimeError("the sink is away")
        self.seen.append((number, ids))


@pytest.mark.promise("SPARK-1", "SPARK-6")
def test_a_batch_is_read_again_as_it_was_and_held_until_it_is_abandoned(rig: Rig) -> None:
    ids = rig.send(25)
    sink = Broken(1)
    assert "the sink is away" in rig.fails("c", sink, maxMessagesPerTrigger=10)
    held = sorted(entry.message.id for entry in rig.queue.browse("leased"))
    sink.good = 2
    rig.fails("c", sink, maxMessagesPerTrigger=4)
    assert sink.seen[1] == (1, held)
    assert rig.counts() == (1, 0, 4, 0, 20)

    (waiting,) = rig.queue.lease(100)
    assert waiting.id not in held
    rig.queue.release(waiting)
    owners = {entry.lease.owner for entry in rig.queue.browse("leased") if entry.lease}
    assert owners == {f"spark:{rig.query().id}"}
    with rig.later(24 * HOUR_S) as tomorrow:
        assert tomorrow.sweep().requeued == 0
    assert rig.counts() == (1, 0, 4, 0, 20)

    assert ledger.abandon(rig.hf.context, rig.query().id) == 4
    assert rig.counts() == (5, 0, 0, 0, 20)
    sink.good = 10
    rig.run("c", sink, maxMessagesPerTrigger=10)
    # Batch 2 was given back: it is in the query's log, and runs without rows.
    assert [(number, len(rows)) for number, rows in sink.seen] == [(0, 10), (1, 10), (2, 0), (3, 5)]
    assert Counter(id for _, rows in sink.seen for id in rows) == once(ids)
    assert rig.counts() == (0, 0, 0, 0, 25)
    # What was given back does not count as a delivery.
    assert rig.logged() == sorted((id, f"spark:{rig.query().id}", "COMPLETED", 1) for id in ids)


@pytest.mark.promise("SPARK-1")
def test_on_lost_redeliver_gives_the_batch_back_when_the_query_is_gone(rig: Rig) -> None:
    ids = rig.send(4)
    rig.fails("c", Broken(0), onLost="redeliver")
    assert rig.hf.sweep().requeued == 0  # seen just now
    with rig.later(ledger.LOST_MS / 1000 + 60) as later:
        assert later.sweep().requeued == 4
    leases = rig.queue.lease(10)
    assert {lease.id: lease.message.attempts for lease in leases} == dict.fromkeys(ids, 2)
    assert [len(lease.message.errors) for lease in leases] == [1] * 4


@pytest.mark.promise("SPARK-6")
def test_a_batch_held_longer_than_its_ack_timeout_is_not_requeued(rig: Rig) -> None:
    ids = rig.send(6)
    entered, go_on, arrived = threading.Event(), threading.Event(), list[str]()

    def slow(frame: DataFrame, number: int) -> None:
        arrived.extend(row.id for row in frame.collect())
        entered.set()
        go_on.wait(PATIENCE_S)

    rig.start("c", slow, until_empty=False)
    assert entered.wait(PATIENCE_S)
    seen_at = rig.query().seen_at
    with rig.later(HOUR_S) as later:
        assert later.sweep().requeued == 0
        assert later.queue("orders").lease(10) == []
    # It says that it lives while its sink works: nobody takes it for gone.
    wait_until(lambda: rig.query().seen_at > seen_at, PATIENCE_S)
    assert rig.counts() == (0, 0, 6, 0, 0)
    go_on.set()
    wait_until(lambda: rig.counts() == (0, 0, 0, 0, 6), PATIENCE_S)
    assert sorted(arrived) == sorted(ids)


@pytest.mark.promise("SPARK-1")
def test_available_now_takes_what_is_ready_though_messages_keep_coming(rig: Rig) -> None:
    rig.queue.enqueue("later", delay=HOUR_S)
    rig.send(4)

    def feed(frame: DataFrame, number: int) -> None:
        rig.send(3)

    rig.run("c", feed, maxMessagesPerTrigger=2)
    assert rig.counts() == (6, 1, 0, 0, 4)


@pytest.mark.promise("SPARK-1")
def test_a_dead_letter_queue_is_a_stream_too(rig: Rig) -> None:
    ids = rig.send(2)
    for lease in rig.queue.lease(2):
        rig.queue.fail(lease, "no")
    arrived: list[str] = []

    def keep(frame: DataFrame, number: int) -> None:
        arrived.extend(f"{row.id} {row.errors[0].message}" for row in frame.collect())

    rig.run("c", keep, queue="orders.dlq")
    assert sorted(arrived) == sorted(f"{id} no" for id in ids)
    assert rig.queue.stats().dead == 0
