"""The log: reading it, dropping its oldest rows, and writing rows that finished elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any

from holdfast.errors import StoreError
from holdfast.model.message import Finished
from holdfast.stores.contract import Cut, Entry, View
from holdfast.stores.redis.connections import Arg, Connections
from holdfast.stores.redis.homes import Homes
from holdfast.stores.redis.keys import Home, flag_of
from holdfast.stores.redis.moves import CHUNK, chunks
from holdfast.stores.redis.rows import read_finished, write_finished
from holdfast.stores.redis.scripts import RESTORE, TRIM
from holdfast.stores.rows import first_of_each

Cursor = tuple[int, int]

PAGE = 250
"""Rows that one call reads."""
ENTRIES = 8
"""Entries that are read first: each has one row or hundreds."""


class Log(Homes):
    def restore(self, queue: str, rows: Sequence[Finished], now: int) -> int:
        """Each chunk whole or not at all; what broke off may be repeated."""
        flag, new = flag_of(queue), 0
        for chunk in chunks([write_finished(row) for row in first_of_each(rows)]):
            args = chain.from_iterable((id, *rest, body) for id, rest, body in chunk)
            status, told = self._on(queue, RESTORE, lambda home: _keys(home, flag), *args)
            if status == b"late":
                raise StoreError(
                    f"{queue}: its log goes up to {told.decode()}, and takes nothing older"
                )
            new += told
        return new

    def _drop_logged(self, cuts: Sequence[Cut]) -> list[int]:
        """The first step drops at most one row of each: it costs those little that have none."""
        answers = self._db.each(TRIM, [self._trim_call(cut, min(1, cut.limit)) for cut in cuts])
        return [
            n if n == 0 else n + self._trim_rest(cut, cut.limit - n)
            for cut, n in zip(cuts, answers, strict=True)
        ]

    def _trim_rest(self, cut: Cut, limit: int) -> int:
        dropped = 0
        while dropped < limit:
            wanted = min(CHUNK, limit - dropped)
            n = self._db.script(TRIM, *self._trim_call(cut, wanted))
            dropped += n
            if n < wanted:
                break
        return dropped

    def _trim_call(self, cut: Cut, limit: int) -> tuple[list[str], list[Arg]]:
        flag = flag_of(cut.queue)
        keep = -1 if cut.keep is None else cut.keep
        return _keys(self._keys.of(cut.queue), flag), [flag, limit, cut.before or 0, keep]


def _keys(home: Home, flag: str) -> list[str]:
    return [home.key("c"), *home.of("log li", flag)]


def log_entries(
    db: Connections, home: Home, view: View, after: Cursor
) -> Iterator[tuple[Cursor, Entry]]:
    """The rows after a cursor. Those of one millisecond by seq: a batch that finished together
    stands in the order in which it came."""
    flag = flag_of(view.queue)
    start, until = max(after[0], view.since or 0, 0), view.until
    if view.id is not None:
        where: bytes | None = db.run("HGET", home.key("li" + flag), view.id)
        groups = _by_id(db, home.key("log" + flag), start, (where or b"").split())
    else:
        groups = _by_time(db, home.key("log" + flag), start)
    for ms, group in groups:
        if until is not None and ms >= until:
            return
        found = [
            read_finished(ms, id, row, view.queue)
            for id, row in _still_there(db, home.key("li" + flag), group)
            if view.id is None or id.decode() == view.id
        ]
        for seq, finished in sorted(found, key=lambda row: row[0]):
            if (ms, seq) > after:
                yield (ms, seq), Entry(finished.message, seq, finished=finished)


def _still_there(db: Connections, index: str, group: list[Any]) -> Iterator[tuple[bytes, bytes]]:
    """The rows of some entries that the index still names."""
    for number, fields in group:
        ids = fields[::2]
        for id, row, where in zip(ids, fields[1::2], db.run("HMGET", index, *ids), strict=True):
            if where is not None and number in where.split():
                yield id, row


def _by_id(
    db: Connections, log: str, start: int, entries: Sequence[bytes]
) -> Iterator[tuple[int, list[Any]]]:
    """The entries that an id has in the log, from a time on, those of each millisecond together."""
    for ms, group in groupby(entries, key=lambda entry: numbered(entry)[0]):
        if ms >= start:
            yield ms, [one for entry in group for one in db.run("XRANGE", log, entry, entry)]


def _by_time(db: Connections, log: str, start: int) -> Iterator[tuple[int, list[Any]]]:
    """The entries of a log, those of each millisecond together. An entry has one row or hundreds:
    so many are read at a time as the last ones suggest."""
    low, group, at, count = f"{start}-0", list[Any](), -1, ENTRIES
    while True:
        found = db.run("XRANGE", log, low, "+", "COUNT", count)
        for entry in found:
            ms = numbered(entry[0])[0]
            if ms != at and group:
                yield at, group
                group = []
            at = ms
            group.append(entry)
        if len(found) < count:
            if group:
                yield at, group
            return
        low = f"({found[-1][0].decode()}"
        rows = sum(len(fields) // 2 for _, fields in found)
        count = max(ENTRIES, min(PAGE, count * PAGE // rows))


def numbered(entry: bytes) -> Cursor:
    ms, _, number = entry.partition(b"-")
    return int(ms), int(number)
