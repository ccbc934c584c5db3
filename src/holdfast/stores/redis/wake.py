"""Waiting, for messages and for news, at no cost while nothing comes.

Who waits for whole queues pops from a list, so that one is woken for each message. Who waits for
some partitions reads streams, which takes nothing away from others: their lanes, to which an
enqueue appends anyway, and one that says that something came back to the queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from holdfast.model import clock
from holdfast.stores.contract import Event
from holdfast.stores.redis.connections import Connections

LOOK_S = 1.0
"""How long a waiter trusts that it will be woken."""
TICK_S = 0.1
"""How late a server notices that a wait is over: once in 1 / hz."""
STEP_S = 0.02
BLIND_LOOK_S = 0.05
"""The same in a cluster, for who waits for several queues: each in turn."""
TURNS_MAX = 4
"""For who waits there for more queues than this: all of them, after each BLIND_LOOK_S."""


class Wake:
    """A list for each queue holds one element when somebody should look: see lua/common.lua."""

    def __init__(self, db: Connections) -> None:
        self._db = db
        self._never = threading.Event()
        self.key = ""
        """The list that ended the last wait, if one did: a hint, as several threads may wait."""

    def wait(self, keys: list[str], seconds: float, *, due: bool, one_slot: bool) -> bool:
        """Whether somebody woke it. `due`: something is, after so many seconds, and nobody will
        say so."""
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
                if any(self._db.run_each([("LPOP", key) for key in keys])):
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


class Subscription:
    def __init__(self, db: Connections, stream: str, after: int) -> None:
        self._db = db
        self._stream = stream
        self._after = after

    def next(self, timeout: float) -> list[Event]:
        until = clock.monotonic() + timeout
        while True:
            left = until - clock.monotonic()
            block = max(1, min(int(left * 1000), 1000, int(self._db.where.timeout * 500)))
            ask = ("XREAD", "COUNT", 1000, "BLOCK", block, "STREAMS", self._stream)
            found = self._db.run(*ask, f"{self._after}-0", key=self._stream)
            if found:
                events = [_event(*row) for row in found[0][1]]
                self._after = events[-1].seq
                return events
            if until - clock.monotonic() <= 0:
                return []

    def close(self) -> None: ...


def _event(entry: bytes, fields: list[bytes]) -> Event:
    type, at, payload = msgspec.json.decode(fields[1])
    return Event(type, at, payload, int(entry.partition(b"-")[0]))
