"""Where a message's time goes: in our verbs, and in every thread of our worker."""

from __future__ import annotations

import cProfile
import pstats
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contenders.ours import Ours
from bench.measures.throughput import Fresh, Tell
from bench.results import Result, Row
from bench.timing import watched

MESSAGES = 20_000
LINES = 20
JOIN_S = 2.0
PARTS = {
    "holdfast-lease_loop": "leasing",
    "holdfast-handle_loop": "handling",
    "holdfast-settle_loop": "settling",
    "worker, all threads": "worker, all threads",
}
"""Threads of a worker, and what they do."""


def show(ours: Ours, fresh: Fresh, console: Console) -> None:
    for title, run in (
        ("Enqueue, batches of 100", ours.enqueue_bulk()),
        ("Lease and ack, batches of 100", ours.lease_ack_bulk),
    ):
        with fresh() as home:
            plain = run(home, MESSAGES)
        with fresh() as home, watched(profile := cProfile.Profile()):
            run(home, MESSAGES)
        console.print(_functions(f"{title}: {_each(plain)} µs a message unprofiled", [profile]))

    spent: dict[str, float] = defaultdict(float)
    with fresh() as home, watched(_threads_counted(spent)):
        plain = ours.drain(home, MESSAGES)
    console.print(_threads(f"Drain: {_each(plain)} µs a message", spent))

    profiles: list[cProfile.Profile] = []
    with fresh() as home, watched(_threads_profiled(profiles)):
        ours.drain(home, MESSAGES)
    title = "Drain: processor time of all threads (profiling weighs on it: read the shares)"
    console.print(_functions(title, profiles))


def measure(ours: Ours, *, fresh: Fresh, repeats: int, tell: Tell) -> Result:
    """Of a drain: the clock, and the processor time of each kind of thread in our worker. What the
    clock has more is waiting: for the store, its disk, the interpreter's lock."""
    samples: dict[str, list[float]] = defaultdict(list)
    for n in range(repeats):
        tell(f"repeat {n + 1} of {repeats}")
        spent: dict[str, float] = defaultdict(float)
        with fresh() as home, watched(_threads_counted(spent)):
            samples["by the clock"].append(_each(ours.drain(home, MESSAGES)))
        spent["worker, all threads"] = sum(spent.values())
        for name, label in PARTS.items():
            samples[label].append(_each(spent[name]))
    rows = [Row(name, "ours", figures) for name, figures in samples.items()]
    title = "Where a message's time goes: drain, processor time of our worker"
    return Result("profile", title, "µs a message", rows, more_is_better=False)


@contextmanager
def _threads_counted(spent: dict[str, float]) -> Iterator[None]:
    """Adds up the processor seconds of every thread that is started inside, by its name."""

    def count(run: Callable[[], None], name: str) -> None:
        run()
        spent[name] += time.thread_time()

    with _around_threads(count):
        yield


@contextmanager
def _threads_profiled(profiles: list[cProfile.Profile]) -> Iterator[None]:
    """By processor time: waiting for the interpreter's lock is nobody's cost."""

    def profile(run: Callable[[], None], name: str) -> None:
        own = cProfile.Profile(time.thread_time)
        own.runcall(run)
        profiles.append(own)

    with _around_threads(profile):
        yield


@contextmanager
def _around_threads(wrap: Callable[[Callable[[], None], str], None]) -> Iterator[None]:
    plain = threading.Thread.run
    before = set(threading.enumerate())

    def run(thread: threading.Thread) -> None:
        wrap(lambda: plain(thread), thread.name)

    threading.Thread.run = run
    try:
        yield
        for thread in set(threading.enumerate()) - before:
            thread.join(JOIN_S)
    finally:
        threading.Thread.run = plain


def _threads(title: str, spent: dict[str, float]) -> Table:
    table = _table(title, "threads", "processor µs/message")
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{_each(seconds):.2f}")
    table.add_row("together", f"{_each(sum(spent.values())):.2f}")
    return table


def _functions(title: str, profiles: list[cProfile.Profile]) -> Table:
    stats: dict[Any, Any] = pstats.Stats(*profiles).stats  # type: ignore[attr-defined]
    everything = sum(own for _, _, own, _, _ in stats.values())
    headings = ("calls/message", "own µs/message", "with callees", "own share")
    table = _table(title, "function", *headings)
    costliest = sorted(stats.items(), key=lambda item: -item[1][2])
    for (file, line, name), (_, calls, own, total, _) in costliest[:LINES]:
        each = f"{_each(own):.2f}", f"{_each(total):.2f}"
        per = f"{calls / MESSAGES:.2f}", *each, f"{own / everything:.0%}"
        table.add_row(_where(file, line, name), *per)
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _each(seconds: float) -> float:
    """Microseconds of one message."""
    return round(seconds / MESSAGES * 1e6, 2)


def _where(file: str, line: int, name: str) -> str:
    return name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
