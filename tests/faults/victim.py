"""A process to be killed: does one thing on a SQLite file, and dies at a named point.

    python victim.py ACTION FILE LEDGER [STATEMENT NTH]

With STATEMENT it ends itself by SIGKILL when SQLite is about to run that statement for the NTH
time: between any two statements of a transaction, before its COMMIT, or before the next BEGIN.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import holdfast
from holdfast import Backoff, Fail, Holdfast, Message

BACKOFF = Backoff(base=0.01, jitter="none")


def connect(file: str) -> Holdfast:
    hf = holdfast.connect(f"sqlite:///{file}", ack_timeout=1, backoff=BACKOFF)
    hf.queue("orders", max_attempts=50)
    return hf


def work(hf: Holdfast, ledger: str, *, until_empty: bool = False, concurrency: int = 4) -> None:
    out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @hf.handler("orders")
    def handle(n: int, message: Message) -> None:
        if n % 7 == 0 and message.attempts == 1:
            raise ValueError("not at the first try")
        if n % 50 == 49 and not message.redriven:
            raise Fail("poison")
        os.write(out, f"{message.id}\n".encode())

    hf.work(until_empty=until_empty, concurrency=concurrency)


def produce(hf: Holdfast) -> None:
    for n in range(0, 200, 20):
        hf.queue("orders").enqueue_many(range(n, n + 20))


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


def main(action: str, file: str, ledger: str, *point: str) -> None:
    hf = connect(file)
    actions: dict[str, Callable[[], None]] = {
        "work": lambda: work(hf, ledger),
        "finish": lambda: work(hf, ledger, until_empty=True),
        "produce": lambda: produce(hf),
        "sweep": lambda: sweep(hf),
        "redrive": lambda: redrive(hf),
    }
    if point:
        die_at(hf, point[0], int(point[1]))
    actions[action]()


if __name__ == "__main__":
    main(*sys.argv[1:])
