"""For what ends by itself if it is right, and else after minutes or never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0
"""No figure for how fast anything is."""


def soon(call: Callable[[], T]) -> T:
    """What it returns, or raises."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(PATIENCE_S)
