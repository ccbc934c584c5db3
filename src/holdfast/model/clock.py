"""The only file that reads the time. Everything else is told what time it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from holdfast.errors import StoreError

CALIBRATE_EVERY_S = 60.0
STEP_S = 0.5  # the wall clock moved this much against the monotonic one: somebody set it


class Clock(Protocol):
    """Milliseconds since 1970 by the store's clock, and a stopwatch for waiting."""

    def now(self) -> int: ...
    def monotonic(self) -> float: ...


class StoreClock:
    """The store's time, kept locally: hosts whose own clocks disagree agree here.

    Calibrated when made, every minute, and whenever the wall clock jumps or the machine slept.
    """

    def __init__(self, store_time: Callable[[], int]) -> None:
        self._store_time = store_time
        self._lock = threading.Lock()
        self._offset_ms = 0
        self._calibrated = float("-inf")
        self._drift = 0.0

    def now(self) -> int:
        wall, mono = time.time(), time.monotonic()
        if mono - self._calibrated > CALIBRATE_EVERY_S or abs(wall - mono - self._drift) > STEP_S:
            self._calibrate()
            wall = time.time()
        return int(wall * 1000) + self._offset_ms

    def monotonic(self) -> float:
        return time.monotonic()

    def _calibrate(self) -> None:
        with self._lock, suppress(StoreError):  # the old offset is better than none
            before = time.time()
            theirs = self._store_time()
            after = time.time()
            self._offset_ms = theirs - int((before + after) * 500)
            self._calibrated = time.monotonic()
            self._drift = after - self._calibrated


def wall_ms() -> int:
    """This machine's own clock: the time of a store that lives in this process."""
    return int(time.time() * 1000)


def monotonic() -> float:
    return time.monotonic()


def sleep(seconds: float) -> None:
    time.sleep(seconds)
