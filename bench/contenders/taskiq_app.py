"""taskiq on a stream; as a program, its worker in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from taskiq import AsyncTaskiqDecoratedTask, SimpleRetryMiddleware
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.contenders import tasks
from bench.timing import timed

CONCURRENCY = 100
Task = AsyncTaskiqDecoratedTask[Any, Any]


def make(url: str) -> tuple[RedisStreamBroker, Task, Task]:
    watchful: Any = {}
    if seconds := tasks.recover_s():
        watchful = {
            "idle_timeout": int(seconds * 1000),  # what is pending for longer is claimed
            "unacknowledged_lock_timeout": seconds,  # else who dies while it claims keeps the lock
        }
    broker = RedisStreamBroker(url, xread_count=CONCURRENCY, **watchful)
    if tasks.may_fail():
        broker.add_middlewares(SimpleRetryMiddleware(tasks.RETRIES))

    async def nothing(payload: dict[str, Any]) -> None:
        await tasks.nothing_async(payload)

    async def note(payload: dict[str, Any]) -> None:
        tasks.note(payload)

    retried = broker.task("nothing", retry_on_error=True)(nothing)
    return broker, retried, broker.task("note")(note)


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    async def run() -> float:
        broker, nothing, _ = make(url)
        await broker.startup()
        with timed() as watch:
            for item in items:
                await nothing.kiq(item)
        await broker.shutdown()
        return watch.seconds

    return uvloop.run(run())


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    broker, _, note = make(url)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(broker.startup())
        yield lambda item: runner.run(note.kiq(item))
        runner.run(broker.shutdown())


def work(url: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # its own end takes seconds
    broker = make(url)[0]
    uvloop.run(
        run_receiver_task(
            broker,
            run_startup=True,
            max_async_tasks=CONCURRENCY,
            validate_params=False,
            ack_time=AcknowledgeType.WHEN_EXECUTED,  # acked when it has run: at least once
        )
    )


if __name__ == "__main__":
    work(sys.argv[1])
