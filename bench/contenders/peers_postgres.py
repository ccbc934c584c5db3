"""The peers that keep a queue in PostgreSQL, each by its own documentation, at its best setting."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import asyncpg
import msgspec
import psycopg
import uvloop
from pgqueuer.db import AsyncpgDriver, SyncPsycopgDriver
from pgqueuer.queries import Queries, SyncQueries
from procrastinate import SyncPsycopgConnector

from bench.contenders import pgqueuer_worker, procrastinate_app
from bench.contenders.limit_postgres import DURABLE
from bench.processes import Child
from bench.results import Who
from bench.timing import batches, payloads, timed

PGQUEUER_BATCH = 1000  # drains faster than batches of 100
CONCURRENCY = 20
FILL = 1000

PGQUEUER = Who(
    "pgqueuer", "peer", version("pgqueuer"),
    f"asyncpg {version('asyncpg')}, uvloop, logged tables; worker of batch_size={PGQUEUER_BATCH}, "
    "pool of 10",
    DURABLE, "picked by heartbeat, acked into a log table", acks=True,
)  # fmt: skip
PROCRASTINATE = Who(
    "procrastinate", "peer", version("procrastinate"),
    f"psycopg {version('psycopg')}, delete_jobs=always; worker of concurrency={CONCURRENCY}, "
    "pool of 4", DURABLE, "picked by a worker with a heartbeat, deleted when done",
    acks=True,
)  # fmt: skip
WHO = [PGQUEUER, PROCRASTINATE]

Run = Callable[[str, int], float]
Send = Callable[[dict[str, Any]], Any]


# pgqueuer


def pgqueuer_enqueue_bulk(size: int) -> Run:
    def run(url: str, n: int) -> float:
        return uvloop.run(_pgqueuer_enqueue(url, payloads(n), size))

    return run


def pgqueuer_enqueue_one(url: str, n: int) -> float:
    async def enqueue() -> float:
        async with _Pgqueuer(url) as queries:
            with timed() as watch:
                for item in payloads(n):
                    await queries.enqueue(pgqueuer_worker.NOTHING, msgspec.json.encode(item))
        return watch.seconds

    return uvloop.run(enqueue())


def pgqueuer_drain(url: str, n: int) -> float:
    """From the first job's start to the last one's: the start of the process is not in it."""
    uvloop.run(_pgqueuer_enqueue(url, payloads(n), FILL))
    with Child(_pgqueuer_command(url, last=n)) as worker:
        first, last = (float(line) for line in worker.lines(2))
    return last - first


@contextmanager
def pgqueuer_worker_in(url: str) -> Iterator[tuple[Send, Child]]:
    uvloop.run(_pgqueuer_enqueue(url, [], 1))
    with psycopg.connect(url, autocommit=True) as db, Child(_pgqueuer_command(url)) as child:
        queries = SyncQueries(SyncPsycopgDriver(db))
        yield lambda item: queries.enqueue(pgqueuer_worker.NOTE, msgspec.json.encode(item)), child


async def _pgqueuer_enqueue(url: str, items: list[dict[str, Any]], size: int) -> float:
    parts = batches(items, size)
    async with _Pgqueuer(url) as queries:
        with timed() as watch:
            for part in parts:
                encoded: list[bytes | None] = [msgspec.json.encode(item) for item in part]
                names = [pgqueuer_worker.NOTHING] * len(part)
                await queries.enqueue(names, encoded, [0] * len(part))
    return watch.seconds


class _Pgqueuer:
    """Its queries on a connection, with its tables made."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Queries:
        self._connection = await asyncpg.connect(self._url)
        queries = Queries(AsyncpgDriver(self._connection))
        await queries.install()
        return queries

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait_for(self._connection.close(), 10)


def _pgqueuer_command(url: str, last: int = 0) -> list[str]:
    module = "bench.contenders.pgqueuer_worker"
    return [sys.executable, "-m", module, url, str(PGQUEUER_BATCH), str(last)]


# procrastinate


def procrastinate_enqueue_bulk(size: int) -> Run:
    def run(url: str, n: int) -> float:
        parts = batches(payloads(n), size)
        with _procrastinate(url) as (nothing, _), timed() as watch:
            for part in parts:
                nothing.batch_defer(*({"payload": item} for item in part))
        return watch.seconds

    return run


def procrastinate_enqueue_one(url: str, n: int) -> float:
    items = payloads(n)
    with _procrastinate(url) as (nothing, _), timed() as watch:
        for item in items:
            nothing.defer(payload=item)
    return watch.seconds


def procrastinate_drain(url: str, n: int) -> float:
    """From the first task's start to the last one's: the start of the process is not in it."""
    procrastinate_enqueue_bulk(FILL)(url, n)
    with Child(_procrastinate_command(url, last=n)) as worker:
        first, last = (float(line) for line in worker.lines(2))
    return last - first


@contextmanager
def procrastinate_worker_in(url: str) -> Iterator[tuple[Send, Child]]:
    with _procrastinate(url) as (_, note), Child(_procrastinate_command(url)) as child:
        yield lambda item: note.defer(payload=item), child


@contextmanager
def _procrastinate(url: str) -> Iterator[tuple[procrastinate_app.AnyTask, ...]]:
    connector = SyncPsycopgConnector(conninfo=url, min_size=1, max_size=1)
    app, nothing, note = procrastinate_app.make(connector)
    with app.open():
        app.schema_manager.apply_schema()
        yield nothing, note


def _procrastinate_command(url: str, last: int = 0) -> list[str]:
    module = "bench.contenders.procrastinate_app"
    return [sys.executable, "-m", module, url, str(CONCURRENCY), str(last)]
