"""The event loop on which a worker runs async handlers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from holdfast.work.delivery import Delivery

LOOP_END_S = 5.0

_Handle = Callable[[Delivery], Coroutine[Any, Any, None]]
_GONE = object()

logger = logging.getLogger("holdfast.worker")


class EventLoop:
    """Made, in a thread of its own, when the first async handler is needed."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[Delivery, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_ending = False

    def start(self, handle: _Handle, items: Sequence[Delivery]) -> None:
        """Call `handle` with each, as many at once as the worker's concurrency allows."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._room = asyncio.Semaphore(self._concurrency)
            self._thread = threading.Thread(
                target=self._run_loop, args=(self._loop,), name="holdfast-loop", daemon=True
            )
            self._thread.start()
        self._waiting.update(dict.fromkeys(items))
        self._loop.call_soon_threadsafe(self._spawn, self._loop, handle, items)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """A handler may stop the loop, or leave a task that calls sys.exit: it goes on."""
        while not self.is_ending:
            try:
                loop.run_forever()
            except BaseException as error:
                logger.error("the event loop of handlers was left by %r, and goes on", type(error))

    def _spawn(
        self, loop: asyncio.AbstractEventLoop, handle: _Handle, items: Sequence[Delivery]
    ) -> None:
        for item in items:
            task = loop.create_task(self._run(handle, item))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, handle: _Handle, item: Delivery) -> None:
        while True:
            try:
                await self._room.acquire()
                break
            except asyncio.CancelledError:
                if self.is_ending:
                    raise
                # A handler cancelled every task it found; this one had not begun.
        try:
            if self._waiting.pop(item, _GONE) is not _GONE:
                await handle(item)
        finally:
            self._room.release()

    def drop_waiting(self) -> list[Delivery]:
        """Those that have not started; they will not start any more."""
        dropped: list[Delivery] = []
        while self._waiting:
            try:
                dropped.append(self._waiting.popitem()[0])
            except KeyError:
                break
        return dropped

    def stop(self) -> None:
        """Cancel what still runs: its lease runs out and it is delivered again."""
        loop = self._loop
        if loop is None:
            return
        self.is_ending = True
        loop.call_soon_threadsafe(lambda: loop.create_task(self._end(loop)))
        self._thread.join(LOOP_END_S)
        if not loop.is_running():
            loop.close()

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.shutdown_default_executor()
        loop.stop()
