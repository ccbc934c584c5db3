"""Handlers in processes of their own: hard limits, deaths that take only themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Holdfast, InvalidArgument
from holdfast.testing import dead_letters, finished, wait_until

MODULE = """
import asyncio, os, pathlib, time

if __name__ != "__main__" and pathlib.Path(os.environ.get("HANDLERS_BROKEN", "?")).exists():
    raise MemoryError("not now")

def handle(what, message):
    if what == "hang":
        while True:
            time.sleep(60)
    if what == "die":
        os._exit(3)
    if what == "raise":
        raise KeyError("missing")
    return {"pid": os.getpid(), "what": what}

async def awaited(what):
    await asyncio.sleep(0)
    return what
"""


@pytest.fixture(params=["memory", "sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def hf(store_name: str, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory://" if store_name == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    with holdfast.connect(url, max_attempts=1, backoff=Backoff(base=0)) as hf:
        yield hf


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_name: str) -> Any:
    name = f"handlers_{store_name}_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    return __import__(name)


@pytest.mark.promise("HANDLER-4")
def test_a_hard_limit_ends_a_handler_and_a_death_takes_only_itself(
    hf: Holdfast, handlers: Any
) -> None:
    queue = hf.queue("orders")
    hf.handler("orders")(handlers.handle)
    queue.enqueue_many(["hang", "die", "raise", "one", "two"])
    assert hf.work(until_empty=True, executor="process", concurrency=2, time_limit=1)
    dead = {m.payload: (m.errors[0].code, m.errors[0].message) for m in dead_letters(hf, "orders")}
    assert dead == {
        "hang": ("TimeLimitExceeded", "ran longer than 1 s"),
        "die": ("ProcessDied", "its process died (exit code 3)"),
        "raise": ("KeyError", "'missing'"),
    }
    results = {done.message.payload: done.result for done in finished(hf, "orders")}
    assert results.keys() == {"one", "two"}
    assert all(result["pid"] != os.getpid() for result in results.values())


def test_async_handlers_run_in_processes_too(hf: Holdfast, handlers: Any) -> None:
    hf.handler("orders", time_limit=60)(handlers.awaited)
    hf.queue("orders").enqueue("hello")
    assert hf.work(until_empty=True, executor="process", concurrency=1)
    assert [done.result for done in finished(hf, "orders")] == ["hello"]


def test_a_handler_that_cannot_travel_is_refused(hf: Holdfast) -> None:
    hf.queue("orders")
    hf.handler("orders")(lambda payload: None)
    with pytest.raises(InvalidArgument, match="at the top of a module"):
        hf.worker(executor="process")


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


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(
        textwrap.dedent("""
        import threading
        import holdfast

        hf = holdfast.connect("memory://")
        hf.queue("orders").enqueue(1)

        @hf.handler("orders")
        def handle(payload): ...

        worker = hf.worker(executor="process", concurrency=1)

        def watch():
            while worker.health().ready:
                threading.Event().wait(0.01)
            print(worker.health().why)
            worker.stop()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert 'if __name__ == "__main__":' in done.stdout, done.stderr
