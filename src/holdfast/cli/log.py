"""`holdfast log` and `holdfast replay`: what is finished, and once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import click

from holdfast import Finished, Queue
from holdfast.cli import shapes, show
from holdfast.cli.base import App, Command, busy, find_queue, pass_app
from holdfast.cli.kinds import MOMENT, When, ms_of
from holdfast.cli.show import Cell, Column, ago, clean, count, length, number

STATUSES = ["COMPLETED", "COMPLETED_WITH_ERRORS"]
FIRST_LOOK_MS = 1000
WIDEN = 4
COLUMNS = [
    Column("ID"),
    Column("FINISHED"),
    Column("STATUS"),
    number("ATTEMPTS", optional=True),
    number("TOOK", optional=True),
    Column("KEY", optional=True),
    Column("TYPE", optional=True),
    Column("CONSUMER", optional=True),
    Column("PAYLOAD", elastic=True),
]


@click.command("log", cls=Command)
@click.argument("queue")
@click.option("--since", type=MOMENT, help="Finished then or later: 10m (ago), 2026-01-31T12:00.")
@click.option("--until", type=MOMENT, help="Finished before.")
@click.option("--limit", type=click.IntRange(min=0), default=20, help="The last so many; 0 all.")
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False))
@pass_app
def log(app: App, queue: str, limit: int, status: str | None, **span: When | None) -> None:
    """What is finished, the newest last."""
    with app.connect() as hf:
        handle = find_queue(hf, queue)
        now = hf.context.clock.now()
        since, until = ms_of(span["since"], now), ms_of(span["until"], now)
        wanted = _Wanted(handle, status)
        if limit:
            found: Any = wanted.newest(since or 0, now + 1 if until is None else until, limit)
        else:
            found = wanted.between(since, until)
        if app.json:
            return show.documents(shapes.of_finished(finished) for finished in found)
        rows = [_row(finished, now) for finished in found]
    return show.table(COLUMNS, rows, empty=f"the log of {queue} holds nothing of that")


@click.command("replay", cls=Command)
@click.argument("queue")
@click.argument("id", required=False)
@click.option("--since", type=MOMENT, help="Finished then or later: 10m (ago), 2026-01-31T12:00.")
@click.option("--until", type=MOMENT, help="Finished before.")
@pass_app
def replay(app: App, queue: str, id: str | None, since: When | None, until: When | None) -> None:
    """Enqueue finished messages again, as new ones.

    One by ID, or all that finished in a span of time. Each names the one it came from.
    """
    if id and (since or until):
        raise click.UsageError("give ID, or --since and --until, not both")
    if not (id or since or until):
        raise click.UsageError("name a message by ID, or a span by --since and --until")
    with app.connect() as hf, busy(f"replaying {queue}"):
        handle = find_queue(hf, queue)
        now = hf.context.clock.now()
        fresh = handle.replay(id, since=ms_of(since, now), until=ms_of(until, now))
    if app.json:
        return show.documents(shapes.of_message(message) for message in fresh)
    for message in fresh[: None if len(fresh) <= 20 else 0]:
        click.echo(f"enqueued {message.id}, a replay of {message.origin}")
    return click.echo(f"replayed {count(len(fresh), 'message')} of {queue}")


COMMANDS = [log, replay]


class _Wanted:
    """The rows of one queue's log that were asked for."""

    def __init__(self, queue: Queue, status: str | None) -> None:
        self._queue = queue
        self._status = status

    def between(self, since: int | None, until: int | None) -> Iterator[Finished]:
        found = self._queue.log(since=since, until=until)
        return (row for row in found if self._status in (None, row.status))

    def newest(self, since: int, until: int, limit: int) -> list[Finished]:
        """The last `limit`, oldest first.

        A log is read from its old end, and may be long: look at the last second, then further and
        further back until there are enough.
        """
        rows: list[Finished] = []
        look = FIRST_LOOK_MS
        while until > since and len(rows) < limit:
            start = max(since, until - look)
            last = deque(self.between(start, until), maxlen=limit - len(rows))
            rows = [*last, *rows]
            until, look = start, look * WIDEN
        return rows


def _row(finished: Finished, now: int) -> list[Cell]:
    message = finished.message
    status = finished.status
    return [
        message.id,
        ago(finished.finished_at, now),
        status if status == "COMPLETED" else (status, "yellow"),
        str(message.attempts),
        _took(finished),
        clean(message.key or ""),
        clean(message.type or ""),
        clean(finished.consumer or ""),
        show.short_payload(message),
    ]


def _took(finished: Finished) -> str:
    """From its last lease to its end."""
    if finished.last_leased_at is None:
        return ""
    return length(max(0, finished.finished_at - finished.last_leased_at) / 1000)
