"""Calls that come in while one is under way go together in the next: one write for all of them.

A store commits a few thousand times a second, however little it is given. Nobody waits for company:
a call that finds nothing under way goes at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError

GROUP_MAX = 500
TURNS = 8
"""Then others who wait for a thread have theirs."""
T = TypeVar("T")
Grouped = Sequence[T | HoldfastError]
"""One answer, or one error, for each."""
_Waiting = list[tuple[Any, asyncio.Future[Any]]]


class Grouping(Generic[T]):
    def __init__(self, threads: Executor, does: Callable[[str, Sequence[Any]], Grouped[T]]) -> None:
        self._threads = threads
        self._does = does
        self._lock = threading.Lock()
        self._lines: dict[str, _Waiting] = {}
        """What waits for each queue that a thread works for."""

    async def add(self, queue: str, item: Any) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        with self._lock:
            is_new = queue not in self._lines
            self._lines.setdefault(queue, []).append((item, done))
        if is_new:
            try:
                self._threads.submit(self._work, queue, loop)
            except RuntimeError:  # it stops: there is no thread any more
                del self._lines[queue]
                raise
        return await done

    def _work(self, queue: str, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread, which takes the next group by itself: the loop, busy with those who have
        their answer and those who come in, would send it late."""
        for _ in range(TURNS):
            with self._lock:
                waiting = self._lines[queue]
                group, waiting[:GROUP_MAX] = waiting[:GROUP_MAX], []
                if not group:
                    del self._lines[queue]
                    return
            try:
                answers = self._does(queue, [item for item, _ in group])
            except BaseException as error:
                answers = [error] * len(group)
            loop.call_soon_threadsafe(_tell_all, group, answers)
        try:
            self._threads.submit(self._work, queue, loop)
        except RuntimeError:  # it stops: nobody else waits for a thread
            self._work(queue, loop)


def _tell_all(group: _Waiting, answers: Sequence[Any]) -> None:
    for (_, done), answer in zip(group, answers, strict=True):
        if done.done():  # who asked has gone
            continue
        if isinstance(answer, BaseException):
            done.set_exception(answer)
        else:
            done.set_result(answer)
