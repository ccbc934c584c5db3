"""Where a message's time goes: our lease and ack loop, and every thread of our worker."""

from __future__ import annotations

import cProfile
import pstats
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.contenders import ours
from bench.timing import fresh

MESSAGES = 20_000
LINES = 25


def show(folder: Path, console: Console) -> None:
    with fresh(folder) as home:
        plain = ours.lease_ack_bulk(home, MESSAGES)
    with fresh(folder) as home:
        stats = _profiled(lambda: ours.lease_ack_bulk(home, MESSAGES))
    title = f"Lease and ack, batches of 100: {plain / MESSAGES * 1e6:.1f} µs a message unprofiled"
    console.print(_table(title, stats))

    with fresh(folder) as home, _threads_counted() as spent:
        plain = ours.drain(home, MESSAGES)
    console.print(_by_thread(plain, spent))
    with fresh(folder) as home, _threads_profiled() as profiles:
        ours.drain(home, MESSAGES)
    merged = pstats.Stats(*profiles)
    console.print(_table("Drain: all threads together, processor time", merged))


def _profiled(work: Callable[[], object]) -> pstats.Stats:
    profile = cProfile.Profile()
    profile.runcall(work)
    return pstats.Stats(profile)


@contextmanager
def _threads_counted() -> Iterator[dict[str, float]]:
    """Processor seconds of every thread that ends inside, by the role in its name."""
    spent: dict[str, float] = defaultdict(float)

    def count(run: Callable[[], None], name: str) -> None:
        run()
        spent[name] += time.thread_time()

    with _around_threads(count):
        yield spent


@contextmanager
def _threads_profiled() -> Iterator[list[cProfile.Profile]]:
    """By processor time: waiting for the interpreter's lock is nobody's cost."""
    profiles: list[cProfile.Profile] = []

    def profile(run: Callable[[], None], name: str) -> None:
        own = cProfile.Profile(time.thread_time)
        own.runcall(run)
        profiles.append(own)

    with _around_threads(profile):
        yield profiles


@contextmanager
def _around_threads(wrap: Callable[[Callable[[], None], str], None]) -> Iterator[None]:
    plain = threading.Thread.run

    def run(thread: threading.Thread) -> None:
        wrap(lambda: plain(thread), thread.name)

    threading.Thread.run = run
    try:
        yield
        time.sleep(1.5)  # the last threads end when they next look
    finally:
        threading.Thread.run = plain


def _by_thread(seconds: float, spent: dict[str, float]) -> Table:
    table = Table(title=f"Drain: {seconds / MESSAGES * 1e6:.1f} µs a message, by thread")
    table.add_column("threads")
    table.add_column("processor µs/message", justify="right")
    for name, cpu in sorted(spent.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{cpu / MESSAGES * 1e6:.2f}")
    table.add_row("together", f"{sum(spent.values()) / MESSAGES * 1e6:.2f}")
    return table


def _table(title: str, stats: pstats.Stats) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("function")
    for heading in ("calls/message", "own µs/message", "with callees"):
        table.add_column(heading, justify="right")
    own_first = sorted(stats.stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
    for (file, line, name), (_, calls, own, total, _) in own_first[:LINES]:
        per = (calls / MESSAGES, own / MESSAGES * 1e6, total / MESSAGES * 1e6)
        table.add_row(_where(file, line, name), *(f"{value:.2f}" for value in per))
    return table


def _where(file: str, line: int, name: str) -> str:
    if file == "~":
        return name
    return f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
