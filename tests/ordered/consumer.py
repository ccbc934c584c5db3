"""A consumer of an ordered queue, to be stopped, killed and frozen; it notes all that it does.

    python consumer.py URL NOTES NAME [CLOCK_OFFSET_SECONDS]

A note is a line: what, name, partition, key, number, attempt, time (of the monotonic clock). That
it lost a partition, having had no time to keep it, is one without a key, number or attempt.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import zlib
from collections.abc import Callable

import holdfast
from holdfast import Fail, Message, Retry

CONCURRENCY = 4
SLOW_S = 0.002


class Losses(logging.Handler):
    def __init__(self, note: Callable[[int], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "%s: partition %d was lost":
            assert isinstance(record.args, tuple)
            _, partition = record.args
            assert isinstance(partition, int)
            self._note(partition)


def main(url: str, notes: str, name: str, offset: float = 0.0) -> bool:
    if offset:
        right = time.time
        time.time = lambda: right() + offset
    hf = holdfast.connect(url)
    out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(what: str, partition: int, about: str) -> None:
        os.write(out, f"{what} {name} {partition} {about} {time.monotonic_ns()}\n".encode())

    def note(what: str, message: Message) -> None:
        write(what, message.partition, f"{message.key} {message.payload} {message.attempts}")

    logging.getLogger("holdfast").addHandler(Losses(lambda part: write("lost", part, "- -1 0")))

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
