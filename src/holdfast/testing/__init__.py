"""For your own tests: a store in memory, a clock you move, helpers to work a queue off.

clock = ManualClock()
hf = holdfast.connect("memory://", clock=clock)
...
drain(hf)
clock.advance(30)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.app import Holdfast
from holdfast.model.message import Finished, Message
from holdfast.model.moves import State
from holdfast.stores.memory import MemoryStore

__all__ = ["ManualClock", "MemoryStore", "dead_letters", "drain", "finished", "wait_until"]


class ManualClock:
    """A clock that stands still until it is moved. Seconds in, milliseconds out."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._lock = threading.Lock()

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> int:
        with self._lock:
            self._now += round(seconds * 1000)
            return self._now


def drain(hf: Holdfast, *queues: str, concurrency: int = 4) -> None:
    """Run the registered handlers until nothing is ready. Delayed messages stay: move the clock."""
    hf.worker(queues=queues or None, concurrency=concurrency, until_empty=True, sweep=False).run()


def finished(hf: Holdfast, queue: str) -> list[Finished]:
    """What the log of a queue holds, oldest first."""
    return list(hf.queue(queue, create=False).log())


def dead_letters(hf: Holdfast, queue: str) -> list[Message]:
    """The dead letters of a queue, oldest first."""
    return [entry.message for entry in hf.queue(queue, create=False).dlq.browse(State.READY)]


def wait_until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Return as soon as `condition` holds; AssertionError if it never does."""
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {timeout} s: {condition}")
        time.sleep(0.002)
