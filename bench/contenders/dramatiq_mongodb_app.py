"""dramatiq-mongodb; as a program, its worker in a process of its own. In its own environment."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dramatiq import Actor, Worker, actor
from dramatiq.middleware import Prometheus, default_middleware
from dramatiq_mongodb.broker import MongoDBBroker
from pymongo import MongoClient

from bench.contenders import tasks
from bench.timing import timed


def make(url: str) -> tuple[MongoDBBroker, Actor[..., None], Actor[..., None]]:
    # Prometheus counts only under the program that dramatiq brings, and complains elsewhere.
    kinds = [kind for kind in default_middleware if kind is not Prometheus]
    database = MongoClient[dict[str, Any]](url).get_default_database()
    broker = MongoDBBroker(database=database, middleware=[kind() for kind in kinds])
    return broker, actor(tasks.nothing, broker=broker), actor(tasks.note, broker=broker)


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


def work(url: str, threads: int) -> None:
    worker = Worker(make(url)[0], worker_threads=threads)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    worker.start()
    signal.sigwait({signal.SIGINT})
    worker.stop()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
