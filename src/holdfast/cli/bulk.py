"""Many messages from JSON lines: in chunks, each stored whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import IO, Any

import msgspec

from holdfast import HoldfastError, InvalidArgument, Message, Outgoing, Queue
from holdfast.cli.show import count
from holdfast.model.payload import JSON

CHUNK_LINES = 1000
CHUNK_BYTES = 8 * 1024 * 1024
LINE_BYTES = 64 * 1024 * 1024
"""What is longer comes in pieces, and the first piece is refused."""


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """A line that says more than a payload; what it leaves out the options say."""

    payload: msgspec.Raw
    id: str | None = None
    key: str | None = None
    type: str | None = None
    priority: int | None = None
    delay: float | None = None
    headers: dict[str, str] | None = None
    ack_timeout: float | None = None
    max_attempts: int | None = None


class Line(msgspec.Struct, frozen=True):
    number: int
    text: bytes


class Stored(msgspec.Struct):
    stored: int = 0
    duplicates: int = 0
    upto: int = 0
    """The last line whose chunk is stored."""


def enqueue_lines(queue: Queue, lines: IO[bytes], template: Outgoing, *, envelope: bool) -> Stored:
    """Enqueue a message a line. A line that is wrong ends it, with nothing of its chunk stored."""
    so_far = Stored()
    with _progress(lines) as advance:
        for chunk in _chunks(lines):
            try:
                messages = _enqueue(queue, chunk, template, envelope=envelope)
            except HoldfastError as error:
                raise _stopped(error, chunk, so_far) from error
            held = sum(message.duplicate for message in messages)
            so_far.stored += len(messages) - held
            so_far.duplicates += held
            so_far.upto = chunk[-1].number
            advance(sum(len(line.text) for line in chunk), so_far.stored)
    return so_far


class BadLine(InvalidArgument):
    def __init__(self, line: Line, problem: str) -> None:
        super().__init__(f"line {line.number}", problem)


class Stopped(HoldfastError):
    """What stopped it, with what was stored before; exits as its cause would."""

    def __init__(self, cause: HoldfastError, said: str) -> None:
        super().__init__(f"{cause}; {said}")
        self.code = cause.code


def _chunks(lines: IO[bytes]) -> Iterator[list[Line]]:
    chunk: list[Line] = []
    held = 0
    for number, text in enumerate(iter(lambda: lines.readline(LINE_BYTES), b""), 1):
        if not text.strip():
            continue
        chunk.append(Line(number, text))
        held += len(text)
        if len(chunk) >= CHUNK_LINES or held >= CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _enqueue(
    queue: Queue, chunk: list[Line], template: Outgoing, *, envelope: bool
) -> list[Message]:
    make = _from_envelope if envelope else _from_payload
    items = [make(line, template) for line in chunk]
    try:
        return queue.enqueue_many(items)
    except InvalidArgument as error:
        raise BadLine(chunk[error.index or 0], str(error)) from error


def _from_payload(line: Line, template: Outgoing) -> Outgoing:
    return msgspec.structs.replace(template, payload=line.text.strip(), content_type=JSON)


def _from_envelope(line: Line, template: Outgoing) -> Outgoing:
    try:
        envelope = msgspec.json.decode(line.text, type=Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadLine(line, f"no envelope: {error}") from error
    given = {k: v for k, v in msgspec.structs.asdict(envelope).items() if v is not None}
    given["payload"] = bytes(envelope.payload)
    return msgspec.structs.replace(template, content_type=JSON, **given)


def _stopped(error: HoldfastError, chunk: list[Line], so_far: Stored) -> Stopped:
    first, last = chunk[0].number, chunk[-1].number
    before = "nothing was stored before"
    if so_far.upto:
        before = f"{count(so_far.stored, 'message')} of lines 1 to {so_far.upto} stored before"
    return Stopped(error, f"lines {first} to {last} were not stored, {before}")


@contextmanager
def _progress(lines: IO[bytes]) -> Generator[Callable[[int, int], None], None, None]:
    """A bar of the bytes read, on a terminal; silence elsewhere."""
    if not sys.stderr.isatty():
        yield lambda read, stored: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("enqueueing", total=_size(lines))

        def advance(read: int, stored: int) -> None:
            bar.update(task, advance=read, description=f"{stored:,} enqueued")

        yield advance


def _size(lines: Any) -> int | None:
    try:
        return os.fstat(lines.fileno()).st_size or None
    except OSError:
        return None
