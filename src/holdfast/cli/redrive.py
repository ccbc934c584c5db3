"""`holdfast redrive`: dead letters back into a queue, all of them or those that are chosen."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from holdfast import DeadFilter, Edit, Progress, QueueNotFound, Redriven
from holdfast.cli import show
from holdfast.cli.base import INTERRUPTED, App, Command, confirm, near_dlq, pass_app
from holdfast.cli.kinds import HEADER, SECONDS
from holdfast.cli.show import count
from holdfast.model.message import is_dlq


class Json(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            self.fail(f"not JSON: {error}", param, ctx)


class Field(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """customer.id=7: a dotted path, and a JSON value; what is no JSON is text."""

    name = "path=json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        path, equals, text = value.partition("=")
        if not equals or not path:
            self.fail(f"{value!r}: write path=value", param, ctx)
        try:
            return path, msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            return path, text


@click.command("redrive", cls=Command)
@click.argument("dlq", metavar="DLQ")
@click.option("--count", default=0, help="Only so many, the oldest first. Default all.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Only this one; may be repeated.")
@click.option("--reason", help="Only those that died of it, as `dlq list` shows it.")
@click.option("--code", help="Only those with this code in their last error.")
@click.option("--key", help="Only those of this key.")
@click.option("--type", "type_", metavar="TYPE", help="Only those of this type.")
@click.option("--older-than", type=SECONDS, help="Only those that died so long ago: 1h, 2d.")
@click.option("--newer-than", type=SECONDS, help="Only those that died since: 10m.")
@click.option("--header", "headers", type=HEADER, multiple=True, help="May be repeated.")
@click.option("--field", "fields", type=Field(), multiple=True, help="Of a JSON payload.")
@click.option("--fingerprint", help="Only those of a failure group (of the dashboard).")
@click.option("--rate", type=float, help="At most so many a second.")
@click.option("--to", metavar="QUEUE", help="Into this queue. Default the one they came from.")
@click.option("--payload", type=Json(), default=None, help="Replace their payload by this.")
@click.option("--merge", type=Json(), default=None, help="Merge this into their JSON payload.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
@click.option("--yes", is_flag=True, help="Do not ask before payloads are replaced.")
@pass_app
def redrive(app: App, dlq: str, yes: bool, **options: Any) -> None:
    """Put dead letters back into their queue, with all their attempts.

    Those that die while it runs are left alone. Ctrl-C stops it after the batch it is at, and says
    how many were moved.
    """
    edit = _edit(options)
    asked = {name: options[name] for name in ("count", "rate", "to", "dry_run")}
    asked |= {"ids": options["ids"] or None, "where": _where(options), "edit": edit}
    if edit is not None and not options["dry_run"] and len(options["ids"]) != 1:
        confirm(f"change the payload of dead letters of {dlq}, which cannot be undone?", yes=yes)
    with app.connect() as hf:
        try:
            with _progress(dlq) as progress, _cancelled_by_ctrl_c() as cancel:
                moved = hf.redrive(dlq, **asked, progress=progress, cancel=cancel)
        except QueueNotFound:
            if hf.context.spec(dlq) is not None:
                raise
            raise near_dlq(hf, dlq) from None
    if app.json:
        show.documents([msgspec.to_builtins(moved)])
    else:
        click.echo(_said(moved))
    if moved.cancelled:
        raise click.exceptions.Exit(INTERRUPTED)


COMMANDS = [redrive]


def _where(options: dict[str, Any]) -> DeadFilter | None:
    given: dict[str, Any] = {
        "reason": options["reason"],
        "code": options["code"],
        "key": options["key"],
        "type": options["type_"],
        "older_than": options["older_than"],
        "newer_than": options["newer_than"],
        "headers": dict(options["headers"]) or None,
        "fields": dict(options["fields"]) or None,
        "fingerprint": options["fingerprint"],
    }
    given = {name: value for name, value in given.items() if value is not None}
    return DeadFilter(**given) if given else None


def _edit(options: dict[str, Any]) -> Edit | None:
    context = click.get_current_context()
    given = {
        name: options[name]
        for name in ("payload", "merge")
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    if len(given) == 2:
        raise click.UsageError("--payload or --merge, not both")
    return Edit(**given) if given else None


def _said(moved: Redriven) -> str:
    verb = "would redrive" if moved.dry_run else "redrove"
    source = moved.dlq.removesuffix(".dlq") if is_dlq(moved.dlq) else moved.dlq
    elsewhere = f" to {moved.to}" if moved.to not in ("", source) else ""
    said = f"{verb} {count(moved.redriven, 'message')} of {moved.dlq}{elsewhere}"
    notes = [
        f"{moved.missing:,} not there" if moved.missing else "",
        f"{moved.skipped:,} skipped: held by others, or there already" if moved.skipped else "",
        "cancelled" if moved.cancelled else "",
    ]
    return "; ".join([said, *filter(None, notes)])


@contextmanager
def _cancelled_by_ctrl_c() -> Generator[threading.Event, None, None]:
    """The first Ctrl-C sets the event; a second one ends it where it is."""
    cancel = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return

    def on_signal(*_: Any) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(dlq: str) -> Generator[Callable[[Progress], None], None, None]:
    """A bar of the dead letters looked at, on a terminal; silence elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"redriving {dlq}", total=None)

        def advance(now: Progress) -> None:
            text = f"{now.redriven:,} redriven"
            bar.update(task, completed=now.looked, total=now.total, description=text)

        yield advance
