"""What huey's consumer process imports; the environment tells it what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from huey import SqliteHuey

from bench.contenders.tasks import RETRIES, note, nothing

DATABASE, FSYNC = "BENCH_HUEY_DATABASE", "BENCH_HUEY_FSYNC"
Task = Callable[[dict[str, Any]], Any]


def make(database: str, fsync: str) -> tuple[SqliteHuey, Task, Task]:
    """An instance on a file, and its two tasks: `nothing` and `note`."""
    own = SqliteHuey(filename=database, fsync=None if fsync == "default" else False, results=False)
    return own, own.task(retries=RETRIES)(nothing), own.task()(note)


if DATABASE in os.environ:
    huey = make(os.environ[DATABASE], os.environ[FSYNC])[0]
