"""Dead letters as a frame, and what a query selected of them back to work.

What was selected is first written down, with the new payloads: moving a message changes what the
query would select, and Spark runs a task again when it likes. Then executors move it, each message
in one atomic step, fenced by its place among the dead letters. Who comes again finds a message
where it has gone: a message knows how often it was redriven. So whatever is killed, and however
often it is run, each is moved once, and the receipt says so.
"""

# pyright: basic

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from holdfast.app import Holdfast
from holdfast.errors import InvalidArgument, QueueNotFound
from holdfast.model import clock
from holdfast.model import payload as payloads
from holdfast.model.message import Message, is_dlq
from holdfast.model.moves import Settled, State, Transition
from holdfast.model.payload import JSON
from holdfast.model.policy import whole
from holdfast.model.queues import QueueSpec
from holdfast.queue.context import Context
from holdfast.queue.redrive import choosing
from holdfast.queue.redrive.moving import Plan, named, planned
from holdfast.rules import lifecycle
from holdfast.spark import pickling, sessions
from holdfast.spark.connections import context, patiently
from holdfast.spark.lake import reading
from holdfast.spark.lake.archive import Progress, reached
from holdfast.spark.lake.files import Lake
from holdfast.spark.lake.reading import Ask, Window
from holdfast.spark.options import STORE_TIMEOUT_S
from holdfast.stores.contract import View, held_in

BATCH = 200
"""Moved in one step of a store."""
SLICES = 4
TASKS_MAX = 1000
KNOWN = "holdfast"
"""In the metadata of the column `place`: which triage a frame came from."""
OUTCOMES = ("redriven", "missing", "held", "edit failed")

_triages: dict[str, tuple[str, str]] = {}
"""By a triage's name: the address of its store, and the dead-letter queue. Of this process."""


class SparkRedriven(msgspec.Struct, frozen=True):
    """What became of all that was selected."""

    dlq: str
    to: str
    receipt: str
    """A folder: `outcomes` in it has a row for each message."""
    redriven: int
    missing: int
    """Gone from the dead letters by other ways."""
    held: int
    """Leased by somebody who looks at it, or its id is in the queue it should go to."""
    edit_failed: int
    total: int


def triage(
    hf: Holdfast,
    dlq: str,
    *,
    schema: str | StructType | None = None,
    spark: SparkSession | None = None,
    slices: int = SLICES,
) -> DataFrame:
    """The dead letters of a queue, with `fingerprint` and `cause` of their last error, and their
    payload `parsed`: by `schema`, else as a variant. Where `parses` is false, `payload` or `body`
    has it as it is.
    """
    url = reached(hf)
    named(dlq)
    whole("slices", slices, low=1, high=TASKS_MAX)
    at = hf.context
    planned(at, dlq, choosing.Options(), None)  # its checks, and their order
    spark = spark or sessions.session()
    sessions.know(spark, reading.ArchiveSource)
    ask = Ask(url, "triage", [Window(dlq)], slices)
    frame = spark.read.format(reading.NAME).option("ask", reading.dumped(ask)).load()
    token = secrets.token_hex(6)
    _triages[token] = (url, dlq)
    place = F.col("place").alias("place", metadata={KNOWN: token})
    columns = [place if name == "place" else F.col(name) for name in frame.columns]
    is_json = F.when(F.col("content_type") == JSON, F.col("payload"))
    parsed = F.try_parse_json(is_json)
    shaped = parsed if schema is None else F.from_json(is_json, schema)
    return frame.select(*columns, shaped.alias("parsed"), parsed.isNotNull().alias("parses"))


