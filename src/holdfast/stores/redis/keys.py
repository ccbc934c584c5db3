"""The name of every key. A home (a queue with its dead letters) lies in one hash slot.

| key | type | holds |
|---|---|---|
| c | hash | settings of both queues, counters |
| m | hash | id -> body and all that never changes |
| x | hash | id -> where it is, once it has left its lane (see lua/common.lua) |
| e | hash | id -> history, of those that have one |
| s<part>.<lane> | stream | a lane: what waits as it was enqueued, and what is leased of it |
| r<q>.<part> | zset | what waits after it came back, or was delayed: by lane and place |
| z<q> | zset | what is delayed: seq + id by time |
| d<q> | zset | what is leased: seq + id by deadline |
| a<q> | stream | what was leased again, for operators to see |
| b<q> | zset | batch, id and token of what a batch name holds |
| k, kn | hash | lease call -> when, batch and owner; how many of it are still held |
| w<q> | list | wakes one who waits |
| log<q>, li<q> | stream, hash | what is finished, and where in the log an id lies |
| rn, rv | zset, hash | receipts |

<q> is 0 for the home, 1 for its dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from holdfast.message import home_of, is_dlq

LANES = 10
_SHARED = ("c", "m", "x", "e", "k", "kn")
_OF_QUEUE = ("d", "z", "b", "a", "w")


def flag_of(queue: str) -> str:
    return "1" if is_dlq(queue) else "0"


class Home:
    """The keys of a home with so many partitions, listed once for each script."""

    def __init__(self, prefix: str, name: str, parts: int) -> None:
        self.name = name
        self.parts = parts
        self._base = f"{prefix}:{{{name}}}:"
        shared = [self.key(kind) for kind in _SHARED]
        own = {q: [self.key(kind + q) for kind in _OF_QUEUE] for q in "01"}
        back = {q: [self.key(f"r{q}.{part}") for part in range(parts)] for q in "01"}
        logs = {q: [self.key("log" + q), self.key("li" + q)] for q in "01"}
        self.receipts = [self.key("rn"), self.key("rv")]
        lanes = [self.lane(part, lane) for part in range(parts) for lane in range(LANES)]
        self.streams = [*lanes, self.key("a0"), self.key("a1")]
        self.lease = {
            "0": [*shared, *own["0"], *back["0"], *lanes],
            "1": [*shared, *own["1"], *back["1"]],
        }
        self.settle = [
            *shared,
            *own["0"],
            *own["1"],
            *back["0"],
            *back["1"],
            *logs["0"],
            *logs["1"],
        ]
        self.finish = {
            q: [*shared, *(self.key(kind + q) for kind in ("d", "b", "a")), *logs[q]] for q in "01"
        }
        self.lanes = lanes
        self.everything = [*self.settle, *self.receipts, *lanes]
        self.count = [*shared[:3], *own["0"], *own["1"], *back["0"], *back["1"], *lanes]
        self.queues = [self.key(kind) for kind in ("c", "a0", "a1", "w0", "w1")]

    def key(self, kind: str) -> str:
        return self._base + kind

    def lane(self, part: int | str, lane: int | str) -> str:
        return f"{self._base}s{part}.{lane}"

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
        self.events = [self._common("event"), self._common("events")]
        self.home = lru_cache(maxsize=10_000)(self._home)
        self.plain = lru_cache(maxsize=10_000)(self._plain)

    def _home(self, name: str, parts: int) -> Home:
        return Home(self._prefix, name, parts)

    def _plain(self, name: str, lane: str) -> list[str]:
        """What an enqueue into one lane touches."""
        home = self.home(name, 1)
        return [home.key("c"), home.key("m"), home.key("w0"), *home.of_lanes([lane])]

    def of(self, queue: str, parts: int = 1) -> Home:
        return self.home(home_of(queue), parts)

    def records(self, kind: str) -> Sequence[str]:
        return [self._common(f"names:{kind}"), self._common(f"values:{kind}")]

    def _common(self, kind: str) -> str:
        """What belongs to no queue; no queue is called "."."""
        return f"{self._prefix}:{{.}}:{kind}"
