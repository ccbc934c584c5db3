"""`spark.read` and `spark.readStream` of a queue, and where `write` and `writeStream` begin.

The stream's offsets are batches (ledger.py): Spark calls latestOffset(start) only when batch
`start` is in its commit log, so that is where it is settled; partitions() is called only when a
batch is in its offset log, so that is where it is sealed.
"""

# pyright: basic

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.errors import HoldfastError, InvalidArgument, QueueNotFound, did_you_mean
from holdfast.model.message import dlq_of
from holdfast.model.moves import State
from holdfast.queue.context import Context
from holdfast.queue.topic import is_hidden
from holdfast.spark import arrow, columns, options, pickling, sessions
from holdfast.spark.connections import context, patiently
from holdfast.spark.options import Options
from holdfast.spark.plan import Plan, run_part
from holdfast.spark.sink import BatchSink, StreamSink
from holdfast.stores.contract import View
from holdfast.work import ledger
from holdfast.work.ledger import Batches, Offset, Part

POLL_S = 0.3
"""How long an idle stream waits in the store before it tells Spark that there is nothing."""
BEAT_S = 5.0
BACKLOG_S = 1.0
ALL = 100_000_000
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program, of a process of its own, in which a stream reader lives."""


def register(spark: SparkSession) -> None:
    """Make `format("holdfast")` known to a session."""
    sessions.know(spark, HoldfastSource)


class HoldfastSource(DataSource):
    """The queue as Spark sees it."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType | str:
        given = {name.lower(): value for name, value in self.options.items()}
        if "plan" in given:
            return pickling.load_plan(given["plan"]).schema
        return columns.SCHEMAS.get(given.get("view", "ready").lower(), columns.SCHEMAS["ready"])

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(options.parse(self.options, options.BATCH), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(options.parse(self.options, options.STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        return BatchSink(options.parse(self.options, options.SINK), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        return StreamSink(options.parse(self.options, options.SINK), schema, overwrite)


def _must_exist(at: Context, queue: str) -> None:
    if at.spec(queue) is None:
        known = [spec.name for spec in at.store.queues() if not is_hidden(spec.name)]
        raise QueueNotFound(f"option queue: no queue {queue!r}; {did_you_mean(queue, known)}")


def _own_columns(schema: StructType, own: StructType) -> None:
    if schema.names != own.names:
        raise InvalidArgument(
            "schema",
            "holdfast has its own columns: take .schema(...) away, and read the payload with "
            "from_json, or with hs.transform(schema=...)",
        )


class Slice(InputPartition):
    """One piece of a view, or one part of a batch."""

    def __init__(self, view: View | None, after: str | None = None, part: int = 0) -> None:
        super().__init__(part)
        self.view = view
        self.after = after
        self.part = part
        self.name = ""
        self.rows = 0


_STATES = {
    "ready": (State.READY,),
    "delayed": (State.DELAYED,),
    "leased": (State.LEASED,),
    "dead": (State.READY, State.DELAYED, State.LEASED),
    "log": (State.LOG,),
}


class BatchReader(DataSourceReader):
    """What a queue holds now. Changes nothing.

    Filters come as options. Spark could push them (pushFilters), but keeps what was pushed last for
    every use of a frame: two filters on one frame would give wrong rows.
    """

    def __init__(self, given: Options, schema: StructType) -> None:
        _own_columns(schema, columns.SCHEMAS[given.view])
        if given.id is not None and given.view != "log":
            raise InvalidArgument("option id", 'is for .option("view", "log")')
        self._options = given
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        given = self._options
        at = context(given.url, timeout=given.store_timeout)
        queue = dlq_of(given.queue) if given.view == "dead" else given.queue

        def plan() -> list[Slice]:
            _must_exist(at, given.queue)
            slices: list[Slice] = []
            now = at.clock.now()
            for state in _STATES[given.view]:
                view = View(queue, state, given.since, given.until, given.id)
                end = at.store.browse(view, None, 1, now).end
                if state is not State.LOG:
                    view = msgspec.structs.replace(view, upto=end)
                cuts = [] if given.id else at.store.split(view, given.slices, now)
                for after, to in zip([None, *cuts], [*cuts, None], strict=True):
                    piece = msgspec.structs.replace(view, to=to)
                    slices.append(Slice(piece, after, len(slices)))
            return slices

        return patiently(plan, f"planning to read {queue}", given.store_timeout)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice) and partition.view is not None
        schema = columns.arrow_schema(self._schema)
        given = self._options
        at = context(given.url, timeout=given.store_timeout)
        return arrow.view(at, partition.view, partition.after, schema, given.store_timeout)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A queue as a stream. Lives in one process on the driver; only `read` runs elsewhere."""

    def __init__(self, given: Options, schema: StructType) -> None:
        self._options = given
        self._schema = schema
        self._plan: Plan | None = pickling.load_plan(given.plan) if given.plan else None
        _own_columns(schema, self._plan.schema if self._plan else columns.SCHEMAS["ready"])
        self._batches: Batches | None = None
        self._left: int | None = None
        self._stop = threading.Event()
        self._backlog: tuple[float, dict[str, Any]] = (0.0, {})

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["given"], state["schema"])

    @property
    def _at(self) -> Context:
        policy = self._plan.policy if self._plan else None
        return context(self._options.url, policy, timeout=self._options.store_timeout)

    def _started(self) -> Batches:
        if self._batches is None:
            _must_exist(self._at, self._options.queue)
            self._batches = Batches(
                self._at,
                self._options.queue,
                name=self._options.name,
                on_lost="redeliver" if self._options.on_lost == "redeliver" else "hold",
                slices=self._options.slices,
                needs_verdicts=self._plan is not None,
            )
            threading.Thread(target=self._beat, name="holdfast-beat", daemon=True).start()
        return self._batches

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                if self._batches is not None:
                    self._batches.beat()
            except ledger.QueryFenced:
                return  # the next call of Spark's says so
            except HoldfastError:
                continue

    def initialOffset(self) -> dict:
        return msgspec.to_builtins(Offset())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is ready now is what will be read, however much comes meanwhile."""
        self._left = self._patiently(lambda: self._stats().ready, "counting")

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        at = msgspec.convert(start, Offset)
        most = ALL if isinstance(limit, ReadAllAvailable) else self._options.max_per_trigger
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        if self._left is not None:
            most = min(most, self._left)
        end = self._patiently(lambda: self._started().reserve(at, most), "reserving")
        if end is None and self._left is None:
            self._patiently(self._wait, "waiting")
            end = self._patiently(lambda: self._started().reserve(at, most), "reserving")
        if end is None:
            return start
        query = self._started().query
        if self._left is not None and query is not None:
            self._left -= query.held
        return msgspec.to_builtins(end)

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:
        if start == end:
            return []
        at = msgspec.convert(end, Offset)
        parts = self._patiently(lambda: self._started().seal(at), "sealing")
        slices: list[Slice] = []
        for number, part in enumerate(parts):
            piece = Slice(None, part=number)
            piece.name, piece.rows = part.name, part.rows
            slices.append(piece)
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        at, queue = self._at, self._options.queue
        schema = columns.arrow_schema(self._schema)
        if self._plan is None:
            part = Part(partition.name, partition.rows)
            return arrow.held(at, queue, part, schema, self._options.store_timeout)
        pages = ledger.read(
            at, queue, partition.name, lambda page: self._patiently(page, "reading")
        )
        return run_part(self._plan, at, queue, partition.name, pages, schema)

    def reportLatestOffset(self) -> dict | None:
        """How far behind: goes into the query's progress as it is."""
        now = self._at.clock.monotonic()
        if now - self._backlog[0] > BACKLOG_S:
            try:
                stats = self._stats()
                age = stats.oldest_age or 0.0
                backlog = {
                    "ready": stats.ready,
                    "delayed": stats.delayed,
                    "leased": stats.leased,
                    "dead": stats.dead,
                    "oldestAgeMs": round(age * 1000),
                }
            except HoldfastError:
                backlog = {}
            self._backlog = (now, backlog)
        told = {"queue": self._options.queue, **self._backlog[1]}
        query = self._batches.query if self._batches else None
        if query is not None:
            told |= {
                "query": query.id,
                "done": query.done,
                "retried": query.retried,
                "deadLettered": query.dead,
            }
        return told

    def commit(self, end: dict) -> None:
        """Comes one batch late, and never for the last: nothing is done here."""

    def stop(self) -> None:
        self._stop.set()
        _end_quietly()

    def _stats(self) -> Any:
        at = self._at
        return at.store.stats([self._options.queue], at.clock.now())[0]

    def _wait(self) -> None:
        self._at.store.wait([self._options.queue], self._at.clock.now(), POLL_S)

    def _patiently(self, act: Any, doing: str) -> Any:
        return patiently(act, f"{doing} {self._options.queue}", self._options.store_timeout)


def _end_quietly() -> None:
    """When a query ends, Spark closes the socket of its reader's process and then kills it. That
    would print a traceback of the socket, as far as it comes."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != RUNNER:
        return
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        if not issubclass(kind, ConnectionError):
            show(kind, error, at)

    sys.excepthook = hook
