"""The two tasks that every party is given; the environment says what becomes of them.

Without a word in it, `nothing` does nothing and `note` tells how long a message was on its way.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import Any

from bench.ledger import of_environment

LAST, FAIL_EVERY, HANG_FROM = "BENCH_LAST", "BENCH_FAIL_EVERY", "BENCH_HANG_FROM"
RECOVER = "BENCH_RECOVER_S"
"""Also for who enqueues: give up on a worker, or on a message in its hands, after so long."""
RETRIES = 3
"""What a party is told where it must be told at all: one would do."""
FOREVER_S = 3600.0


class FailedOnce(Exception):
    """What a handler raises on the first run of one in a hundred: an upstream that was away."""


def nothing(payload: dict[str, Any]) -> None:
    if _hangs(payload):
        _begin(payload)
        time.sleep(FOREVER_S)
    _nothing(payload)


async def nothing_async(payload: dict[str, Any]) -> None:
    """The same where handlers share a thread: one that hangs must not stop the others."""
    if _hangs(payload):
        _begin(payload)
        await asyncio.sleep(FOREVER_S)
    _nothing(payload)


def note(payload: dict[str, Any]) -> None:
    """Tells how long the message was on its way."""
    seconds = time.monotonic() - payload["sent"]  # one clock for all processes of a machine
    if _ledger is not None and "n" in payload:
        _ledger.took(payload["n"], seconds)
    else:
        _tell(seconds)


def recover_s() -> float | None:
    return float(os.environ[RECOVER]) if RECOVER in os.environ else None


def may_fail() -> bool:
    return bool(_fail_every)


def _nothing(payload: dict[str, Any]) -> None:
    """Its first and its last run in a worker tell the time, if nobody keeps a ledger."""
    if _ledger is None:
        if next(_count) in _told:
            _tell(time.monotonic())
        return
    first = _ledger.begin(payload["n"]) == 1
    if _fail_every and first and payload["n"] % _fail_every == 0:
        raise FailedOnce("not this time")
    _ledger.end(payload["n"])


def _hangs(payload: dict[str, Any]) -> bool:
    return _hang_from is not None and payload["n"] >= _hang_from


def _begin(payload: dict[str, Any]) -> None:
    if _ledger is not None:
        _ledger.begin(payload["n"])


def _tell(seconds: float) -> None:
    os.write(1, f"{seconds}\n".encode())  # whole lines, whichever thread


_ledger = of_environment()
_count = itertools.count(1)
_told = (1, int(os.environ.get(LAST, "0")))
_fail_every = int(os.environ.get(FAIL_EVERY, "0"))
_hang_from = int(os.environ[HANG_FROM]) if HANG_FROM in os.environ else None
