"""A process to be killed: does one thing on a store, and dies at a named point.

    python victim.py ACTION FILE_OR_URL LEDGER [STATEMENT NTH]

With STATEMENT (on a SQLite file) it ends itself by SIGKILL when SQLite is about to run that
statement for the NTH time: between any two statements of a transaction, before its COMMIT, or
before the next BEGIN.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count

import holdfast
from holdfast import Backoff, Fail, Holdfast, Message

BACKOFF = Backoff(base=0.01, jitter="none")
BATCH = 20
SIZES = (20, 300)
"""Of the batches of a flood: a store may have a way of its own for large ones."""


def connect(where: str) -> Holdfast:
    url = where if "://" in where else f"sqlite:///{where}"
    hf = holdfast.connect(url, ack_timeout=1, backoff=BACKOFF)
    hf.queue("orders", max_attempts=50)
    return hf


def register(hf: Holdfast, ledger: str) -> int:
    """The handler, and the open file in which it notes what it finished."""
    out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @hf.handler("orders")
    def handle(n: int, message: Message) -> None:
        if n % 7 == 0 and message.attempts == 1:
            raise ValueError("not at the first try")
        if n % 50 == 49 and not message.redriven:
            raise Fail("poison")
        os.write(out, f"{message.id}\n".encode())

    return out


def work(hf: Holdfast, ledger: str, *, until_empty: bool = False, concurrency: int = 4) -> None:
    register(hf, ledger)
    hf.work(until_empty=until_empty, concurrency=concurrency)


def produce(hf: Holdfast) -> None:
    for n in range(0, 200, BATCH):
        hf.queue("orders").enqueue_many(range(n, n + BATCH))


def flood(hf: Holdfast, ledger: str) -> None:
    """Batch after batch for ever; what was accepted is noted after the call has returned."""
    out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for n in count():
        size = SIZES[n % len(SIZES)]
        batch = f"{os.getpid()}-{n}-{size}"
        hf.queue("orders").enqueue_many([batch] * size)
        os.write(out, f"{batch}\n".encode())


def sweep(hf: Holdfast) -> None:
    hf.sweep()


def redrive(hf: Holdfast) -> None:
    hf.redrive("orders.dlq")


def die_at(hf: Holdfast, statement: str, nth: int) -> None:
    seen = 0

    def watch(sql: str) -> None:
        nonlocal seen
        if sql.strip().startswith(statement):
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    hf.store._db._writer.set_trace_callback(watch)


def main(action: str, where: str, ledger: str, *point: str) -> None:
    hf = connect(where)
    actions: dict[str, Callable[[], None]] = {
        "work": lambda: work(hf, ledger),
        "finish": lambda: work(hf, ledger, until_empty=True),
        "produce": lambda: produce(hf),
        "flood": lambda: flood(hf, ledger),
        "sweep": lambda: sweep(hf),
        "redrive": lambda: redrive(hf),
    }
    if point:
        die_at(hf, point[0], int(point[1]))
    actions[action]()


if __name__ == "__main__":
    main(*sys.argv[1:])
