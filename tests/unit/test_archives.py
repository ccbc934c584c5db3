"""Retention and archives: which is earlier decides, and what is not archived stays."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.queue import archives
from holdfast.queue.archives import Archive
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock


@pytest.mark.parametrize(
    ("before", "mark", "cut"),
    [(None, None, None), (None, 5, None), (5, None, 5), (5, 3, 3), (3, 5, 3), (5, 0, 0)],
)
def test_the_earlier_of_retention_and_archive(
    before: int | None, mark: int | None, cut: int | None
) -> None:
    assert archives.cut(before, mark) == cut


def test_of_several_archives_the_one_that_is_furthest_behind_counts() -> None:
    found = [Archive("a", "one", 7, 0), Archive("a", "two", 3, 0), Archive("b", "one", 9, 0)]
    assert archives.marks(found) == {"a": 3, "b": 9}


def test_the_sweeper_leaves_what_is_not_archived() -> None:
    clock = ManualClock()
    with holdfast.connect(MemoryStore(), clock=clock) as hf:
        queue = hf.queue("orders", retention=10.0, retention_count=2)
        ends: list[int] = []
        for n in range(6):
            queue.enqueue(n)
            ends.append(clock.now())
            queue.settle(queue.lease())
            clock.advance(1)
        archives.note(hf.context, "orders", "lake", ends[3])
        archives.note(hf.context, "orders", "another", 0)
        hf.sweep()
        assert len(list(queue.log())) == 6
        assert archives.give_up(hf.context, "another") == ["orders"]
        hf.sweep()  # three are archived and beyond the newest two
        assert [row.message.payload for row in queue.log()] == [3, 4, 5]
        clock.advance(60)
        hf.sweep()  # older than retention, and not archived
        assert [row.message.payload for row in queue.log()] == [3, 4, 5]
        archives.note(hf.context, "orders", "lake", clock.now())
        hf.sweep()
        assert not list(queue.log())
