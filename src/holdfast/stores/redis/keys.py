"""The name of every key. A home (a queue with its dead letters) lies in one hash slot; so do all
homes whose names are the same up to an "@".

| key | type | holds |
|---|---|---|
| c | hash | settings of both queues, counters |
| m | hash | id -> body and all that never changes |
| x | hash | id -> where it is, once it has left its lane (see lua/include/rows.lua) |
| e | hash | id -> history, of those that have one |
| s<part>.<lane> | stream | a lane: what waits as it was enqueued, and what is leased of it |
| r<q>.<part> | zset | what waits after it came back, or was delayed: by lane and place |
| z<q> | zset | what is delayed: seq + id by time |
| d<q> | zset | what is leased: seq + id by deadline |
| a<q> | stream | what was leased again, for operators to see |
| b<q> | zset | batch, id and token of what a batch name holds |
| k, kn | hash | lease call -> when, batch and owner; how many of it are still held |
| w<q> | list | wakes one who waits |
| v<q> | stream | one entry: wakes all who wait for some partitions (see waiting.py) |
| o | hash | <q>#<part> -> the claim of a partition's owner |
| log<q>, li<q> | stream, hash | what is finished, and where in the log an id lies (or several) |
| rn, rv | zset, hash | receipts |
| t | hash | moves to other homes that are under way: what is to become of whom |

<q> is 0 for the home, 1 for its dead letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from holdfast.model.message import home_of, is_dlq

LANES = 10
_SETTINGS = re.compile(r":\{([^}]+)\}(.*):c")


def flag_of(queue: str) -> str:
    return "1" if is_dlq(queue) else "0"


def tag_of(queue: str) -> str:
    """What decides its slot: that of the groups of a topic, `topic@group`, is the topic."""
    return home_of(queue).partition("@")[0]


class Home:
    """The keys of a home with so many partitions, listed once for each script."""

    def __init__(self, prefix: str, name: str, parts: int) -> None:
        self.name = name
        self.parts = parts
        tag = tag_of(name)
        self._base = f"{prefix}:{{{tag}}}{name.removeprefix(tag)}:"
        self.news = self.keys("v0 v1")
        self.claims = self.keys("o c")
        self.receipts = self.keys("rn rv")
        self.logged = self.keys("li0 li1")
        self.queues = self.keys("c a0 a1 w0 w1 v0 v1")
        self.lanes = [self.lane(part, lane) for part in range(parts) for lane in range(LANES)]
        self.streams = [*self.lanes, *self.keys("a0 a1")]
        back = {q: [self.key(f"r{q}.{part}") for part in range(parts)] for q in "01"}
        common = self.keys("c m x e k kn")
        self._lease = {q: [*common, *self.of("d z b a w", q), *back[q]] for q in "01"}
        self.lease = {"0": [*self._lease["0"], *self.lanes], "1": self._lease["1"]}
        self.finish = {q: [*common, *self.of("d b a log li", q)] for q in "01"}
        self.find = self.keys("c m x e k d0 d1")
        self.settle = [
            *common,
            *(key for q in "01" for key in (*self.of("d z b a w v log li", q), *back[q])),
        ]
        self.everything = [*self.settle, *self.receipts, self.key("o"), *self.lanes]
        self.moving = [*self.everything, self.key("t")]

    def key(self, kind: str) -> str:
        return self._base + kind

    def keys(self, kinds: str) -> list[str]:
        return [self._base + kind for kind in kinds.split()]

    def of(self, kinds: str, flag: str) -> list[str]:
        """Keys of one of the two queues."""
        return [self._base + kind + flag for kind in kinds.split()]

    def lane(self, part: int | str, lane: int | str) -> str:
        return f"{self._base}s{part}.{lane}"

    def lease_of(self, flag: str, parts: Sequence[int] | None) -> list[str]:
        """For a lease from some partitions. Due messages may belong to any: all r are there."""
        if parts is None:
            return self.lease[flag]
        lanes = self.lanes_of(parts) if flag == "0" else []
        return [*self._lease[flag], self.claims[0], *lanes]

    def lanes_of(self, parts: Iterable[int]) -> list[str]:
        """The lanes of those of these partitions that exist."""
        found: list[str] = []
        for part in parts:
            found += self.lanes[part * LANES : (part + 1) * LANES]
        return found

    def of_lanes(self, lanes: Iterable[str]) -> list[str]:
        """Of lanes written as part.lane."""
        return [f"{self._base}s{lane}" for lane in lanes]


class Keys:
    """The names of one store."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.meta = self._common("meta")
        self.homes = self._common("homes")
        self.claims = self._common("claims")
        self.moving = self._common("moving")
        self.events = [self._common("event"), self._common("events")]
        self.home = lru_cache(maxsize=10_000)(self._home)
        self.plain = lru_cache(maxsize=10_000)(self._plain)
        self.look = lru_cache(maxsize=10_000)(self._look)

    def _home(self, name: str, parts: int) -> Home:
        return Home(self._prefix, name, parts)

    def _plain(self, name: str, lane: str) -> list[str]:
        """What an enqueue into one lane touches."""
        home = self.home(name, 1)
        return [*home.keys("c m w0"), *home.of_lanes([lane])]

    def _look(self, queue: str, parts: int, lanes: str) -> list[str]:
        """What a look whether anything is ready touches; `lanes` as they are written in c."""
        home, flag = self.of(queue, parts), flag_of(queue)
        own = [home.key("c"), *home.of("z d a w", flag)]
        back = [home.key(f"r{flag}.{part}") for part in range(parts)]
        return [*own, *back, *home.of_lanes(lanes.split() if flag == "0" else ())]

    def of(self, queue: str, parts: int = 1) -> Home:
        return self.home(home_of(queue), parts)

    def home_of(self, settings: str) -> str | None:
        """The name of the home whose settings lie under a key."""
        found = _SETTINGS.fullmatch(settings.removeprefix(self._prefix))
        return None if found is None else found[1] + found[2]

    def records(self, kind: str) -> Sequence[str]:
        return [self._common(f"names:{kind}"), self._common(f"values:{kind}")]

    def _common(self, kind: str) -> str:
        """What belongs to no queue; no queue is called "."."""
        return f"{self._prefix}:{{.}}:{kind}"
