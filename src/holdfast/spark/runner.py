"""Handlers and transformations on Spark: every row with its own retry.

A batch runs in four steps, each of which may be repeated: the handlers run once and what came of
them is written next to the checkpoint; the good rows go to the sink, under a name made of the
batch; the verdicts on the others are written down; they are published. Spark then commits the
batch, and the source settles it by the verdicts.
"""

# pyright: basic

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from holdfast.app import Holdfast
from holdfast.errors import FailedPrecondition, HoldfastError, InvalidArgument, did_you_mean
from holdfast.model.policy import positive, whole
from holdfast.spark import options, pickling
from holdfast.spark.connections import context, patiently
from holdfast.spark.plan import Plan, judged_by, write_verdicts
from holdfast.spark.progress import watch
from holdfast.spark.sessions import session
from holdfast.work import ledger
from holdfast.work.handlers import Handler
from holdfast.work.ledger import Query
from holdfast.work.worker import Executor, check_handlers

Sink = str | Callable[[DataFrame, int], None] | None

logger = logging.getLogger("holdfast.spark")
STOP_POLL_S = 0.2
ERROR = "error"
"""A column of a transformed frame: where it is not null, it is the verdict on that row."""


def run(
    hf: Holdfast,
    queue: str,
    *,
    checkpoint: str,
    sink: Sink = None,
    spark: SparkSession | None = None,
    name: str = "",
    max_messages: int = options.MAX_PER_TRIGGER,
    slices: int = options.SLICES,
    executor: Executor = "thread",
    concurrency: int = 1,
    time_limit: float | None = None,
    on_lost: Literal["hold", "redeliver"] = "hold",
    until_empty: bool = False,
    wait: bool = True,
    stop: threading.Event | None = None,
    metrics_port: int | None = None,
) -> StreamingQuery:
    """Run the handlers registered for a queue on Spark, with the retries of a worker.

    `sink` is a folder for Parquet (id, key, type, payload, attempts, enqueued_at, result of every
    message that succeeded, each once), or a function of a DataFrame and a batch number that stands
    being called twice. `checkpoint` is a folder of this query alone. Blocks until the query ends
    (`until_empty`: when what was ready is worked off; `stop`: when that is set, after the batch
    that runs); with wait=False it returns at once.
    """
    positive("time_limit", time_limit)
    found = [handler for handler in hf.handlers.all() if handler.queue == queue]
    if not found:
        known = hf.handlers.queues()
        raise InvalidArgument("queue", f"no handler for {queue!r}; {did_you_mean(queue, known)}")
    check_handlers(found, executor, time_limit)
    plan = Plan(
        hf.context.policy,
        handlers=[handler.portable() for handler in found],
        executor=executor,
        concurrency=_at_least_one("concurrency", concurrency),
        time_limit=time_limit,
    )
    query = _Query(hf, queue, plan, sink, checkpoint, spark, name, max_messages, slices, on_lost)
    return query.start(until_empty=until_empty, wait=wait, stop=stop, metrics_port=metrics_port)


class Transform:
    """A function that makes rows of messages; `run` it into a sink."""

    def __init__(
        self,
        hf: Holdfast,
        queue: str,
        function: Callable[..., Any],
        schema: StructType | str,
        frame: bool,
    ) -> None:
        self.function = function
        self._hf = hf
        self._queue = queue
        self._schema = schema
        self._frame = frame

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def run(
        self,
        *,
        sink: Sink,
        checkpoint: str,
        spark: SparkSession | None = None,
        name: str = "",
        max_messages: int = options.MAX_PER_TRIGGER,
        slices: int = options.SLICES,
        concurrency: int = 1,
        on_lost: Literal["hold", "redeliver"] = "hold",
        until_empty: bool = False,
        wait: bool = True,
        stop: threading.Event | None = None,
        metrics_port: int | None = None,
    ) -> StreamingQuery:
        """As `holdfast.spark.run`; the sink gets the id and the columns of the schema."""
        spark = spark or session(app=name or f"holdfast-{self._queue}")
        plan = Plan(self._hf.context.policy, value=_parsed(self._schema))
        plan.concurrency = _at_least_one("concurrency", concurrency)
        if self._frame:
            plan.with_lease = True
        else:
            handler = Handler(self.function, self._queue, None, None, None)
            handler.prepare()
            plan.function = handler.portable()
        query = _Query(
            self._hf,
            self._queue,
            plan,
            sink,
            checkpoint,
            spark,
            name,
            max_messages,
            slices,
            on_lost,
        )
        query.frame = self.function if self._frame else None
        return query.start(until_empty=until_empty, wait=wait, stop=stop, metrics_port=metrics_port)


