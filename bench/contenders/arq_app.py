"""arq; as a program, its worker in a process of its own. Runs in its own environment."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from arq import Retry, create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.contenders import tasks
from bench.timing import timed

FORGET = 0  # a result that nobody asks for is not written


async def nothing(ctx: Any, payload: dict[str, Any]) -> None:
    try:
        await tasks.nothing_async(payload)
    except tasks.FailedOnce as error:
        raise Retry from error  # any other error is final


async def note(ctx: Any, payload: dict[str, Any]) -> None:
    tasks.note(payload)


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    async def run() -> float:
        pool = await create_pool(RedisSettings.from_dsn(url))
        with timed() as watch:
            for item in items:
                await pool.enqueue_job("nothing", item)
        await pool.aclose()
        return watch.seconds

    return uvloop.run(run())


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pool = runner.run(create_pool(RedisSettings.from_dsn(url)))
        yield lambda item: runner.run(pool.enqueue_job("note", item))
        runner.run(pool.aclose())


def work(url: str, jobs: int, poll_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # its own end takes seconds

    async def run() -> None:
        # What a worker has begun is its own for job_timeout and the 10 s that arq adds to it.
        watchful: Any = {"job_timeout": seconds} if (seconds := tasks.recover_s()) else {}
        worker = Worker(
            [func(nothing, name="nothing"), func(note, name="note")],
            redis_settings=RedisSettings.from_dsn(url),
            max_jobs=jobs,
            poll_delay=poll_s,
            keep_result=FORGET,
            handle_signals=False,
            **watchful,
        )
        await worker.async_run()

    uvloop.run(run())


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
