"""`holdfast dlq`: why messages died, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import click
import msgspec

from holdfast import ErrorInfo, Holdfast, Message, MessageNotFound, Queue, State
from holdfast.cli import shapes, show
from holdfast.cli.base import App, Group, find_queue, near_dlq, pass_app
from holdfast.cli.kinds import LIMIT
from holdfast.cli.show import Column, ago, clean, number
from holdfast.model.message import dlq_of, is_dlq

SCAN = 10_000
"""Dead letters of a queue that are looked at to group them: the oldest."""


@click.group("dlq", cls=Group)
def dlq() -> None:
    """Look at dead letters."""


@dlq.command("list")
@click.argument("queue", required=False)
@click.option(
    "--scan", type=LIMIT, default=SCAN, show_default=True, help="Look at so many of each queue."
)
@pass_app
def list_(app: App, queue: str | None, scan: int) -> None:
    """Dead letters by queue, reason and last error: how many, since when."""
    with app.connect() as hf:
        names = [dead_letter_queue(hf, queue).name] if queue else _all_dlqs(hf)
        found = [group for name in names for group in groups(hf, name, scan)]
        held = sum(_held(find_queue(hf, name)) for name in names)
        now = hf.context.clock.now()
    if app.json:
        return show.documents(group.doc() for group in found)
    show_groups(found, now)
    if held > (seen := sum(group.count for group in found)):
        click.echo(f"the oldest {seen:,} of {held:,} were looked at; --scan N looks at more")
    return None


@dlq.command("show")
@click.argument("queue")
@click.argument("id", required=False)
@click.option(
    "--limit", type=LIMIT, default=5, show_default=True, help="So many, the oldest first."
)
@pass_app
def show_(app: App, queue: str, id: str | None, limit: int) -> None:
    """Dead letters with payload, headers and every error. QUEUE is orders or orders.dlq."""
    with app.connect() as hf:
        letters = dead_letter_queue(hf, queue)
        found = [_one(letters, id)] if id else list(islice(_letters(letters), limit))
        total = _held(letters)
        now = hf.context.clock.now()
    if app.json:
        return show.documents(shapes.of_message(message) for message in found)
    for message in found:
        _show_letter(message, now)
    if not found:
        click.echo(f"{letters.name} holds no dead letters")
    elif not id and total > len(found):
        click.echo(f"{len(found):,} of {total:,} shown; --limit N shows more")
    return None


COMMANDS = [dlq]


class DeadGroup(msgspec.Struct):
    """Dead letters of one queue that died of the same thing."""

    dlq: str
    reason: str | None
    code: str | None
    count: int
    oldest: Message
    """The one that died first."""

    def doc(self) -> dict[str, Any]:
        last = last_error(self.oldest)
        return {
            "dlq": self.dlq,
            "reason": self.reason,
            "code": self.code,
            "count": self.count,
            "oldest_dead_at": self.oldest.dead_at,
            "oldest_id": self.oldest.id,
            "example": last and last.message,
        }


def groups(hf: Holdfast, name: str, scan: int) -> list[DeadGroup]:
    """The largest first."""
    if hf.context.spec(name) is None:
        return []
    found: dict[tuple[str | None, str | None], DeadGroup] = {}
    for message in islice(_letters(find_queue(hf, name)), scan):
        last = last_error(message)
        key = message.reason, last and last.code
        group = found.setdefault(key, DeadGroup(name, *key, 0, message))
        group.count += 1
        if (message.dead_at or 0) < (group.oldest.dead_at or 0):
            group.oldest = message
    return sorted(found.values(), key=lambda group: -group.count)


def show_groups(found: Iterable[DeadGroup], now: int) -> None:
    columns = [
        Column("DEAD LETTERS OF"),
        Column("REASON"),
        Column("LAST ERROR"),
        number("COUNT"),
        Column("OLDEST"),
        Column("FOR EXAMPLE", elastic=True),
    ]
    show.table(columns, [_row(group, now) for group in found], empty="no dead letters")


def dead_letter_queue(hf: Holdfast, name: str) -> Queue:
    """The dead letters of a queue, by its name or by theirs."""
    wanted = dlq_of(name)
    if hf.context.spec(wanted) is None:
        raise near_dlq(hf, wanted)
    return find_queue(hf, wanted)


def last_error(message: Message) -> ErrorInfo | None:
    return message.errors[-1] if message.errors else None


def _row(group: DeadGroup, now: int) -> list[show.Cell]:
    last = last_error(group.oldest)
    return [
        group.dlq.removesuffix(".dlq"),
        clean(group.reason or ""),
        (clean(group.code or ""), "red"),
        f"{group.count:,}",
        ago(group.oldest.dead_at, now),
        clean(last.message)[: show.PAYLOAD_SHOWN] if last else "",
    ]


def _letters(letters: Queue) -> Iterator[Message]:
    """A dead letter may also be leased by somebody who looks at it, or put back for later."""
    states = (letters.browse(state) for state in (State.READY, State.DELAYED, State.LEASED))
    return (entry.message for entry in chain.from_iterable(states))


def _one(letters: Queue, id: str) -> Message:
    message = letters.get(id)
    if not is_dlq(message.queue):
        raise MessageNotFound(f"{id} is not dead: it is in {message.queue}")
    return message


def _held(letters: Queue) -> int:
    stats = letters.stats()
    return stats.ready + stats.delayed + stats.leased


def _all_dlqs(hf: Holdfast) -> list[str]:
    return [spec.name for spec in hf.store.queues() if is_dlq(spec.name)]


def _show_letter(message: Message, now: int) -> None:
    show.heading(message.id)
    show.pairs(_facts(message, now), indent=2)
    for error in message.errors:
        show.pairs(_error(error, now), indent=2)
    click.echo()


def _facts(message: Message, now: int) -> list[tuple[str, str]]:
    facts = [
        ("died", f"{ago(message.dead_at, now)}: {clean(message.reason or 'no reason was kept')}"),
        ("came from", message.source or ""),
        ("enqueued", ago(message.enqueued_at, now)),
        ("attempts", str(message.attempts)),
        ("redriven", f"{message.redriven} times" if message.redriven else ""),
        ("key", clean(message.key or "")),
        ("type", clean(message.type or "")),
        ("priority", str(message.priority) if message.priority else ""),
        ("headers", "\n".join(clean(f"{k}={v}") for k, v in message.headers.items())),
        ("payload", show.whole_payload(message)),
    ]
    return [(name, value) for name, value in facts if value]


def _error(error: ErrorInfo, now: int) -> list[tuple[str, str]]:
    where = f" in {clean(error.handler)}" if error.handler else ""
    who = f", {clean(error.consumer)}" if error.consumer else ""
    told = f"{error.message}\n{error.traceback}" if error.traceback else error.message
    lines = "\n".join(clean(line) for line in told.rstrip("\n").split("\n"))
    return [
        (
            f"attempt {error.attempt}",
            f"{clean(error.code)}{where}, {ago(error.at, now)}{who}\n{lines}",
        )
    ]
