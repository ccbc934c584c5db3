"""A pgqueuer worker in a process of its own: at its first and last job it writes down the time."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time

import asyncpg
import msgspec
import uvloop
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

NOTHING, NOTE = "nothing", "note"


async def work(url: str, batch: int, last: int) -> None:
    """Only the entrypoint that is asked for: every further one makes its dequeue dearer."""
    pool = await asyncpg.create_pool(url)
    manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, manager.shutdown.set)
    count, told = itertools.count(1), (1, last)

    async def nothing(job: Job) -> None:
        if next(count) in told:
            print(time.monotonic(), flush=True)

    async def note(job: Job) -> None:
        now = time.monotonic()
        print(now - msgspec.json.decode(job.payload or b"")["sent"], flush=True)

    if last:
        manager.entrypoint(NOTHING)(nothing)
    else:
        manager.entrypoint(NOTE)(note)
    await manager.run(batch_size=batch)
    await pool.close()


if __name__ == "__main__":
    uvloop.run(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
