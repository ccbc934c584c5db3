"""Events of every process on the store, to everybody who watches: Server-Sent Events and gRPC.

One thread reads the store's news, whoever many watch. The newest thousand are kept here as well:
who comes back with the number of the last event that he saw gets what he missed, or "reload" when
that is not known any more. Numbers are the store's, so any server of a store can answer. Beside
them go "stats", whenever numbers have changed, a second apart, and "gone", when a queue is: what a
page needs to stay true.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, InvalidArgument, Unauthenticated
from holdfast.server.auth import Principal
from holdfast.server.limits import Limits
from holdfast.stores.contract import Event, QueueStats
from holdfast.telemetry.announce import OTHER
from holdfast.wire.problems import TooManyStreams
from holdfast.wire.shapes import WHOLE_MAX

KEPT = 1000
BEHIND_MAX = 1000
"""Events that wait for one slow watcher; one that is further behind has to reload."""
PING_S = 15.0
STATS_S = 1.0
STOP_S = 5.0
LISTEN_S = 0.5
AGAIN_S = 1.0
TOLD_MAX = 10

RELOAD = Event("reload", 0, {})
STOP = Event("stop", 0, {})
logger = logging.getLogger("holdfast.server")


class Watcher:
    """One who watches: what waits for him, and whether he has fallen behind."""

    def __init__(self, who: Principal, still: Callable[[], None] | None) -> None:
        self._who = who
        self.still = still
        self._waiting: deque[Event] = deque()
        self._news = asyncio.Event()
        self.begun = False
        """It knows where it goes on from; what comes before that is not for it."""

    def put(self, event: Event) -> None:
        if not self.begun or not self._may_see(event):
            return
        event = self._what_it_may_see(event)
        if len(self._waiting) >= BEHIND_MAX:
            self._waiting.clear()
            event = event if event is STOP else RELOAD
        self._waiting.append(event)
        self._news.set()

    def end(self) -> None:
        self.begun = True
        self.put(STOP)

    async def next(self, timeout: float) -> list[Event]:
        """None of them left behind when it returns: where the newest is, this one is as well."""
        if not self._waiting:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), timeout)
        self._news.clear()
        events = list(self._waiting)
        self._waiting.clear()
        return events

    def _what_it_may_see(self, event: Event) -> Event:
        """Of an event of many queues, those that the key may read, and how many they are."""
        if "queues" not in event.payload or self._who.may("read", None):
            return event
        payload = dict(event.payload)
        for name, count in (("queues", "count"), ("dlq_queues", "dlq_count")):
            if name in payload:
                payload[name] = {q: n for q, n in payload[name].items() if self._reads(q)}
                payload[count] = sum(payload[name].values())
        return msgspec.structs.replace(event, payload=payload)

    def _reads(self, queue: str) -> bool:
        return queue != OTHER and self._who.may("read", queue)

    def _may_see(self, event: Event) -> bool:
        if event is RELOAD or event is STOP or self._who.may("read", None):
            return True
        if "queues" in event.payload:
            named = [*event.payload["queues"], *event.payload.get("dlq_queues", ())]
            return any(map(self._reads, named))
        names = [event.payload[name] for name in ("queue", "dlq") if event.payload.get(name)]
        return all(self._who.may("read", name) for name in names or [None])


class Events:
    def __init__(
        self,
        hf: Holdfast,
        limits: Limits,
        still: Callable[[Principal], Callable[[], None] | None],
        *,
        ping: float = PING_S,
    ) -> None:
        """`still` makes what raises when somebody may not watch any more."""
        self._hf = hf
        self._limits = limits
        self._still = still
        self._ping_s = ping
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._watchers: set[Watcher] = set()
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening = asyncio.Event()
        self._looked = asyncio.Event()
        self._stats: dict[str, QueueStats] = {}
        self._told: dict[str, set[QueueStats]] = {}
        self._counting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._listen, name="holdfast-events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._listening.set()
        if self._counting is not None:
            self._counting.cancel()
        for watcher in self._watchers:
            watcher.end()

    async def stopped(self) -> None:
        """Returns when the store is not listened to any more; or after a while, if it hangs."""
        await asyncio.to_thread(self._thread.join, STOP_S)

    def watch(self, who: Principal) -> Watcher:
        """One more, who sees nothing before `begin`."""
        self._check_room()
        watcher = Watcher(who, self._still(who))
        self._watchers.add(watcher)
        if self._counting is None or self._counting.done():
            self._counting = asyncio.get_running_loop().create_task(self._count())
        return watcher

    def _check_room(self) -> None:
        if len(self._watchers) >= self._limits.streams:
            raise TooManyStreams(f"{len(self._watchers)} watch already; try again later")

    async def begin(self, watcher: Watcher, last: int | None) -> None:
        """From now on; or from behind `last`, as far as that is known. Waits for the first look at
        the store's news: before that nothing is known."""
        await self._listening.wait()
        if last is not None and last > self._newest:
            await self._look_again()  # another server of this store was faster
        watcher.begun = True
        for event in [] if last is None else self._since(last):
            watcher.put(event)
        if self._stop.is_set():
            watcher.put(STOP)

    async def heard(self, watcher: Watcher) -> list[Event]:
        """What comes next for it; a ping when nothing did."""
        return await watcher.next(self._ping_s) or [await self.ping()]

    async def ping(self) -> Event:
        """With the store's time, for countdowns; and where to go on from."""
        seq, loop = self._newest, asyncio.get_running_loop()
        now = await loop.run_in_executor(None, self._hf.context.clock.now)  # it may ask the store
        return Event("ping", now, {}, seq)

    @property
    def _newest(self) -> int:
        return self._kept[-1].seq if self._kept else 0

    async def _look_again(self) -> None:
        """Two looks: the first may have been under way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(3 * LISTEN_S):
                for _ in range(2):
                    self._looked.clear()
                    await self._looked.wait()

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def _since(self, last: int) -> list[Event]:
        if self._kept and self._kept[0].seq <= last + 1 and last <= self._kept[-1].seq:
            return [event for event in self._kept if event.seq > last]
        if not self._kept and last == 0:
            return []
        return [RELOAD]

    # Where they come from

    def _listen(self) -> None:
        after = 0  # all that the store still has
        while not self._stop.is_set():
            try:
                news = self._hf.subscribe(after)
                try:
                    while not self._stop.is_set():
                        events = news.next(LISTEN_S)
                        self._tell(events)
                        after = events[-1].seq if events else after
                finally:
                    news.close()
            except HoldfastError as error:
                logger.warning("events are not heard: %s", error)
                self._stop.wait(AGAIN_S)

    def _tell(self, events: list[Event]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed() and not self._stop.is_set():
            loop.call_soon_threadsafe(self._spread, events)

    def _spread(self, events: list[Event]) -> None:
        self._listening.set()
        self._looked.set()
        for event in events:
            self._kept.append(event)
            for watcher in self._watchers:
                watcher.put(event)

    async def _count(self) -> None:
        """Numbers that changed, once a second, while somebody watches."""
        loop = asyncio.get_running_loop()
        while self._watchers and not self._stop.is_set():
            with suppress(HoldfastError):
                self._compare(*await loop.run_in_executor(None, self._look))
            for watcher in await loop.run_in_executor(None, _ended, list(self._watchers)):
                watcher.end()
            await asyncio.sleep(STATS_S)

    def told(self, answered: list[QueueStats]) -> None:
        """What somebody was answered who asked between two looks. When it was otherwise at the look
        before and is again at the next one, only this tells that there is news for him."""
        loop = self._loop
        if loop is not None and not loop.is_closed() and self._watchers:
            loop.call_soon_threadsafe(self._keep_told, answered)

    def _keep_told(self, answered: list[QueueStats]) -> None:
        for stats in answered:
            told = self._told.setdefault(stats.queue, set())
            if len(told) < TOLD_MAX:
                told.add(_without_age(stats))

    def _compare(self, found: list[QueueStats], now: int) -> None:
        told, self._told = self._told, {}
        seen = {stats.queue: _without_age(stats) for stats in found}
        news: list[Event] = []
        for stats in found:
            known = {self._stats.get(stats.queue), *told.get(stats.queue, ())}
            if known != {seen[stats.queue]}:
                news.append(
                    Event(
                        "stats",
                        now,
                        {**msgspec.structs.asdict(stats), "lag": stats.lag, "now": now},
                    )
                )
        news += [Event("gone", now, {"queue": name}) for name in self._stats if name not in seen]
        for event in news:
            for watcher in self._watchers:
                watcher.put(event)
        self._stats = seen

    def _look(self) -> tuple[list[QueueStats], int]:
        return self._hf.stats(), self._hf.context.clock.now()

    # Server-Sent Events

    def response(self, request: Request, who: Principal, last: str | None) -> Response:
        after = _number(last)
        self._check_room()
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(
            self._stream(who, after), media_type="text/event-stream", headers=headers
        )

    async def _stream(self, who: Principal, after: int | None) -> AsyncIterator[bytes]:
        watcher = self.watch(who)
        try:
            await self.begin(watcher, after)
            events = [*await watcher.next(0), await self.ping()]
            yield b"retry: 1000\n\n"
            while STOP not in events:
                yield b"".join(map(_written, events))
                events = await self.heard(watcher)
        finally:
            self.leave(watcher)


def _ended(watchers: list[Watcher]) -> list[Watcher]:
    """Those whose key does not count any more."""
    ended: list[Watcher] = []
    for watcher in watchers:
        try:
            if watcher.still is not None:
                watcher.still()
        except Unauthenticated:
            ended.append(watcher)
        except HoldfastError:  # nobody can tell now
            break
    return ended


def _without_age(stats: QueueStats) -> QueueStats:
    """The age of the oldest grows by itself, and is no news; that there is one is."""
    age = None if stats.oldest_age is None else 0.0
    return msgspec.structs.replace(stats, oldest_age=age)


def _number(last: str | None) -> int | None:
    if last is None or last == "":
        return None
    if not last.isascii() or not last.isdigit() or len(last) > 16 or int(last) > WHOLE_MAX:
        raise InvalidArgument("last-event-id", f"must be the id of an event, not {last[:100]!r}")
    return int(last)


def _written(event: Event) -> bytes:
    said: dict[str, Any] = {
        "type": event.type,
        "timestamp": event.timestamp,
        "payload": event.payload,
    }
    id = b"id: %d\n" % event.seq if event.seq or event.type == "ping" else b""
    return id + b"event: " + event.type.encode() + b"\ndata: " + msgspec.json.encode(said) + b"\n\n"
