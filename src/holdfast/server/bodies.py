"""The body of a request, within its limits of size and of time."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive

from holdfast.server.limits import Limits
from holdfast.wire.problems import BodyTooLarge, RequestError, RequestTimeout

LOOK_S = 1.0


class Bodies:
    """Those that are on their way. One timer looks after all of them: one for each would cost more
    than it takes to read a small body."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.body_bytes
        self._seconds_max = limits.read_seconds
        self._since: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._is_looking = False

    async def read(self, length: str | None, receive: Receive) -> bytes:
        if length and length.isdigit() and int(length) > self._bytes_max:
            raise BodyTooLarge(f"{length} bytes; the limit is {self._bytes_max}")
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._since[task] = loop.time()
        if not self._is_looking:
            self._look_later(loop)
        try:
            return await _read(receive, self._bytes_max)
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            task.uncancel()
            raise RequestTimeout("the body did not come in time") from None
        finally:
            del self._since[task]
            self._late.discard(task)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_looking = True
        loop.call_later(min(LOOK_S, self._seconds_max), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_looking = False
        before = loop.time() - self._seconds_max
        for task, since in self._since.items():
            if since <= before and task not in self._late:
                self._late.add(task)
                task.cancel()
        if self._since:
            self._look_later(loop)


async def _read(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("the client went away")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLarge(f"more than {limit} bytes")
        if not parts and not message.get("more_body"):
            return part
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)
