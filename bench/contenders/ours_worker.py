"""A Holdfast worker in a process of its own: notes what carries a time, works off the rest."""

from __future__ import annotations

import os
import sys
from typing import Any

import holdfast
from bench.contenders import tasks
from bench.contenders.ours import CONCURRENCY, POLICY, QUEUE


def main(url: str) -> None:
    hf = holdfast.connect(url)
    if POLICY in os.environ:
        hf.queue(QUEUE, ack_timeout=float(os.environ[POLICY]))

    @hf.handler(QUEUE)
    def work(payload: dict[str, Any]) -> None:
        if "sent" in payload:
            return tasks.note(payload)
        if not tasks.may_fail():
            return tasks.nothing(payload)
        try:
            return tasks.nothing(payload)
        except tasks.FailedOnce as error:
            raise holdfast.Retry(error, delay=0) from error

    hf.work(concurrency=CONCURRENCY)


if __name__ == "__main__":
    main(sys.argv[1])