def redrive(
    frame: DataFrame,
    *,
    receipt: str,
    edit: Any = None,
    to: str | None = None,
    rate: float | None = None,
    tasks: int | None = None,
    hf: Holdfast | None = None,
    progress: Progress | None = None,
) -> SparkRedriven:
    """Put back what was selected of a triage: it needs the columns `id`, `place` and `redriven`.

    `edit`: as in `hf.redrive`, or the name of a column with the new payload (a JSON document).
    `receipt`: a folder of this redrive alone. Run again with it, it does what was left to do of
    what was selected at first, and says the same of the rest. `rate`: messages a second, in all.
    """
    url, dlq = _origin(frame, hf)
    column = edit if isinstance(edit, str) else None
    given, editor = choosing.checked(rate=rate, to=to, edit=None if column else edit)
    if tasks is not None:
        whole("tasks", tasks, low=1, high=TASKS_MAX)
    tell = progress or (lambda _: None)
    spark = frame.sparkSession
    place = Lake(spark, receipt)
    plan = planned(context(url, timeout=STORE_TIMEOUT_S), dlq, given, editor)
    tell("writing down what was selected")
    chosen = _chosen(frame, place, column)
    tell("moving")
    job = _Job(url, dlq, given, pickling.dump_plan(editor) if editor else None)
    parts = tasks or spark.sparkContext.defaultParallelism
    _move(chosen, place, job, parts)
    return _told(spark, place, plan)


def outcomes(spark: SparkSession, receipt: str) -> DataFrame:
    """The receipt of a redrive: id, outcome, error."""
    return spark.read.parquet(Lake(spark, receipt).path("outcomes"))


def _origin(frame: DataFrame, hf: Holdfast | None) -> tuple[str, str]:
    for name in ("id", "place", "redriven"):
        if name not in frame.columns:
            raise InvalidArgument("frame", f"has no column {name!r}: keep it in what you select")
    known = _triages.get(frame.schema["place"].metadata.get(KNOWN, ""))
    if known is None:
        raise InvalidArgument("frame", "is not of hs.triage in this process: select from that")
    return known if hf is None else (reached(hf), known[1])


def _chosen(frame: DataFrame, place: Lake, column: str | None) -> DataFrame:
    """Once, and never again for this receipt."""
    spark = frame.sparkSession
    if not place.has("chosen"):
        new = F.lit(None).cast("string")
        if column is not None:
            if column not in frame.columns:
                raise InvalidArgument("edit", f"there is no column {column!r} in the frame")
            if not isinstance(frame.schema[column].dataType, StringType):
                kind = frame.schema[column].dataType.simpleString()
                raise InvalidArgument("edit", f"column {column!r} must be a string, not {kind}")
            new = F.col(column)
        aside = f"_staging/{secrets.token_hex(6)}"
        frame.select(
            "id", F.col("place").cast("long").alias("place"), "redriven", new.alias("new")
        ).write.parquet(place.path(aside))
        if not place.move(aside, "chosen"):
            place.delete(aside)  # another run with this receipt was faster: it has chosen
    return spark.read.parquet(place.path("chosen"))


class _Job(msgspec.Struct, frozen=True):
    """What an executor needs to know."""

    url: str
    dlq: str
    options: choosing.Options
    edit: str | None


def _move(chosen: DataFrame, place: Lake, job: _Job, parts: int) -> None:
    spark = chosen.sparkSession
    if place.has("outcomes"):
        done = spark.read.parquet(place.path("outcomes")).select("id")
        chosen = chosen.join(done, "id", "left_anti")
    rate = job.options.rate
    share = None if rate is None else rate / parts

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mover = _Mover(job, share)
        for batch in batches:
            for start in range(0, batch.num_rows, mover.step):
                yield mover.move(batch.slice(start, mover.step).to_pylist())

    schema = "id string, outcome string, error string"
    chosen.repartition(parts).mapInArrow(task, schema).write.mode("append").parquet(
        place.path("outcomes")
    )


_SCHEMA = pa.schema([pa.field(name, pa.string()) for name in ("id", "outcome", "error")])


