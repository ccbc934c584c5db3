"""dramatiq; as a program, its worker in a process of its own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dramatiq import Actor, Worker, actor
from dramatiq.brokers.redis import RedisBroker

from bench.contenders import tasks
from bench.timing import timed

THREADS, PREFETCH = 8, 200
RETRIED = {"max_retries": tasks.RETRIES, "min_backoff": 1, "max_backoff": 10}
ALWAYS = 1_000_000
"""The chance, in a million, that a call also looks after the dead."""


def make(url: str) -> tuple[RedisBroker, Actor[..., None], Actor[..., None]]:
    seconds = tasks.recover_s()
    watchful: dict[str, Any] = {}
    if seconds is not None:
        watchful = {"heartbeat_timeout": int(seconds * 1000), "maintenance_chance": ALWAYS}
    broker = RedisBroker(url=url, **watchful)
    nothing = actor(tasks.nothing, broker=broker, **RETRIED)
    return broker, nothing, actor(tasks.note, broker=broker)


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    broker, nothing, _ = make(url)
    with timed() as watch:
        for item in items:
            nothing.send(item)
    broker.close()
    return watch.seconds


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    broker, _, note = make(url)
    yield note.send
    broker.close()


def work(url: str) -> None:
    worker = Worker(make(url)[0], worker_threads=THREADS)
    worker.queue_prefetch = PREFETCH  # what dramatiq_queue_prefetch in the environment would set
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    worker.start()
    signal.sigwait({signal.SIGINT})
    worker.stop()


if __name__ == "__main__":
    work(sys.argv[1])
