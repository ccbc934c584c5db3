"""A procrastinate app; as a program, its worker in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.tasks import Task

from bench.contenders import tasks

AnyTask = Task[Any, Any, Any]
HEARTBEAT_S = LOOK_S = 1.0


def make(connector: PsycopgConnector | SyncPsycopgConnector) -> tuple[App, AnyTask, AnyTask]:
    """An app and its two tasks, `nothing` and `note`."""
    app = App(connector=connector)

    async def nothing(payload: dict[str, Any]) -> None:
        await tasks.nothing_async(payload)

    async def note(payload: dict[str, Any]) -> None:
        tasks.note(payload)

    retried = app.task(name="nothing", retry=tasks.RETRIES)(nothing)
    return app, retried, app.task(name="note")(note)


def work(url: str, concurrency: int) -> None:
    """Its pool as it comes, of 4: a connection for every task was no faster."""
    app = make(PsycopgConnector(conninfo=url))[0]
    options: dict[str, Any] = {"concurrency": concurrency, "delete_jobs": "always"}
    if (seconds := tasks.recover_s()) is None:
        app.run_worker(**options)
        return
    options |= {"update_heartbeat_interval": HEARTBEAT_S, "stalled_worker_timeout": seconds}
    asyncio.run(_watchful(app, seconds, options))


async def _watchful(app: App, seconds: float, options: dict[str, Any]) -> None:
    """Its documentation's own way: whoever wants stalled jobs back looks for them in a task."""

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=seconds):
                await app.job_manager.retry_job(job)

    async with app.open_async():
        looking = asyncio.create_task(look())
        await app.run_worker_async(fetch_job_polling_interval=LOOK_S, **options)
        looking.cancel()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
