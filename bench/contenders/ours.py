"""Holdfast, through its public verbs and with its defaults."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import holdfast
from bench.results import Who
from bench.timing import BATCH, batches, payloads, timed

CONCURRENCY = 16
QUEUE = "bench"

WHO = Who(
    name="holdfast",
    kind="ours",
    version=version("holdfast"),
    settings=f"WAL, synchronous=NORMAL, log on; worker of {CONCURRENCY} threads",
    durability="a process may crash; a power cut may take the last commits",
    delivery="leased by token, acked into the log; retries, dead letters",
    acks=True,
)


@contextmanager
def opened(
    folder: Path, name: str = "ours.db"
) -> Iterator[tuple[holdfast.Holdfast, holdfast.Queue]]:
    with holdfast.connect(f"sqlite:///{folder / name}") as hf:
        yield hf, hf.queue(QUEUE)


def fill(queue: holdfast.Queue, n: int, *, delay: float | None = None) -> None:
    for part in batches(list(range(n)), 1000):
        bulk = payloads(len(part))
        items = bulk if delay is None else [holdfast.Outgoing(p, delay=delay) for p in bulk]
        queue.enqueue_many(items)


def enqueue_bulk(folder: Path, n: int) -> float:
    parts = batches(payloads(n))
    with opened(folder) as (_, queue):
        with timed() as watch:
            for part in parts:
                queue.enqueue_many(part)
        assert queue.stats().ready == n
    return watch.seconds


def enqueue_one(folder: Path, n: int) -> float:
    items = payloads(n)
    with opened(folder) as (_, queue):
        with timed() as watch:
            for item in items:
                queue.enqueue(item)
        assert queue.stats().ready == n
    return watch.seconds


def lease_ack_bulk(folder: Path, n: int) -> float:
    with opened(folder) as (_, queue):
        fill(queue, n)
        with timed() as watch:
            while leases := queue.lease(BATCH):
                queue.settle(leases)
        _all_done(queue, n)
    return watch.seconds


def lease_ack_one(folder: Path, n: int) -> float:
    with opened(folder) as (_, queue):
        fill(queue, n)
        with timed() as watch:
            while leases := queue.lease():
                queue.ack(leases[0])
        _all_done(queue, n)
    return watch.seconds


def drain(folder: Path, n: int) -> float:
    """The whole of `work`: starting and stopping its threads is in the time."""
    with opened(folder) as (hf, queue):
        fill(queue, n)
        hf.handler(QUEUE)(_nothing)
        with timed() as watch:
            hf.work(until_empty=True, concurrency=CONCURRENCY)
        _all_done(queue, n)
    return watch.seconds


def worker_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "bench.contenders.ours_worker", os.fspath(folder / "ours.db")]


def _nothing(payload: object) -> None: ...


def _all_done(queue: holdfast.Queue, n: int) -> None:
    stats = queue.stats()
    assert (stats.done, stats.ready, stats.leased) == (n, 0, 0), stats
