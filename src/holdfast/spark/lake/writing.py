"""The log onto a disk: each task reads its piece of a store and writes Parquet files itself.

Handed to the JVM and written by Spark, rows take twice as long. Where the lake lies elsewhere Spark
writes (`archive.py`), with its own credentials; the files are the same.
"""

# pyright: basic

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.spark.lake import tables
from holdfast.spark.lake.reading import Ask, Piece, Reader

pc: Any = compute  # made at run time: no checker knows its functions

GROUP_ROWS, GROUP_BYTES = 100_000, 64 * 1024 * 1024
"""Of a file, so much is held in memory before it is written."""
DAY_MS = 86_400_000
SAID = "path string, rows long, first long, last long"
_SAID = pa.schema([("path", pa.string()), *((n, pa.int64()) for n in ("rows", "first", "last"))])


class Written(NamedTuple):
    """A file below the folder, and the times of finishing in it."""

    path: str
    rows: int
    first: int
    last: int


def write(spark: SparkSession, ask: Ask, folder: Path, archived_at: int) -> list[Written]:
    """All that is asked for, below the folder by queue and day. A task that is run again writes
    other files: those count that are named here."""
    reader = Reader(ask, tables.READ["log"])
    pieces = reader.partitions()
    if not pieces:
        return []
    where = str(folder)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                files = list(_written(reader, pieces[number], Path(where), archived_at))  # pyright: ignore
                yield pa.RecordBatch.from_pylist([file._asdict() for file in files], _SAID)

    numbers = spark.range(0, len(pieces), 1, len(pieces))
    rows = numbers.mapInArrow(task, SAID).collect()
    return [Written(row["path"], row["rows"], row["first"], row["last"]) for row in rows]


def _written(reader: Reader, piece: Piece, folder: Path, archived_at: int) -> Iterator[Written]:
    """One file for each day: rows come in the order in which they finished."""
    file: _File | None = None
    for batch in reader.read(piece):
        table = with_times(batch, archived_at)
        days = pc.divide(tables.arrow_ms(table.column("finished_at")), DAY_MS)
        for day in pc.unique(days).to_pylist():
            if file is not None and file.day != day:
                yield file.close()
                file = None
            file = file or _File(folder, piece.view.queue, day)
            file.add(table.filter(pc.equal(days, day)))
    if file is not None:
        yield file.close()


def with_times(batch: pa.RecordBatch, archived_at: int) -> pa.Table:
    """As `tables.stored` does it, without the columns that are names of folders."""
    table = pa.Table.from_batches([batch])
    times = {
        name: tables.arrow_ms(table.column(name))
        for name in ("enqueued_at", "first_leased_at", "last_leased_at", "finished_at")
    }
    for name, (one, other) in tables.TIMES.items():
        between = pc.subtract(times[other], times[one])
        table = table.append_column(name, pc.max_element_wise(between, 0).cast(pa.int64()))
    at = pa.scalar(archived_at * 1000, pa.timestamp("us", "UTC"))
    table = table.append_column("archived_at", pa.repeat(at, table.num_rows))
    return table.drop_columns(["queue"])


class _File:
    def __init__(self, folder: Path, queue: str, day: int) -> None:
        self.day = day
        date = datetime.fromtimestamp(day * DAY_MS / 1000, UTC).date().isoformat()
        name = f"{secrets.token_hex(8)}.parquet"
        self._path = f"queue={queue}/day={date}/{name}"
        self._file = folder / self._path
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._held = self._bytes = self._rows = 0
        self._first, self._last = 1 << 62, 0

    def add(self, table: pa.Table) -> None:
        ended = pc.min_max(tables.arrow_ms(table.column("finished_at"))).as_py()
        self._first, self._last = min(self._first, ended["min"]), max(self._last, ended["max"])
        self._waiting.append(table)
        self._held += table.num_rows
        self._bytes += table.nbytes
        if self._held >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> Written:
        self._flush()
        assert self._writer is not None
        self._writer.close()
        with self._file.open("rb") as file:
            os.fsync(file.fileno())
        return Written(self._path, self._rows, self._first, self._last)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table, row_group_size=GROUP_ROWS)
        self._rows += table.num_rows
        self._waiting, self._held, self._bytes = [], 0, 0
