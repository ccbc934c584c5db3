"""Holdfast, through its public verbs and with its defaults, on whichever store a plan names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import msgspec

import holdfast
from bench.contenders.party import Environment, Party, Send
from bench.contenders.tasks import RECOVER
from bench.processes import Child
from bench.results import Who
from bench.timing import BATCH, batches, payload, payloads, timed

CONCURRENCY = 16
QUEUE = "bench"
POLICY = "BENCH_ACK_TIMEOUT_S"
SWEEP_MS = 500
DELIVERY = "leased by token, acked into the log; retries, dead letters"
VERSION = version("holdfast")


class Ours(msgspec.Struct, frozen=True):
    who: Who
    url: Callable[[Any], str]
    """Of the store in a home."""

    @contextmanager
    def opened(self, home: Any) -> Iterator[tuple[holdfast.Holdfast, holdfast.Queue]]:
        with holdfast.connect(self.url(home)) as hf:
            yield hf, hf.queue(QUEUE)

    def enqueue_bulk(self, size: int = BATCH) -> Callable[[Any, int], float]:
        def run(home: Any, n: int) -> float:
            parts = batches(payloads(n), size)
            with self.opened(home) as (_, queue):
                with timed() as watch:
                    for part in parts:
                        queue.enqueue_many(part)
                assert queue.stats().ready == n
            return watch.seconds

        return run

    def enqueue_one(self, home: Any, n: int) -> float:
        items = payloads(n)
        with self.opened(home) as (_, queue):
            with timed() as watch:
                for item in items:
                    queue.enqueue(item)
            assert queue.stats().ready == n
        return watch.seconds

    def lease_ack_bulk(self, home: Any, n: int) -> float:
        return self.lease_ack(BATCH)(home, n)

    def lease_ack(self, size: int) -> Callable[[Any, int], float]:
        def run(home: Any, n: int) -> float:
            with self.opened(home) as (_, queue):
                fill(queue, n)
                with timed() as watch:
                    while leases := queue.lease(size):
                        queue.settle(leases)
                _all_done(queue, n)
            return watch.seconds

        return run

    def lease_ack_one(self, home: Any, n: int) -> float:
        with self.opened(home) as (_, queue):
            fill(queue, n)
            with timed() as watch:
                while leases := queue.lease():
                    queue.ack(leases[0])
            _all_done(queue, n)
        return watch.seconds

    def drain(self, home: Any, n: int) -> float:
        """The whole of `work`: starting and stopping its threads is in the time."""
        with self.opened(home) as (hf, queue):
            fill(queue, n)
            hf.handler(QUEUE)(_nothing)
            with timed() as watch:
                hf.work(until_empty=True, concurrency=CONCURRENCY)
            _all_done(queue, n)
        return watch.seconds

    @contextmanager
    def worker(self, home: Any) -> Iterator[tuple[Callable[[dict[str, Any]], Any], Child]]:
        """The way to send, and a worker in a process of its own that notes what it gets."""
        command = [sys.executable, "-m", "bench.contenders.ours_worker", self.url(home)]
        with self.opened(home) as (_, queue), Child(command) as child:
            yield queue.enqueue, child

    def party(self, n: int) -> Party:
        """With its worker in a process of its own, as the measures of fleets ask for it."""
        return Party(
            self.who, n, self._fill, self._start, self._noting, "at once",
            f"ack_timeout, HOLDFAST_OVERDUE_CHECK_INTERVAL_MS={SWEEP_MS}",
        )  # fmt: skip

    def _fill(self, home: Any, n: int) -> None:
        with self.opened(home) as (_, queue):
            fill(queue, n)

    def _start(self, home: Any, environment: Environment) -> Child:
        given = dict(environment)
        if ack_timeout := given.get(RECOVER):
            given |= {POLICY: ack_timeout, "HOLDFAST_OVERDUE_CHECK_INTERVAL_MS": str(SWEEP_MS)}
        return Child([sys.executable, "-m", "bench.contenders.ours_worker", self.url(home)], given)

    @contextmanager
    def _noting(self, home: Any, environment: Environment) -> Iterator[tuple[Send, Child]]:
        with self.opened(home) as (_, queue), self._start(home, environment) as child:
            yield queue.enqueue_many, child


def fill(
    queue: holdfast.Queue,
    n: int,
    *,
    size: int = 1000,
    delay: float | None = None,
    tell: Callable[[int], None] = lambda filled: None,
) -> None:
    filled = 0
    while filled < n:
        bulk = [payload(i) for i in range(filled, min(n, filled + size))]
        items = bulk if delay is None else [holdfast.Outgoing(p, delay=delay) for p in bulk]
        queue.enqueue_many(items)
        filled += len(bulk)
        tell(filled)


def _nothing(value: object) -> None: ...


def _all_done(queue: holdfast.Queue, n: int) -> None:
    stats = queue.stats()
    assert (stats.done, stats.ready, stats.leased) == (n, 0, 0), stats
