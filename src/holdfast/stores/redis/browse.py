"""Reading what the store holds. Nothing changes but that due messages take their place in line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from holdfast.model.message import DLQ_SUFFIX, Lease, home_of
from holdfast.model.moves import State
from holdfast.model.queues import Depth
from holdfast.stores.base import last_of_each
from holdfast.stores.contract import Entry, Page, QueueStats, View
from holdfast.stores.kit.figures import queue_stats
from holdfast.stores.kit.pages import page_of, read_cursor
from holdfast.stores.kit.specs import must_exist
from holdfast.stores.redis import cutting
from holdfast.stores.redis.connections import Arg, Connections
from holdfast.stores.redis.homes import Homes
from holdfast.stores.redis.keys import Home, flag_of
from holdfast.stores.redis.log import PAGE, Cursor, log_entries
from holdfast.stores.redis.rows import Held, quoted
from holdfast.stores.redis.scripts import COUNT, READ

BODIES = 16
"""Bodies that are read at a time, of those that were too much for a script."""


class Browsing(Homes):
    def _find_held(self, queue: str, ids: Sequence[str]) -> list[Entry]:
        found: list[Entry] = []
        for start in range(0, len(ids), PAGE):
            for held in self._held(queue, "find", *ids[start : start + PAGE])[1]:
                if held.blob is not None:
                    name = home_of(queue) + (DLQ_SUFFIX if held.where.dead else "")
                    lease = held.lease(name) if held.first else None
                    message = held.message(name) if lease is None else lease.message
                    found.append(Entry(message, 0, lease))
        return found

    def _find_logged(self, queue: str, ids: Sequence[str]) -> Mapping[str, Entry]:
        home, rows = self._home(queue), list[Entry]()
        for name, index in zip((home.name, home.name + DLQ_SUFFIX), home.logged, strict=True):
            for start in range(0, len(ids), PAGE):
                some = ids[start : start + PAGE]
                for id, entries in zip(some, self._db.run("HMGET", index, *some), strict=True):
                    if entries:
                        view = View(name, State.LOG, id=id)
                        walk = log_entries(self._db, home, view, (-1, -1))
                        rows += [entry for _, entry in walk]
        return last_of_each(rows)

    def _read_overdue(self, queue: str, now: int, limit: int) -> list[Lease]:
        return self._leases(queue, "overdue", now, limit)

    def _read_batch(self, queue: str, batch: str, after: str | None, limit: int) -> list[Lease]:
        found: list[Lease] = []
        while len(found) < limit:
            wanted = min(PAGE, limit - len(found))
            page = self._leases(queue, "batch", quoted(batch), after or "", wanted)
            found += page
            if len(page) < wanted:
                break
            after = page[-1].id
        return found

    def _leases(self, queue: str, what: str, *args: Arg) -> list[Lease]:
        _, found = self._held(queue, what, *args)
        return [
            held.lease(queue)
            for held in found
            if held.blob is not None and held.state is not None and held.first is not None
        ]

    def _held(self, queue: str, what: str, *args: Arg) -> tuple[int, list[Held]]:
        """The end of the line, and what read.lua finds."""
        end, ids, *columns, blobs = self._read(queue, what, *args)
        blobs = bodies(self._db, self._home(queue), ids, blobs)
        return int(end), [Held(*row) for row in zip_longest(ids, *columns, blobs)]

    def _read(self, queue: str, what: str, *args: Arg) -> list[Any]:
        flag = flag_of(queue)

        def keys(home: Home) -> list[str]:
            return home.find if what == "find" else home.lease[flag]

        return self._asked(queue, READ, keys, what, self._step, *args)

    # Pages

    def _read_page(self, view: View, after: str | None, limit: int, now: int) -> Page:
        cursor = read_cursor(after)
        if view.state is State.LOG:
            must_exist(view.queue, self._spec_of(view.queue))
            rows = islice(log_entries(self._db, self._home(view.queue), view, cursor), limit + 1)
            return page_of(list(rows), view, limit, self._end(view.queue))
        found = list(islice(self._entries(view, cursor, now, limit + 1), limit + 1))
        end = found[0][0] if found else self._end(view.queue)
        return page_of([row for _, row in found], view, limit, end)

    def _end(self, queue: str) -> int:
        return int(self._db.run("HGET", self._keys.of(queue).key("c"), "seq") or 0)

    def _entries(
        self, view: View, after: Cursor, now: int, wanted: int
    ) -> Iterator[tuple[int, tuple[Cursor, Entry]]]:
        """The rows after a cursor, each with its own, as far as they are asked for; with the end of
        the line. Only as many as are wanted are read first: while a script reads, Redis serves
        nobody else."""
        step = min(wanted, PAGE)
        rest = {State.READY: (now, 1), State.DELAYED: (now,)}.get(view.state, ())
        while True:
            end, found = self._held(view.queue, view.state.value, *after, step, *rest)
            for held in found:
                if held.blob is not None:
                    entry = _entry(held, view)
                    if _is_in(view, entry):
                        yield end, (held.cursor, entry)
            if len(found) < step:
                return
            after, step = found[-1].cursor, PAGE

    def split(self, view: View, parts: int, now: int) -> list[str]:
        must_exist(view.queue, self._spec_of(view.queue))
        queue, flag = view.queue, flag_of(view.queue)
        match view.state:
            case State.LOG:
                cuts = cutting.cut_log(self._db, self._home(queue), view, parts)
            case State.READY:
                n = self._stats(queue, now).ready
                cuts = cutting.cut_line(
                    self._db, self._home(queue), flag, parts, n,
                    lambda after: self._places(queue, after, now),
                )  # fmt: skip
            case State.LEASED:
                cuts = cutting.cut_set(self._db, self._home(queue).key("d" + flag), None, parts)
            case State.DELAYED:
                cuts = cutting.cut_set(self._db, self._home(queue).key("z" + flag), now, parts)
        return [f"{first}.{second}" for first, second in cuts]

    def _places(self, queue: str, after: Cursor, now: int) -> list[Cursor]:
        """The cursors of the next in line."""
        _, _, first, second, *_ = self._read(queue, "ready", *after, 1000, now, 0)
        return [(int(a), int(b)) for a, b in zip(first, second, strict=True)]

    # Counts

    def _count_queues(self, queues: Sequence[str], now: int) -> list[QueueStats]:
        return [self._stats(name, now) for name in queues]

    def _stats(self, name: str, now: int) -> QueueStats:
        rows, paused, delayed, leased, dead, done, due = self._count(name, now, each=False)
        oldest = min((int(row[3]) for row in rows if row[3]), default=None)
        counts = (sum(row[0] for row in rows), delayed, leased, int(done))
        return queue_stats(
            name, counts, due=due, dead=dead, oldest_at=oldest, paused=bool(paused), now=now
        )

    def _count_partitions(self, queue: str, now: int) -> list[Depth]:
        rows, *_ = self._count(queue, now, each=True)
        return [
            Depth(part, ready, delayed, leased, int(oldest) if oldest else None)
            for part, (ready, delayed, leased, oldest) in enumerate(rows)
        ]

    def _count(self, queue: str, now: int, *, each: bool) -> list[Any]:
        return self._asked(queue, COUNT, lambda home: home.everything, now, int(each))


def _entry(held: Held, view: View) -> Entry:
    lease = held.lease(view.queue) if view.state is State.LEASED else None
    message = held.message(view.queue) if lease is None else lease.message
    place = held.cursor[1]
    if view.state is not State.READY and held.where.place is not None:
        place = held.where.place
    return Entry(message, place, lease)


def _is_in(view: View, entry: Entry) -> bool:
    at = entry.message.enqueued_at
    return (
        (view.since is None or at >= view.since)
        and (view.until is None or at < view.until)
        and (view.upto is None or entry.place <= int(view.upto))
    )


def bodies(
    db: Connections, home: Home, ids: Sequence[str | bytes], found: list[Any]
) -> list[bytes | None]:
    """What a script returned of the bodies, and the rest of them."""
    blobs = list(found)
    while len(blobs) < len(ids):
        some = ids[len(blobs) : len(blobs) + BODIES]
        blobs += db.run("HMGET", home.key("m"), *some)
    return blobs
