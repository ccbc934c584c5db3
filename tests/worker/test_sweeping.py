"""A worker that ends does not leave a sweep behind on a store that its owner closes."""

from __future__ import annotations

import threading
from typing import Any

import holdfast
from holdfast.model import clock
from holdfast.stores.memory import MemoryStore
from holdfast.work.sweeper import LOCK, LOCK_MS


class Slow(MemoryStore):
    """Tidying takes until the store is closed, or half a second."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = threading.Event()
        self.too_late: list[bool] = []
        self.free_again = False

    def tidy(self, *args: Any, **options: Any) -> Any:
        self.too_late.append(self._closed.wait(0.5))
        return super().tidy(*args, **options)

    def close(self) -> None:
        self.free_again = self.claim(LOCK, "another", LOCK_MS, clock.wall_ms() + 1) is not None
        self._closed.set()
        super().close()


def test_the_store_is_closed_after_the_sweep() -> None:
    store = Slow()
    with holdfast.connect(store) as hf:
        hf.handler("orders")(lambda payload: None)
        hf.queue("orders").enqueue(1)
        assert hf.work(until_empty=True)
    assert store.too_late and not any(store.too_late)
    assert store.free_again
