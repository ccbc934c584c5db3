"""Waiting for messages, at no cost while nothing comes.

Who waits for whole queues pops from a list, so that one is woken for each message. Who waits for
some partitions reads streams, which takes nothing away from others: their lanes, to which an
enqueue appends anyway, and one that says that something came back to the queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.model import clock
from holdfast.stores.kit.specs import no_queue
from holdfast.stores.kit.waiting import wait_for_messages
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.keys import flag_of, tag_of
from holdfast.stores.redis.leasing import Leasing
from holdfast.stores.redis.scripts import WAITING
from holdfast.stores.redis.url import Where

LOOK_S = 1.0
"""How long a waiter trusts that it will be woken."""
LOOK_SHARE = 50
"""Looking at many queues takes an idle waiter at most one part in this many of the time: whatever
comes wakes it."""
TICK_S = 0.1
"""How late a server notices that a wait is over: once in 1 / hz."""
STEP_S = 0.02
BLIND_LOOK_S = 0.05
"""The same in a cluster, for who waits for several queues: each in turn."""
TURNS_MAX = 4
"""For who waits there for more queues than this: all of them, after each BLIND_LOOK_S."""


class _Looked(NamedTuple):
    """That some queues had nothing, and when the first delayed message of them is due."""

    queues: tuple[str, ...]
    due: int | None
    until: float

    def holds(self, queues: Sequence[str], now: int) -> bool:
        """As long as nothing has woken the waiter since."""
        if self.due is not None and self.due <= now:
            return False
        return clock.monotonic() < self.until and self.queues == tuple(queues)


class Waiting(Leasing):
    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self._wake = Wake(self._db)
        self._looked: _Looked | None = None

    def wait(
        self,
        queues: Sequence[str],
        now: int,
        timeout: float,
        partitions: Sequence[int] | None = None,
    ) -> bool:
        if partitions is not None:
            return any(self._wait_for(name, partitions, now, timeout) for name in queues[:1])
        looked = self._looked
        if looked is None or not looked.holds(queues, now):
            looked = self._looked = self._look(queues, now)
        if looked is None:
            return True
        ahead = [timeout, LOOK_S]
        if looked.due is not None:
            ahead.append((looked.due - now) / 1000)
        keys = [self._keys.of(name).key("w" + flag_of(name)) for name in queues]
        seconds = min(ahead)
        due = seconds < min(timeout, LOOK_S)
        one_slot = len({tag_of(name) for name in queues}) == 1
        woken = self._wake.wait(keys, seconds, due=due, one_slot=one_slot) or due
        if woken or len(queues) == 1:
            self._looked = None
        if woken and self._wake.key in keys:
            self._news = queues[keys.index(self._wake.key)]
        return woken

    def _look(self, queues: Sequence[str], now: int) -> _Looked | None:
        """None: something is ready."""
        begun = clock.monotonic()
        dues: list[int] = []
        ready = 0
        for name, found in zip(queues, self._ready(queues, now), strict=True):
            if found is None:
                self._known.forget(name)
                raise no_queue(name)
            ready = max(ready, found[0])
            dues += [] if found[1] is None else [found[1]]
        if ready > 0:
            return None
        took = clock.monotonic() - begun
        until = begun + max(LOOK_S, took * LOOK_SHARE)
        return _Looked(tuple(queues), min(dues, default=None), until)

    def _wait_for(self, queue: str, parts: Sequence[int], now: int, timeout: float) -> bool:
        """Looks whenever a lane of these partitions grows, or anything comes back to the queue."""
        flag, asked = flag_of(queue), " ".join(map(str, parts))

        def look(now: int, left: float) -> tuple[bool, bool]:
            ready, due, seen = self._asked(
                queue, WAITING, lambda home: home.lease_of(flag, parts), now, asked
            )
            if not ready:
                until_due = max(0, int(float(due)) - now) / 1000 if due else LOOK_S
                seconds, home = min(left, LOOK_S, until_due), self._home(queue)
                streams = [home.news[int(flag)], *(home.lanes_of(parts) if flag == "0" else ())]
                self._wake.read(streams, seen.decode(), seconds, due=seconds == until_due)
            return bool(ready), False

        return wait_for_messages(look, now, timeout, again=True)


class Wake:
    """Each queue has a list that holds one element when a waiter should look; see `wake` in
    lua/include/common.lua."""

    def __init__(self, db: Connections) -> None:
        self._db = db
        self._never = threading.Event()
        self.key = ""
        """The list that ended the last wait, if one did: a hint, as several threads may wait."""

    def wait(self, keys: list[str], seconds: float, *, due: bool, one_slot: bool) -> bool:
        """Whether it was woken. `due`: a message is due after so many seconds, which wakes no
        waiter."""
        if not one_slot and self._db.where.kind == "cluster":
            return self._in_turn(keys, seconds)
        if due:
            return self._until_due(
                lambda left: self._pop(keys, left), lambda: self._take(keys), seconds
            )
        return self._pop(keys, seconds)

    def read(self, streams: list[str], seen: str, seconds: float, *, due: bool) -> None:
        """Until one of them has an entry after `seen`, the number of a place in line."""
        after = [f"{seen}-0"] * len(streams)
        words = ("STREAMS", *streams, *after)

        def read(left: float | None = None) -> bool:
            block = () if left is None else ("BLOCK", max(1, round(self._in_time(left) * 1000)))
            found = self._db.run("XREAD", "COUNT", 1, *block, *words, key=streams[0])
            return bool(found)

        if due:
            self._until_due(read, read, seconds)
        else:
            read(seconds)

    def _in_turn(self, keys: list[str], seconds: float) -> bool:
        """In a cluster, where no command waits for keys of several slots."""
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            if len(keys) > TURNS_MAX:
                if self._take(keys):
                    return True
                self._never.wait(min(left, BLIND_LOOK_S))
                continue
            for key in keys:
                if self._pop([key], min(left, BLIND_LOOK_S)):
                    return True
        return False

    def _until_due(
        self, wait: Callable[[float], bool], look: Callable[[], bool], seconds: float
    ) -> bool:
        """A server ends a wait up to TICK_S late: the last of it is waited here."""
        until = clock.monotonic() + seconds
        if seconds > TICK_S and wait(seconds - TICK_S):
            return True
        while (left := until - clock.monotonic()) > 0:
            if look():
                return True
            self._never.wait(min(left, STEP_S))
        return False

    def _take(self, keys: list[str]) -> bool:
        return any(self._db.run_each([("LPOP", key) for key in keys]))

    def _pop(self, keys: list[str], seconds: float) -> bool:
        # Redis before 7.0.8 takes a millisecond, 0.001, for less than one, and that for ever.
        found = self._db.run("BLPOP", *keys, str(max(self._in_time(seconds), 0.002)))
        self.key = found[0].decode() if found else ""
        return bool(found)

    def _in_time(self, seconds: float) -> float:
        """So that the answer comes before the driver's own time is up."""
        return min(seconds, self._db.where.timeout / 2)
