"""`hs.report`: one pass over an archive, and what comes of it: Parquet tables, a page, a record."""

# pyright: basic

from __future__ import annotations

import gzip
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from holdfast.app import Holdfast
from holdfast.errors import InvalidArgument
from holdfast.model import clock
from holdfast.model.message import check_queue_name, dlq_of
from holdfast.queue.context import Context
from holdfast.spark import options, sessions
from holdfast.spark.connections import logger
from holdfast.spark.lake import tables
from holdfast.spark.lake.archive import Progress
from holdfast.spark.lake.files import Lake, chosen
from holdfast.spark.reports import direct, scan
from holdfast.spark.reports.figures import SCHEMAS, Figures, figures, step_of
from holdfast.spark.reports.page import page

REPORTS = "_reports"
KIND, PAGE_KIND = "report", "report-page"
"""Records of a store, read by whoever shows them to people."""
PAGE_MAX = 8 * 1024 * 1024
KEPT = 20


class Report(msgspec.Struct, frozen=True):
    """What a report says in short, and where the rest of it is."""

    made_at: int
    title: str
    lake: str
    rows: int
    """Of the log and of dead letters, all that were looked at."""
    summary: dict[str, Any]
    page: str
    """The address of the HTML page; the tables lie beside it: <name>.parquet."""
    tables: dict[str, list[dict[str, Any]]]


def report(
    lake: str,
    *,
    hf: Holdfast | None = None,
    queues: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    title: str = "What the queue did",
    out: str | None = None,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Report:
    """Look at all that is archived, or at some queues, or at what ended within a time.

    Writes into `out`, by default a folder of the lake for each report. With `hf`, its store keeps
    the page for the dashboard.
    """
    _check(queues, since, until, title)
    tell = progress or (lambda _: None)
    spark = spark or sessions.session()
    place = Lake(spark, lake)
    made_at = clock.wall_ms() if hf is None else hf.context.clock.now()
    tell("reading the archive")
    found, rows = _figures(spark, place, queues, _ms(since), _ms(until))
    facts = {
        "made_at": made_at,
        "lake": place.where,
        "rows": rows,
        "first": found.start,
        "last": found.start + found.steps * found.step_ms,
        "summary": _summary(found),
    }
    tell("writing")
    text = page(title, found, facts)
    target = Lake(spark, out) if out else Lake(spark, place.path(REPORTS, f"{made_at:015d}"))
    _write(target, found)
    where = target.write("report.html", text.encode())
    if hf is not None:
        _keep(hf.context, made_at, title, facts, text)
    return Report(made_at, title, place.where, rows, facts["summary"], where, found.tables)


def latest(at: Context) -> tuple[dict[str, Any], bytes] | None:
    """The newest report that a store keeps: what it says in short, and its page."""
    names = [record.name for record in at.store.records(KIND, limit=10 * KEPT)]
    for name in reversed(names):
        pages = at.store.records(PAGE_KIND, prefix=name, limit=1)
        heads = at.store.records(KIND, prefix=name, limit=1)
        if pages and heads:
            return msgspec.json.decode(heads[0].value), gzip.decompress(pages[0].value)
    return None


def _check(queues: Any, since: Any, until: Any, title: Any) -> None:
    if queues is not None:
        if isinstance(queues, str) or not isinstance(queues, Sequence) or not queues:
            raise InvalidArgument("queues", f"must be a list of names, not {queues!r}")
        for name in queues:
            check_queue_name(name, "queues")
    for name, value in (("since", since), ("until", until)):
        if value is not None and not isinstance(value, datetime):
            raise InvalidArgument(name, f"must be a datetime, not {value!r}")
    if since is not None and until is not None and _ms(since) >= _ms(until):  # pyright: ignore
        raise InvalidArgument("until", "must be later than since")
    if not isinstance(title, str) or not 0 < len(title) <= 200:
        raise InvalidArgument("title", "must be text of 1 to 200 characters")


def _ms(at: datetime | None) -> int | None:
    return None if at is None else options.to_ms(at)


def _figures(
    spark: SparkSession,
    lake: Lake,
    queues: Sequence[str] | None,
    since: int | None,
    until: int | None,
) -> tuple[Figures, int]:
    if not lake.exists():
        raise InvalidArgument("lake", f"{lake.where} holds no archive: make one first")
    state = lake.state()
    if queues is not None:
        names = [name for queue in queues for name in (queue, dlq_of(queue))]
        files = {table: chosen(paths, names) for table, paths in state.files.items()}
        state = msgspec.structs.replace(state, files=files)
    first, last = max(since or 0, state.first or 0), state.last or 0
    last = max(first, last if until is None else min(until - 1, last))
    start, step_ms = step_of(first, last)
    if lake.folder is not None:
        span = direct.Span(start, step_ms, since, until)
        sums = direct.sums(spark, lake.folder, state.files, span)
    else:
        log, dead = (tables.read(spark, lake, state, table) for table in ("log", "dead"))
        log = _between(log, F.col("finished_at"), since, until)
        dead = _between(dead, tables.died(), since, until)
        sums = scan.sums(scan.narrow(log, dead), start, step_ms)
    sums = sums.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        found = figures(sums, start, last, step_ms)
    finally:
        sums.unpersist()
    rows = sum(row["done"] + row["dead"] for row in found.tables["summary"])
    return found, rows


def _between(frame: DataFrame, at: Any, since: int | None, until: int | None) -> DataFrame:
    if since is not None:
        frame = frame.where(at >= F.timestamp_millis(F.lit(since)))
        frame = frame.where(F.col("day") >= F.to_date(F.timestamp_millis(F.lit(since))))
    if until is not None:
        frame = frame.where(at < F.timestamp_millis(F.lit(until)))
        frame = frame.where(F.col("day") <= F.to_date(F.timestamp_millis(F.lit(until))))
    return frame


def _summary(found: Figures) -> dict[str, Any]:
    rows = found.tables["summary"]
    done, deliveries = sum(r["done"] for r in rows), sum(r["deliveries"] for r in rows)
    return {
        "queues": len(rows),
        "done": done,
        "with_errors": sum(r["with_errors"] for r in rows),
        "dead": sum(r["dead"] for r in rows),
        "deliveries": deliveries,
        "amplification": deliveries / done if done else None,
        "total_p50_ms": found.overall["p50_ms"],
        "total_p99_ms": found.overall["p99_ms"],
        "failure_groups": len(found.tables["failures"]),
        "storms": len(found.tables["storms"]),
        "overdue": sum(r["overdue"] for r in found.tables["consumers"]),
    }


_KINDS = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("ms", "UTC"),
}


