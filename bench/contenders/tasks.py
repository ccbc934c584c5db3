"""The two tasks that a peer is given; the environment says which run is the last."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

LAST = "BENCH_LAST"


def nothing(payload: dict[str, Any]) -> None:
    """Does nothing; its first and its last run in a worker tell the time."""
    if next(_count) in _told:
        _tell(time.monotonic())


def note(payload: dict[str, Any]) -> None:
    """Tells how long the message was on its way."""
    _tell(time.monotonic() - payload["sent"])  # one clock for all processes of a machine


def _tell(seconds: float) -> None:
    os.write(1, f"{seconds}\n".encode())  # whole lines, whichever thread


_count = itertools.count(1)
_told = (1, int(os.environ.get(LAST, "0")))
