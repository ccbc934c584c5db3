"""A Holdfast worker in a process of its own: writes down how long each message was on its way."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import holdfast
from bench.contenders.ours import CONCURRENCY, QUEUE


def main(url: str) -> None:
    hf = holdfast.connect(url)

    @hf.handler(QUEUE)
    def note(payload: dict[str, Any]) -> None:
        now = time.monotonic()  # one clock for all processes of a machine
        os.write(1, f"{now - payload['sent']}\n".encode())  # whole lines, whichever thread

    hf.work(concurrency=CONCURRENCY)


if __name__ == "__main__":
    main(sys.argv[1])
