"""A lake on a disk, read by the tasks themselves: no row goes through the JVM to reach Python.

That road costs several times as much as all that is done with the rows. Where the lake lies
elsewhere, Spark reads it (`scan.narrow`); both give the same columns.
"""

# pyright: basic

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from holdfast.model.message import home_of
from holdfast.spark.lake import tables
from holdfast.spark.reports import scan

pc: Any = compute  # made at run time: no checker knows its functions

TASKS_PER_CORE = 3
DAY_MS = 86_400_000
ERRORS = {"at": None, "attempt": pa.int32(), "code": pa.string(), "consumer": pa.string()}
BOTH = ["key", "attempts", "fingerprint", "cause", *(f"errors.list.element.{n}" for n in ERRORS)]
READ = {
    False: [
        *("finished_at", "last_leased_at", "status", "consumer"),
        *(f"{name}_ms" for name in scan.MEASURES),
        *BOTH,
    ],
    True: ["dead_at", "enqueued_at", "source", *BOTH],
}
"""The columns of the log, and those of dead letters."""


class File(NamedTuple):
    path: str
    queue: str
    dead: bool


class Span(NamedTuple):
    """What ended within it is looked at, in steps."""

    start: int
    step_ms: int
    since: int | None
    until: int | None


def sums(
    spark: SparkSession, folder: Path, files: Mapping[str, Sequence[str]], span: Span
) -> DataFrame:
    """As `scan.sums`, of the files that are named, by table, below the folder."""
    found = [
        File(str(folder / path), _part(path, "queue"), table == "dead")
        for table, paths in files.items()
        for path in paths
        if _is_within(_part(path, "day"), span)
    ]
    dealt = _dealt(found, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from scan.summed(_tables(dealt[number], span), span.start, span.step_ms)

    slices = max(1, len(dealt))
    numbers = spark.range(0, len(dealt), 1, slices)
    return scan.added(numbers.mapInArrow(task, scan.SUMS))


def _part(path: str, name: str) -> str:
    found = re.search(rf"(?:^|/){name}=([^/]*)/", path)
    return found[1] if found else ""


def _is_within(day: str, span: Span) -> bool:
    """Give or take a day: a session that is not on UTC has named folders by its own days."""
    low = None if span.since is None else _day(span.since - DAY_MS)
    high = None if span.until is None else _day(span.until + DAY_MS)
    return (low is None or day >= low) and (high is None or day <= high)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()


def _dealt(files: list[File], tasks: int) -> list[list[File]]:
    """The largest first, each to whom has least. A queue's stay together in what a task adds up."""
    hands: list[list[File]] = [[] for _ in range(min(tasks, len(files)))]
    sizes = [0] * len(hands)
    by_size = sorted(((Path(file.path).stat().st_size, file) for file in files), reverse=True)
    for size, file in by_size:
        least = sizes.index(min(sizes))
        hands[least].append(file)
        sizes[least] += size
    return [sorted(hand) for hand in hands]


def _tables(files: list[File], span: Span) -> Iterator[pa.Table]:
    for file in files:
        with pq.ParquetFile(file.path) as parquet:
            names = READ[file.dead]
            for batch in parquet.iter_batches(scan.CHUNK, columns=names, use_threads=False):
                table = _narrowed(batch, file)
                if span.since is not None:
                    table = table.filter(pc.field("at") >= span.since)
                if span.until is not None:
                    table = table.filter(pc.field("at") < span.until)
                yield table


def _narrowed(batch: pa.RecordBatch, file: File) -> pa.Table:
    """The columns of `scan.narrow`. An older release's file lacks some: they are null."""
    rows = batch.num_rows
    text = pa.string()

    def column(name: str, kind: pa.DataType) -> pa.Array:
        there = batch.schema.get_field_index(name)
        return pa.nulls(rows, kind) if there < 0 else batch.column(there).cast(kind, safe=False)

    def ms(name: str) -> pa.Array:
        return column(name, pa.timestamp("ms")).cast(pa.int64())

    def no(kind: pa.DataType) -> pa.Array:
        return pa.nulls(rows, kind)

    queue = pa.repeat(home_of(file.queue) if file.dead else file.queue, rows)
    if file.dead:
        queue = pc.coalesce(column("source", text), queue)
    long = pa.int64()
    ended = pc.coalesce(ms("dead_at"), ms("enqueued_at")) if file.dead else ms("finished_at")
    no_times = {f"{name}_ms": no(long) for name in scan.MEASURES}
    times = {name: column(name, long) for name in no_times}
    ok = pc.equal(column("status", text), "COMPLETED")
    return pa.table(
        {
            "queue": queue,
            "at": ended,
            **(no_times if file.dead else times),
            "ok": pa.repeat(False, rows) if file.dead else ok,
            "dead": pa.repeat(file.dead, rows),
            "leased": no(long) if file.dead else ms("last_leased_at"),
            "key": column("key", text),
            "consumer": no(text) if file.dead else column("consumer", text),
            "attempts": column("attempts", pa.int32()),
            "fingerprint": column("fingerprint", text),
            "cause": column("cause", text),
            "errors": _errors(batch),
        }
    )


def _errors(batch: pa.RecordBatch) -> pa.Array:
    """Null where there are none: few rows have some."""
    there = batch.schema.get_field_index("errors")
    kinds = {name: kind or pa.int64() for name, kind in ERRORS.items()}
    if there < 0:
        return pa.nulls(batch.num_rows, pa.list_(pa.struct(list(kinds.items()))))
    lists = batch.column(there)
    values = lists.values
    fields = {field.name for field in values.type}
    parts = [
        pa.nulls(len(values), kind)
        if name not in fields
        else tables.arrow_ms(values.field(name))
        if name == "at"
        else values.field(name).cast(kind, safe=False)
        for name, kind in kinds.items()
    ]
    each = pa.StructArray.from_arrays(parts, list(kinds))
    offsets = lists.offsets.to_numpy()
    none = pa.array(offsets[1:] == offsets[:-1])
    return pa.ListArray.from_arrays(lists.offsets, each, mask=none)
