"""litequeue; as a program, a loop around its `pop` and `done`, since it brings no worker."""

from __future__ import annotations

import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from litequeue import LiteQueue

from bench.contenders import tasks
from bench.timing import timed

POLL_S, LOOK_S = 0.01, 1.0


def enqueue(folder: Path, items: list[dict[str, Any]]) -> float:
    return enqueue_many(folder, [[item] for item in items])


def enqueue_many(folder: Path, parts: list[list[dict[str, Any]]]) -> float:
    with _opened(folder) as queue, timed() as watch:
        for part in parts:
            with queue.transaction():
                for item in part:
                    queue.put(msgspec.json.encode(item).decode())
    return watch.seconds


@contextmanager
def noting(folder: Path) -> Iterator[Callable[[dict[str, Any]], Any]]:
    with _opened(folder) as queue:
        yield lambda item: queue.put(msgspec.json.encode(item).decode())


def work(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with _opened(folder) as queue:
        looked = time.monotonic()
        while True:
            if tasks.recover_s() and time.monotonic() > looked + LOOK_S:
                looked = time.monotonic()
                _give_back(queue)
            if not _one(queue):
                time.sleep(POLL_S)


def _one(queue: LiteQueue) -> bool:
    try:
        message = queue.pop()
    except sqlite3.OperationalError:  # another one writes: it does not wait
        return False
    if message is None:
        return False
    payload = msgspec.json.decode(message.data)
    try:
        (tasks.note if "sent" in payload else tasks.nothing)(payload)
    except tasks.FailedOnce:
        queue.retry(message.message_id)
    else:
        queue.done(message.message_id)
    return True


def _give_back(queue: LiteQueue) -> None:
    for message in list(queue.list_locked(int(tasks.recover_s() or 0))):
        queue.retry(message.message_id)


@contextmanager
def _opened(folder: Path) -> Iterator[LiteQueue]:
    with closing(LiteQueue(folder / "lite.db", timeout=10)) as queue:
        yield queue


if __name__ == "__main__":
    work(Path(sys.argv[1]))
