"""Waiting, for messages and for news, at no cost while nothing comes."""

from __future__ import annotations

import threading

import msgspec

from holdfast import clock
from holdfast.store import Event
from holdfast.stores.redis.connections import Connections

LOOK_S = 1.0
"""How long a waiter trusts that it will be woken."""
TICK_S = 0.1
"""How late a server notices that a wait is over: once in 1 / hz."""
STEP_S = 0.02
BLIND_LOOK_S = 0.05
"""The same in a cluster, for who waits for several queues: each in turn."""


class Wake:
    """A list for each queue holds one element when somebody should look: see lua/common.lua."""

    def __init__(self, db: Connections) -> None:
        self._db = db
        self._never = threading.Event()

    def wait(self, keys: list[str], seconds: float, *, due: bool, one_slot: bool) -> None:
        """`due`: something is, after so many seconds, and nobody will say so."""
        if not one_slot and self._db.where.kind == "cluster":
            self._in_turn(keys, seconds)
        elif due:
            self._until_due(keys, seconds)
        else:
            self._pop(keys, seconds)

    def _in_turn(self, keys: list[str], seconds: float) -> None:
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            for key in keys:
                if self._pop([key], min(left, BLIND_LOOK_S)):
                    return

    def _until_due(self, keys: list[str], seconds: float) -> None:
        """A server ends a wait up to TICK_S late: the last of it is waited here."""
        until = clock.monotonic() + seconds
        if seconds > TICK_S and self._pop(keys, seconds - TICK_S):
            return
        while (left := until - clock.monotonic()) > 0:
            if any(self._db.run("LPOP", key) is not None for key in keys):
                return
            self._never.wait(min(left, STEP_S))

    def _pop(self, keys: list[str], seconds: float) -> bool:
        # Redis before 7.0.8 takes a millisecond, 0.001, for less than one, and that for ever.
        seconds = min(max(seconds, 0.002), self._db.where.timeout / 2)  # an answer in time
        return self._db.run("BLPOP", *keys, str(seconds)) is not None


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
