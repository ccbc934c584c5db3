"""Whether the server can do its work, and if not, why."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.errors import HoldfastError, StoreError
from holdfast.model.message import home_of, is_dlq
from holdfast.queue.context import Context
from holdfast.queue.topic import is_hidden

LOOK_S = 1.0
"""A look at the store is good for so long: probes come from everywhere."""
ANSWER_S = 5.0
COUNTS_S = 5.0
"""Counts are good for so long."""


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    why: str = ""


class Counts(msgspec.Struct, frozen=True):
    """Of the whole store."""

    queues: int
    ready: int
    delayed: int
    leased: int
    dead: int


class Health:
    """Asks the store in a thread of its own, so that a store that hangs is told as well."""

    def __init__(self, at: Context) -> None:
        self._at = at
        self._threads = ThreadPoolExecutor(1, "holdfast-health")
        self._last = Readiness(False, "not looked yet")
        self._until = float("-inf")
        self._looking: asyncio.Future[Readiness] | None = None
        self._counts: Counts | None = None
        self._counts_until = float("-inf")
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

    async def counts(self) -> Counts | None:
        """What the store holds, as of a few seconds ago; None if it cannot be told now."""
        now = self._at.clock.monotonic()
        if now >= self._counts_until:
            loop = asyncio.get_running_loop()
            self._counts_until = now + COUNTS_S
            self._counts = await loop.run_in_executor(self._threads, self._count)
        return self._counts

    def _count(self) -> Counts | None:
        store = self._at.store
        try:
            names = [spec.name for spec in store.queues() if not is_hidden(spec.name)]
            homes = [name for name in names if not is_dlq(name) or home_of(name) not in names]
            stats = store.stats(homes, self._at.clock.now())
        except HoldfastError:  # the store is away, or a queue was deleted meanwhile
            return None
        return Counts(
            queues=len(stats),
            ready=sum(of.ready for of in stats),
            delayed=sum(of.delayed for of in stats),
            leased=sum(of.leased for of in stats),
            dead=sum(of.dead for of in stats),
        )

    def _ask(self) -> Readiness:
        try:
            self._at.store.time()
        except StoreError as error:
            return Readiness(False, str(error))
        return Readiness(True)

    def close(self) -> None:
        self._threads.shutdown(wait=False)
