"""mongodb-queue; as a program, a loop around its `get` and `ack`, since it brings no worker."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from mongodb_queue import Queue
from pymongo.uri_parser import parse_uri

from bench.contenders import tasks
from bench.timing import timed

POLL_S = 0.01
VISIBILITY_S, RETRY_S = 600.0, 2.0
"""Its own default, and what suits handlers that fail but never take long."""


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    with _opened(url) as queue, timed() as watch:
        for item in items:
            queue.add(_task("nothing", item))
    return watch.seconds


def enqueue_many(url: str, parts: list[list[dict[str, Any]]]) -> float:
    with _opened(url) as queue, timed() as watch:
        for part in parts:
            queue.add([_task("nothing", item) for item in part])
    return watch.seconds


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    with _opened(url) as queue:
        yield lambda item: queue.add(_task("note", item))


def work(url: str, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with _opened(url) as queue, ThreadPoolExecutor(threads) as pool:
        for _ in range(threads):
            pool.submit(_work, queue)


def _work(queue: Queue) -> None:
    while True:
        if row := queue.get():
            try:
                getattr(tasks, row["data"]["task"])(row["data"]["payload"])
            except tasks.FailedOnce:
                continue  # it has no nack: visible again when its time is up
            queue.ack(row["ack"])
        else:
            time.sleep(POLL_S)


def _task(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"task": name, "payload": payload}


@contextmanager
def _opened(url: str) -> Iterator[Queue]:
    seconds = tasks.recover_s() or (RETRY_S if tasks.may_fail() else VISIBILITY_S)
    queue = Queue(url, database=parse_uri(url)["database"], visibility=seconds)
    yield queue
    queue.client.close()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
