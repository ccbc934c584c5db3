"""Stopwatch, payloads and fresh folders: the same for every party."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec

BATCH = 100
PAYLOAD_BYTES = 100


class Stopwatch:
    seconds = 0.0


@contextmanager
def timed() -> Iterator[Stopwatch]:
    watch = Stopwatch()
    gc.collect()  # nobody pays for the garbage of the one before
    with _watching:
        start = time.perf_counter()
        yield watch
        watch.seconds = time.perf_counter() - start


_watching: AbstractContextManager[Any] = nullcontext()


@contextmanager
def watched(by: AbstractContextManager[Any]) -> Iterator[None]:
    """Every measured part in here also runs inside `by`: a profiler sees it and not its set-up."""
    global _watching
    _watching = by
    try:
        yield
    finally:
        _watching = nullcontext()


def payload(n: int) -> dict[str, Any]:
    """A JSON object of exactly PAYLOAD_BYTES."""
    empty = len(msgspec.json.encode({"n": n, "text": ""}))
    return {"n": n, "text": "x" * (PAYLOAD_BYTES - empty)}


def payloads(n: int) -> list[dict[str, Any]]:
    return [payload(i) for i in range(n)]


def bodies(n: int) -> list[bytes]:
    return [msgspec.json.encode(payload(i)) for i in range(n)]


def batches(items: list[Any], size: int = BATCH) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def rotated(items: list[Any], by: int) -> list[Any]:
    """The same in another order: nobody always runs after the same neighbour."""
    cut = by % len(items)
    return items[cut:] + items[:cut]


@contextmanager
def fresh(parent: Path) -> Iterator[Path]:
    """A folder of its own on the disk that is measured, gone afterwards."""
    folder = Path(mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
