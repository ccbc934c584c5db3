"""Where to cut a view into pieces of about equal length."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.stores.contract import View
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.keys import Home, flag_of
from holdfast.stores.redis.log import Cursor, numbered
from holdfast.stores.redis.rows import seq_in_log

LANE = 2**48
"""As in lua/include/common.lua."""
EXACT = 5_000
"""Up to here a line is cut by counting, beyond by where a place lies between first and last."""


def cut_line(
    db: Connections,
    home: Home,
    flag: str,
    parts: int,
    n: int,
    after: Callable[[Cursor], list[Cursor]],
) -> list[Cursor]:
    """A line of `n` messages; `after` reads the cursors that follow one."""
    if n <= EXACT:
        line: list[Cursor] = []
        while found := after(line[-1] if line else (-1, -1)):
            line += found
        size = max(1, -(-len(line) // parts))
        return line[size - 1 : -1 : size]
    cuts: list[Cursor] = []
    step, passed = n / parts, 0
    for rank, count, low, high in _spans(db, home, flag):
        while len(cuts) + 1 < parts and (len(cuts) + 1) * step <= passed + count:
            share = ((len(cuts) + 1) * step - passed) / count
            cuts.append((rank, low + round(share * (high - low))))
        passed += count
    return cuts


def cut_set(db: Connections, name: str, after: int | None, parts: int) -> list[Cursor]:
    """The members of a sorted set, those with a score greater than `after`."""
    low = 0 if after is None else db.run("ZCOUNT", name, "-inf", after)
    n = db.run("ZCARD", name) - low
    step = max(1, -(-n // parts))
    at = range(low + step - 1, low + n - 1, step)
    found = db.run_each([("ZRANGE", name, i, i, "WITHSCORES") for i in at]) if at else []
    return sorted({(int(float(score)), int(member[:15])) for member, score in filter(None, found)})


def cut_log(db: Connections, home: Home, view: View, parts: int) -> list[Cursor]:
    """An entry bears the number of its first row, so the n-th is found by halving the time."""
    log = home.key("log" + flag_of(view.queue))
    low = f"{view.since or 0}-0"
    high = "+" if view.until is None else f"({max(view.until, 1)}-0"
    first = db.run("XRANGE", log, low, high, "COUNT", 1)
    last = db.run("XREVRANGE", log, high, low, "COUNT", 1)
    if not first or not last:
        return []
    (begin, one), (end, final) = numbered(first[0][0]), numbered(last[0][0])
    n = final + len(last[0][1]) // 2 - one
    step = max(1, -(-n // parts))
    cuts: list[Cursor] = []
    for rank in range(step - 1, n - 1, step):
        ms = _time_of(db, log, one + rank, begin, end)
        group = db.run("XRANGE", log, f"{ms}", f"{ms}")
        seqs = sorted(seq_in_log(row) for _, fields in group for row in fields[1::2])
        at = one + rank - numbered(group[0][0])[1]
        key = (ms, seqs[min(max(at, 0), len(seqs) - 1)])
        if not cuts or key > cuts[-1]:
            cuts.append(key)
    return cuts


def _time_of(db: Connections, log: str, number: int, low: int, high: int) -> int:
    """When the entry with this number was written: the last time at which one is not beyond it."""
    while low < high:
        middle = (low + high + 1) // 2
        found = db.run("XRANGE", log, f"{middle}-0", "+", "COUNT", 1)
        if found and numbered(found[0][0])[1] <= number:
            low = numbered(found[0][0])[0]
        else:
            high = middle - 1
    return low


def _spans(db: Connections, home: Home, flag: str) -> list[tuple[int, int, int, int]]:
    """Of each lane: its rank, how many wait, the first and the last place."""
    spans: list[tuple[int, int, int, int]] = []
    for rank in range(10):
        count, low, high = 0, 2**62, 0
        for part in range(home.parts):
            stream = home.lane(part, 9 - rank)
            if flag == "0" and db.run("EXISTS", stream):
                length, pending, ends = _stream(db, stream)
                count += length - pending
                low, high = min(low, ends[0]), max(high, ends[1])
            back = home.key(f"r{flag}.{part}")
            score = rank * LANE, (rank + 1) * LANE - 1
            if n := db.run("ZCOUNT", back, *score):
                count += n
                span = [
                    db.run(word, back, *bounds, "WITHSCORES", "LIMIT", 0, 1)[1]
                    for word, bounds in (
                        ("ZRANGEBYSCORE", score),
                        ("ZREVRANGEBYSCORE", score[::-1]),
                    )
                ]
                places = [int(float(at)) - score[0] for at in span]
                low, high = min(low, places[0]), max(high, places[1])
        if count > 0:
            spans.append((rank, count, low, high))
    return spans


def _stream(db: Connections, stream: str) -> tuple[int, int, tuple[int, int]]:
    """Length, how much of it is leased, and the first and last place that waits."""
    length = db.run("XLEN", stream)
    (group,) = [
        dict(zip(g[::2], g[1::2], strict=True))
        for g in db.run("XINFO", "GROUPS", stream, key=stream)
        if b"holdfast" in g
    ]
    last = group[b"last-delivered-id"]
    newest = db.run("XREVRANGE", stream, "+", "-", "COUNT", 1)
    end = int(newest[0][0].partition(b"-")[0]) if newest else 0
    return length, group[b"pending"], (int(last.partition(b"-")[0]), end)
