"""huey on Redis; as a program, its consumer in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from huey import RedisHuey

from bench.contenders import tasks
from bench.timing import timed

WORKERS = 2


def make(url: str) -> tuple[RedisHuey, Callable[..., Any], Callable[..., Any]]:
    own = RedisHuey(url=url, results=False)
    return own, own.task(retries=tasks.RETRIES)(tasks.nothing), own.task()(tasks.note)


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    own, nothing, _ = make(url)
    with timed() as watch:
        for item in items:
            nothing(item)
    own.storage.close()
    return watch.seconds


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    own, _, note = make(url)
    yield note
    own.storage.close()


def work(url: str) -> None:
    consumer = make(url)[0].create_consumer(
        workers=WORKERS, worker_type="thread", periodic=False, check_worker_health=False
    )
    consumer.run()


if __name__ == "__main__":
    work(sys.argv[1])
