"""Streams: how many messages a second, what handlers cost, and how long one message takes."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from bench.contenders.ours import QUEUE, fill
from bench.measures.throughput import Entrant, Fresh, round_of
from bench.results import Result, Row, Target
from bench.spark.functions import nothing, same
from bench.spark.stage import (
    BARE,
    LIBRARY,
    ON_SQLITE,
    OURS,
    RATE,
    SLICES,
    Setting,
    beside,
    opened,
    stream,
)
from bench.timing import fresh, rotated, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGES, QUICK_MESSAGES = 200_000, 10_000
PER_TRIGGER = 50_000
LEASE = 1_000
SETTLED = ("id", "key", "type", "payload", "attempts", "enqueued_at")
BATCHES, QUICK_BATCHES = 30, 6
SKIPPED = 3
"""The first batches of a query, which also start it."""
POLL_S = 0.2
BATCHES_S = 120.0
STEPS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


def streams(at: Setting) -> list[Result]:
    return [
        *_streams(at, "stream", "Stream to Parquet, PostgreSQL", at.postgres),
        *_streams(at, "stream-sqlite", "Stream to Parquet, SQLite", at.scratch()),
    ]


def _streams(at: Setting, name: str, title: str, homes: Fresh) -> list[Result]:
    n = at.size(MESSAGES, QUICK_MESSAGES)
    started: list[float] = []
    told: list[list[dict[str, Any]]] = []

    def ours(home: object, n: int) -> float:
        with opened(home) as (_, queue), fresh(at.folder) as folder:
            fill(queue, n)
            frame = stream(at, home, PER_TRIGGER)
            writer = frame.writeStream.format("parquet").option("path", str(folder / "sink"))
            writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
            begun = time.time()
            with timed() as watch:
                query = writer.trigger(availableNow=True).start()
                query.awaitTermination()
            assert queue.stats().done == n
        told.append([json.loads(progress.json) for progress in query.recentProgress])
        first = datetime.fromisoformat(told[-1][0]["timestamp"]).timestamp()
        started.append(n / (watch.seconds - (first - begun)))
        return watch.seconds

    def library(home: object, n: int) -> float:
        with opened(home) as (_, queue):
            fill(queue, n)
            with timed() as watch:
                while leases := queue.lease(LEASE):
                    queue.settle(leases)
            assert queue.stats().done == n
        return watch.seconds

    note = f"{n:,} messages, batches of {PER_TRIGGER:,}, from start() to the end of the query"
    entrants = [
        Entrant(OURS if name == "stream" else ON_SQLITE, ours, n, note),
        Entrant(LIBRARY, library, n, f"{n:,} messages, batches of {LEASE:,}"),
    ]
    (result,) = beside(at, name, title, entrants, LIBRARY, 0.8, homes)
    return [_with_steady(result, started[-at.repeats :], told[-1])]


def _with_steady(result: Result, rates: list[float], told: list[dict[str, Any]]) -> Result:
    """The same runs without the start of the query, which a stream that goes on has once."""
    total = {step: sum(p["durationMs"].get(step, 0) for p in told) for step in STEPS}
    steady = Row(f"{OURS.name}, once started", "ours", rates, f"in ms: {_steps(total)}")
    figure = result.ratio(steady, result.row(LIBRARY.name)) or 0.0
    target = Target(f"{result.title}: the same, from its first trigger", figure, 0.8, True)
    ours, other = result.rows
    return msgspec.structs.replace(
        result, rows=[ours, steady, other], targets=[*result.targets, target]
    )


def handlers(at: Setting) -> list[Result]:
    n = at.size(MESSAGES, QUICK_MESSAGES)

    def ours(home: object, n: int) -> float:
        from holdfast.spark import run
        from holdfast.spark.progress import flush

        with opened(home) as (hf, queue), fresh(at.folder) as folder:
            fill(queue, n)
            hf.handler(QUEUE)(nothing)
            with timed() as watch:
                query = run(
                    hf,
                    QUEUE,
                    checkpoint=str(folder / "checkpoint"),
                    sink=str(folder / "sink"),
                    spark=at.spark,
                    max_messages=PER_TRIGGER,
                    slices=SLICES,
                    until_empty=True,
                )
            flush(str(query.runId))
            assert queue.stats().done == n
        return watch.seconds

    def bare(home: object, n: int) -> float:
        with opened(home) as (_, queue), fresh(at.folder) as folder:
            fill(queue, n)
            frame = stream(at, home, PER_TRIGGER)

            def batch(rows: DataFrame, number: int) -> None:
                mapped = rows.mapInArrow(same, rows.schema).select(*SETTLED)
                mapped.write.mode("overwrite").parquet(str(folder / "sink" / f"batch={number}"))

            writer = frame.writeStream.foreachBatch(batch)
            writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
            with timed() as watch:
                writer.trigger(availableNow=True).start().awaitTermination()
            assert queue.stats().done == n
        return watch.seconds

    entrants = [
        Entrant(OURS, ours, n, f"{n:,} messages, holdfast.spark.run, handlers return None"),
        Entrant(BARE, bare, n, f"{n:,} messages, foreachBatch, every row through Python and back"),
    ]
    title = "Handlers, results to Parquet"
    return beside(at, "handlers", title, entrants, BARE, 0.5, at.postgres)


def one(at: Setting) -> list[Result]:
    count = at.size(BATCHES, QUICK_BATCHES)
    measured = {
        OURS.name: lambda folder: _one_ours(at, folder, count),
        RATE.name: lambda folder: _timed_batches(_rate(at), folder, count),
    }
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in measured}
    for repeat in range(-1, at.repeats):  # the first round only warms up
        for name in rotated(list(measured), repeat):
            at.tell(f"{round_of(repeat, at.repeats)}: {name}")
            with fresh(at.folder) as folder:
                times = measured[name](folder)
            if repeat >= 0:
                taken[name].append(times)
    rows = [
        Row(who.name, who.kind, [t["triggerExecution"] for t in taken[who.name]],
            f"median of {count}; {_steps(taken[who.name][-1])}")
        for who in (OURS, RATE)
    ]  # fmt: skip
    title = "A batch of one message, trigger to commit"
    result = Result(
        "one", title, "ms", rows, more_is_better=False, compare_to=RATE.name
    )  # fmt: skip
    figure = result.ratio(*rows) or 0.0
    target = Target(f"{title}: times the {RATE.name}", figure, 2.5, False)
    return [msgspec.structs.replace(result, targets=[target])]


def _one_ours(at: Setting, folder: Path, count: int) -> dict[str, float]:
    """More messages than batches: an idle source waits for some inside the time that is taken."""
    with at.postgres() as home, opened(home) as (_, queue):
        fill(queue, count + 2 * SKIPPED)
        return _timed_batches(stream(at, home, 1), folder, count)


def _rate(at: Setting) -> DataFrame:
    reader = at.spark.readStream.format("rate-micro-batch")
    return reader.option("rowsPerBatch", 1).option("numPartitions", 1).load()


def _timed_batches(frame: DataFrame, folder: Path, count: int) -> dict[str, float]:
    """Medians of Spark's own times, of batches one after the other to the noop sink."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "c"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        until = time.monotonic() + BATCHES_S
        while (query.lastProgress or {"batchId": -1})["batchId"] < SKIPPED + count:
            if not query.isActive or time.monotonic() > until:
                raise RuntimeError(f"batches of one: {query.exception() or 'they do not come'}")
            time.sleep(POLL_S)
        told = [p for p in query.recentProgress if p["numInputRows"] == 1]
    finally:
        query.stop()
    times = [progress["durationMs"] for progress in told][SKIPPED : SKIPPED + count]
    return {
        step: median(t.get(step, 0) for t in times) for step in (*STEPS, "triggerExecution")
    }  # fmt: skip


def _steps(times: dict[str, float]) -> str:
    return ", ".join(f"{step} {times[step]:.0f}" for step in STEPS)
