"""Counts and heads of a queue as its figures: `Store.stats` and `Store.depths`.

A delayed message that is due counts as ready, although no lease has come by to make it so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.model.queues import Depth
from holdfast.stores.contract import QueueStats


def queue_stats(
    queue: str,
    counts: Sequence[int],
    *,
    due: int,
    dead: int,
    oldest_at: int | None,
    paused: bool,
    now: int,
) -> QueueStats:
    """`counts`: ready, delayed, leased, done, as they are stored; `due`: how many of the delayed
    are due; `oldest_at`: when the oldest message at the head of a lane was enqueued."""
    ready, delayed, leased, done = counts
    return QueueStats(
        queue=queue,
        ready=ready + due,
        delayed=delayed - due,
        leased=leased,
        dead=dead,
        done=done,
        oldest_age=None if oldest_at is None else max(0, now - oldest_at) / 1000,
        paused=paused,
    )


def depths_of(
    partitions: int,
    counts: Mapping[int, Sequence[int]],
    due: Mapping[int, int],
    oldest: Mapping[int, int],
) -> list[Depth]:
    """By partition: ready, delayed and leased as they are stored, what is due, and when the oldest
    message at the head of a lane was enqueued. A partition without any may be missing."""
    depths: list[Depth] = []
    for part in range(partitions):
        ready, delayed, leased = counts.get(part, (0, 0, 0))
        n = due.get(part, 0)
        depths.append(Depth(part, ready + n, delayed - n, leased, oldest.get(part)))
    return depths


class Heads:
    """Of one queue: the first message of each lane of each partition, and what is due."""

    def __init__(self) -> None:
        self.due: Counter[int] = Counter()
        """By partition."""
        self._heads: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, part: int, lane: int, place: int, enqueued_at: int, *, due: int = 0) -> None:
        """The first message of a lane, or the first of so many that are due in it."""
        head = (place, enqueued_at)
        self._heads[part, lane] = min(self._heads.get((part, lane), head), head)
        self.due[part] += due

    def oldest(self) -> dict[int, int]:
        """By partition, when the oldest of the heads of its lanes was enqueued."""
        oldest: dict[int, int] = {}
        for (part, _), (_, at) in self._heads.items():
            oldest[part] = min(oldest.get(part, at), at)
        return oldest