def _write(target: Lake, found: Figures) -> None:
    """Small tables, written here: a job of Spark's for each would take longer than the scan."""
    for name, schema in SCHEMAS.items():
        rows = found.tables[name]
        fields = [field.split() for field in schema.split(", ")]
        columns = {
            column: pa.array([row[column] for row in rows], _KINDS[kind]) for column, kind in fields
        }
        packed = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), packed)
        target.write(f"{name}.parquet", packed.getvalue().to_pybytes())


def _keep(at: Context, made_at: int, title: str, facts: dict[str, Any], text: str) -> None:
    """The page first: whoever finds the head finds the page. The oldest go."""
    name, now = f"{made_at:015d}", at.clock.now()
    packed = gzip.compress(text.encode(), mtime=0)
    if len(packed) > PAGE_MAX:
        logger.warning("the page has %d bytes: too many for the store", len(packed))
        return
    head = {key: facts[key] for key in ("made_at", "lake", "rows", "summary")}
    at.store.put_record(PAGE_KIND, name, packed, None, now)
    at.store.put_record(KIND, name, msgspec.json.encode({**head, "title": title}), None, now)
    names = [record.name for record in at.store.records(KIND, limit=10 * KEPT)]
    for old in names[:-KEPT]:
        at.store.put_record(KIND, old, None, None, now)
        at.store.put_record(PAGE_KIND, old, None, None, now)
