"""streaq; as a program, its worker in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from anyio.from_thread import start_blocking_portal
from streaq import StreaqRetry, Worker

from bench.contenders import tasks
from bench.timing import timed

CONCURRENCY = 32
UVLOOP = {"use_uvloop": True}


def make(url: str) -> tuple[Worker[None], Any, Any]:
    idle: Any = {"idle_timeout": seconds} if (seconds := tasks.recover_s()) else {}
    worker = Worker(redis_url=url, concurrency=CONCURRENCY, anyio_kwargs=UVLOOP, **idle)

    async def nothing(payload: dict[str, Any]) -> None:
        try:
            await tasks.nothing_async(payload)
        except tasks.FailedOnce as error:
            raise StreaqRetry("again", delay=0) from error

    async def note(payload: dict[str, Any]) -> None:
        tasks.note(payload)

    kept = {"ttl": 0, "silent": True}  # no result, no line in a log
    return worker, worker.task(nothing, **kept), worker.task(note, **kept)


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    async def run() -> float:
        worker, nothing, _ = make(url)
        async with worker:
            with timed() as watch:
                for item in items:
                    await nothing.enqueue(item)
        return watch.seconds

    return uvloop.run(run())


def enqueue_many(url: str, parts: list[list[dict[str, Any]]]) -> float:
    async def run() -> float:
        worker, nothing, _ = make(url)
        async with worker:
            with timed() as watch:
                for part in parts:
                    await worker.enqueue_many([nothing.enqueue(item) for item in part])
        return watch.seconds

    return uvloop.run(run())


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Its connections live in one task: they are spoken to from outside it."""
    worker, _, note = make(url)

    async def send(item: dict[str, Any]) -> None:
        await note.enqueue(item)

    with (
        start_blocking_portal(backend_options=UVLOOP) as portal,
        portal.wrap_async_context_manager(worker),
    ):
        yield lambda item: portal.call(send, item)


def work(url: str) -> None:
    make(url)[0].run_sync()


if __name__ == "__main__":
    work(sys.argv[1])