class _Mover:
    """In a task: moves, and says what became of each."""

    def __init__(self, job: _Job, rate: float | None) -> None:
        self._job = job
        self._at: Context = context(job.url, timeout=STORE_TIMEOUT_S)
        editor = pickling.load_plan(job.edit) if job.edit else None
        self._plan: Plan = self._patiently(lambda: planned(self._at, job.dlq, job.options, editor))
        self._rate = rate
        self._next = clock.monotonic()
        self.step = choosing.step(rate, BATCH)

    def move(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        wait = self._next - clock.monotonic()
        if wait > 0:
            clock.sleep(wait)
        told: dict[str, tuple[str, str | None]] = {}
        try:
            self._patiently(lambda: self._move(rows, told))
        except QueueNotFound:
            told |= {row["id"]: ("missing", None) for row in rows if row["id"] not in told}
        moved = sum(outcome == "redriven" for outcome, _ in told.values())
        self._next = choosing.due(self._next, clock.monotonic(), moved, self._rate)
        ids = [row["id"] for row in rows]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(ids, pa.string()),
                pa.array([told[id][0] for id in ids], pa.string()),
                pa.array([told[id][1] for id in ids], pa.string()),
            ],
            schema=_SCHEMA,
        )

    def _move(self, rows: list[dict[str, Any]], told: dict[str, tuple[str, str | None]]) -> None:
        plan, now = self._plan, self._at.clock.now()
        held = held_in(self._at.store, plan.dlq, [row["id"] for row in rows])
        letters = {m.id: m for m in held if m.queue == plan.dlq}
        target = self._at.spec(plan.to) if plan.elsewhere else None
        if plan.elsewhere and target is None:
            raise QueueNotFound(f"no queue {plan.to!r}")
        moves: list[Transition] = []
        for row in rows:
            letter = letters.get(row["id"])
            if letter is None or letter.redriven != row["redriven"]:
                continue
            move = self._transition(letter, row, target, now, told)
            if move is not None:
                moves.append(move)
        for move, answer in zip(moves, self._at.store.settle(moves, now), strict=True):
            if answer is not Settled.STALE:
                told[move.id] = ("redriven", None)
        self._look([row for row in rows if row["id"] not in told], told)

    def _transition(
        self,
        letter: Message,
        row: dict[str, Any],
        target: QueueSpec | None,
        now: int,
        told: dict[str, tuple[str, str | None]],
    ) -> Transition | None:
        plan = self._plan
        try:
            payload = None
            if row["new"] is not None:
                payload = payloads.encode(row["new"].encode(), JSON, plan.payload_max)
            elif plan.edit is not None:
                payload = choosing.edited(plan.edit, letter, plan.payload_max)
        except Exception as error:  # whatever the caller's function does is told with its message
            problem = str(error) if isinstance(error, InvalidArgument) else repr(error)
            told[letter.id] = ("edit failed", problem[:2000])
            return None
        return lifecycle.redriven(
            letter, row["place"], plan.to, now, elsewhere=target, payload=payload
        )

    def _look(self, rows: list[dict[str, Any]], told: dict[str, tuple[str, str | None]]) -> None:
        """What did not move now: was it moved before, by a run that could not say so?"""
        if not rows:
            return
        plan, ids = self._plan, [row["id"] for row in rows]
        store = self._at.store
        there = {m.id: m for m in held_in(store, plan.to, ids)}
        there |= {m.id: m for m in held_in(store, plan.dlq, ids) if m.queue == plan.dlq}
        for row in rows:
            message = there.get(row["id"]) or self._finished(row["id"])
            if message is not None and message.redriven > row["redriven"]:
                told[row["id"]] = ("redriven", None)
            elif message is not None and is_dlq(message.queue):
                told[row["id"]] = ("held", None)
            else:
                told[row["id"]] = ("missing", None)

    def _finished(self, id: str) -> Message | None:
        view = View(self._plan.to, State.LOG, id=id)
        page = self._at.store.browse(view, None, 1, self._at.clock.now())
        return page.entries[0].message if page.entries else None

    def _patiently(self, act: Any) -> Any:
        return patiently(act, f"redriving {self._job.dlq}", STORE_TIMEOUT_S)


def _told(spark: SparkSession, place: Lake, plan: Plan) -> SparkRedriven:
    rows = spark.read.parquet(place.path("outcomes")).groupBy("outcome").count().collect()
    counts = Counter({row["outcome"]: row["count"] for row in rows})
    redriven, missing, held, failed = (counts[name] for name in OUTCOMES)
    return SparkRedriven(
        plan.dlq, plan.to, place.where, redriven, missing, held, failed, counts.total()
    )
