"""Whole tables: a million rows into a DataFrame, and a million rows into the queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg

from bench.contenders.ours import QUEUE, fill
from bench.measures.throughput import Entrant
from bench.results import Result
from bench.spark.stage import JDBC, JDBC_ALIKE, OURS, SLICES, Setting, beside, opened, url_in
from bench.timing import PAYLOAD_BYTES, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader

ROWS, QUICK_ROWS = 1_000_000, 20_000
FETCH = 10_000
FILL = 5_000

AS_STORED = """
SELECT seq, id::text AS id, qid, part, key, type, body, content_type, headers, priority, attempts,
  max_attempts, ack_timeout, enqueued_at, available_at, history
FROM holdfast.message"""
ALIKE = """
SELECT seq, id::text AS id, 'bench' AS queue, part AS partition, key, type,
  convert_from(body, 'UTF8') AS payload, NULL::bytea AS body,
  coalesce(content_type, 'application/json') AS content_type, headers, priority, attempts,
  max_attempts, ack_timeout, to_timestamp(enqueued_at / 1000.0) AS enqueued_at,
  to_timestamp(available_at / 1000.0) AS available_at, history AS errors
FROM holdfast.message"""
PLAIN_TABLE = "CREATE TABLE plain (LIKE holdfast.message INCLUDING ALL)"


def read(at: Setting) -> list[Result]:
    """Reading changes nothing: one table for all, filled once."""
    n = at.size(ROWS, QUICK_ROWS)
    with at.postgres() as home:
        with opened(home) as (_, queue):
            fill(queue, n, size=FILL, tell=lambda done: at.tell(f"filling: {done:,} of {n:,}"))
        with psycopg.connect(home, autocommit=True) as db:
            db.execute("VACUUM ANALYZE holdfast.message")
            db.execute("CHECKPOINT")
        frames = {OURS.name: _ours(at, home)}
        if at.jdbc:
            frames |= {
                JDBC.name: _jdbc(at, home, AS_STORED, n),
                JDBC_ALIKE.name: _jdbc(at, home, ALIKE, n),
            }
        for name, frame in frames.items():
            found = frame.count()
            assert found == n, f"{name} reads {found} of {n} rows"
        entrants = [
            Entrant(who, _to_nowhere(frames[who.name]), n, f"{n:,} rows to the noop sink")
            for who in (OURS, JDBC, JDBC_ALIKE)
            if who.name in frames
        ]
        title = "Batch read of ready messages"
        return beside(at, "read", title, entrants, JDBC, 1.0, lambda: nullcontext(home))


def _ours(at: Setting, home: str) -> DataFrame:
    options = {"url": url_in(home), "queue": QUEUE, "slices": str(SLICES)}
    return at.spark.read.format("holdfast").options(**options).load()


def _jdbc(at: Setting, home: str, query: str, n: int) -> DataFrame:
    reader: DataFrameReader = at.spark.read.format("jdbc").options(**_connection(home))
    return reader.options(
        dbtable=f"({query}) AS m",
        partitionColumn="seq",
        lowerBound="1",
        upperBound=str(n + 1),
        numPartitions=str(SLICES),
        fetchsize=str(FETCH),
    ).load()


def _connection(home: str) -> dict[str, str]:
    """stringtype=unspecified: the server makes uuids of text."""
    at = urlsplit(home)
    url = f"jdbc:postgresql://{at.hostname}:{at.port}{at.path}"
    return {
        "url": f"{url}?user={at.username}&reWriteBatchedInserts=true&stringtype=unspecified",
        "driver": "org.postgresql.Driver",
    }


def _to_nowhere(frame: DataFrame) -> Callable[[object, int], float]:
    def run(home: object, n: int) -> float:
        with timed() as watch:
            frame.write.format("noop").mode("overwrite").save()
        return watch.seconds

    return run


def write(at: Setting) -> list[Result]:
    n = at.size(ROWS, QUICK_ROWS)

    def ours(home: str, n: int) -> float:
        with opened(home) as (_, queue):
            writer = _payloads(at, n).write.format("holdfast").mode("append")
            with timed() as watch:
                writer.options(url=url_in(home), queue=QUEUE).save()
            assert queue.stats().ready == n
        return watch.seconds

    def jdbc(home: str, n: int) -> float:
        with opened(home), psycopg.connect(home, autocommit=True) as db:
            db.execute(PLAIN_TABLE)
            writer = _stored(at, n).write.format("jdbc").mode("append")
            options = {**_connection(home), "dbtable": "plain", "batchsize": str(FETCH)}
            with timed() as watch:
                writer.options(**options).save()
            assert db.execute("SELECT count(*) FROM plain").fetchone() == (n,)
        return watch.seconds

    entrants = [Entrant(OURS, ours, n, f"{n:,} rows, {SLICES} tasks")]
    if at.jdbc:
        note = f"{n:,} rows into a table with our columns and indexes"
        entrants.append(Entrant(JDBC, jdbc, n, note))
    return beside(at, "write", "Bulk write", entrants, JDBC, 1.0, at.postgres)


def _payload() -> str:
    """The payloads of bench.timing as an expression, for Spark to make."""
    head, middle, tail = '{"n":', ',"text":"', '"}'
    rest = PAYLOAD_BYTES - len(head + middle + tail)
    text = f"repeat('x', {rest} - length(cast(id AS string)))"
    return f"concat('{head}', id, '{middle}', {text}, '{tail}')"


def _payloads(at: Setting, n: int) -> DataFrame:
    return at.spark.range(0, n, 1, SLICES).selectExpr(f"{_payload()} AS payload")


def _stored(at: Setting, n: int) -> DataFrame:
    """The same payloads with what our table asks for beside them."""
    now = round(time.time() * 1000)
    return at.spark.range(0, n, 1, SLICES).selectExpr(
        "id AS seq",
        "id AS place",
        f"{now}L AS available_at",
        f"{now}L AS enqueued_at",
        "1 AS home",
        "2 AS qid",
        "0 AS part",
        "0 AS attempts",
        "0S AS state",
        "9S AS rank",
        "0S AS priority",
        "false AS split",
        "uuid() AS id",
        f"cast({_payload()} AS binary) AS body",
    )
