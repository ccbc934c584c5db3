"""A consumer of an ordered queue, to be stopped, killed and frozen; it notes all that it does.

    python consumer.py URL NOTES NAME [CLOCK_OFFSET_SECONDS]

A note is a line: what, name, partition, key, number, attempt, time (of the monotonic clock).
"""

from __future__ import annotations

import os
import sys
import time
import zlib

import holdfast
from holdfast import Fail, Message, Retry

CONCURRENCY = 4
SLOW_S = 0.002


def main(url: str, notes: str, name: str, offset: float = 0.0) -> bool:
    if offset:
        right = time.time
        time.time = lambda: right() + offset
    hf = holdfast.connect(url)
    out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, message: Message) -> None:
        n, key = message.payload, message.key
        line = f"{what} {name} {message.partition} {key} {n} {message.attempts} "
        os.write(out, f"{line}{time.monotonic_ns()}\n".encode())

    @hf.handler("orders")
    def handle(n: int, message: Message) -> None:
        note("start", message)
        dice = zlib.crc32(f"{n} {message.attempts}".encode())
        time.sleep(SLOW_S)  # the work
        if n % 997 == 500:
            note("fail", message)
            raise Fail("poison")
        if dice % 31 == 0:
            note("fail", message)
            raise Retry("not this time")
        note("end", message)

    return hf.work(concurrency=CONCURRENCY)


if __name__ == "__main__":
    where, file, me, *wrong = sys.argv[1:]
    sys.exit(0 if main(where, file, me, *map(float, wrong)) else 1)
