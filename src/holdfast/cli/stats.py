"""`holdfast stats` and `holdfast sweep`: how much is where, once or live; overdue ones back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from holdfast import Holdfast, QueueStats
from holdfast.cli import shapes, show
from holdfast.cli.base import App, Command, busy, find_queue, pass_app
from holdfast.cli.kinds import SECONDS
from holdfast.cli.show import Cell, Column, count, length, number
from holdfast.model import clock

COLUMNS = [
    Column("QUEUE", elastic=True),
    number("READY"),
    number("DELAYED"),
    number("LEASED"),
    number("DEAD"),
    number("DONE"),
    number("DONE/S"),
    Column("OLDEST"),
    Column("STATE"),
]
NO_QUEUES = "no queues yet; holdfast queue create NAME makes one"


class Sample(msgspec.Struct, frozen=True):
    """The counts of one moment, and how fast each queue has been since the one before."""

    at: int
    stats: list[QueueStats]
    rates: dict[str, float] = {}


@click.command("stats", cls=Command)
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=SECONDS, default=1.0, help="Between two looks. Default 1s.")
@pass_app
def stats(app: App, queues: tuple[str, ...], watch: bool, interval: float) -> None:
    """Count what is ready, delayed, leased, dead and done.

    OLDEST is how long the oldest message that is ready has been waiting.
    """
    if interval < 0.1:
        raise click.UsageError("--interval must be at least 0.1 seconds")
    with app.connect() as hf:
        for name in queues:
            find_queue(hf, name)
        if not watch:
            return _print(app, _sample(hf, queues), alone=True)
        return _watch(app, _samples(hf, queues, interval))


@click.command("sweep", cls=Command)
@pass_app
def sweep(app: App) -> None:
    """Settle every overdue lease now and trim the logs. Every worker does so by itself."""
    with app.connect() as hf, busy("sweeping"):
        swept = hf.sweep()
    if app.json:
        return show.documents([msgspec.to_builtins(swept)])
    return click.echo(
        f"{count(swept.requeued, 'message')} back in line, {swept.dead:,} dead, "
        f"{swept.completed:,} completed with errors; {count(swept.trimmed, 'log row')} dropped"
    )


COMMANDS = [stats, sweep]


def _sample(hf: Holdfast, queues: Sequence[str]) -> Sample:
    now = hf.context.clock.now()
    return Sample(now, hf.store.stats(queues, now) if queues else hf.stats())


def _samples(hf: Holdfast, queues: Sequence[str], interval: float) -> Iterator[Sample]:
    before = _sample(hf, queues)
    yield before
    while True:
        clock.sleep(interval)
        now = _sample(hf, queues)
        done = {stats.queue: stats.done for stats in before.stats}
        seconds = max(1, now.at - before.at) / 1000
        rates = {s.queue: (s.done - done.get(s.queue, s.done)) / seconds for s in now.stats}
        yield msgspec.structs.replace(now, rates=rates)
        before = now


def _watch(app: App, samples: Iterator[Sample]) -> None:
    if app.json or not sys.stdout.isatty():
        for sample in samples:
            _print(app, sample, alone=False)
            sys.stdout.flush()
        return
    from rich.live import Live

    with Live(auto_refresh=False, vertical_overflow="ellipsis") as live:
        for sample in samples:
            live.update(_drawn(sample, live.console.width), refresh=True)


def _drawn(sample: Sample, width: int) -> Any:
    return show.terminal_table(COLUMNS, _rows(sample), width) if sample.stats else NO_QUEUES


def _print(app: App, sample: Sample, *, alone: bool) -> None:
    if app.json:
        moment = {} if alone else {"at": sample.at}
        return show.documents({**moment, **shapes.of_stats(s)} for s in sample.stats)
    show.table(COLUMNS, _rows(sample), empty=NO_QUEUES)
    return None if alone else click.echo()


def _rows(sample: Sample) -> list[list[Cell]]:
    return [_row(stats, sample.rates.get(stats.queue)) for stats in sample.stats]


def _row(stats: QueueStats, rate: float | None) -> list[Cell]:
    return [
        stats.queue,
        f"{stats.ready:,}",
        f"{stats.delayed:,}",
        f"{stats.leased:,}",
        (f"{stats.dead:,}", "red" if stats.dead else ""),
        f"{stats.done:,}",
        "" if rate is None else f"{rate:,.1f}",
        "" if stats.oldest_age is None else length(int(stats.oldest_age)),
        ("paused", "yellow") if stats.paused else "open",
    ]
