"""Handlers in processes of their own: hard limits, deaths that take only themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Holdfast, InvalidArgument
from holdfast.testing import dead_letters, finished

MODULE = """
import asyncio, os, time

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
