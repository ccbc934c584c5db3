"""Lease and settle from shell scripts: `lease` prints JSON lines, the others take them back.

A lease is found again by its message and its token; whether it still holds, the store says.
"""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click
import msgspec

from holdfast import (
    Done,
    Fail,
    Holdfast,
    InvalidArgument,
    Lease,
    LeaseLost,
    Message,
    Release,
    Retry,
    Settled,
)
from holdfast.cli import shapes, show
from holdfast.cli.base import App, Command, exit_code, find_queue, pass_app, tell
from holdfast.cli.kinds import LIMIT, SECONDS
from holdfast.cli.show import length
from holdfast.model.message import check_id
from holdfast.model.payload import JSON
from holdfast.rules.outcome import Outcome
from holdfast.stores.contract import held_in

STDIN_MAX = 10_000
"""Leases that one call settles."""


class Ref(msgspec.Struct, frozen=True):
    """What is needed of a lease; the rest of the line that `lease` printed is ignored."""

    queue: str
    id: str
    token: str
    owner: str | None = None


@click.command("lease", cls=Command)
@click.argument("queue")
@click.option("--limit", type=LIMIT, default=1, show_default=True, help="At most so many.")
@click.option("--wait", type=SECONDS, default=0.0, help="For the first one. Default: do not.")
@click.option("--owner", help="Shown as who holds it. Default user@host.")
@pass_app
def lease(app: App, queue: str, limit: int, wait: float, owner: str | None) -> None:
    """Lease messages; each is a JSON line with its token. Nothing there: no line, exit code 0."""
    with app.connect() as hf:
        leases = find_queue(hf, queue).lease(limit, wait, owner=owner or _me())
    show.documents(shapes.of_lease(lease) for lease in leases)


def _lease_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("lease", nargs=-1, metavar="[QUEUE ID TOKEN]")(command)


@click.command("ack", cls=Command)
@_lease_arguments
@click.option("--result", metavar="JSON", help="Kept in the log.")
@pass_app
def ack(app: App, lease: tuple[str, ...], result: str | None) -> None:
    """Finished: to the log. Without arguments: each line that `lease` printed, from stdin."""
    _settle(app, _refs(lease), Done(None if result is None else _json("--result", result)), "acked")


@click.command("nack", cls=Command)
@_lease_arguments
@click.option("--error", help="What went wrong; kept on the message.")
@click.option("--code", help="Its code, by which dead letters are grouped.")
@click.option("--delay", type=SECONDS, help="Until the next try. Default: the queue's backoff.")
@pass_app
def nack(
    app: App, lease: tuple[str, ...], error: str | None, code: str | None, delay: float | None
) -> None:
    """It did not work: again later, or dead when out of attempts."""
    _settle(app, _refs(lease), Retry(error, delay=delay, code=code), "nacked")


@click.command("fail", cls=Command)
@_lease_arguments
@click.option("--error", default="failed", help="What went wrong; kept on the message.")
@click.option("--code", help="Its code, by which dead letters are grouped.")
@pass_app
def fail(app: App, lease: tuple[str, ...], error: str, code: str | None) -> None:
    """It will never work: to the dead letters at once."""
    _settle(app, _refs(lease), Fail(error, code=code), "failed")


@click.command("release", cls=Command)
@_lease_arguments
@click.option("--delay", type=SECONDS, help="Until it comes again. Default: at once.")
@pass_app
def release(app: App, lease: tuple[str, ...], delay: float | None) -> None:
    """Give it back; this delivery does not count."""
    _settle(app, _refs(lease), Release(delay=delay), "released")


@click.command("extend", cls=Command)
@click.argument("lease", nargs=-1, metavar="[QUEUE ID TOKEN] [SECONDS]")
@pass_app
def extend(app: App, lease: tuple[str, ...]) -> None:
    """Hold it for SECONDS from now, or for its own time-out."""
    lease, seconds = _split_seconds(lease)
    refs, lost = _refs(lease), list[str]()
    with app.connect() as hf:
        for queue, held in _by_queue(refs):
            handle = find_queue(hf, queue)
            leases, gone = _leases(hf, queue, held)
            for one in leases:
                try:
                    longer = handle.extend(one, seconds)
                    _said_extended(app, longer, hf.context.clock.now())
                except LeaseLost as error:
                    lost.append(gone.get(one.token, str(error)))
    _tell_lost(lost)


