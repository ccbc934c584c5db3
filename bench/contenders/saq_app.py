"""saq; as a program, its worker in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from saq import Worker
from saq.queue.redis import RedisQueue

from bench.contenders import tasks
from bench.timing import timed

CONCURRENCY = 20
FORGET = -1  # a result that nobody asks for is not written
SWEEP_S = 1


async def nothing(ctx: Any, *, payload: dict[str, Any]) -> None:
    await tasks.nothing_async(payload)


async def note(ctx: Any, *, payload: dict[str, Any]) -> None:
    tasks.note(payload)


def enqueue(url: str, items: list[dict[str, Any]]) -> float:
    async def run() -> float:
        queue = RedisQueue.from_url(url)
        terms: dict[str, Any] = {"retries": tasks.RETRIES}
        if seconds := tasks.recover_s():
            terms["timeout"] = int(seconds)  # what runs for longer is swept
        with timed() as watch:
            for item in items:
                await queue.enqueue("nothing", ttl=FORGET, payload=item, **terms)
        await queue.disconnect()
        return watch.seconds

    return uvloop.run(run())


@contextmanager
def noting(url: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        queue = RedisQueue.from_url(url)
        yield lambda item: runner.run(queue.enqueue("note", ttl=FORGET, payload=item))
        runner.run(queue.disconnect())


def work(url: str) -> None:
    async def run() -> None:
        queue = RedisQueue.from_url(url)
        # Once a minute unless told; it then waits 5 s for each one's worker, one after the other.
        watchful: Any = {"timers": {"sweep": SWEEP_S}} if tasks.recover_s() else {}
        worker = Worker(queue, [nothing, note], concurrency=CONCURRENCY, **watchful)
        worker.SIGNALS = []
        await worker.start()

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # its own end takes seconds
    uvloop.run(run())


if __name__ == "__main__":
    work(sys.argv[1])
