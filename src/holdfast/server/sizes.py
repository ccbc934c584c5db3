"""How large messages are, so that no answer and no read of the store takes more than its budget.

The store counts rows, and a page of 500 rows may have 500 KiB or 500 MiB. So reads begin with a
few rows and grow as far as the rows that were seen allow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.model.message import Lease, Message
from holdfast.model.moves import State
from holdfast.queue.queue import LocalQueue
from holdfast.stores.contract import Entry, Page, Store, View

FIRST_ROWS = 16
"""Rows of a first read, when it is not known how large they are."""
READ_ROWS = 500
QUEUES_MAX = 1000
DECAY = 0.9
OVERHEAD = 256
"""Bytes of a message beside what is counted."""


def size_of(message: Message) -> int:
    """About as many bytes as an answer needs for it."""
    size = OVERHEAD + len(message.body) + sum(map(len, message.headers))
    size += sum(map(len, message.headers.values()))
    return size + sum(OVERHEAD + len(error.message) for error in message.errors)


def entry_size(entry: Entry) -> int:
    done = entry.finished
    if done is None:
        return size_of(entry.message)
    result = 0 if done.result is None else len(msgspec.json.encode(done.result))
    return 2 * size_of(entry.message) + result  # the document of a log row has it twice


def fitting(sizes: Sequence[int], budget: int) -> int:
    """How many of them, from the first, fit together; one at least, if there is one."""
    for n, size in enumerate(sizes):
        budget -= size
        if budget < 0:
            return max(n, 1)
    return len(sizes)


class Steps:
    """How many rows to read next, by how large those so far were."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._rows = FIRST_ROWS

    def next(self, limit: int) -> int:
        return min(limit, self._rows)

    def seen(self, entries: Sequence[Entry]) -> None:
        if entries:
            largest = max(map(entry_size, entries))
            self._rows = max(1, min(self._rows * 4, READ_ROWS, self._budget // largest))


def pages(store: Store, view: View, now: int, *, budget: int) -> Iterator[Page]:
    """All of a view, page by page, none much larger than the budget."""
    after: str | None = None
    steps = Steps(budget)
    while True:
        page = store.browse(view, after, steps.next(READ_ROWS), now)
        steps.seen(page.entries)
        yield page
        after = page.after
        if after is None:
            return


def walk(queue: LocalQueue, state: State, *, budget: int) -> Iterator[Entry]:
    """All messages of a state, with about `budget` bytes of them in memory at a time."""
    at = queue.context
    for page in pages(at.store, View(queue.name, state), at.clock.now(), budget=budget):
        yield from page.entries


class Leasing:
    """Leases of many queues within a budget for each call. Remembers how large the messages of a
    queue are, so that one round trip is enough where they are small. Thread-safe."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._largest: dict[str, float] = {}
        self._lock = threading.Lock()

    def lease(
        self,
        queue: str,
        limit: int,
        lease: Callable[[int], list[Lease]],
        release: Callable[[list[Lease]], None],
    ) -> list[Lease]:
        """Up to `limit`; those beyond the budget are released, which counts no attempt."""
        got: list[Lease] = []
        used = 0
        while len(got) < limit:
            rows = self.rows(queue, self._budget - used, limit - len(got), is_first=not got)
            more = lease(rows) if rows else []
            got += more
            used += self.seen(queue, more)
            if len(more) < rows or not rows:
                break
        fit = fitting([size_of(one.message) for one in got], self._budget)
        if got[fit:]:
            release(got[fit:])
        return got[:fit]

    def rows(self, queue: str, budget: int, limit: int, *, is_first: bool = True) -> int:
        largest = self._largest.get(queue)
        if largest is None:
            return min(limit, FIRST_ROWS)
        return min(limit, READ_ROWS, max(int(budget / largest), 1 if is_first else 0))

    def seen(self, queue: str, leases: Sequence[Lease]) -> int:
        """Their size; remembered for the next call."""
        sizes = [size_of(one.message) for one in leases]
        if sizes:
            with self._lock:
                before = self._largest.pop(queue, 0.0)
                self._largest[queue] = max(float(max(sizes)), before * DECAY)
                if len(self._largest) > QUEUES_MAX:
                    del self._largest[next(iter(self._largest))]
        return sum(sizes)
