"""What huey's consumer process imports; the environment tells it what to do."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from huey import SqliteHuey

DATABASE, FSYNC, LAST = "BENCH_HUEY_DATABASE", "BENCH_HUEY_FSYNC", "BENCH_HUEY_LAST"
Task = Callable[[dict[str, Any]], Any]


def make(database: str, fsync: str) -> tuple[SqliteHuey, Task, Task]:
    """An instance on a file, and its two tasks: `nothing` and `note`."""
    own = SqliteHuey(filename=database, fsync=None if fsync == "default" else False, results=False)
    return own, own.task()(nothing), own.task()(note)


def nothing(payload: dict[str, Any]) -> None:
    if next(_count) in _told:
        print(time.monotonic(), flush=True)


def note(payload: dict[str, Any]) -> None:
    print(time.monotonic() - payload["sent"], flush=True)


_count = itertools.count(1)
_told = (1, int(os.environ.get(LAST, "0")))
if DATABASE in os.environ:
    huey = make(os.environ[DATABASE], os.environ[FSYNC])[0]
