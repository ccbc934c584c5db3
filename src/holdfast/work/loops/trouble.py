"""What keeps a worker from working, and how long it waits before it tries again."""

from __future__ import annotations

import logging
import threading

import msgspec

from holdfast.errors import StoreError
from holdfast.work.calls import CannotRun

RECONNECT_S = (0.1, 5.0)

logger = logging.getLogger("holdfast.worker")

Trouble = dict[str, str]
"""What does not work now, and why."""


class Health(msgspec.Struct, frozen=True):
    ready: bool
    why: str = ""


def health_of(trouble: Trouble) -> Health:
    found = dict(trouble)
    return Health(not found, "; ".join(f"{what}: {why}" for what, why in found.items()))


class Patience:
    """Waits after an error, longer each time, and reports the trouble; it never gives up."""

    def __init__(self, trouble: Trouble, doing: str, quit: threading.Event) -> None:
        self._trouble = trouble
        self._doing = doing
        self._quit = quit
        self._pause = RECONNECT_S[0]

    def wait(self, error: Exception) -> None:
        self._trouble[self._doing] = str(error)
        known = isinstance(error, StoreError | CannotRun)
        unknown = None if known else error  # with where it came from
        text = "%s failed, again in %.1f s: %s"
        logger.warning(text, self._doing, self._pause, error, exc_info=unknown)
        self._quit.wait(self._pause)
        self._pause = min(self._pause * 2, RECONNECT_S[1])

    def reward(self) -> None:
        """It worked."""
        if self._trouble.pop(self._doing, None) is not None:
            self._pause = RECONNECT_S[0]
            logger.info("%s works again", self._doing)
