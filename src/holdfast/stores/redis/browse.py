"""Pages of what the store holds, by keyset cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from holdfast.model.message import DLQ_SUFFIX
from holdfast.model.moves import State
from holdfast.stores.contract import Entry, View
from holdfast.stores.redis.connections import Connections
from holdfast.stores.redis.keys import Home, flag_of
from holdfast.stores.redis.rows import (
    read_finished,
    read_lease,
    read_waiting,
    read_where,
)

Read = Callable[..., tuple[str, list[Any]]]
"""read.lua on a queue: the end of the line, then ids, two numbers, x, e, k and bodies."""
Keyed = tuple[tuple[int, int], Entry]

PAGE = 250
"""Rows that one script reads."""
BODIES = 16
ENTRIES = 8
"""Of the log, to begin with."""


def bodies(
    db: Connections, home: Home, ids: Sequence[str | bytes], found: list[Any]
) -> list[bytes | None]:
    """What a script returned of the bodies, and the rest of them."""
    blobs = list(found)
    while len(blobs) < len(ids):
        some = ids[len(blobs) : len(blobs) + BODIES]
        blobs += db.run("HMGET", home.key("m"), *some)
    return blobs


def entries(
    db: Connections,
    home: Home,
    view: View,
    read: Read,
    after: tuple[int, int],
    now: int,
    wanted: int,
) -> Iterator[tuple[str, Keyed]]:
    """The rows after a cursor, each with its own, as far as anybody asks; with the line's end.

    As many as are wanted are read at first: nobody else is served while a script reads.
    """
    step = min(wanted, PAGE)
    flag = flag_of(view.queue)
    upto = None if view.upto is None else int(view.upto)
    while True:
        args = [view.state.value, flag, home.parts, after[0], after[1], step]
        if view.state is not State.LEASED:
            args.append(now)
        if view.state is State.READY:
            args.append(1)
        end, (ids, first, second, states, past, calls, blobs) = read(*args)
        found = zip(
            ids, first, second, states, past, calls, bodies(db, home, ids, blobs), strict=True
        )
        for id, one, two, state, history, call, blob in found:
            key = (int(float(one)), int(two))
            if blob is None:
                continue
            place, name, where = key[1], id.decode(), read_where(state)
            lease = None
            if view.state is State.LEASED:
                lease = read_lease(blob, name, view.queue, where, history, call, key[0])
                message = lease.message
            else:
                message = read_waiting(blob, name, view.queue, where, history, call)
            if view.state is not State.READY and state is not None and not state[:1].isdigit():
                place = int(state.split(b" ", 6)[5])
            since, until = view.since, view.until
            if (
                (since is None or message.enqueued_at >= since)
                and (until is None or message.enqueued_at < until)
                and (upto is None or place <= upto)
            ):
                yield end, (key, Entry(message, place, lease))
        if len(ids) < step:
            return
        after, step = (int(float(first[-1])), int(second[-1])), PAGE


def found(
    home: Home,
    blob: bytes,
    id: bytes,
    state: bytes | None,
    history: bytes | None,
    call: bytes | None,
    deadline: bytes | None,
) -> Entry:
    """What read.lua found by an id; `deadline` if it is leased."""
    where = read_where(state)
    queue = home.name + (DLQ_SUFFIX if where.dead else "")
    if not deadline:
        return Entry(read_waiting(blob, id.decode(), queue, where, history, call), 0)
    at = int(float(deadline))
    lease = read_lease(blob, id.decode(), queue, where, history, call, at)
    return Entry(lease.message, 0, lease)


def log_entries(db: Connections, home: Home, view: View, after: tuple[int, int]) -> Iterator[Keyed]:
    """Of one millisecond by seq: a batch that finished together stands in the order it came."""
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


def numbered(entry: bytes) -> tuple[int, int]:
    ms, _, number = entry.partition(b"-")
    return int(ms), int(number)
