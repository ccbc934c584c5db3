"""The peers that keep a queue in SQLite, each by its own documentation and at its best setting.

A backlog of a few thousand suits them: some read past everything that is finished.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from litequeue import LiteQueue
from persistqueue import SQLiteAckQueue, SQLiteQueue

from bench.contenders import huey_app, tasks
from bench.contenders.party import Environment, Party, Send, one_by_one
from bench.processes import Child
from bench.results import Who
from bench.timing import BATCH, batches, payloads, timed

FULL = "every commit is synced: survives a power cut"
NORMAL = "a process may crash; a power cut may take the last commits"
OFF = "nothing is synced: a power cut may damage the file"
ONCE = "deleted when read: lost if its consumer dies"

LITEQUEUE = Who(
    "litequeue", "peer", version("litequeue"), "WAL, synchronous=NORMAL", NORMAL,
    "popped, then marked done; stays in the table", acks=True,
)  # fmt: skip
PERSIST_ACK = Who(
    "persist-queue, acks", "peer", version("persist-queue"),
    f"SQLiteAckQueue, WAL, synchronous=FULL; clear_acked_data every {2 * BATCH}", FULL,
    "marked when read, then acked", acks=True,
)  # fmt: skip
PERSIST = Who(
    "persist-queue", "peer", version("persist-queue"), "SQLiteQueue, WAL, synchronous=FULL", FULL,
    ONCE, acks=False,
)  # fmt: skip
PERSIST_CURSOR = Who(
    "persist-queue, one reader", "peer", version("persist-queue"),
    f"SQLiteQueue(auto_commit=False), task_done every {BATCH}", FULL,
    "read by a cursor in memory: a second reader gets the same messages", acks=False,
)  # fmt: skip
HUEY = Who(
    "huey", "peer", version("huey"),
    "SqliteHuey, WAL, synchronous=FULL (its default); consumer of 1 thread", FULL, ONCE, acks=False,
)  # fmt: skip
HUEY_OFF = Who(
    "huey, fsync off", "peer", version("huey"),
    "SqliteHuey(fsync=False), WAL, synchronous=OFF; consumer of 1 thread", OFF, ONCE, acks=False,
)  # fmt: skip
WHO = [LITEQUEUE, PERSIST_ACK, PERSIST, PERSIST_CURSOR, HUEY, HUEY_OFF]


# litequeue


def litequeue_enqueue_one(folder: Path, n: int) -> float:
    items = payloads(n)
    with closing(LiteQueue(folder / "lite.db")) as queue, timed() as watch:
        for item in items:
            queue.put(_text(item))
    return watch.seconds


def litequeue_enqueue_bulk(folder: Path, n: int) -> float:
    parts = batches(payloads(n))
    with closing(LiteQueue(folder / "lite.db")) as queue, timed() as watch:
        for part in parts:
            with queue.transaction():
                for item in part:
                    queue.put(_text(item))
    return watch.seconds


def litequeue_drain(folder: Path, n: int) -> float:
    with closing(LiteQueue(folder / "lite.db")) as queue:
        with queue.transaction():
            for item in payloads(n):
                queue.put(_text(item))
        with timed() as watch:
            for _ in range(n):
                queue.done(queue.pop().message_id)
        assert queue.qsize() == 0
    return watch.seconds


def _text(item: dict[str, Any]) -> str:
    return msgspec.json.encode(item).decode()


# persist-queue: everybody's put is one commit, whatever auto_commit says


def persist_enqueue_one(folder: Path, n: int) -> float:
    items = payloads(n)
    with closing(SQLiteQueue(str(folder))) as queue, timed() as watch:
        for item in items:
            queue.put(item)
    return watch.seconds


def persist_ack_enqueue_one(folder: Path, n: int) -> float:
    items = payloads(n)
    with closing(SQLiteAckQueue(str(folder))) as queue, timed() as watch:
        for item in items:
            queue.put(item)
    return watch.seconds


def persist_ack_drain(folder: Path, n: int) -> float:
    with closing(SQLiteAckQueue(str(folder))) as queue:
        _put_all(queue, n)
        with timed() as watch:
            for i in range(n):
                queue.ack(id=queue.get(raw=True)["pqid"])
                if i % (2 * BATCH) == 0:
                    queue.clear_acked_data(keep_latest=0)
        assert queue.empty()
    return watch.seconds


def persist_drain(folder: Path, n: int) -> float:
    with closing(SQLiteQueue(str(folder))) as queue:
        _put_all(queue, n)
        with timed() as watch:
            for _ in range(n):
                queue.get()
        assert queue.empty()
    return watch.seconds


def persist_cursor_drain(folder: Path, n: int) -> float:
    with closing(SQLiteQueue(str(folder), auto_commit=False)) as queue:
        _put_all(queue, n)
        with timed() as watch:
            for i in range(n):
                queue.get()
                if (i + 1) % BATCH == 0:
                    queue.task_done()
        assert queue.empty()
    return watch.seconds


def _put_all(queue: SQLiteQueue | SQLiteAckQueue, n: int) -> None:
    for item in payloads(n):
        queue.put(item)


# huey: enqueued from here, worked by its own consumer process


def huey_enqueue_one(fsync: str) -> Callable[[Path, int], float]:
    def run(folder: Path, n: int) -> float:
        items = payloads(n)
        with huey_task(folder, fsync) as send, timed() as watch:
            for item in items:
                send(item)
        return watch.seconds

    return run


def huey_drain(fsync: str) -> Callable[[Path, int], float]:
    """From the first task's start to the last one's: the start of the process is not in it."""

    def run(folder: Path, n: int) -> float:
        with huey_task(folder, "off") as send:
            for item in payloads(n):
                send(item)
        with Child(huey_command(), huey_environment(folder, fsync, last=n)) as consumer:
            first, last = (float(line) for line in consumer.lines(2))
        return last - first

    return run


@contextmanager
def huey_task(folder: Path, fsync: str, *, noted: bool = False) -> Iterator[huey_app.Task]:
    """Call it to enqueue a task of huey_app: one that does nothing, or one that notes the time."""
    huey, nothing, note = huey_app.make(os.fspath(folder / "huey.db"), fsync)
    yield note if noted else nothing
    huey.storage.close()


@contextmanager
def huey_worker(folder: Path) -> Iterator[tuple[huey_app.Task, Child]]:
    """The way to send, and its consumer, which notes what it gets."""
    environment = huey_environment(folder, "off")
    with huey_task(folder, "off", noted=True) as send, Child(huey_command(), environment) as child:
        yield send, child


@contextmanager
def _huey_noting(folder: Path, environment: Environment) -> Iterator[tuple[Send, Child]]:
    with huey_task(folder, "off", noted=True) as send, _huey_start(folder, environment) as child:
        yield one_by_one(send), child


def _huey_start(folder: Path, environment: Environment) -> Child:
    return Child(huey_command(), {**huey_environment(folder, "off"), **environment})


def huey_party() -> Party:
    return Party(
        HUEY_OFF, 1_500, huey_enqueue_one("off"), _huey_start, _huey_noting,
        f"at once (retries={tasks.RETRIES})",
    )  # fmt: skip


def huey_command() -> list[str]:
    consumer = Path(sys.executable).with_name("huey_consumer")
    options = ["--workers=1", "--worker-type=thread", "--delay=0.01", "--max-delay=0.01"]
    return [os.fspath(consumer), "bench.contenders.huey_app.huey", *options, "-n", "-C", "-q"]


def huey_environment(folder: Path, fsync: str, last: int = 0) -> dict[str, str]:
    return {
        huey_app.DATABASE: os.fspath(folder / "huey.db"),
        huey_app.FSYNC: fsync,
        tasks.LAST: str(last),
    }
