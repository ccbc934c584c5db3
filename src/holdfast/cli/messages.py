"""`holdfast peek`: look at messages without touching them."""

from __future__ import annotations

from itertools import islice

import click

from holdfast import Lease, Message, State
from holdfast.cli import shapes, show
from holdfast.cli.base import App, Command, find_queue, pass_app
from holdfast.cli.kinds import LIMIT
from holdfast.cli.show import Cell, Column, ago, clean, number
from holdfast.stores.contract import Entry

STATES = [state.value for state in (State.READY, State.DELAYED, State.LEASED)]
COLUMNS = [
    Column("ID"),
    Column("ENQUEUED"),
    Column("DUE"),
    Column("DEADLINE"),
    Column("OWNER", optional=True),
    number("ATTEMPTS", optional=True),
    number("PRIORITY", optional=True),
    Column("KEY", optional=True),
    Column("TYPE", optional=True),
    Column("PAYLOAD", elastic=True),
]


@click.command("peek", cls=Command)
@click.argument("queue")
@click.option("--state", type=click.Choice(STATES), default="ready", show_default=True)
@click.option("--limit", type=LIMIT, default=10, show_default=True, help="So many, in lease order.")
@pass_app
def peek(app: App, queue: str, state: str, limit: int) -> None:
    """Look at messages in lease order without touching them."""
    with app.connect() as hf:
        entries = list(islice(find_queue(hf, queue).browse(state), limit))
        now = hf.context.clock.now()
    if app.json:
        return show.documents(_doc(entry) for entry in entries)
    return show.table(
        COLUMNS, [_row(entry, now) for entry in entries], empty=f"{queue}: nothing is {state}"
    )


COMMANDS = [peek]


def _doc(entry: Entry) -> dict[str, object]:
    return shapes.of_lease(entry.lease) if entry.lease else shapes.of_message(entry.message)


def _row(entry: Entry, now: int) -> list[Cell]:
    message, lease = entry.message, entry.lease
    return [
        message.id,
        ago(message.enqueued_at, now),
        ago(message.available_at, now) if message.available_at > now else "",
        _deadline(lease, now),
        clean(lease.owner) if lease else "",
        str(message.attempts) if message.attempts else "",
        str(message.priority) if message.priority else "",
        *_names(message),
        show.short_payload(message),
    ]


def _deadline(lease: Lease | None, now: int) -> Cell:
    if lease is None:
        return ""
    if lease.deadline > now:
        return ago(lease.deadline, now)
    return f"overdue {ago(lease.deadline, now)}".removesuffix(" ago"), "red"


def _names(message: Message) -> list[str]:
    return [clean(message.key or ""), clean(message.type or "")]
