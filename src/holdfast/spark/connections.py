"""One connection per process and store, and patience with a store that is away."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.app import Holdfast, connect
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.model import clock
from holdfast.model.policy import Policy
from holdfast.queue.context import Context

PAUSE_S = (0.1, 5.0)

T = TypeVar("T")
logger = logging.getLogger("holdfast.spark")
_open: dict[tuple[int, str], Holdfast] = {}
_lock = threading.Lock()


def context(url: str, policy: Policy | None = None, *, timeout: float) -> Context:
    """This process's connection. A worker of Spark lives on from task to task, and so does this.

    A store that is away is waited for: a task may be the first of its process to ask for it.
    """
    at = patiently(lambda: _connected(url), "connecting", timeout).context
    if policy is None:
        return at
    return Context(at.store, at.clock, at.rng, policy, at.owner)


@atexit.register
def _close() -> None:
    """Drivers that are left to the end of the interpreter complain."""
    for (pid, _), hf in _open.items():
        if pid == os.getpid():
            hf.close()


def _connected(url: str) -> Holdfast:
    with _lock:
        key = (os.getpid(), url)
        if key not in _open:
            _open[key] = connect(url)
        return _open[key]


def patiently(act: Callable[[], T], doing: str, timeout: float) -> T:
    """Do it, again and again while the store cannot be reached, for up to `timeout` seconds."""
    until = clock.monotonic() + timeout
    pause = PAUSE_S[0]
    while True:
        try:
            return act()
        except StoreUnavailable as error:
            left = until - clock.monotonic()
            if left <= 0:
                raise StoreError(
                    f"{doing}: the store was away for {timeout:g} s (option storeTimeout): {error}"
                ) from error
            logger.warning("%s: store away, again in %.1f s: %s", doing, pause, error)
            clock.sleep(min(pause, left))
            pause = min(pause * 2, PAUSE_S[1])
