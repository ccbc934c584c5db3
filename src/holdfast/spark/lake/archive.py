"""The log and the dead letters of a store into a lake, each row once.

A row of the log may be committed a little after others that finished later: its time is that of the
handler's end. So a run reads what finished since the last one, and once more the time `late` before
that, without what is in the lake already; and retention in the store stays behind by as much.
"""

# pyright: basic

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from holdfast.app import Holdfast
from holdfast.errors import InvalidArgument, QueueNotFound, did_you_mean
from holdfast.model.message import check_queue_name, dlq_of, home_of, is_dlq
from holdfast.model.policy import seconds, whole
from holdfast.queue import archives
from holdfast.queue.context import Context
from holdfast.queue.topic import is_hidden
from holdfast.rules.lifecycle import ms
from holdfast.spark import sessions
from holdfast.spark.connections import logger
from holdfast.spark.lake import reading, tables, writing
from holdfast.spark.lake.files import STAGING, Lake, Manifest, chosen
from holdfast.spark.lake.reading import Ask, Window

LATE_S = 600.0
SLICES = 4
SLICES_MAX = 10_000
WRITING = {
    # Files that a task keeps open: with fewer days and queues than that, it need not sort its rows.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Times that every other reader knows, with statistics to skip files by.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

Progress = Callable[[str], object]
"""Is told what the job does next."""


class Archived(msgspec.Struct, frozen=True):
    """What a run added."""

    lake: str
    run: str
    queues: list[str]
    log: int
    """Rows of the log."""
    dead: int
    """Dead letters."""
    total: int
    """Rows of the log in the lake, of every run."""
    upto: int
    """What finished before this is in the lake, but for what is committed later than `late`."""


def archive(
    hf: Holdfast,
    lake: str,
    queues: Sequence[str] | None = None,
    *,
    spark: SparkSession | None = None,
    late: float = LATE_S,
    slices: int = SLICES,
    progress: Progress | None = None,
) -> Archived:
    """Add what has finished, and what has died, since the last run. Run it as often as you like.

    `queues`: all by default. A queue with its dead letters. `late`: a transaction may stay open for
    so many seconds after a handler's end. A run that is killed adds nothing, and the next one does.
    """
    seconds("late", late)
    whole("slices", slices, low=1, high=SLICES_MAX)
    url = reached(hf)
    spark = spark or sessions.session()
    sessions.know(spark, reading.ArchiveSource)
    at = hf.context
    names = named(at, queues)
    place = Lake(spark, lake)
    run = secrets.token_hex(6)
    tell = progress or (lambda _: None)
    state = place.begin(run, identity(url), at.clock.now())
    left = place.clean(state)
    if left:
        logger.info("%s: deleted %d files of runs that were killed", place.where, left)
    job = _Run(spark, at, url, place, state, run, ms(late), slices)
    return job.go(names, tell)


def forget(hf: Holdfast, lake: str, spark: SparkSession | None = None) -> list[str]:
    """Retention no longer waits for this archive. The queues that it waited for."""
    return archives.give_up(hf.context, Lake(spark or sessions.session(), lake).where)


def reached(hf: Holdfast) -> str:
    """The address by which executors find the store."""
    if hf.url is None or hf.url.startswith("memory:"):
        raise InvalidArgument("hf", "Spark's processes reach a store by its URL; this has none")
    return hf.url


def identity(url: str) -> str:
    """A store's address without what is secret, or may change."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" + (
        f"?{kept}" if (kept := _kept(parts.query)) else ""
    )


def _kept(query: str) -> str:
    """Of the options only those that say which store it is."""
    return "&".join(p for p in query.split("&") if p.startswith(("schema=", "prefix=", "db=")))


def named(at: Context, queues: Any) -> list[str]:
    """The homes that were asked for; they must be there."""
    known = [q.name for q in at.store.queues() if not is_hidden(q.name) and not is_dlq(q.name)]
    if queues is None:
        return known
    if isinstance(queues, str) or not isinstance(queues, Sequence):
        raise InvalidArgument("queues", f"must be a list of names, not {queues!r}")
    asked = list(dict.fromkeys(home_of(check_queue_name(name, "queues")) for name in queues))
    for name in asked:
        if name not in known:
            raise QueueNotFound(f"queues: no queue {name!r}; {did_you_mean(name, known)}")
    return asked


class _Part(NamedTuple):
    """Files of a table, and the times of finishing or dying in them."""

    rows: int
    first: int | None
    last: int | None
    files: list[str]


class _Run:
    def __init__(
        self,
        spark: SparkSession,
        at: Context,
        url: str,
        lake: Lake,
        state: Manifest,
        run: str,
        late_ms: int,
        slices: int,
    ) -> None:
        self._spark = spark
        self._at = at
        self._url = url
        self._lake = lake
        self._state = state
        self._run = run
        self._late_ms = late_ms
        self._slices = slices

    def go(self, homes: list[str], tell: Progress) -> Archived:
        upto = self._at.clock.now()
        logs = [name for home in homes for name in (home, dlq_of(home))]
        self._hold_back(logs)
        tell("reading the log")
        log = self._log(logs, upto)
        tell("reading dead letters")
        dead = self._adopted("dead", [self._write("dead", self._dead([dlq_of(h) for h in homes]))])
        tell("publishing")
        manifest = self._published(logs, upto, log, dead)
        for name in logs:
            archives.note(self._at, name, self._lake.where, upto - self._late_ms)
        added = (log.rows, dead.rows, manifest.rows["log"])
        return Archived(self._lake.where, self._run, homes, *added, upto)

    def _hold_back(self, logs: list[str]) -> None:
        """Before the first row is read: from now on retention waits for this archive."""
        for name in logs:
            mark = self._state.marks.get(name)
            upto = 0 if mark is None else max(0, mark - self._late_ms)
            archives.note(self._at, name, self._lake.where, upto)

    def _log(self, names: list[str], upto: int) -> _Part:
        """What is new, and what came late."""
        fresh = [Window(name, self._state.marks.get(name), upto) for name in names]
        late = self._late(names) if self._late_ms else None
        folder = self._lake.folder
        if folder is None:
            frame = self._read("log", fresh)
            parts = [self._write("log", frame if late is None else frame.unionByName(late))]
        else:
            parts = [self._write_straight(folder, fresh)]
            if late is not None:
                parts.append(self._write("log", late))
        return self._adopted("log", parts)

    def _late(self, names: list[str]) -> DataFrame | None:
        """What finished before the last run, and is not in the lake yet."""
        marks = self._state.marks
        again = [
            Window(name, max(0, marks[name] - self._late_ms), marks[name])
            for name in names
            if name in marks
        ]
        if not again:
            return None
        since = min(window.since or 0 for window in again)
        known = self._known("log", names).where(
            F.col("finished_at") >= F.timestamp_millis(F.lit(since))
        )
        return self._read("log", again).join(known, ["queue", "id", "finished_at"], "left_anti")

    def _dead(self, names: list[str]) -> DataFrame:
        found = self._read("dead", [Window(name) for name in names])
        known = self._known("dead", names)
        if not self._state.files.get("dead"):
            return found
        keys = ["queue", "id", "died"]
        found = found.withColumn("died", tables.died())
        known = known.withColumn("died", tables.died())
        return found.join(known.select(*keys), keys, "left_anti").drop("died")

    def _known(self, table: str, names: list[str]) -> DataFrame:
        paths = chosen(self._state.files.get(table, []), names)
        state = msgspec.structs.replace(self._state, files={table: paths})
        times = ["finished_at"] if table == "log" else ["dead_at", "enqueued_at"]
        return tables.read(self._spark, self._lake, state, table).select("queue", "id", *times)

    def _ask(self, table: str, windows: list[Window]) -> Ask:
        return Ask(self._url, table, windows, self._slices)

    def _read(self, table: str, windows: list[Window]) -> DataFrame:
        ask = reading.dumped(self._ask(table, windows))
        return self._spark.read.format(reading.NAME).option("ask", ask).load()

    def _write_straight(self, folder: Path, windows: list[Window]) -> _Part:
        """By the tasks themselves, onto the disk."""
        staging = f"{STAGING}/{self._run}/straight"
        ask, now = self._ask("log", windows), self._at.clock.now()
        written = writing.write(self._spark, ask, folder / staging, now)
        return _Part(
            sum(file.rows for file in written),
            min((file.first for file in written), default=None),
            max((file.last for file in written), default=None),
            [f"{staging}/{file.path}" for file in written],
        )

    def _write(self, table: str, frame: DataFrame) -> _Part:
        """By Spark, into the staging folder."""
        seen = Observation()
        at = F.col("finished_at") if table == "log" else tables.died()
        frame = tables.stored(frame, table, self._at.clock.now()).observe(
            seen,
            F.count(F.lit(1)).alias("rows"),
            F.unix_millis(F.min(at)).alias("first"),
            F.unix_millis(F.max(at)).alias("last"),
        )
        target = self._lake.path(STAGING, self._run, table)
        with _settings(self._spark, WRITING):
            frame.write.partitionBy("queue", "day").parquet(target)
        return _Part(**seen.get, files=self._lake.staged(self._run, table))

    def _adopted(self, table: str, parts: list[_Part]) -> _Part:
        """From the staging folder to their place; not published yet."""
        return _Part(
            sum(part.rows for part in parts),
            _least(*(part.first for part in parts)),
            _most(*(part.last for part in parts)),
            self._lake.adopt(self._run, table, [path for part in parts for path in part.files]),
        )

    def _published(self, logs: list[str], upto: int, log: _Part, dead: _Part) -> Manifest:
        before = self._state
        new = {"log": log.files, "dead": dead.files}
        every = {table: [*before.files.get(table, []), *paths] for table, paths in new.items()}
        manifest = msgspec.structs.replace(
            before,
            number=before.number + 1,
            at=self._at.clock.now(),
            files=new,
            marks={**before.marks, **dict.fromkeys(logs, upto)},
            rows={
                "log": before.rows.get("log", 0) + log.rows,
                "dead": before.rows.get("dead", 0) + dead.rows,
            },
            first=_least(before.first, log.first, dead.first),
            last=_most(before.last, log.last, dead.last),
        )
        self._lake.publish(manifest, every)
        self._lake.delete(f"{STAGING}/{self._run}")
        return manifest


def _least(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)


def _most(*times: int | None) -> int | None:
    return max((at for at in times if at is not None), default=None)


@contextmanager
def _settings(spark: SparkSession, values: dict[str, str]) -> Any:
    """For what is run within; the session is the caller's."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
