"""Calls that come in while one is under way go together in the next: one write for all of them.

A store commits a few thousand times a second, however little it is given. Nobody waits for company:
a call that finds nothing under way goes at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError

GROUP_MAX = 500
T = TypeVar("T")
Grouped = Sequence[T | HoldfastError]
"""One answer, or one error, for each."""


class _Line:
    """What waits for one queue."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self.busy = False


class Grouping(Generic[T]):
    def __init__(self, threads: Executor, does: Callable[[str, Sequence[Any]], Grouped[T]]) -> None:
        self._threads = threads
        self._does = does
        self._lines: dict[str, _Line] = {}

    async def add(self, queue: str, item: Any) -> T:
        line = self._lines.setdefault(queue, _Line())
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        line.waiting.append((item, done))
        if not line.busy:
            line.busy = True
            asyncio.get_running_loop().create_task(self._work(queue, line))
        return await done

    async def _work(self, queue: str, line: _Line) -> None:
        loop = asyncio.get_running_loop()
        while line.waiting:
            group, line.waiting = line.waiting[:GROUP_MAX], line.waiting[GROUP_MAX:]
            items = [item for item, _ in group]
            try:
                answers = await loop.run_in_executor(self._threads, self._does, queue, items)
            except BaseException as error:
                answers = [error] * len(group)
            for (_, done), answer in zip(group, answers, strict=True):
                _tell(done, answer)
        line.busy = False
        self._lines.pop(queue, None)


def _tell(done: asyncio.Future[Any], answer: Any) -> None:
    if done.done():  # who asked has gone
        return
    if isinstance(answer, BaseException):
        done.set_exception(answer)
    else:
        done.set_result(answer)
