"""The lake: the archive beside a plain read of the log, the report beside the least that a scan of
its files costs, a redrive from executors beside the library's."""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import holdfast
from bench.contenders.ours import QUEUE
from bench.measures.throughput import Entrant
from bench.results import Result, Who
from bench.spark.stage import LIBRARY, OURS, SLICES, Setting, beside, opened, url_in
from bench.timing import PAYLOAD_BYTES, payload, timed
from holdfast.model.message import Finished, Message, new_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS, QUICK_ROWS = 500_000, 20_000
REPORT_ROWS, QUICK_REPORT_ROWS = 10_000_000, 1_000_000
DEAD, QUICK_DEAD = 100_000, 10_000
CHUNK = 5000
DAY_MS = 86_400_000

READER = msgspec.structs.replace(
    LIBRARY,
    name="batch reader",
    settings=f'spark.read.format("holdfast"), view log, {SLICES} slices, to the noop sink',
    delivery="reads, and keeps nothing",
)
SCAN = Who(
    "count and group-by",
    "limit",
    OURS.version,
    "spark.read.parquet(...).count(), and groupBy(queue, consumer).count(), of the same files",
    "-",
    "-",
    acks=True,
)
ONE_PROCESS = msgspec.structs.replace(
    LIBRARY, settings="one process: hf.redrive(dlq)", delivery="each in one atomic step"
)
PARTIES = [READER, SCAN, ONE_PROCESS]


def archive(at: Setting) -> list[Result]:
    """One log for all, filled once; each sample has a lake of its own."""
    from holdfast import spark as hs

    n = at.size(ROWS, QUICK_ROWS)
    with at.postgres() as home:
        with opened(home) as (hf, _):
            _fill_log(hf, n)

        def ours(_: object, n: int) -> float:
            with holdfast.connect(url_in(home)) as hf:
                lake = at.folder / f"lake-{secrets.token_hex(4)}"
                with timed() as watch:
                    done = hs.archive(hf, str(lake), [QUEUE], spark=at.spark, slices=SLICES)
                assert done.log == done.total
            return watch.seconds

        def reader(_: object, n: int) -> float:
            frame = _log(at, home)
            with timed() as watch:
                frame.write.format("noop").mode("overwrite").save()
            return watch.seconds

        note = f"{n:,} rows, dead letters and the manifest with them"
        entrants = [
            Entrant(OURS, _all(ours, n), n, note),
            Entrant(READER, _all(reader, n), n, f"{n:,} rows"),
        ]
        title = f"Archive of a log, payloads of {PAYLOAD_BYTES} bytes"
        return beside(at, "archive", title, entrants, READER, 0.7, lambda: nullcontext(home))


def _all(run: Any, n: int) -> Any:
    """Warming up reads the whole of it too: the table is what it is."""
    return lambda home, asked: run(home, n) * asked / n


def _log(at: Setting, home: object) -> DataFrame:
    options = {"url": url_in(home), "queue": QUEUE, "slices": str(SLICES), "view": "log"}
    return at.spark.read.format("holdfast").options(**options).load()


def _fill_log(hf: holdfast.Holdfast, n: int) -> None:
    now = hf.context.clock.now()
    for start in range(0, n, CHUNK):
        ids = new_ids(min(CHUNK, n - start), now)
        rows: list[Finished] = []
        for number, id in enumerate(ids, start):
            at = now - DAY_MS + number
            body = msgspec.json.encode(payload(number))
            message = Message(
                id, QUEUE, 0, 0, None, None, body, "application/json", {}, at - 900, at - 900, 1,
                first_leased_at=at - 100,
            )  # fmt: skip
            rows.append(Finished(message, "COMPLETED", at, at - 100, at - 100, "worker:1:abc"))
        hf.store.restore(QUEUE, rows, now)


def report(at: Setting) -> list[Result]:
    from holdfast import spark as hs

    n = at.size(REPORT_ROWS, QUICK_REPORT_ROWS)
    lake = str(at.folder / "report-lake")
    files = _make_lake(at, lake, n)

    def ours(_: object, n: int) -> float:
        with timed() as watch:
            made = hs.report(lake, spark=at.spark)
        assert made.summary["done"] == n
        return watch.seconds

    def scan(_: object, n: int) -> float:
        with timed() as watch:
            frame = at.spark.read.option("basePath", f"{lake}/log").parquet(*files)
            assert frame.count() == n
            frame.groupBy("queue", "consumer").count().collect()
        return watch.seconds

    entrants = [
        Entrant(OURS, _all(ours, n), n, f"{n:,} rows, all tables and the page"),
        Entrant(SCAN, _all(scan, n), n, f"{n:,} rows"),
    ]
    title = "Report over an archive"
    return beside(at, "report", title, entrants, SCAN, 1 / 3, lambda: nullcontext(lake))


