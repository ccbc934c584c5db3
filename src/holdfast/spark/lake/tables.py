"""The columns of an archive: those of the views, and what reports want to have ready made."""

# pyright: basic

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from holdfast.errors import InvalidArgument, did_you_mean
from holdfast.queue import failures
from holdfast.spark import columns, sessions
from holdfast.spark.lake.files import Lake, Manifest

_CAUSE = [StructField("fingerprint", StringType()), StructField("cause", StringType())]
PLAIN = {
    "log": columns.SCHEMAS["log"],
    "dead": columns.SCHEMAS["dead"],
    "triage": StructType([*columns.SCHEMAS["dead"].fields, StructField("place", LongType())]),
}
READ = {table: StructType([*plain.fields, *_CAUSE]) for table, plain in PLAIN.items()}
"""What an executor reads of a store. `fingerprint` and `cause`: of the last error (failures.py)."""
TIMES = {
    "wait_ms": ("enqueued_at", "first_leased_at"),
    "between_ms": ("first_leased_at", "last_leased_at"),
    "run_ms": ("last_leased_at", "finished_at"),
    "total_ms": ("enqueued_at", "finished_at"),
}
"""Milliseconds from one to the other, none below 0."""
_ADDED = [StructField("archived_at", READ["log"]["finished_at"].dataType)]
STORED = {
    "log": StructType([*READ["log"].fields, *[StructField(n, LongType()) for n in TIMES], *_ADDED,
                       StructField("day", DateType())]),
    "dead": StructType([*READ["dead"].fields, *_ADDED, StructField("day", DateType())]),
}  # fmt: skip
"""What is in a lake; a file that an older release wrote has nulls for what it did not know."""


def with_causes(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add the fingerprint of the last error. Most rows have none, and cost nothing."""
    errors = batch.column("errors")
    n = batch.num_rows
    prints: list[str | None] = [None] * n
    causes: list[str | None] = [None] * n
    if len(errors.flatten()):
        reasons = batch.column("reason").to_pylist()
        offsets = errors.offsets.to_pylist()
        values = errors.values
        for row in range(n):
            if offsets[row + 1] > offsets[row]:
                last = values[offsets[row + 1] - 1].as_py()
                prints[row], causes[row] = _cause(
                    reasons[row], last["code"], last["handler"], last["message"]
                )
    text = pa.string()
    arrays = [*batch.columns, pa.array(prints, text), pa.array(causes, text)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=10_000)
def _cause(reason: str | None, code: str | None, handler: str | None, text: str) -> tuple[str, str]:
    error = failures.normalise(text)
    return failures.fingerprint(reason, code, handler, error), error


def stored(frame: DataFrame, table: str, at: int) -> DataFrame:
    """As it is written: times taken in milliseconds, and the day it belongs to."""
    frame = frame.withColumn("archived_at", F.timestamp_millis(F.lit(at)))
    if table == "dead":
        return frame.withColumn("day", F.to_date(died()))
    times = {name: _between(*ends) for name, ends in TIMES.items()}
    return frame.withColumns({**times, "day": F.to_date("finished_at")})


def died() -> Any:
    """What somebody put among the dead by hand has been there since then."""
    return F.coalesce(F.col("dead_at"), F.col("enqueued_at"))


def arrow_ms(times: Any) -> Any:
    """Times of Arrow's, of whatever unit and zone, in milliseconds."""
    return times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())


def _between(one: str, other: str) -> Any:
    return F.greatest(F.unix_millis(F.col(other)) - F.unix_millis(F.col(one)), F.lit(0))


def read(spark: SparkSession, lake: Lake, state: Manifest, table: str) -> DataFrame:
    """What is published of a table."""
    schema = STORED[table]
    paths = state.files.get(table, [])
    if not paths:
        return spark.createDataFrame([], schema)
    return (
        spark.read.schema(schema)
        .option("basePath", lake.path(table))
        .parquet(*[lake.path(path) for path in paths])
    )


def archived(lake: str, table: str = "log", spark: SparkSession | None = None) -> DataFrame:
    """A table of an archive as a frame: "log" or "dead". What killed runs left is not in it."""
    if table not in STORED:
        raise InvalidArgument("table", f"{table!r}: {did_you_mean(table, STORED)}")
    spark = spark or sessions.session()
    place = Lake(spark, lake)
    if not place.exists():
        raise InvalidArgument("lake", f"{place.where} holds no archive: make one first")
    return read(spark, place, place.state(), table)
