"""`holdfast enqueue`: one message from the command line, or many from JSON lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from holdfast import Holdfast, InvalidArgument, Message, Outgoing, Queue, QueueNotFound
from holdfast.cli import bulk, shapes, show
from holdfast.cli.base import App, Command, find_queue, pass_app
from holdfast.cli.kinds import HEADER, SECONDS
from holdfast.cli.show import ago, count
from holdfast.model.payload import BYTES, JSON

TEXT = "text/plain"


@click.command("enqueue", cls=Command)
@click.argument("queue")
@click.argument("payload", required=False)
@click.option("--file", "-f", metavar="FILE", help="JSON lines, a message each; - is stdin.")
@click.option("--envelope", is_flag=True, help='Lines are {"payload": ..., "key": ..., ...}.')
@click.option("--text", is_flag=True, help="The payload is text, not JSON.")
@click.option("--raw", is_flag=True, help="The payload is bytes: all of FILE or stdin.")
@click.option("--content-type", metavar="TYPE", help="Of text or bytes.")
@click.option("--key", help="Messages of one key go to one partition.")
@click.option("--type", "type_", metavar="TYPE", help="Handlers may ask for one type.")
@click.option("--priority", type=int, default=0, help="0 to 9, highest first. Default 0.")
@click.option("--delay", type=SECONDS, help="Hold it back so long: 30, 5m, 2h.")
@click.option("--header", type=HEADER, multiple=True, help="May be given several times.")
@click.option("--id", "id_", metavar="UUID", help="Your own; one that is held adds nothing.")
@click.option("--ack-timeout", type=SECONDS, help="Its own lease time.")
@click.option("--max-attempts", type=int, help="Its own number of deliveries.")
@click.option("--create", is_flag=True, help="Make the queue if it is not there.")
@pass_app
def enqueue(app: App, queue: str, payload: str | None, **options: Any) -> None:
    """Enqueue PAYLOAD, or a message a JSON line.

    PAYLOAD is JSON. Lines come from --file or stdin, each the payload of a message, and are stored
    in chunks of up to 1,000. An invalid line stops the command: nothing of its chunk is stored,
    what came before is, and the error says how many.
    """
    file, create = options.pop("file"), options.pop("create")
    source = _source(payload, file)
    whole = options.pop("text"), options.pop("raw")
    envelope = options.pop("envelope")
    template = _template(options)
    with app.connect() as hf:
        target = _target(hf, queue, create=create)
        if source is None or any(whole):
            body = os.fsencode(payload or "") if source is None else _all_of(source)
            return _one(app, target, _single(body, *whole, template))
        if template.id is not None:
            raise click.UsageError("--id names one message; give it in the lines, with --envelope")
        return _many(app, target, source, template, envelope=envelope)


COMMANDS = [enqueue]


def _source(payload: str | None, file: str | None) -> str | None:
    """Where messages are read from; None for the one on the command line."""
    if payload is not None:
        if file is not None:
            raise click.UsageError("give PAYLOAD or --file, not both")
        return None
    if file is None and sys.stdin.isatty():
        raise click.UsageError("no payload: give PAYLOAD, --file FILE, or pipe JSON lines in")
    return file or "-"


def _template(options: dict[str, Any]) -> Outgoing:
    """What the options say about every message."""
    headers = dict(options.pop("header"))
    return Outgoing(
        None, id=options.pop("id_"), type=options.pop("type_"), headers=headers or None, **options
    )


def _target(hf: Holdfast, name: str, *, create: bool) -> Queue:
    try:
        return hf.queue(name) if create else find_queue(hf, name)
    except QueueNotFound as error:
        raise QueueNotFound(f"{error} (--create makes it)") from None


def _single(body: bytes, text: bool, raw: bool, template: Outgoing) -> Outgoing:
    if text and raw:
        raise click.UsageError("--text or --raw, not both")
    given = template.content_type
    if text and given is not None and not given.startswith("text/"):
        raise click.UsageError(f"--text with content type {given}: use --raw")
    kind = given or (TEXT if text else BYTES if raw else JSON)
    return msgspec.structs.replace(template, payload=body, content_type=kind)


def _one(app: App, queue: Queue, outgoing: Outgoing) -> None:
    try:
        message = queue.enqueue_many([outgoing])[0]
    except InvalidArgument as error:
        if error.field == "payload" and error.problem.startswith("not JSON"):
            raise InvalidArgument("payload", f"{error.problem}; --text sends text") from error
        raise
    if app.json:
        doc = {**shapes.of_message(message), "duplicate": message.duplicate}
        return show.documents([doc])
    return click.echo(_said(message))


def _said(message: Message) -> str:
    if message.duplicate:
        return f"{message.queue} holds {message.id} already; nothing was stored"
    due = ago(message.available_at, message.enqueued_at)
    return f"enqueued {message.id} in {message.queue}" + ("" if due == "now" else f", due {due}")


def _many(app: App, queue: Queue, source: str, template: Outgoing, *, envelope: bool) -> None:
    with _open(source) as lines:
        stored = bulk.enqueue_lines(queue, lines, template, envelope=envelope)
    if app.json:
        doc = {"queue": queue.name, "stored": stored.stored, "duplicates": stored.duplicates}
        return show.documents([doc])
    held = f"; {stored.duplicates:,} were held already" if stored.duplicates else ""
    return click.echo(f"enqueued {count(stored.stored, 'message')} in {queue.name}{held}")


def _all_of(source: str) -> bytes:
    with _open(source) as stream:
        return stream.read()


def _open(source: str) -> IO[bytes]:
    if source == "-":
        return sys.stdin.buffer
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise InvalidArgument("--file", f"{source}: {error.strerror}") from error
