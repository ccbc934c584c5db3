"""A procrastinate app; as a program, its worker in a process of its own."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.tasks import Task

AnyTask = Task[Any, Any, Any]


def make(
    connector: PsycopgConnector | SyncPsycopgConnector, last: int = 0
) -> tuple[App, AnyTask, AnyTask]:
    """An app and its two tasks: `nothing`, which tells its first and last time, and `note`."""
    app = App(connector=connector)
    count, told = itertools.count(1), (1, last)

    async def nothing(payload: dict[str, Any]) -> None:
        if next(count) in told:
            print(time.monotonic(), flush=True)

    async def note(payload: dict[str, Any]) -> None:
        print(time.monotonic() - payload["sent"], flush=True)

    return app, app.task(name="nothing")(nothing), app.task(name="note")(note)


def work(url: str, concurrency: int, last: int) -> None:
    """Its pool as it comes, of 4: a connection for every task was no faster."""
    app = make(PsycopgConnector(conninfo=url), last)[0]
    app.run_worker(concurrency=concurrency, delete_jobs="always")


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
