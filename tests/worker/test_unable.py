"""Handler processes that cannot be started: no fault of any message, on every store."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Holdfast
from holdfast.testing import finished, wait_until

MODULE = """
import os, pathlib

if pathlib.Path(os.environ.get("HANDLERS_BROKEN", "?")).exists():
    raise MemoryError("not now")

def handle(what):
    return {"pid": os.getpid()}
"""


@pytest.fixture
def hf(store_url: str) -> Iterator[Holdfast]:
    with holdfast.connect(store_url, max_attempts=1, backoff=Backoff(base=0)) as hf:
        yield hf


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_name: str) -> Any:
    name = f"unable_{store_name.replace('-', '_')}_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    return __import__(name)


class Calls:
    """What a worker in a thread does, and its health; stopped and joined at the end."""

    def __init__(self, hf: Holdfast, **options: Any) -> None:
        self.worker = hf.worker(**options)
        self._thread = threading.Thread(target=self.worker.run)

    def __enter__(self) -> Calls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self._thread.join()


@pytest.mark.promise("HANDLER-10")
def test_a_process_that_cannot_start_costs_no_message_an_attempt(
    hf: Holdfast, handlers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of the handlers cannot be imported there, as without a `__main__` guard."""
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("HANDLERS_BROKEN", str(broken))
    queue = hf.queue("orders")
    hf.handler("orders")(handlers.handle)
    queue.enqueue_many(range(60))
    with Calls(hf, executor="process", concurrency=2) as calls:
        wait_until(lambda: not calls.worker.health().ready, 60)
        assert "a handler process ended while it started" in calls.worker.health().why
        wait_until(lambda: queue.stats().ready == 60, 60)  # another worker may have them
        assert {entry.message.attempts for entry in queue.browse()} == {0}
        broken.unlink()
        wait_until(lambda: queue.stats().done == 60, 60)
        wait_until(lambda: calls.worker.health().ready)
    assert {row.message.attempts for row in finished(hf, "orders")} == {1}


@pytest.mark.promise("HANDLER-10")
def test_a_process_that_is_ended_while_idle_costs_no_attempt(hf: Holdfast, handlers: Any) -> None:
    queue = hf.queue("orders")
    hf.handler("orders")(handlers.handle)
    queue.enqueue("one")
    with Calls(hf, executor="process", concurrency=1):
        wait_until(lambda: queue.stats().done == 1, 60)
        (first,) = finished(hf, "orders")
        os.kill(pid := first.result["pid"], signal.SIGKILL)
        wait_until(
            lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
        queue.enqueue("two")
        wait_until(lambda: queue.stats().done == 2, 60)
    assert [row.message.attempts for row in finished(hf, "orders")] == [1, 1]
