"""Calls that come together: see grouping.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import InvalidArgument
from holdfast.server import grouping
from holdfast.server.grouping import Grouping

Does = Callable[[str, Sequence[Any]], Sequence[Any]]


def grouped(does: Does, calls: list[tuple[str, Any]], first: threading.Event) -> list[Any]:
    """What each is answered; all come while the first is under way, which ends with `first`."""

    async def run() -> list[Any]:
        with ThreadPoolExecutor(1) as threads:
            groups = Grouping[Any](threads, does)
            tasks = [asyncio.create_task(groups.add(*call)) for call in calls]
            await asyncio.sleep(0)  # each has had its turn
            first.set()
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)

    return asyncio.run(run())


def test_all_who_come_meanwhile_go_together_in_their_order() -> None:
    first, groups = threading.Event(), list[list[int]]()

    def does(queue: str, items: Sequence[int]) -> list[Any]:
        assert first.wait(60)
        groups.append(list(items))
        return [InvalidArgument("n", "is 3") if n == 3 else 10 * n for n in items]

    answers = grouped(does, [("orders", n) for n in range(20)], first)
    assert [n for group in groups for n in group] == list(range(20))
    assert len(groups) <= 2
    assert isinstance(answers.pop(3), InvalidArgument)
    assert answers == [10 * n for n in range(20) if n != 3]


def test_what_fails_as_a_whole_fails_for_its_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "GROUP_MAX", 1)
    first = threading.Event()

    def does(queue: str, items: Sequence[int]) -> list[int]:
        assert first.wait(60)
        if items[0] % 2:
            raise OSError(f"no {items[0]}")
        return list(items)

    answers = grouped(does, [("orders", n) for n in range(20)], first)
    assert [str(answer) for answer in answers] == [
        f"no {n}" if n % 2 else str(n) for n in range(20)
    ]


def test_a_busy_queue_gives_up_its_thread_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "GROUP_MAX", 1)
    first, worked = threading.Event(), list[str]()

    def does(queue: str, items: Sequence[int]) -> list[int]:
        assert first.wait(60)
        worked.append(queue)
        return list(items)

    many = 4 * grouping.TURNS
    answers = grouped(does, [*(("busy", n) for n in range(many)), ("other", -1)], first)
    assert answers == [*range(many), -1]
    assert worked.index("other") == grouping.TURNS


def test_what_came_before_the_stop_is_done_and_what_comes_after_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouping, "GROUP_MAX", 1)
    first = threading.Event()

    def does(queue: str, items: Sequence[int]) -> list[int]:
        assert first.wait(60)
        return list(items)

    async def run() -> None:
        threads = ThreadPoolExecutor(1)
        groups = Grouping[int](threads, does)
        many = 3 * grouping.TURNS
        tasks = [asyncio.create_task(groups.add("orders", n)) for n in range(many)]
        await asyncio.sleep(0)
        threads.shutdown(wait=False)
        first.set()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == list(range(many))
        # Until the thread has ended it may still take a call, which is then done.
        await asyncio.to_thread(threads.shutdown)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="shutdown"):
                await asyncio.wait_for(groups.add("orders", 1), 60)

    asyncio.run(run())
