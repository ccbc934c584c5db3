"""The log from its end: what was finished last, first.

Stores keep a log in the order in which messages were finished, and read it forwards. So this reads
it in stretches of time, from now on backwards: each is longer than the one before when that held
little, and half of it when it held too much. A millisecond in which more was finished than a
stretch may hold is read forwards.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model.moves import State
from holdfast.queue.queue import LocalQueue
from holdfast.server.entries import Wanted, entry_doc
from holdfast.server.sizes import FIRST_ROWS, entry_size, fitting
from holdfast.stores.contract import Entry, Page, View
from holdfast.wire import shapes as s

FIRST_MS = 60_000
STRETCH = 1000
READS_MAX = 64
LOOK_MAX = 5000
_CURSOR = re.compile(r"([0-9]{1,15})~([0-9]{1,6})~(.{0,200})", re.DOTALL)


class _Place(msgspec.Struct, frozen=True):
    """All that was finished before `until`, but for `skip` of its last millisecond; or, of that
    millisecond, what comes after `inner`."""

    until: int
    skip: int = 0
    inner: str = ""

    def __str__(self) -> str:
        return f"{self.until}~{self.skip}~{self.inner}"


def newest(queue: LocalQueue, ask: s.BrowseAsk, wanted: Wanted, now: int, budget: int) -> s.PageDoc:
    """Up to `limit` that match, as far as they fit into `budget` bytes. A page that
    looked at enough ends there, and says where."""
    if ask.state != "log":
        raise InvalidArgument("newest", "is for the log: others have an order of their own")
    place: _Place | None = _started(ask, now)
    width, since = FIRST_MS, ask.since or 0
    found: list[s.EntryDoc] = []
    looked, left = 0, budget
    reader = _Reader(queue, since, now, budget)
    for _ in range(READS_MAX):
        if place is None or len(found) == ask.limit or looked >= LOOK_MAX:
            break
        before = place
        rows, place, width = reader.read(place, width, ask.limit - len(found))
        shown = [entry for entry in rows if wanted(entry.message)]
        size = sum(map(entry_size, shown))
        if size > left and found:
            place = before  # the next page begins with these
            break
        looked += len(rows)
        left -= size
        found += map(entry_doc, shown)
    return s.PageDoc(found, None if place is None else str(place), looked, now)


def _started(ask: s.BrowseAsk, now: int) -> _Place:
    if ask.after is None:
        # A little ahead: clocks of those who finish messages may be.
        return _Place(ask.until if ask.until is not None else now + FIRST_MS)
    read = _CURSOR.fullmatch(ask.after)
    if read is None:
        raise InvalidArgument("after", f"is no place in this log: {ask.after[:100]!r}")
    return _Place(int(read[1]), int(read[2]), read[3])


class _Reader:
    def __init__(self, queue: LocalQueue, since: int, now: int, budget: int) -> None:
        self._budget = budget
        self._stretch = FIRST_ROWS
        self._name = queue.name
        self._store = queue.context.store
        self._since = since
        self._now = now

    def read(self, place: _Place, width: int, limit: int) -> tuple[list[Entry], _Place | None, int]:
        """Up to `limit` rows, where to go on (None: nowhere), and how far to look next."""
        if place.inner:
            rows, then = self._inside(place, limit)
            return rows, then, width
        begin = max(self._since, place.until - width)
        if begin >= place.until:
            return [], None, width
        page = self._browse(begin, place.until, None, self._stretch)
        while page.after is not None and self._grows(page):
            page = self._browse(begin, place.until, None, self._stretch)
        if page.after is not None and place.until - begin > 1:
            return [], place, max(1, (place.until - begin) // 2)
        if page.after is not None:
            rows, then = self._inside(place, limit)
            return rows, then, width
        rows = page.entries[::-1][place.skip :]
        limit = min(limit, fitting([entry_size(row) for row in rows], self._budget))
        if len(rows) > limit:
            return rows[:limit], _behind(rows[:limit], place), width
        if not page.entries and not self._browse(self._since, begin, None, 1).entries:
            return rows, None, width
        then = None if begin <= self._since else _Place(begin)
        return rows, then, width * 4 if len(page.entries) < STRETCH // 8 else width

    def _grows(self, page: Page) -> bool:
        """Whether the rows are small enough to read more of them at a time."""
        size = sum(map(entry_size, page.entries))
        if self._stretch >= STRETCH or size * 4 > self._budget:
            return False
        self._stretch = min(self._stretch * 4, STRETCH)
        return True

    def _inside(self, place: _Place, limit: int) -> tuple[list[Entry], _Place | None]:
        page = self._browse(
            place.until - 1, place.until, place.inner or None, min(limit, self._stretch)
        )
        fit = fitting([entry_size(entry) for entry in page.entries], self._budget)
        if fit < len(page.entries):  # read again, for the cursor behind the last that fits
            page = self._browse(place.until - 1, place.until, place.inner or None, fit)
        if page.after is not None:
            return page.entries, _Place(place.until, inner=page.after)
        then = None if place.until - 1 <= self._since else _Place(place.until - 1)
        return page.entries, then

    def _browse(self, since: int, until: int, after: str | None, limit: int) -> Page:
        view = View(self._name, State.LOG, since=since, until=until)
        return self._store.browse(view, after, limit, self._now)


def _behind(rows: list[Entry], place: _Place) -> _Place:
    """Right behind the last of these."""
    last = _finished_at(rows[-1])
    same = sum(_finished_at(row) == last for row in rows)
    if place.until == last + 1:  # in the same millisecond as the page before
        same += place.skip
    return _Place(last + 1, same)


def _finished_at(entry: Entry) -> int:
    assert entry.finished is not None
    return entry.finished.finished_at