def _make_lake(at: Setting, where: str, n: int) -> list[str]:
    """As if it had been archived: to finish ten million messages takes an hour."""
    from pyspark.sql import functions as fn

    from holdfast.spark.lake.files import Lake
    from holdfast.spark.lake.tables import STORED

    spark, lake = at.spark, Lake(at.spark, where)
    first, span = 1_790_000_000_000 // DAY_MS * DAY_MS, 2 * DAY_MS
    at_ms = fn.lit(first) + fn.floor(fn.col("id") * (span / n)).cast("long")
    wait = fn.pmod(fn.hash("id"), fn.lit(500)).cast("long")
    run = fn.pmod(fn.hash(fn.lit(7), "id"), fn.lit(3000)).cast("long")
    failed = fn.col("id") % 50 == 0
    error = fn.struct(
        fn.lit("connection refused").alias("message"), fn.lit("ConnectionError").alias("code"),
        fn.timestamp_millis(at_ms - run).alias("at"), fn.lit(1).alias("attempt"),
        fn.lit("worker:1:abc").alias("consumer"), fn.lit("ship").alias("handler"),
    )  # fmt: skip
    errors = STORED["log"]["errors"].dataType
    known = {
        "id": fn.expr("uuid()"),
        "queue": fn.concat(fn.lit("queue-"), fn.col("id") % 3),
        "key": fn.concat(fn.lit("customer-"), fn.pmod(fn.hash("id"), fn.lit(5000))),
        "payload": fn.lit("x" * PAYLOAD_BYTES),
        "attempts": fn.when(failed, 2).otherwise(1),
        "errors": fn.when(failed, fn.array(error)).otherwise(fn.array().cast(errors)),
        "status": fn.lit("COMPLETED"),
        "enqueued_at": fn.timestamp_millis(at_ms - run - wait),
        "finished_at": fn.timestamp_millis(at_ms),
        "first_leased_at": fn.timestamp_millis(at_ms - run),
        "last_leased_at": fn.timestamp_millis(at_ms - run),
        "consumer": fn.concat(fn.lit("worker:"), fn.col("id") % 16),
        "fingerprint": fn.when(failed, fn.lit("0123456789abcdef")),
        "cause": fn.when(failed, fn.lit("connection refused")),
        "wait_ms": wait,
        "between_ms": fn.lit(0),
        "run_ms": run,
        "total_ms": wait + run,
        "day": fn.to_date(fn.timestamp_millis(at_ms)),
    }  # fmt: skip
    columns = [
        known.get(field.name, fn.lit(None)).cast(field.dataType).alias(field.name)
        for field in STORED["log"].fields
    ]
    begun = lake.begin("bench", "bench", first)
    target = lake.path("_staging", "bench", "log")
    spark.range(0, n, 1, 8).select(*columns).write.partitionBy("queue", "day").parquet(target)
    files = {"log": lake.adopt("bench", "log", lake.staged("bench", "log"))}
    done = msgspec.structs.replace(
        begun, number=begun.number + 1, files=files, rows={"log": n}, first=first, last=first + span
    )
    lake.publish(done, files)
    return [lake.path(path) for path in files["log"]]


def redrive(at: Setting) -> list[Result]:
    from holdfast import spark as hs

    n = at.size(DEAD, QUICK_DEAD)

    def ours(home: object, n: int) -> float:
        with opened(home) as (hf, queue):
            _fill_dead(hf, n)
            receipt = Path(at.folder, f"receipt-{secrets.token_hex(4)}")
            with timed() as watch:
                done = hs.redrive(
                    hs.triage(hf, f"{QUEUE}.dlq", spark=at.spark), receipt=str(receipt)
                )
            assert done.redriven == n == queue.stats().ready
        return watch.seconds

    def library(home: object, n: int) -> float:
        with opened(home) as (hf, queue):
            _fill_dead(hf, n)
            with timed() as watch:
                hf.redrive(f"{QUEUE}.dlq")
            assert queue.stats().ready == n
        return watch.seconds

    note = "triage, the selection, the receipt and all"
    entrants = [
        Entrant(OURS, ours, n, f"{n:,} dead letters: {note}"),
        Entrant(ONE_PROCESS, library, n, f"{n:,} dead letters"),
    ]
    return beside(at, "redrive", "Redrive of all dead letters", entrants, LIBRARY, 1.5, at.postgres)


def _fill_dead(hf: holdfast.Holdfast, n: int) -> None:
    dead = hf.queue(f"{QUEUE}.dlq")
    for start in range(0, n, CHUNK):
        dead.enqueue_many(payload(number) for number in range(start, min(n, start + CHUNK)))
