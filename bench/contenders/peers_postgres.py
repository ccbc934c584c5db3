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

from bench.contenders import pgqueuer_worker, procrastinate_app, tasks
from bench.contenders.limit_postgres import DURABLE
from bench.contenders.party import Environment, Party, one_by_one
from bench.contenders.party import Send as SendMany
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
    with pgqueuer_start(url, {tasks.LAST: str(n)}) as worker:
        first, last = (float(line) for line in worker.lines(2))
    return last - first


@contextmanager
def pgqueuer_worker_in(url: str) -> Iterator[tuple[Send, Child]]:
    uvloop.run(_pgqueuer_enqueue(url, [], 1))
    with psycopg.connect(url, autocommit=True) as db, _pgqueuer_noting(url) as child:
        queries = SyncQueries(SyncPsycopgDriver(db))
        yield lambda item: queries.enqueue(pgqueuer_worker.NOTE, msgspec.json.encode(item)), child


@contextmanager
def pgqueuer_noting(url: str, environment: Environment) -> Iterator[tuple[SendMany, Child]]:
    uvloop.run(_pgqueuer_enqueue(url, [], 1))
    with (
        psycopg.connect(url, autocommit=True) as db,
        _pgqueuer_noting(url, environment) as child,
    ):
        queries = SyncQueries(SyncPsycopgDriver(db))

        def send(items: list[dict[str, Any]]) -> None:
            encoded: list[bytes | None] = [msgspec.json.encode(item) for item in items]
            queries.enqueue([pgqueuer_worker.NOTE] * len(items), encoded, [0] * len(items))

        yield send, child


def pgqueuer_start(url: str, environment: Environment) -> Child:
    return Child(_pgqueuer_command(url, pgqueuer_worker.NOTHING), environment)


def _pgqueuer_noting(url: str, environment: Environment | None = None) -> Child:
    return Child(_pgqueuer_command(url, pgqueuer_worker.NOTE), environment)


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
        if not await queries.schema_is_installed():
            await queries.install()
        return queries

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait_for(self._connection.close(), 10)


def _pgqueuer_command(url: str, task: str) -> list[str]:
    module = "bench.contenders.pgqueuer_worker"
    return [sys.executable, "-m", module, url, str(PGQUEUER_BATCH), task]


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
    with procrastinate_start(url, {tasks.LAST: str(n)}) as worker:
        first, last = (float(line) for line in worker.lines(2))
    return last - first


@contextmanager
def procrastinate_worker_in(url: str) -> Iterator[tuple[Send, Child]]:
    with _procrastinate(url) as (_, note), procrastinate_start(url, {}) as child:
        yield lambda item: note.defer(payload=item), child


@contextmanager
def procrastinate_noting(url: str, environment: Environment) -> Iterator[tuple[SendMany, Child]]:
    with _procrastinate(url) as (_, note), procrastinate_start(url, environment) as child:
        yield one_by_one(lambda item: note.defer(payload=item)), child


def procrastinate_start(url: str, environment: Environment) -> Child:
    module = "bench.contenders.procrastinate_app"
    return Child([sys.executable, "-m", module, url, str(CONCURRENCY)], environment)


@contextmanager
def _procrastinate(url: str) -> Iterator[tuple[procrastinate_app.AnyTask, ...]]:
    connector = SyncPsycopgConnector(conninfo=url, min_size=1, max_size=1)
    app, nothing, note = procrastinate_app.make(connector)
    with app.open():
        if not app.check_connection():  # which says whether its table is there
            app.schema_manager.apply_schema()
        yield nothing, note


PARTIES = [
    Party(
        PGQUEUER, 20_000, pgqueuer_enqueue_bulk(FILL), pgqueuer_start,
        pgqueuer_noting, "at once (RetryRequested)", "heartbeat_timeout, dequeue_timeout=1 s",
    ),
    Party(
        PROCRASTINATE, 500, procrastinate_enqueue_bulk(FILL),
        procrastinate_start, procrastinate_noting, "at once (retry=3)",
        "stalled_worker_timeout, heartbeats and a task of one's own that retries stalled jobs, "
        "each every second",
    ),
]  # fmt: skip
