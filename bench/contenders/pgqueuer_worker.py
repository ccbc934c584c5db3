"""A pgqueuer worker in a process of its own: at its first and last job it writes down the time."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import uvloop
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from bench.contenders import tasks

NOTHING, NOTE = "nothing", "note"
LOOK = timedelta(seconds=1)


async def work(url: str, batch: int, task: str) -> None:
    """Only the entrypoint that is asked for: every further one makes its dequeue dearer."""
    pool = await asyncpg.create_pool(url)
    manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, manager.shutdown.set)

    async def nothing(job: Job) -> None:
        try:
            await tasks.nothing_async(_payload(job))
        except tasks.FailedOnce as error:
            raise RetryRequested from error

    async def note(job: Job) -> None:
        tasks.note(_payload(job))

    if task == NOTHING:
        manager.entrypoint(NOTHING)(nothing)
    else:
        manager.entrypoint(NOTE)(note)
    watchful: Any = {}
    if seconds := tasks.recover_s():
        watchful = {"heartbeat_timeout": timedelta(seconds=seconds), "dequeue_timeout": LOOK}
    await manager.run(batch_size=batch, **watchful)
    await pool.close()


def _payload(job: Job) -> dict[str, Any]:
    return msgspec.json.decode(job.payload or b"")


if __name__ == "__main__":
    uvloop.run(work(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
