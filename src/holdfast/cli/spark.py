"""`holdfast spark`: run handlers on Spark, and look after the queries that do; see lake.py too."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import threading
from types import FrameType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import click
import msgspec

from holdfast import FailedPrecondition, Holdfast, InvalidArgument
from holdfast.cli import lake, show
from holdfast.cli.base import App, Group, confirm, pass_app
from holdfast.cli.kinds import SECONDS
from holdfast.cli.show import Column, ago, clean, count, number
from holdfast.cli.work import _load, _split  # pyright: ignore[reportPrivateUsage]
from holdfast.errors import did_you_mean
from holdfast.stores.contract import QueueStats
from holdfast.work import ledger
from holdfast.work.ledger import Query

logger = logging.getLogger("holdfast.spark")

COLUMNS = [
    Column("QUERY"),
    Column("NAME", elastic=True),
    Column("QUEUE", elastic=True),
    Column("STATE"),
    number("HELD"),
    number("BATCH"),
    number("BEHIND"),
    number("DONE", optional=True),
    number("RETRIED", optional=True),
    number("DEAD", optional=True),
    Column("SEEN", optional=True),
]
STYLES = {"running": "green", "in doubt": "red", "gone": "yellow"}

QUIET = (
    # They tell of a query's error with its Java stack; it is reported on one line.
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.util.Utils",
    # Says of every stream that one setting is of no use for it.
    "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream",
)


@click.group("spark", cls=Group)
def spark() -> None:
    """Run handlers on Spark; archive, report, redrive and copy with it."""


@spark.command("work")
@click.argument("target", metavar="MODULE:ATTR")
@click.option("--queue", required=True, help="The queue to work.")
@click.option("--master", help="Default: SPARK_MASTER, spark-defaults.conf's, else local[*].")
@click.option("--sink", metavar="DIR", help="A folder for what the handlers return, as Parquet.")
@click.option("--checkpoint", metavar="DIR", help="This query's own. Default: in your data folder.")
@click.option("--name", help="What the query is called. Default: as the queue.")
@click.option("--max-messages", type=int, help="Of one batch at most. Default 50,000.")
@click.option("--slices", type=int, help="Pieces of a batch that run at once. Default 4.")
@click.option(
    "--executor", type=click.Choice(["thread", "process"]), default="thread", show_default=True
)
@click.option("--concurrency", default=1, show_default=True, help="Handlers at once, a slice.")
@click.option("--time-limit", type=SECONDS, help="Ends a handler (executor process, or async).")
@click.option(
    "--on-lost",
    type=click.Choice(["hold", "redeliver"]),
    default="hold",
    show_default=True,
    help="What becomes of its batch when this query is gone.",
)
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="For Prometheus, on 127.0.0.1.")
@click.option("--until-empty", is_flag=True, help="End when what is ready now is worked off.")
@pass_app
def work(app: App, target: str, queue: str, master: str | None, **options: Any) -> None:
    """Run the handlers that an application has for a queue, on Spark.

    MODULE:ATTR is its Holdfast object, for example app:hf. Runs until SIGTERM or Ctrl-C: the first
    signal lets the batch that runs finish, a second one ends at once and leaves it held.
    """
    if app.url:
        raise click.UsageError("work has no --url: the application says which store it uses")
    hf = _load(*_split(target))
    _check(target, hf, queue)
    app.log_to_stderr(logging.INFO)
    # It tells of every call, and of an error with the whole stack; that is reported on one line.
    logging.getLogger("py4j").setLevel(logging.WARNING if app.verbose else logging.CRITICAL)
    with hf:
        raise click.exceptions.Exit(_work(app, hf, queue, master, options))


@spark.command("queries")
@pass_app
def queries(app: App) -> None:
    """Every query that the store knows of, and how far it is.

    A query is running when it holds a batch, idle when it holds none, gone when nothing was heard
    of it for a minute, and in doubt when it is gone with a batch that it may have handed on.
    """
    with app.connect() as hf:
        found = ledger.queries(hf.context)
        known = {spec.name for spec in hf.store.queues()}
        now = hf.context.clock.now()
        names = list(dict.fromkeys(query.queue for query in found if query.queue in known))
        stats = {one.queue: one for one in hf.store.stats(names, now)} if names else {}
    if app.json:
        return show.documents(_doc(query, stats.get(query.queue), now) for query in found)
    rows = [_row(query, stats.get(query.queue), now) for query in found]
    return show.table(COLUMNS, rows, empty="no query has read from this store")


@spark.command("abandon")
@click.argument("query_id", metavar="QUERY")
@click.option("--force", is_flag=True, help="Also when the query is alive; it will stop.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_app
def abandon(app: App, query_id: str, force: bool, yes: bool) -> None:
    """Give back what a query holds, for others to work on.

    What the query had handed on before it was lost is delivered a second time. Should it come back,
    it goes on without this batch.
    """
    with app.connect() as hf:
        query = _find(hf, query_id)
        now = hf.context.clock.now()
        if ledger.is_alive(query, now) and not query.stopping and not force:
            raise FailedPrecondition(
                f"query {query.id} is alive, seen {ago(query.seen_at, now)}: stop it first; "
                "--force takes its batch away and stops it"
            )
        held = count(query.held, "message")
        if query.held:
            confirm(f"Give back {held} of {query.queue}? They may be delivered twice.", yes=yes)
        released = ledger.abandon(hf.context, query.id)
    if app.json:
        return show.documents([{"query": query.id, "queue": query.queue, "released": released}])
    said = f"gave back {count(released, 'message')} of {query.queue}"
    click.echo(said + ("; they may be delivered twice" if released else ""))
    return None


for command in lake.COMMANDS:
    spark.add_command(command)
COMMANDS = [spark]


# work


def _check(target: str, hf: Holdfast, queue: str) -> None:
    """Before a JVM is started: that takes a while."""
    if hf.url is None or hf.url.startswith("memory:"):
        raise InvalidArgument(target, "Spark's processes reach a store by its URL; this has none")
    known = hf.handlers.queues()
    if queue not in known:
        raise InvalidArgument("--queue", f"no handler for {queue!r}; {did_you_mean(queue, known)}")


def _work(app: App, hf: Holdfast, queue: str, master: str | None, options: dict[str, Any]) -> int:
    given = {name: value for name, value in options.items() if value is not None}
    name = given.setdefault("name", queue)
    if master is not None and "checkpoint" not in given:
        given["checkpoint"] = _checkpoint(hf, queue, name, master)
    from holdfast.spark.sessions import session

    with _Signals() as signals:
        made = session(app=f"holdfast-{name}", master=master)
        try:
            signals.listen()  # Spark has set its own
            where = str(made.sparkContext.master)
            if "checkpoint" not in given:
                given["checkpoint"] = _checkpoint(hf, queue, name, where)
            if not app.verbose:
                _quieten(made)
            if not signals.stop.is_set():
                logger.info("working %s on %s, checkpoint %s", queue, where, given["checkpoint"])
                _run(hf, queue, spark=made, stop=signals.stop, **given)
            logger.info("stopped" if signals.stop.is_set() else "nothing is left")
        finally:
            made.stop()
    return 0


def _run(hf: Holdfast, queue: str, **options: Any) -> None:
    from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
    from pyspark.errors import PySparkException

    from holdfast.spark import progress, runner

    try:
        query = runner.run(hf, queue, **options)
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(progress.cause_of(str(error))) from error
    progress.flush(str(query.runId))


def _checkpoint(hf: Holdfast, queue: str, name: str, master: str) -> str:
    """Always the same one for a store, a queue and a name: a restart goes on where it was."""
    if not re.match(r"local\b", master):
        raise InvalidArgument(
            "--checkpoint",
            f"is needed on {master}: a folder that every machine reaches, of this query alone",
        )
    from platformdirs import user_data_path

    store = without_password(hf.url or "")
    key = hashlib.blake2b("\0".join((store, queue, name)).encode(), digest_size=8).hexdigest()
    return str(user_data_path("holdfast") / "checkpoints" / key)


def without_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    where = f"{user.partition(':')[0]}{at}{host}"
    query = "&".join(p for p in parts.query.split("&") if not p.startswith("password="))
    return urlunsplit((parts.scheme, where, parts.path, query, ""))


def _quieten(made: Any) -> None:
    log4j = made._jvm.org.apache.logging.log4j
    for name in QUIET:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


class _Signals:
    """The first SIGTERM or SIGINT asks to stop, the second ends the process."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        self.listen()
        return self

    def listen(self) -> None:
        for which in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(which, self._on_signal)
            self._before.setdefault(which, before)

    def __exit__(self, *_: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _on_signal(self, which: int, _: FrameType | None) -> None:
        if self.stop.is_set():
            os._exit(128 + which)  # its batch stays held until the query comes back
        self.stop.set()


# queries, abandon


def _behind(stats: QueueStats | None) -> int | None:
    return None if stats is None else stats.ready + stats.delayed


def _row(query: Query, stats: QueueStats | None, now: int) -> list[show.Cell]:
    state, behind = ledger.state_of(query, now), _behind(stats)
    return [
        query.id,
        clean(query.name),
        query.queue,
        (state, STYLES.get(state, "")),
        f"{query.held:,}",
        f"{query.batch:,}",
        "" if behind is None else f"{behind:,}",
        f"{query.done:,}",
        f"{query.retried:,}",
        (f"{query.dead:,}", "red" if query.dead else ""),
        ago(query.seen_at, now),
    ]


def _doc(query: Query, stats: QueueStats | None, now: int) -> dict[str, Any]:
    last = query.history[-1] if query.history else None
    return {
        "query": query.id,
        "name": query.name,
        "queue": query.queue,
        "state": ledger.state_of(query, now),
        "held": query.held,
        "batch": query.batch,
        "behind": _behind(stats),
        "done": query.done,
        "retried": query.retried,
        "dead": query.dead,
        "on_lost": query.on_lost,
        "started_at": query.started_at,
        "seen_at": query.seen_at,
        "last_batch": None if last is None else msgspec.structs.asdict(last),
    }


def _find(hf: Holdfast, query_id: str) -> Query:
    found = ledger.queries(hf.context)
    for query in found:
        if query.id == query_id:
            return query
    known = [query.id for query in found]
    raise ledger.QueryNotFound(f"no query {query_id!r}; {did_you_mean(query_id, known)}")
