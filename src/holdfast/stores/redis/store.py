"""Redis: every move of a message is one script, on keys of one slot, in bounded batches.

What is enqueued lies in a stream for each partition and priority, read by a consumer group; what
comes back, or was delayed, lies in sorted sets and is leased at its own place. See docs/adr/0009.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import StoreCorrupt
from holdfast.model import clock
from holdfast.stores.base import StoreBase
from holdfast.stores.kit.specs import check_version
from holdfast.stores.redis import server
from holdfast.stores.redis.board import Board
from holdfast.stores.redis.browse import Browsing
from holdfast.stores.redis.connections import Arg
from holdfast.stores.redis.enqueueing import Enqueueing
from holdfast.stores.redis.log import Log
from holdfast.stores.redis.moving import LEFT_MS
from holdfast.stores.redis.queues import Queues
from holdfast.stores.redis.scripts import CONSUMERS
from holdfast.stores.redis.settling import Settling
from holdfast.stores.redis.url import Where, where
from holdfast.stores.redis.waiting import Waiting

VERSION = 1
CONSUMER_IDLE_MS = 3_600_000
CONSUMERS_EVERY_S = 300.0
CONSUMERS_STEP = 100
"""Homes whose consumers one tick looks at."""


def open_url(url: str) -> RedisStore:
    return RedisStore(where(url))


class RedisStore(Queues, Enqueueing, Waiting, Settling, Browsing, Log, Board, StoreBase):
    """Each part is in a module of its own, and built on `Homes`, which runs scripts."""

    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self._looked_at: dict[str, float] = {}

    def migrate(self) -> None:
        server.check_server(self._db.info(self._keys.meta), self._where)
        stored = self._db.run("HGET", self._keys.meta, "version")
        if stored is None:
            self._db.run("HSETNX", self._keys.meta, "version", VERSION)
            stored = self._db.run("HGET", self._keys.meta, "version")
        if not stored or not stored.isdigit():
            raise StoreCorrupt(f"{self._where.shown}: {self._keys.meta} is not Holdfast's")
        check_version(self._where.shown, int(stored), VERSION, what="layout")
        server.check_rights(self._db, self._keys.meta)

    def close(self) -> None:
        self._db.close()

    def time(self) -> int:
        seconds, micros = self._db.run("TIME", key=self._keys.meta)
        return int(seconds) * 1000 + int(micros) // 1000

    def look(self) -> dict[str, Any]:
        """What an operator wants to know of the server; see `holdfast doctor`."""
        return server.look(self._db, self._keys.meta)

    def tidy(self, now: int, *, log_before: int | None) -> None:
        """Forget consumers that are long gone; carry out moves that were left behind."""
        self._forget_consumers()
        self._mover.finish(before=now - LEFT_MS)

    def _forget_consumers(self) -> None:
        long_ago = clock.monotonic() - CONSUMERS_EVERY_S
        at = {name: self._looked_at.get(name, float("-inf")) for name in self._homes()}
        names = sorted((name for name in at if at[name] < long_ago), key=lambda name: at[name])
        names = names[:CONSUMERS_STEP]
        if not names:
            return
        self._looked_at = at | dict.fromkeys(names, clock.monotonic())
        asked = [("HGET", self._keys.of(name).key("c"), "parts") for name in names]
        parts = self._db.run_each(asked)
        homes = [self._keys.home(name, int(n or 1)) for name, n in zip(names, parts, strict=True)]
        calls: list[tuple[list[str], list[Arg]]] = [
            ([home.key("c"), *home.streams], [CONSUMER_IDLE_MS]) for home in homes
        ]
        self._db.each(CONSUMERS, calls)
