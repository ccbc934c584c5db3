"""Leases for those who wait: thousands of long polls, a handful of threads.

Who finds nothing stands in line for his queue. One thread waits in the store for all queues that
have a line; when it is woken, the first in each line tries again. A queue that joins while that
thread waits gets a wait of its own, and is in the common one the next time. While the store is away
everybody keeps his place: he gets what there is when it is back, or nothing when his time is up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from holdfast.errors import HoldfastError, QueueNotFound, StoreError, StoreUnavailable
from holdfast.model.message import Lease, check_queue_name
from holdfast.model.policy import seconds, whole
from holdfast.queue.context import Context
from holdfast.queue.queue import LEASE_MAX, Queue
from holdfast.rules.outcome import Release
from holdfast.server.limits import Limits
from holdfast.server.sizes import Leasing
from holdfast.wire.problems import Stopping, TooManyStreams
from holdfast.wire.shapes import LeaseAsk

WAIT_S = 1.0
ROUND_S = 0.005
"""Between two rounds, if the first served nobody: a store may wake us for anything."""
REST_S = (0.02, 0.25)
"""A queue that has something, but nothing for those who wait (other partitions, say) is left out of
the common wait for so long, else that would never wait."""
WATCHERS_MAX = 8
RETRY_S = 1.0

logger = logging.getLogger("holdfast.server")


class Taker(Protocol):
    """How leases of a queue are come by, and given back. Called in threads."""

    def take(self, ask: LeaseAsk) -> list[Lease]: ...

    def give_back(self, queue: str, leases: Sequence[Lease]) -> None:
        """Of somebody who has gone before they reached him: the delivery does not count."""
        ...


Still = Callable[[], None]
"""Raises when he who waits may not have it any more: a wait may outlive a key."""


class _Poll:
    def __init__(
        self, ask: LeaseAsk, by: Taker, still: Still | None, found: asyncio.Future[list[Lease]]
    ) -> None:
        self.ask = ask
        self.by = by
        self.still = still
        self.found = found


class _Line:
    """Who waits for one queue."""

    def __init__(self) -> None:
        self.polls: deque[_Poll] = deque()
        self.serving = asyncio.Lock()
        self.rest_until = 0.0
        self.rest_s = 0.0

    def rest(self, now: float, *, longer: bool) -> None:
        self.rest_s = min(self.rest_s * 2, REST_S[1]) if longer and self.rest_s else REST_S[0]
        self.rest_until = now + self.rest_s


class _Plain:
    """From the queue itself."""

    def __init__(self, at: Context, limits: Limits) -> None:
        self._at = at
        self._leasing = Leasing(limits.answer_bytes)

    def take(self, ask: LeaseAsk) -> list[Lease]:
        whole("limit", ask.limit, low=1, high=LEASE_MAX)
        queue = Queue(self._at, ask.queue)
        return self._leasing.lease(
            ask.queue,
            ask.limit,
            lambda limit: queue.lease(limit, owner=ask.owner, partitions=ask.partitions),
            lambda leases: self.give_back(ask.queue, leases),
        )

    def give_back(self, queue: str, leases: Sequence[Lease]) -> None:
        Queue(self._at, queue).settle([(lease, Release()) for lease in leases])


class Polls:
    def __init__(self, at: Context, threads: Executor, limits: Limits) -> None:
        self._at = at
        self._plain = _Plain(at, limits)
        self._threads = threads
        self._watchers = ThreadPoolExecutor(WATCHERS_MAX, "holdfast-watch")
        self._limits = limits
        self._lines: dict[str, _Line] = {}
        self._watched: set[str] = set()
        self._watching = 0
        self._waiting = 0
        self._stopped = False
        self._handed_out: dict[str, Callable[[int | None], None]] = {}

    @property
    def waiting(self) -> int:
        return self._waiting

    async def lease(
        self, ask: LeaseAsk, by: Taker | None = None, still: Still | None = None
    ) -> list[Lease]:
        """Like `Queue.lease`. Whoever is cancelled while he waits gives back what he still gets."""
        wait, by = ask.wait, by or self._plain
        check_queue_name(ask.queue)
        seconds("wait", wait)
        leases = await self._try(ask, by, still)
        if leases or wait <= 0:
            return leases
        if self._stopped:
            raise Stopping("this server is stopping")
        if self._waiting >= self._limits.polls:
            raise TooManyStreams(f"{self._waiting} wait here already; try again later")
        return await self._stand_in_line(ask, by, still, min(wait, self._limits.wait_seconds))

    async def _stand_in_line(
        self, ask: LeaseAsk, by: Taker, still: Still | None, wait: float
    ) -> list[Lease]:
        poll = _Poll(ask, by, still, asyncio.get_running_loop().create_future())
        self._lines.setdefault(ask.queue, _Line()).polls.append(poll)
        self._waiting += 1
        self._watch(ask.queue)
        try:
            return await asyncio.wait_for(asyncio.shield(poll.found), wait)
        except TimeoutError:
            return self._withdraw(poll)
        except asyncio.CancelledError:
            with suppress(HoldfastError):
                self.give_back(ask.queue, self._withdraw(poll), by)
            raise
        finally:
            self._waiting -= 1

    def _withdraw(self, poll: _Poll) -> list[Lease]:
        """Out of the line; what he was given at the last moment."""
        if poll.found.done() and not poll.found.cancelled():
            return poll.found.result()
        poll.found.cancel()
        line = self._lines.get(poll.ask.queue)
        if line is not None and poll in line.polls:
            line.polls.remove(poll)
        return []

    async def _try(self, ask: LeaseAsk, by: Taker, still: Still | None) -> list[Lease]:
        """Cancelled while the store is asked: what it still gives goes back."""
        call = self._threads.submit(_take, ask, by, still)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            call.add_done_callback(
                lambda done: (
                    None
                    if done.cancelled() or done.exception()
                    else self._release(ask.queue, done.result(), by)
                )
            )
            raise

    def give_back(self, queue: str, leases: Sequence[Lease], by: Taker | None = None) -> None:
        """Of somebody who has gone before they reached him."""
        if leases:
            self._threads.submit(self._release, queue, leases, by or self._plain)

    def _release(self, queue: str, leases: Sequence[Lease], by: Taker) -> None:
        try:
            by.give_back(queue, leases)
        except HoldfastError as error:
            logger.warning("%s: %d leases run out by themselves: %s", queue, len(leases), error)

    # Watching

    def _watch(self, queue: str) -> None:
        if queue not in self._watched and self._watching < WATCHERS_MAX:
            self._watching += 1
            asyncio.get_running_loop().create_task(self._watch_all())

    async def _watch_all(self) -> None:
        """Until another one watches all that this one did, or there is no line any more."""
        try:
            while True:
                names = self._watched = self._names()
                if not names:
                    return
                try:
                    served = await self._round(names)
                except HoldfastError as error:
                    logger.warning("waiting for messages failed: %s", error)
                    await asyncio.sleep(RETRY_S)
                    continue
                if self._watched is not names:
                    return
                if not served:
                    await asyncio.sleep(ROUND_S)
        finally:
            self._watching -= 1
            if not self._watching:
                self._watched = set()
                if self._names():
                    self._watch("")  # one came when there were too many of these

    def _names(self) -> set[str]:
        for name in [name for name, line in self._lines.items() if not line.polls]:
            if not self._lines[name].serving.locked():
                del self._lines[name]
        return set() if self._stopped else set(self._lines)

    async def _round(self, names: set[str]) -> int:
        """Wait for something, and hand it out; how many got some."""
        loop, now = asyncio.get_running_loop(), self._at.clock.monotonic()
        resting = [line.rest_until for n in names if (line := self._lines[n]).rest_until > now]
        awake = sorted(name for name in names if self._lines[name].rest_until <= now)
        left = max(0.0, min([now + WAIT_S, *resting]) - now)
        if awake:
            await loop.run_in_executor(self._watchers, self._wait, awake, left)
        else:
            await asyncio.sleep(left)
        now = self._at.clock.monotonic()
        waited = [n for n in names if (line := self._lines.get(n)) and line.rest_until <= now]
        ready = await loop.run_in_executor(self._threads, self._ready, waited)
        return sum(await asyncio.gather(*(self._serve_line(name) for name in ready)))

    def _wait(self, names: list[str], left: float) -> None:
        with suppress(QueueNotFound):  # who waits for it is told: see `_ready`
            self._at.store.wait(names, self._at.clock.now(), left)

    def _ready(self, names: list[str]) -> list[str]:
        """Those that have something, and those that are gone: who waits for them shall hear it."""
        now = self._at.clock.now()
        try:
            stats = self._at.store.stats(names, now) if names else []
        except QueueNotFound:
            there = [spec.name for spec in self._at.store.queues(names)]
            stats = self._at.store.stats(there, now) if there else []
        quiet = {of.queue for of in stats if not of.ready or of.paused}
        return [name for name in names if name not in quiet]

    def serve(self, queue: str) -> None:
        """Something may have come free for those who wait. From the loop's own thread."""
        if queue in self._lines and not self._stopped:
            asyncio.get_running_loop().create_task(self._serve_now(queue))

    async def _serve_now(self, queue: str) -> None:
        try:
            await self._serve_line(queue)
        except StoreError as error:
            logger.warning("%s: who waits has to wait on: %s", queue, error)

    async def _serve_line(self, name: str) -> int:
        """The first in line gets what there is; then the next, until there is nothing left."""
        line = self._lines.get(name)
        if line is None:
            return 0
        served, was_taken = 0, False
        async with line.serving:
            for poll in list(line.polls):
                if not poll.found.done():
                    got = await self._serve_poll(line, poll)
                    served += got
                    was_taken = poll.by is self._plain and poll.ask.partitions is None
                    if not got and was_taken:  # by somebody else
                        break
        if served:
            line.rest_s = line.rest_until = 0.0
        elif line.polls:
            line.rest(self._at.clock.monotonic(), longer=not was_taken)
        return served

    async def _serve_poll(self, line: _Line, poll: _Poll) -> bool:
        try:
            leases = await self._try(poll.ask, poll.by, poll.still)
        except StoreUnavailable:
            raise
        except Exception as error:
            if not poll.found.done():
                line.polls.remove(poll)
                poll.found.set_exception(error)
            return True
        if not leases:
            return False
        if poll.found.done():  # he has gone: the next one gets it
            await asyncio.wrap_future(
                self._threads.submit(self._release, poll.ask.queue, leases, poll.by)
            )
        else:
            line.polls.remove(poll)
            poll.found.set_result(leases)
        return True

    # What is out, for streams that may have so many at a time

    def track(self, token: str, on_change: Callable[[int | None], None]) -> None:
        """Called from any thread, with the new deadline of a lease, or None when it has ended."""
        self._handed_out[token] = on_change

    def forget(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            self._handed_out.pop(token, None)

    def settled(self, tokens: Iterable[str | None]) -> None:
        """From any thread: these leases have ended."""
        for token in tokens:
            changed = self._handed_out.pop(token or "", None)
            if changed is not None:
                changed(None)

    def extended(self, token: str, deadline: int) -> None:
        """From any thread."""
        changed = self._handed_out.get(token)
        if changed is not None:
            changed(deadline)

    async def stop(self) -> None:
        """All who wait are told that there is nothing."""
        self._stopped = True
        for line in self._lines.values():
            for poll in line.polls:
                if not poll.found.done():
                    poll.found.set_result([])
            line.polls.clear()
        self._watchers.shutdown(wait=False)


def _take(ask: LeaseAsk, by: Taker, still: Still | None) -> list[Lease]:
    if still is not None:
        still()
    return by.take(ask)
