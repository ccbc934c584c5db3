"""`holdfast spark archive, report, redrive, copy`: what Spark does with what a queue has done."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from holdfast import InvalidArgument
from holdfast.cli import show
from holdfast.cli.base import App, Command, pass_app
from holdfast.cli.kinds import MOMENT, SECONDS, When
from holdfast.cli.show import count
from holdfast.model import clock
from holdfast.model.moves import State

MASTER = click.option(
    "--master", help="Default: SPARK_MASTER, spark-defaults.conf's, else local[*]."
)
LAKE = click.argument("lake", metavar="LAKE")


@click.command("archive", cls=Command)
@LAKE
@click.option("--queue", "queues", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--late",
    type=SECONDS,
    default=600.0,
    help="How long after a handler's end its transaction may be committed. Default 600.",
)
@click.option("--slices", type=int, default=4, show_default=True, help="Pieces of a queue at once.")
@click.option("--forget", is_flag=True, help="Archive nothing: retention no longer waits for LAKE.")
@MASTER
@pass_app
def archive(
    app: App, lake: str, queues: tuple[str, ...], forget: bool, master: str | None, **options: Any
) -> None:
    """Add what has finished and died since the last run to Parquet files in LAKE.

    Each row once, also after a run that was killed. From the first run on, retention leaves in the
    store what is not in LAKE yet; --forget ends that.
    """
    with app.connect() as hf, _session(app, master, "archive") as (spark, tell):
        from holdfast.spark.lake.archive import archive as run
        from holdfast.spark.lake.archive import forget as give_up

        if forget:
            names = give_up(hf, lake, spark)
            if app.json:
                return show.documents([{"lake": lake, "forgotten": names}])
            return click.echo(f"retention no longer waits for {lake}: {', '.join(names) or 'none'}")
        done = run(hf, lake, list(queues) or None, spark=spark, progress=tell, **options)
    if app.json:
        return show.documents(
            [
                {
                    "lake": done.lake,
                    "run": done.run,
                    "queues": done.queues,
                    "log": done.log,
                    "dead": done.dead,
                    "total": done.total,
                    "upto": done.upto,
                }
            ]
        )
    rows = f"{count(done.log, 'row')} of the log, {count(done.dead, 'dead letter')}"
    return click.echo(f"added {rows}; {lake} holds {count(done.total, 'row')}")


@click.command("report", cls=Command)
@LAKE
@click.option("--queue", "queues", multiple=True, help="Only this one; may be repeated.")
@click.option("--since", type=MOMENT, help="Only what ended at or after this time.")
@click.option("--until", type=MOMENT, help="Only what ended before this time.")
@click.option("--title", default="What the queue did", show_default=True)
@click.option("--out", metavar="DIR", help="Default: a folder of LAKE for each report.")
@click.option("--keep", is_flag=True, help="Also in the store, where the dashboard shows it.")
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
@MASTER
@pass_app
def report(
    app: App,
    lake: str,
    queues: tuple[str, ...],
    since: When | None,
    until: When | None,
    keep: bool,
    open_it: bool,
    master: str | None,
    **options: Any,
) -> None:
    """What LAKE says: throughput, times, retries, failures, storms, keys; a page and tables.

    Reads the archive once. LAKE is what `holdfast spark archive` has written.
    """
    app.log_to_stderr()
    with _session(app, master, "report") as (spark, tell):
        from holdfast.spark.reports.making import report as run

        hf = app.connect() if keep or app.url else None
        try:
            done = run(
                lake,
                hf=hf,
                queues=list(queues) or None,
                since=_moment(since),
                until=_moment(until),
                spark=spark,
                progress=tell,
                **options,
            )
        finally:
            if hf is not None:
                hf.close()
    page = done.page.removeprefix("file:")
    if app.json:
        show.documents([{"page": page, "rows": done.rows, **done.summary}])
    else:
        said = done.summary
        click.echo(
            f"{count(said['done'], 'message')} done, {said['dead']:,} died, "
            f"{said['failure_groups']:,} kinds of failure, {said['storms']:,} storms"
        )
        click.echo(page)
    if open_it:
        click.launch(page)


@click.command("redrive", cls=Command)
@click.argument("dlq", metavar="DLQ")
@click.option("--receipt", metavar="DIR", required=True, help="A folder of this redrive alone.")
@click.option("--where", metavar="SQL", help="Only those; `parsed:customer.id::int = 7`, `cause`.")
@click.option("--to", help="Another queue than the one they came from.")
@click.option("--edit", metavar="SQL", help="The new payload, as JSON text.")
@click.option("--rate", type=float, help="Messages a second, of all tasks together.")
@MASTER
@pass_app
def redrive(
    app: App,
    dlq: str,
    where: str | None,
    edit: str | None,
    receipt: str,
    master: str | None,
    **options: Any,
) -> None:
    """Put dead letters back that a Spark SQL condition selects, in parallel.

    Run again with the same receipt, it does what is left to do of what it selected first.
    """
    with app.connect() as hf, _session(app, master, "redrive") as (spark, tell):
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as sql

        from holdfast.spark.lake.triage import redrive as run
        from holdfast.spark.lake.triage import triage

        frame = triage(hf, dlq, spark=spark)
        try:
            frame = frame if where is None else frame.where(where)
            frame = frame if edit is None else frame.withColumn("new_payload", sql.expr(edit))
        except PySparkException as error:
            raise InvalidArgument("--where" if edit is None else "--edit", _first(error)) from error
        column = None if edit is None else "new_payload"
        done = run(frame, edit=column, receipt=receipt, progress=tell, **options)
    if app.json:
        return show.documents(
            [
                {
                    "dlq": done.dlq,
                    "to": done.to,
                    "receipt": done.receipt,
                    "redriven": done.redriven,
                    "missing": done.missing,
                    "held": done.held,
                    "edit_failed": done.edit_failed,
                }
            ]
        )
    said = f"redrove {count(done.redriven, 'message')} of {done.dlq} to {done.to}"
    others = [("missing", done.missing), ("held", done.held), ("not edited", done.edit_failed)]
    rest = ", ".join(f"{n:,} {name}" for name, n in others if n)
    return click.echo(said + (f"; {rest}" if rest else ""))


@click.command("copy", cls=Command)
@click.argument("target", metavar="TARGET-URL")
@click.option("--queue", "queues", multiple=True, help="Only this one; may be repeated.")
@click.option("--move", is_flag=True, help="Delete the source when what arrived is equal.")
@MASTER
@pass_app
def copy(app: App, target: str, queues: tuple[str, ...], move: bool, master: str | None) -> None:
    """Take queues with all they hold to another store: ready, delayed, dead and logged.

    The source (--url) is paused and stays so. Both sides are compared before the target may be
    worked. Stop producers and workers first; run it again if it was killed.
    """
    with app.connect() as hf, _session(app, master, "copy") as (spark, tell):
        from holdfast.spark.lake.copying import copy as run

        done = run(hf, target, list(queues) or None, move=move, spark=spark, progress=tell)
    if app.json:
        return show.documents(
            [
                {"queue": one.queue, "state": one.state, "count": one.count}
                for one in done.sums
                if one.count
            ]
        )
    waiting = done.count(State.READY) + done.count(State.DELAYED)
    dead = done.count(State.READY, dead=True) + done.count(State.DELAYED, dead=True)
    log = done.count(State.LOG) + done.count(State.LOG, dead=True)
    return click.echo(
        f"{'moved' if move else 'copied'} {count(len(done.queues), 'queue')}: {waiting:,} waiting, "
        f"{dead:,} dead, {log:,} in the log; equal on both sides"
    )


COMMANDS = [archive, report, redrive, copy]


def _moment(when: When | None) -> datetime | None:
    """A lake has no clock of its own."""
    now = clock.wall_ms()
    return None if when is None else datetime.fromtimestamp(when.ms(now) / 1000, UTC)


def _first(error: Exception) -> str:
    """Spark says it on the first line, and then the plan."""
    return str(error).strip().splitlines()[0]


@contextmanager
def _session(
    app: App, master: str | None, name: str
) -> Generator[tuple[Any, Callable[[str], object]], None, None]:
    """A session of its own, with errors on one line; and who is told what it does."""
    from holdfast.spark.sessions import check_version, session

    check_version()
    from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
    from pyspark.errors import PySparkException

    from holdfast.spark import progress

    logging.getLogger("py4j").setLevel(logging.WARNING if app.verbose else logging.CRITICAL)
    with _telling(name) as tell:
        tell("starting Spark")
        made = session(app=f"holdfast-{name}", master=master)
        try:
            yield made, tell
        except (PySparkException, Py4JError) as error:
            raise click.ClickException(progress.cause_of(str(error))) from error
        finally:
            made.stop()


@contextmanager
def _telling(name: str) -> Generator[Callable[[str], object], None, None]:
    """What a long job does now, on a terminal; silence elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(name) as status:
        yield lambda doing: status.update(f"{name}: {doing}")