COMMANDS = [lease, ack, nack, fail, release, extend]


def _settle(app: App, refs: list[Ref], outcome: Outcome, word: str) -> None:
    """End each lease, in one write a queue; a lost one never fails its neighbours."""
    lost: list[str] = []
    with app.connect() as hf:
        for queue, held in _by_queue(refs):
            handle = find_queue(hf, queue)
            leases, gone = _leases(hf, queue, held)
            answers = handle.settle([(one, outcome) for one in leases])
            for one, answer in zip(leases, answers, strict=True):
                if answer is not Settled.STALE:
                    _said(app, queue, one.id, word)
                else:
                    moved_on = f"{one.id}: this lease has ended, the message moved on"
                    lost.append(gone.get(one.token, moved_on))
    _tell_lost(lost)


def _tell_lost(lost: list[str]) -> None:
    """A line for each, and the exit code of a lost lease."""
    for problem in lost:
        tell(problem)
    if lost:
        raise click.exceptions.Exit(exit_code(LeaseLost()))


def _said(app: App, queue: str, id: str, word: str) -> None:
    if app.json:
        show.documents([{"queue": queue, "id": id, "outcome": word}])
    else:
        click.echo(f"{word} {id}")


def _said_extended(app: App, lease: Lease, now: int) -> None:
    if app.json:
        ref = Ref(lease.message.queue, lease.id, lease.token, lease.owner)
        show.documents([{**msgspec.structs.asdict(ref), "deadline": lease.deadline}])
    else:
        click.echo(f"extended {lease.id}, for {length(max(0, lease.deadline - now) / 1000)}")


def _refs(words: tuple[str, ...]) -> list[Ref]:
    """The lease that the arguments name, or those that stdin holds."""
    if len(words) == 3:
        queue, id, token = words
        return [Ref(queue, check_id(id), token)]
    if words:
        raise click.UsageError("name a lease by QUEUE ID TOKEN, or pipe in what lease printed")
    if sys.stdin.isatty():
        raise click.UsageError("give QUEUE ID TOKEN, or pipe in what lease printed")
    lines = sys.stdin.buffer.readlines()
    refs = [_ref(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if len(refs) > STDIN_MAX:
        raise InvalidArgument("stdin", f"{len(refs)} leases; the limit is {STDIN_MAX}")
    return refs


def _ref(number: int, line: bytes) -> Ref:
    try:
        ref = msgspec.json.decode(line, type=Ref)
        return msgspec.structs.replace(ref, id=check_id(ref.id))
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidArgument) as error:
        raise InvalidArgument(f"line {number}", f"not what lease prints: {error}") from error


def _by_queue(refs: Iterable[Ref]) -> list[tuple[str, list[Ref]]]:
    queues: dict[str, list[Ref]] = {}
    for ref in refs:
        queues.setdefault(ref.queue, []).append(ref)
    return [*queues.items()]


def _leases(hf: Holdfast, queue: str, refs: list[Ref]) -> tuple[list[Lease], dict[str, str]]:
    """The leases as the store may still know them, and why those have ended that it cannot.

    These are settled as well: the store knows a call that was repeated.
    """
    there = {message.id: message for message in held_in(hf.store, queue, [ref.id for ref in refs])}
    leases: list[Lease] = []
    lost: dict[str, str] = {}
    for ref in refs:
        message = there.get(ref.id)
        if message is None:
            lost[ref.token] = f"{ref.id}: this lease has ended, {queue} holds the message no more"
            message = Message(ref.id, queue, 0, 0, None, None, b"", JSON, {}, 0, 0, 1)
        elif message.queue != queue:
            lost[ref.token] = f"{ref.id}: this lease has ended, the message is in {message.queue}"
            message = msgspec.structs.replace(message, queue=queue)
        leases.append(_lease(message, ref))
    return leases, lost


def _lease(message: Message, ref: Ref) -> Lease:
    # Deadline and start are not compared: the token is the truth.
    return Lease(message, ref.token, deadline=0, leased_at=0, owner=ref.owner or _me())


def _split_seconds(words: tuple[str, ...]) -> tuple[tuple[str, ...], float | None]:
    if len(words) in (1, 4):
        return words[:-1], SECONDS.convert(words[-1], None, None)
    return words, None


def _json(field: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(field, f"not JSON: {error}") from error


def _me() -> str:
    """Stable from one command to the next, unlike a process id."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()
