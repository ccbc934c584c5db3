"""`holdfast doctor` and `holdfast migrate`: is the store well, and what is its schema."""

from __future__ import annotations

import click
import msgspec

from holdfast import InvalidArgument
from holdfast.cli import checks, show
from holdfast.cli.base import App, Command, pass_app

COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red"}


@click.command("doctor", cls=Command)
@pass_app
def doctor(app: App) -> None:
    """Look the store over: ok, warn or FAIL a line. Exit code 1 if anything failed."""
    failed = False
    for check in checks.run(app):
        failed = failed or check.status == "FAIL"
        if app.json:
            show.documents([msgspec.to_builtins(check)])
        else:
            status = click.style(f"{check.status:<4}", fg=COLOURS[check.status])
            click.echo(f"{status}  {check.check:<10}  {check.text}")
    if failed:
        raise click.exceptions.Exit(1)


@click.command("migrate", cls=Command)
@click.option("--sql", is_flag=True, help="Print the scripts instead, for a DBA.")
@pass_app
def migrate(app: App, sql: bool) -> None:
    """Bring the schema up to date. Connecting does so too."""
    url = app.store_url()
    scripts, name = checks.migrations(url), checks.without_password(url)
    if sql:
        if scripts is None:
            raise InvalidArgument("--sql", f"{name} has no scripts")
        return click.echo("\n".join(script.strip() for script in scripts))
    app.connect().close()
    version = None if scripts is None else len(scripts)
    if app.json:
        return show.documents([{"url": name, "schema": version}])
    return click.echo(f"{name}: schema {'as it must be' if version is None else version}")


COMMANDS = [doctor, migrate]
