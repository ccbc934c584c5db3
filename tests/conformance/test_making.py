"""A store is made by the first connection that opens it.

Other tests get one that exists already and was emptied, which is quicker.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from servers import SHARED
from servers.spaces import new_name


@pytest.fixture(params=SHARED)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def new_url(store_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    match store_name:
        case "sqlite":
            return f"sqlite:///{tmp_path}/{new_name()}.db"
        case "redis":  # there is nothing to make: every prefix is new
            return request.getfixturevalue("redis_url")
        case _:
            return request.getfixturevalue(f"new_{store_name}_url")


@contextmanager
def opened(url: str, count: int) -> Iterator[list[holdfast.Holdfast]]:
    """So many connections, opened at the same moment."""
    found: list[Any] = []
    barrier = threading.Barrier(count, timeout=60)

    def open_one() -> None:
        barrier.wait()
        found.append(holdfast.connect(url))

    threads = [threading.Thread(target=open_one) for _ in range(count)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield [stack.enter_context(hf) for hf in found]


def test_the_first_to_open_it_makes_it(new_url: str) -> None:
    with opened(new_url, 4) as connections:
        assert len(connections) == 4
        for n, hf in enumerate(connections):
            hf.queue("orders").enqueue(n)
        queue = connections[0].queue("orders")
        for lease in queue.lease(10):
            queue.ack(lease)
    with holdfast.connect(new_url) as hf:
        assert [row.message.payload for row in hf.queue("orders").log()] == [0, 1, 2, 3]
