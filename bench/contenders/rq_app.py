"""rq; as a program, its worker in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis
from rq import Queue, Retry, SimpleWorker

from bench.contenders import tasks
from bench.timing import timed

NAME = "bench"
FORGET = 0  # a result that nobody asks for is not written
LOOK_S, LESS_S = 1, 15
"""A worker waits for a job for its ttl less 15 s."""


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    with _opened(url) as queue, timed() as watch:
        for item in items:
            queue.enqueue(tasks.nothing, item, **_terms())
    return watch.seconds


def enqueue_many(url: str, parts: list[list[dict[str, Any]]]) -> float:
    with _opened(url) as queue, timed() as watch:
        for part in parts:
            queue.enqueue_many(
                [Queue.prepare_data(tasks.nothing, (item,), **_many_terms()) for item in part]
            )
    return watch.seconds


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    with _opened(url) as queue:
        yield lambda item: queue.enqueue(tasks.note, item, result_ttl=FORGET)


def work(url: str) -> None:
    with _opened(url) as queue:
        watchful: Any = {}
        if tasks.recover_s():
            watchful = {
                "maintenance_interval": LOOK_S,  # when it looks for jobs whose worker has died
                "worker_ttl": LOOK_S + LESS_S,  # an idle one waits for a job, and then looks
            }
        worker = SimpleWorker([queue], connection=queue.connection, **watchful)
        worker.work(logging_level="ERROR")


def _terms() -> dict[str, Any]:
    terms = {"result_ttl": FORGET, "retry": Retry(max=tasks.RETRIES)}
    seconds = tasks.recover_s()
    # It counts as abandoned 60 s, which rq adds, after its time-out.
    return {**terms, "job_timeout": int(seconds)} if seconds else terms


def _many_terms() -> dict[str, Any]:
    """The same by the name that a batch has for it."""
    terms = _terms()
    return {("timeout" if name == "job_timeout" else name): terms[name] for name in terms}


@contextmanager
def _opened(url: str) -> Iterator[Queue]:
    with Redis.from_url(url) as client:
        yield Queue(NAME, connection=client)


if __name__ == "__main__":
    work(sys.argv[1])
