"""A stream that watches queues: rates, failures and backlog over windows, and alerts as messages.

What it reads are samples of the queues' counts, which grow; so a sample that is lost with its
process loses nothing but a point of the curve. Windows overlap by half, and are closed by a
watermark. An alert's id is made of the queue, the window and its kind, and each batch leaves a
receipt: run again, it says nothing twice.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, InvalidArgument, QueueNotFound
from holdfast.model.message import Outgoing, check_queue_name, home_of
from holdfast.model.policy import seconds
from holdfast.queue.queue import Queue
from holdfast.spark import sessions
from holdfast.spark.connections import context, logger
from holdfast.spark.lake.archive import named, reached
from holdfast.spark.options import STORE_TIMEOUT_S

NAME = "holdfast-samples"
SCHEMA = (
    "queue string, at timestamp, ready long, delayed long, leased long, dead long, done long, "
    "paused boolean"
)
KINDS = ("error budget", "storm", "stuck")


class Rules(msgspec.Struct, frozen=True):
    """When a window is worth an alert."""

    error_budget: float = 0.01
    """More than this share of what ended in it died."""
    least: int = 20
    """Fewer than so many in a window say nothing about a share, and are no storm."""


class Window(msgspec.Struct, frozen=True):
    """What a queue did in a window."""

    queue: str
    start: int
    end: int
    samples: int
    done: int
    dead: int
    delayed: int
    """The most that waited for a retry, or for their time, at once."""
    growth: int
    """How much longer the line is at its end."""
    waiting: int
    """The least that was ready or leased."""
    paused: bool

    @property
    def failure_ratio(self) -> float:
        return self.dead / max(1, self.done + self.dead)

    @property
    def rate(self) -> float:
        return self.done * 1000 / max(1, self.end - self.start)


class Alert(msgspec.Struct, frozen=True):
    """The payload of a message in the queue of alerts."""

    kind: str
    queue: str
    start: int
    end: int
    done: int
    dead: int
    rate: float
    failure_ratio: float
    backlog_growth: int
    said: str


def monitor(
    hf: Holdfast,
    alerts: str,
    *,
    queues: Sequence[str] | None = None,
    checkpoint: str,
    window: float = 60.0,
    every: float = 5.0,
    error_budget: float = 0.01,
    least: int = 20,
    spark: SparkSession | None = None,
) -> StreamingQuery:
    """Watch queues (all but that of the alerts), and put alerts into `alerts`, which must exist.

    Runs until the query that it returns is stopped. `window` and `every` are seconds.
    """
    url, at = reached(hf), hf.context
    check_queue_name(alerts, "alerts")
    if at.spec(alerts) is None:
        raise QueueNotFound(f"alerts: no queue {alerts!r}; create it first")
    seconds("window", window)
    seconds("every", every)
    if not 0 < every <= window / 2:
        raise InvalidArgument("every", f"must be more than 0 and at most {window / 2:g} seconds")
    if not 0 < error_budget < 1:
        raise InvalidArgument("error_budget", f"must be between 0 and 1, not {error_budget!r}")
    rules = Rules(error_budget, least)
    names = [name for name in named(at, queues) if name != home_of(alerts)]
    spark = spark or sessions.session()
    sessions.know(spark, SampleSource)
    samples = (
        spark.readStream.format(NAME)
        .option("url", url)
        .option("queues", msgspec.json.encode(names).decode())
        .load()
    )
    target = Queue(at, alerts)

    def tell(frame: DataFrame, batch: int) -> None:
        found = [alert for row in frame.collect() for alert in judged(_window(row), rules)]
        send(target, found, f"monitor/{alerts}/{checkpoint}/{batch}")

    return (
        windows(samples, window)
        .writeStream.outputMode("append")
        .foreachBatch(tell)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=f"{every} seconds")
        .start()
    )


def windows(samples: DataFrame, length: float) -> DataFrame:
    """By queue and window; a window is closed when samples of a later time have come."""
    span = F.window("at", f"{length} seconds", f"{length / 2} seconds")
    line = F.col("ready") + F.col("leased") + F.col("delayed")
    return (
        samples.withWatermark("at", f"{length / 4} seconds")
        .groupBy(span, "queue")
        .agg(
            F.count(F.lit(1)).alias("samples"),
            (F.max("done") - F.min("done")).alias("done"),
            (F.max("dead") - F.min_by("dead", "at")).alias("dead"),
            F.max("delayed").alias("delayed"),
            (F.max_by(line, "at") - F.min_by(line, "at")).alias("growth"),
            F.min(F.col("ready") + F.col("leased")).alias("waiting"),
            F.bool_or("paused").alias("paused"),
        )
    )


def judged(window: Window, rules: Rules) -> list[Alert]:
    """The alerts of a window. Pure."""
    if window.samples < 2:
        return []
    said: list[tuple[str, str]] = []
    ended = window.done + window.dead
    if ended >= rules.least and window.failure_ratio > rules.error_budget:
        share = f"{window.failure_ratio:.1%} of {ended:,} died; the budget is"
        said.append(("error budget", f"{share} {rules.error_budget:.1%}"))
    if window.delayed >= rules.least and window.delayed > window.done:
        said.append(
            ("storm", f"{window.delayed:,} wait for a retry, and {window.done:,} were done")
        )
    if window.waiting and not ended and not window.paused:
        said.append(("stuck", f"{window.waiting:,} are ready or leased, and none was done"))
    return [
        Alert(
            kind,
            window.queue,
            window.start,
            window.end,
            window.done,
            window.dead,
            window.rate,
            window.failure_ratio,
            window.growth,
            text,
        )
        for kind, text in said
    ]


def send(target: Queue, alerts: list[Alert], receipt: str) -> int:
    """How many were new."""
    if not alerts:
        return 0
    items = [Outgoing(alert, id=_id(alert), type=alert.kind, key=alert.queue) for alert in alerts]
    sent = target.enqueue_many(items, receipt=blake2b(receipt.encode(), digest_size=16).hexdigest())
    return sum(not message.duplicate for message in sent)


def _id(alert: Alert) -> str:
    said = msgspec.json.encode((alert.queue, alert.start, alert.end, alert.kind))
    h = blake2b(said, digest_size=16).hexdigest()
    return f"{h[:8]}-{h[8:12]}-5{h[13:16]}-a{h[17:20]}-{h[20:]}"


def _window(row: Any) -> Window:
    start, end = (round(row["window"][n].replace(tzinfo=UTC).timestamp() * 1000) for n in (0, 1))
    names = ("samples", "done", "dead", "delayed", "growth", "waiting", "paused")
    return Window(row["queue"], start, end, *(row[name] for name in names))


class SampleSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        names = msgspec.json.decode(self.options["queues"], type=list[str])
        return SampleReader(self.options["url"], names)


class SampleReader(SimpleDataSourceStreamReader):
    """One sample of every queue, each time that Spark asks."""

    def __init__(self, url: str, queues: list[str]) -> None:
        self._url = url
        self._queues = queues

    def initialOffset(self) -> dict:
        return {"at": 0}

    def read(self, start: dict) -> tuple[Iterator[tuple], dict]:
        at = context(self._url, timeout=STORE_TIMEOUT_S)
        try:
            now = at.clock.now()
            there = [spec.name for spec in at.store.queues(self._queues)]
            rows = [self._row(one, now) for one in at.store.stats(there, now)] if there else []
        except HoldfastError as error:  # away, or a queue that vanished just now: the next one
            logger.warning("no sample: %s", error)
            return iter(()), start
        return iter(rows), {"at": now}

    def readBetweenOffsets(self, start: dict, end: dict) -> Iterator[tuple]:
        """A sample that was lost with its process: what it said is in the next one too."""
        return iter(())

    @staticmethod
    def _row(one: Any, now: int) -> tuple:
        at = datetime.fromtimestamp(now / 1000, UTC)
        return (one.queue, at, one.ready, one.delayed, one.leased, one.dead, one.done, one.paused)
