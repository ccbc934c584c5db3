"""`holdfast key`: who may do what on a server."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.base import App, Group, confirm, pass_app
from holdfast.cli.kinds import SECONDS
from holdfast.cli.show import Column, ago, clean
from holdfast.server import auth
from holdfast.server.auth import Key

KEYS = [
    Column("ID"),
    Column("NAME", elastic=True),
    Column("ROLES"),
    Column("QUEUES", elastic=True),
    Column("CREATED", optional=True),
    Column("EXPIRES"),
    Column("STATE"),
]
STYLES = {"active": "green", "expired": "yellow", "revoked": "red"}


@click.group("key", cls=Group)
def key() -> None:
    """Make and revoke the keys that a server asks for."""


@key.command("create")
@click.option(
    "--role",
    "roles",
    metavar="ROLE",
    multiple=True,
    required=True,
    help="read, produce, consume or admin. May be given several times.",
)
@click.option(
    "--queues",
    metavar="PATTERN",
    multiple=True,
    required=True,
    help="Names with * for any characters: orders*. May be given several times.",
)
@click.option("--name", default="", help="Whose it is, or what for.")
@click.option("--expires", type=SECONDS, help="It ends after so long: 30d. Default never.")
@pass_app
def create(
    app: App, roles: tuple[str, ...], queues: tuple[str, ...], name: str, expires: float | None
) -> None:
    """Make a key and print it, this once: the store keeps only a hash."""
    with app.connect() as hf:
        made, token = auth.create(
            hf.context, roles=roles, queues=queues, name=name, expires_in=expires
        )
    if app.json:
        return show.documents([{**_doc(made, made.created_at), "key": token}])
    click.echo(token)
    # On stderr: what goes into a file, or to another program, is the key and nothing else.
    return click.echo(f"key {made.id}: keep it now, it is not shown again", err=True)


@key.command("list")
@pass_app
def list_(app: App) -> None:
    """Every key with what it may, also those that have ended."""
    with app.connect() as hf:
        found, now = auth.list_(hf.context), hf.context.clock.now()
    if app.json:
        return show.documents(_doc(key, now) for key in found)
    rows = [_row(key, now) for key in found]
    return show.table(KEYS, rows, empty="no keys yet; holdfast key create makes one")


@key.command("revoke")
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def revoke(app: App, id: str, yes: bool) -> None:
    """End a key for good. Servers refuse it within a second."""
    with app.connect() as hf:
        found = auth.get(hf.context, id)
        confirm(f"Revoke {_called(found)}?", yes=yes)
        ended, now = auth.revoke(hf.context, found.id), hf.context.clock.now()
    if app.json:
        return show.documents([_doc(ended, now)])
    if found.revoked_at is not None:
        return click.echo(f"{_called(found)} was revoked already")
    return click.echo(f"revoked {_called(ended)}")


COMMANDS = [key]


def _doc(key: Key, now: int) -> dict[str, Any]:
    return {**msgspec.to_builtins(key), "state": key.state(now)}


def _called(key: Key) -> str:
    return f"{key.id} ({clean(key.name)})" if key.name else key.id


def _row(key: Key, now: int) -> list[show.Cell]:
    state = key.state(now)
    return [
        key.id,
        clean(key.name),
        ", ".join(key.roles),
        ", ".join(key.queues),
        ago(key.created_at, now),
        "never" if key.expires_at is None else ago(key.expires_at, now),
        (state, STYLES[state]),
    ]
