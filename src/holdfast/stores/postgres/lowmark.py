"""Where to begin to look for messages while somebody holds an old snapshot open.

Leased messages leave dead entries at the head of the index of what is ready. PostgreSQL clears them
away, unless a transaction is open that is older: then every lease walks over all of them, and a
report that runs for an hour stops the queue. So each process remembers how far the line has been
worked off and, while walks from the bottom are slow, begins there; what came in below (a retry, a
late commit) is found by a look from the bottom every now and then. In normal times every look is
from the bottom, and the order is exact (docs/adr/0007).
"""

from __future__ import annotations

from collections import deque
from typing import Any

LANES = 10
DISTANCE = 5_000
"""Below this many places worked off, a slow walk has other reasons."""
SLOW, CHEAP = 3.0, 2.0
"""Times the usual cost of a lease from which a walk is slow; up to which it is cheap again."""
SLOW_IN_A_ROW = 8
DRIFT = 1.0001
"""The usual cost is the least one lately: it rises by this with every lease."""
LATE_S = 0.1
"""A message that becomes visible later than this after a younger one was leased may have to wait
for the next look from the bottom."""
BOTTOM_EVERY_S = 0.25
BOTTOM_SHARE = 20
"""Looks from the bottom take at most one part in this many of the time."""


class LowMark:
    """Of one queue, in one process. Not locked: a lost update costs a little time, nothing else."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._usual = float("inf")
        self._slow = 0
        self._bounded = False
        self._bottom_due = 0.0
        self._marks: deque[tuple[float, dict[int, int]]] = deque()
        self._lows = [0] * LANES

    def lows(self, now: float) -> list[int] | None:
        """The place to begin at for each rank; None: from the bottom."""
        while self._marks and now - self._marks[0][0] >= LATE_S:
            for rank, place in self._marks.popleft()[1].items():
                if 0 <= rank < LANES:  # else the row was damaged
                    self._lows[rank] = max(self._lows[rank], place)
        return self._lows if self._bounded and now < self._bottom_due else None

    def note(
        self, rows: list[tuple[Any, ...]], *, seconds: float, now: float, bounded: bool
    ) -> None:
        """What a lease found (rank and place lead each row), and how long it took."""
        cost = seconds / (len(rows) + 20)
        if rows:
            self._mark(rows, now)
        if bounded:
            self._usual = min(self._usual * DRIFT, cost)
            return
        if self._bounded:
            self._bottom_due = now + max(BOTTOM_EVERY_S, seconds * BOTTOM_SHARE)
            self._bounded = cost > self._usual * CHEAP
            return
        self._slow = self._slow + 1 if cost > self._usual * SLOW else 0
        self._usual = min(self._usual * DRIFT, cost)
        if self._slow >= SLOW_IN_A_ROW and self._worked_off(rows) >= DISTANCE:
            self._bounded, self._slow = True, 0
            self._bottom_due = now + BOTTOM_EVERY_S

    def _worked_off(self, rows: list[tuple[Any, ...]]) -> int:
        return rows[0][1] - self._first if rows and self._first is not None else 0

    def _mark(self, rows: list[tuple[Any, ...]], now: float) -> None:
        if self._first is None:
            self._first = rows[0][1]
        if self._marks and now - self._marks[-1][0] < LATE_S / 5:
            return
        lowest: dict[int, int] = {}
        for rank, place, *_ in rows:
            lowest[rank] = min(lowest.get(rank, place), place)
        self._marks.append((now, lowest))