def transform(
    hf: Holdfast, queue: str, *, schema: StructType | str, frame: bool = False
) -> Callable[[Callable[..., Any]], Transform]:
    """Make rows of messages. The function takes what a handler takes and returns one row (a dict, a
    tuple, a dataclass), or None for no row; what it raises is the verdict on that message.

    `frame=True`: it takes a DataFrame of messages and returns one with their `id`, the columns of
    the schema, and where a row failed its text in a column `error`.
    """

    def decorate(function: Callable[..., Any]) -> Transform:
        return Transform(hf, queue, function, schema, frame)

    return decorate


def _parsed(schema: StructType | str) -> StructType:
    """Needs a session: Spark itself reads its notation."""
    try:
        parsed = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except (PySparkException, ValueError) as error:
        raise InvalidArgument("schema", f"{schema!r}: {error}") from error
    if not isinstance(parsed, StructType):
        raise InvalidArgument("schema", f'{schema!r}: write "name type, ..."')
    for name in ("id", ERROR):
        if name in parsed.names:
            raise InvalidArgument("schema", f"{name!r} is there already, and cannot be a column")
    return parsed


def _at_least_one(field: str, value: int) -> int:
    whole(field, value, low=1, high=100_000_000)
    return value


class _Query:
    frame: Callable[[DataFrame], DataFrame] | None = None
    _id = ""
    """Known from the first batch on."""

    def __init__(
        self,
        hf: Holdfast,
        queue: str,
        plan: Plan,
        sink: Sink,
        checkpoint: str,
        spark: SparkSession | None,
        name: str,
        max_messages: int,
        slices: int,
        on_lost: str,
    ) -> None:
        if hf.url is None or hf.url.startswith("memory:"):
            raise InvalidArgument(
                "hf", "Spark's processes reach a store by its URL: connect to one that has one"
            )
        if not isinstance(checkpoint, str) or not checkpoint:
            raise InvalidArgument("checkpoint", "must be a folder that this query has for itself")
        if sink is not None and not callable(sink) and not isinstance(sink, str):
            raise InvalidArgument("sink", f"must be a folder or a function, not {sink!r}")
        if on_lost not in ("hold", "redeliver"):
            raise InvalidArgument("on_lost", f'must be "hold" or "redeliver", not {on_lost!r}')
        _at_least_one("max_messages", max_messages)
        _at_least_one("slices", slices)
        hf.queue(queue)
        self._url = hf.url
        self._at = hf.context
        self._queue = queue
        self._plan = plan
        self._sink = sink
        self._checkpoint = checkpoint.rstrip("/")
        self._spark = spark or session(app=name or f"holdfast-{queue}")
        self._name = name or queue
        self._options = {
            "url": self._url,
            "queue": queue,
            "plan": pickling.dump_plan(plan),
            "name": self._name,
            "maxMessagesPerTrigger": str(max_messages),
            "slices": str(slices),
            "onLost": on_lost,
        }

    def start(
        self,
        *,
        until_empty: bool,
        wait: bool,
        stop: threading.Event | None,
        metrics_port: int | None,
    ) -> StreamingQuery:
        watch(self._spark, metrics_port, handled={self._name: self._at})
        stream = self._spark.readStream.format("holdfast").options(**self._options).load()
        writer = (
            stream.writeStream.foreachBatch(self._batch)
            .queryName(self._name)
            .option("checkpointLocation", self._checkpoint)
        )
        if until_empty:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        if wait and stop is None:
            query.awaitTermination()
        elif wait and stop is not None:
            while not query.awaitTermination(STOP_POLL_S):  # pyright: ignore[reportArgumentType]
                if stop.is_set() and self._may_stop(query):
                    query.stop()
        return query

    def _may_stop(self, query: StreamingQuery) -> bool:
        """Nothing is under way: an interrupted batch would stay held until the query comes back."""
        if not self._id:
            return not query.status["isDataAvailable"]
        try:
            return not ledger.ask_to_stop(self._at, self._id).hold
        except HoldfastError as error:
            logger.warning("%s: cannot wait for its batch: %s", self._name, error)
            return True

    def _batch(self, frame: DataFrame, number: int) -> None:
        stage = f"{self._checkpoint}/holdfast/{number}"
        outcomes = frame if self.frame is None else self._transformed(frame)
        seen = Observation()
        outcomes.observe(
            seen, F.first("hold").alias("hold"), F.count("judged").alias("judged")
        ).write.mode("overwrite").parquet(stage)
        hold, judged = seen.get["hold"], seen.get["judged"]
        if hold is not None:  # else the batch was given back before it was read
            query = self._query_of(hold)
            staged = self._spark.read.schema(outcomes.schema).parquet(stage)
            self._deliver(staged, number, query)
            self._judge(staged if judged else None, query)
        self._forget(stage)

    def _transformed(self, frame: DataFrame) -> DataFrame:
        """Outcomes of a whole frame: every message, with its row or its error."""
        assert self.frame is not None
        names = self._plan.value.names
        made = self.frame(frame.drop("hold", "lease"))
        missing = {"id", *names} - set(made.columns)
        if missing:
            raise InvalidArgument(
                "transform", f"the frame it returned has no column {min(missing)!r}"
            )
        error = F.col(ERROR).cast("string") if ERROR in made.columns else F.lit(None).cast("string")
        rows = made.select(
            F.col("id").alias("made_id"),
            error.alias("failed"),
            F.struct(*names).cast(self._plan.value).alias("value"),
        )

        def judge_row(lease, error):  # without hints: Spark would take them for its own
            return judged_by(lease, error)

        judge = F.udf(judge_row, "binary")
        held = F.lit(False)
        if self._blocks():
            first = F.min(F.when(F.col("failed").isNotNull(), F.col("id")))
            held = F.coalesce(first.over(Window.partitionBy("key")) < F.col("id"), held)
            held &= F.col("key").isNotNull()
        fine = F.col("failed").isNull() & ~F.col("held")
        return (
            frame.select("id", "key", "hold", "lease")
            .join(rows, F.col("id") == F.col("made_id"), "left")
            .withColumn("held", held)
            .withColumn("failed", F.when(~F.col("held"), F.col("failed")))
            .select(
                "id",
                "hold",
                (fine & F.col("made_id").isNotNull()).alias("ok"),
                F.when(~fine, judge("lease", "failed")).alias("judged"),
                F.when(fine, F.col("value")).alias("value"),
            )
        )

    def _blocks(self) -> bool:
        """Whether a message that failed holds back what follows of its key."""
        spec = self._at.spec(self._queue)
        if spec is None or not spec.ordered:
            return False
        return self._at.complete(spec).on_failure == "block"

    def _deliver(self, staged: DataFrame, number: int, query: Query) -> None:
        if self._sink is None:
            return
        good = staged.where("ok AND value IS NOT NULL").select("id", "value.*")
        if callable(self._sink):
            self._sink(good, number)
            return
        # One folder for each batch, replaced as a whole when the batch runs again.
        good.write.mode("overwrite").parquet(f"{self._sink}/batch={query.id}-{number:08d}")

    def _query_of(self, hold: str) -> Query:
        known = patiently(
            lambda: ledger.queries(self._at),
            f"looking for the batch of {self._queue}",
            options.STORE_TIMEOUT_S,
        )
        for query in known:
            if query.hold == hold:
                self._id = query.id
                return query
        raise FailedPrecondition(f"the batch of {self._queue} was given back while it ran")

    def _judge(self, staged: DataFrame | None, query: Query) -> None:
        """Write down the verdicts, if there are any, and publish them."""
        attempt, hold = secrets.token_hex(8), query.hold
        url, policy, patience = self._url, self._plan.policy, options.STORE_TIMEOUT_S

        def write(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            n = write_verdicts(context(url, policy, timeout=patience), hold, attempt, rows)
            yield pa.RecordBatch.from_pydict({"n": pa.array([n], pa.int64())})

        if staged is not None:
            judged = staged.where("judged IS NOT NULL").select("judged")
            judged.mapInArrow(write, "n long").agg(F.sum("n")).collect()
        patiently(
            lambda: ledger.publish(self._at, query.id, hold, attempt, run=query.run),
            f"verdicts on {self._queue}",
            options.STORE_TIMEOUT_S,
        )

    def _forget(self, stage: str) -> None:
        spark: Any = self._spark
        path = spark._jvm.org.apache.hadoop.fs.Path(stage)
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        path.getFileSystem(conf).delete(path, True)
