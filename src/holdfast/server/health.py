"""Whether the server can do its work, and if not, why."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.errors import StoreError
from holdfast.queue import Context

LOOK_S = 1.0
"""A look at the store is good for so long: probes come from everywhere."""
ANSWER_S = 5.0


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    why: str = ""


class Health:
    """Asks the store in a thread of its own, so that a store that hangs is told as well."""

    def __init__(self, at: Context) -> None:
        self._at = at
        self._threads = ThreadPoolExecutor(1, "holdfast-health")
        self._last = Readiness(False, "not looked yet")
        self._until = float("-inf")
        self._looking: asyncio.Future[Readiness] | None = None
        self.stopping = False

    async def look(self) -> Readiness:
        if self.stopping:
            return Readiness(False, "stopping")
        now = self._at.clock.monotonic()
        if now < self._until:
            return self._last
        loop = asyncio.get_running_loop()
        if self._looking is None or self._looking.done():
            self._looking = loop.run_in_executor(self._threads, self._ask)
        try:
            self._last = await asyncio.wait_for(asyncio.shield(self._looking), ANSWER_S)
        except TimeoutError:
            self._last = Readiness(False, f"the store has not answered for {ANSWER_S:g} s")
        self._until = self._at.clock.monotonic() + LOOK_S
        return self._last

    def _ask(self) -> Readiness:
        try:
            self._at.store.time()
        except StoreError as error:
            return Readiness(False, str(error))
        return Readiness(True)

    def close(self) -> None:
        self._threads.shutdown(wait=False)
