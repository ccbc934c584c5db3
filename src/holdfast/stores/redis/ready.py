"""What many queues have ready, in few round trips."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.message import home_of
from holdfast.stores.redis.connections import Arg
from holdfast.stores.redis.homes import Homes
from holdfast.stores.redis.keys import flag_of
from holdfast.stores.redis.scripts import LATE, READY
from holdfast.stores.redis.url import Where

LOOK_CHUNK = 100
"""Queues that one script looks at: it holds up the server for a millisecond."""

Found = tuple[int, int | None]
"""How much is ready and, if nothing is, when the next delayed message comes."""


class Ready(Homes):
    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self._lanes: dict[str, str] = {}
        """Of each home the lanes in use, as they are written in c."""

    def _ready(self, queues: Sequence[str], now: int) -> list[Found | None]:
        """Of each queue; None if it does not exist. Asks again for those whose lanes it did not
        know."""
        found: dict[int, Found | None] = {}
        left = list(range(len(queues)))
        while left:
            chunks = self._look_chunks(queues, left)
            calls = [self._look_call([queues[n] for n in chunk], now) for chunk in chunks]
            left = list[int]()
            for chunk, told in zip(chunks, self._db.each(READY, calls), strict=True):
                for n, (status, *rest) in zip(chunk, told, strict=True):
                    if status == b"changed":
                        self._relearn(home_of(queues[n]), int(rest[0]), rest[1].decode())
                        left.append(n)
                    elif status == b"ok":
                        found[n] = rest[0], int(float(rest[1])) if rest[1] else None
        return [found.get(n) for n in range(len(queues))]

    def _late(self, names: Sequence[str], now: int) -> list[str]:
        """Those with overdue leases."""
        chunks = self._look_chunks(names, range(len(names)))
        calls: list[tuple[list[str], list[Arg]]] = [
            ([self._keys.of(names[n]).key("d" + flag_of(names[n])) for n in chunk], [now])
            for chunk in chunks
        ]
        late: list[int] = []
        for chunk, told in zip(chunks, self._db.each(LATE, calls), strict=True):
            late += (chunk[at - 1] for at in told)
        return [names[n] for n in sorted(late)]

    def _look_chunks(self, queues: Sequence[str], numbers: Sequence[int]) -> list[list[int]]:
        """What one script may look at."""
        return [
            slot[start : start + LOOK_CHUNK]
            for slot in self._slots(queues, numbers)
            for start in range(0, len(slot), LOOK_CHUNK)
        ]

    def _look_call(self, queues: Sequence[str], now: int) -> tuple[list[str], list[Arg]]:
        keys: list[str] = []
        args: list[Arg] = [now]
        for name in queues:
            home = home_of(name)
            parts, lanes = self._parts.get(home, 1), self._lanes.get(home, "")
            args += (len(keys) + 1, flag_of(name), parts, lanes)
            keys += self._keys.look(name, parts, lanes)
        return keys, args

    def _relearn(self, home: str, parts: int, lanes: str) -> None:
        self._lanes[home] = lanes
        if self._parts.get(home, 1) != parts:
            self._changed(home, parts)
