"""The one pass: each task makes small sums of its rows, and Spark adds the sums of all tasks.

Sums have one shape for all subjects: `what` they are of, the queue, up to two texts, a step of
time, a number; then how many there were, two sums, the least and the most.
"""

# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.rules.lifecycle import ACK_TIMEOUT_CODE
from holdfast.spark.lake import tables
from holdfast.spark.reports import histogram

pc: Any = compute  # made at run time: no checker knows its functions

CHUNK = 400_000
"""Rows that a task looks at together."""
COUNTED_MAX = 2_000_000
"""Of numbers within such a span, counts are kept for each."""
KEYS_MAX = 20_000
"""Keys of a chunk that are carried on: with more than that, those that are met most and slowest."""
HELD_MAX = 500_000
"""Sums that a task holds before it hands them on."""
TEXT_MAX = 300
MEASURES = ("wait", "between", "run", "total")
BY_STEP = ("wait", "run", "total")
STEPS_MAX = 120
SUMS = (
    "what string, queue string, a string, b string, t long, k long, "
    "n long, s long, r long, lo long, hi long"
)
_SCHEMA = pa.schema(
    [pa.field(name, pa.string()) for name in ("what", "queue", "a", "b")]
    + [pa.field(name, pa.int64()) for name in ("t", "k", "n", "s", "r", "lo", "hi")]
)
_BY = ("what", "queue", "a", "b", "t", "k")


def narrow(log: DataFrame, dead: DataFrame) -> DataFrame:
    """Only what is looked at; dead letters in the shape of the log, with no times of their own."""
    errors = F.expr(
        "if(size(errors) = 0, null, transform(errors, e -> struct(unix_millis(e.at) AS at, "
        "e.attempt AS attempt, e.code AS code, e.consumer AS consumer)))"
    )
    same = [F.col("attempts").cast("int").alias("attempts"), "fingerprint", "cause"]
    none = F.lit(None).cast("long")
    logged = log.select(
        "queue",
        F.unix_millis("finished_at").alias("at"),
        *(f"{name}_ms" for name in MEASURES),
        (F.col("status") == "COMPLETED").alias("ok"),
        F.lit(False).alias("dead"),
        F.unix_millis("last_leased_at").alias("leased"),
        "key",
        "consumer",
        *same,
        errors.alias("errors"),
    )
    died = dead.select(
        F.coalesce("source", F.regexp_replace("queue", r"\.dlq$", "")).alias("queue"),
        F.unix_millis(tables.died()).alias("at"),
        *(none.alias(f"{name}_ms") for name in MEASURES),
        F.lit(False).alias("ok"),
        F.lit(True).alias("dead"),
        none.alias("leased"),
        "key",
        F.lit(None).cast("string").alias("consumer"),
        *same,
        errors.alias("errors"),
    )
    return logged.unionAll(died)


def sums(frame: DataFrame, start: int, step_ms: int) -> DataFrame:
    """All the sums of all rows, from one read of them."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        yield from summed(tables, start, step_ms)

    return added(frame.mapInArrow(task, SUMS))


def summed(tables: Iterator[pa.Table], start: int, step_ms: int) -> Iterator[pa.RecordBatch]:
    """What a task does with its rows. Its chunks have much in common: added up, it is little."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for table in _chunks(tables):
        found = list(_Chunk(table, start, step_ms).sums())
        held += found
        rows += sum(batch.num_rows for batch in found)
        if rows > HELD_MAX:
            yield from _compact(held)
            held, rows = [], 0
    yield from _compact(held)


def _compact(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    adding = [*((name, "sum") for name in ("n", "s", "r")), ("lo", "min"), ("hi", "max")]
    found = pa.Table.from_batches(batches).group_by(list(_BY), use_threads=False).aggregate(adding)
    names = [*_BY, *("_".join(pair) for pair in adding)]
    return found.select(names).rename_columns(_SCHEMA.names).combine_chunks().to_batches()


def added(found: DataFrame) -> DataFrame:
    """The sums of all tasks as those of one."""
    return found.groupBy(*_BY).agg(
        F.sum("n").alias("n"),
        F.sum("s").alias("s"),
        F.sum("r").alias("r"),
        F.min("lo").alias("lo"),
        F.max("hi").alias("hi"),
    )


def _chunks(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= CHUNK:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, rows = [], 0
    if rows:
        yield pa.concat_tables(waiting).combine_chunks()


class _Chunk:
    def __init__(self, table: pa.Table, start: int, step_ms: int) -> None:
        self._table = table
        self._start = start
        self._step = step_ms
        codes = table.column("queue").combine_chunks().dictionary_encode()
        self._names = codes.dictionary.to_pylist()
        self._queue = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self._dead = _numbers(table, "dead").astype(bool)
        self._attempts = _numbers(table, "attempts")
        self._t = self._steps(_numbers(table, "at"))
        self._steps_n = int(self._t.max()) + 1
        self._slot = self._queue * self._steps_n + self._t

    def sums(self) -> Iterator[pa.RecordBatch]:
        logged = ~self._dead
        yield self._rates("done", logged)
        yield self._rates("dead", self._dead)
        for name in MEASURES:
            yield from self._histograms(name, logged)
        yield self._keys(logged)
        yield from self._failures()

    def _steps(self, times: Any) -> Any:
        return np.clip((times - self._start) // self._step, 0, None)

    def _rates(self, what: str, mask: Any) -> pa.RecordBatch:
        """By queue and step: how many, with how many deliveries; and what ended with errors."""
        slots, size = self._slot[mask], len(self._names) * self._steps_n
        n = np.bincount(slots, minlength=size)
        deliveries = np.bincount(slots, weights=self._attempts[mask], minlength=size)
        bad = ~_numbers(self._table, "ok")[mask].astype(bool)
        errors = np.bincount(slots[bad], minlength=size)
        there = np.flatnonzero(n)
        return self._made(what, there, n=n[there], s=deliveries[there], r=errors[there])

    def _histograms(self, measure: str, mask: Any) -> Iterator[pa.RecordBatch]:
        """By queue in fine buckets; by queue and step in coarse ones."""
        column = self._table.column(f"{measure}_ms").combine_chunks()
        known = mask & column.is_valid().to_numpy(zero_copy_only=False)
        times = column.fill_null(0).to_numpy(zero_copy_only=False)
        queues, slots = self._queue, self._slot
        if not known.all():
            times, queues, slots = times[known], queues[known], slots[known]
        buckets = histogram.buckets(times)
        at, n = _counted(queues * histogram.BUCKETS + buckets)
        owner = at // histogram.BUCKETS
        # The sum and the most are those of a queue: its first bucket has them.
        first = np.r_[True, owner[1:] != owner[:-1]] if len(at) else at
        total, most = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        total[first], most[first] = self._totals(times, queues, owner[first])
        queue = pa.array(self._names, pa.string()).take(pa.array(owner))
        fine = {"n": n, "s": total, "hi": most, "k": at % histogram.BUCKETS}
        yield _batch("time", len(at), queue=queue, a=measure, **fine)
        if measure in BY_STEP:
            wide = slots * histogram.BUCKETS + histogram.coarse(buckets)
            at, n = _counted(wide)
            slots, bucket = at // histogram.BUCKETS, at % histogram.BUCKETS
            yield self._made("step", slots, a=measure, k=bucket, n=n)

    def _totals(self, times: Any, queues: Any, there: Any) -> tuple[Any, Any]:
        """The sum and the most of each queue that is there."""
        if len(there) <= 1:
            return (times.sum(), times.max()) if len(there) else (0, 0)
        total = np.bincount(queues, weights=times, minlength=len(self._names))
        most = np.zeros(len(self._names), np.int64)
        np.maximum.at(most, queues, times)
        return total[there].astype(np.int64), most[there]

    def _keys(self, mask: Any) -> pa.RecordBatch:
        """By key: how many, how long in handlers, how many deliveries too many."""
        table = self._table.select(["queue", "key", "run_ms"]).append_column(
            "again", pa.array(np.maximum(self._attempts - 1, 0))
        )
        if not mask.all():
            table = table.filter(pa.array(mask))
        if table.column("key").null_count:
            table = table.filter(pc.field("key").is_valid())
        found = _grouped(
            table, ["queue", "key"], ("run_ms", "sum"), ("again", "sum"), ("run_ms", "max")
        )
        if found.num_rows > KEYS_MAX:
            found = _foremost(found)
        return _rows("key", found, a="key", s="run_ms_sum", r="again_sum", hi="run_ms_max")

    def _failures(self) -> Iterator[pa.RecordBatch]:
        """What failed on the way, and who had it in hand. Few rows have errors."""
        yield from self._consumers_of_done()
        table = self._table
        failed = table.filter(table.column("errors").is_valid())
        if not failed.num_rows:
            return
        yield from self._causes(failed)
        errors = failed.column("errors").combine_chunks()
        parents = pc.list_parent_indices(errors)
        flat = errors.flatten()
        each = pa.table(
            {
                "queue": failed.column("queue").take(parents),
                "at": flat.field("at"),
                "attempt": flat.field("attempt"),
                "code": flat.field("code"),
                "consumer": flat.field("consumer"),
            }
        )
        yield self._retries(each, failed)
        late = pc.equal(each.column("code"), ACK_TIMEOUT_CODE).cast(pa.int64())
        table = each.append_column("late", late)
        found = _grouped(table, ["queue", "consumer"], ("late", "sum"))
        yield _rows("consumer", found, a="consumer", s="late_sum", r="count_all")

    def _consumers_of_done(self) -> Iterator[pa.RecordBatch]:
        table = self._table.select(["queue", "consumer"])
        if table.column("consumer").null_count:
            table = table.filter(pc.field("consumer").is_valid())
        yield _rows("consumer", _grouped(table, ["queue", "consumer"]), a="consumer")

    def _causes(self, failed: pa.Table) -> Iterator[pa.RecordBatch]:
        times = _numbers(failed, "at")
        table = pa.table(
            {
                "queue": failed.column("queue"),
                # Files of an older release have none of these.
                "a": failed.column("fingerprint").fill_null(""),
                "b": pc.utf8_slice_codeunits(failed.column("cause").fill_null(""), 0, TEXT_MAX),
                "t": pa.array(self._steps(times)),
                "at": pa.array(times),
                "dead": failed.column("dead").cast(pa.int64()),
            }
        )
        keys = ["queue", "a", "b", "t"]
        found = _grouped(table, keys, ("dead", "sum"), ("at", "min"), ("at", "max"))
        columns = {"s": "dead_sum", "lo": "at_min", "hi": "at_max"}
        yield _rows("cause", found, a="a", b="b", t="t", **columns)

    def _retries(self, each: pa.Table, failed: pa.Table) -> pa.RecordBatch:
        """By second: a retry that failed, when it did; one that ended it, when it was leased."""
        again = each.filter(pc.greater_equal(each.column("attempt"), 2))
        ended = failed.filter(
            pc.and_(
                pc.greater_equal(failed.column("attempts"), 2), failed.column("leased").is_valid()
            )
        )
        queue = pa.chunked_array(
            [*again.column("queue").chunks, *ended.column("queue").chunks], pa.string()
        )
        at = np.concatenate([_numbers(again, "at"), _numbers(ended, "leased")]) // 1000
        table = pa.table({"queue": queue, "t": pa.array(at)})
        return _rows("retry", _grouped(table, ["queue", "t"]), t="t")

    def _made(self, what: str, slots: Any, **columns: Any) -> pa.RecordBatch:
        names = pa.array(self._names, pa.string())
        queue = names.take(pa.array(slots // self._steps_n))
        return _batch(what, len(slots), queue=queue, t=slots % self._steps_n, **columns)


def _counted(values: Any) -> tuple[Any, Any]:
    """Each value that is there, and how often."""
    low = int(values.min()) if len(values) else 0
    if len(values) and int(values.max()) - low < COUNTED_MAX:
        counts = np.bincount(values - low)
        there = np.flatnonzero(counts)
        return there + low, counts[there]
    return np.unique(values, return_counts=True)


def _foremost(found: pa.Table) -> pa.Table:
    """Half of them by how often they are met, half by how long they took."""
    half = KEYS_MAX // 2
    often = pc.select_k_unstable(found, half, [("count_all", "descending")])
    slow = pc.select_k_unstable(found, half, [("run_ms_sum", "descending")])
    chosen = pc.unique(pa.chunked_array([often, slow]))
    return found.take(chosen)


def _numbers(table: pa.Table, name: str) -> Any:
    column = table.column(name)
    kind = pa.int64() if not pa.types.is_boolean(column.type) else pa.bool_()
    filled = column.cast(kind).fill_null(0 if kind == pa.int64() else False)
    return filled.to_numpy()


def _grouped(table: pa.Table, keys: list[str], *sums: tuple[str, str]) -> pa.Table:
    """How many rows there are of each key, and these sums of columns."""
    return table.group_by(keys, use_threads=False).aggregate([([], "count_all"), *sums])


def _rows(what: str, found: pa.Table, **columns: str) -> pa.RecordBatch:
    """What was grouped by queue; `columns` names the column of `found` for each of ours."""
    names = {"queue": "queue", "n": "count_all", **columns}
    taken = {name: found.column(column) for name, column in names.items()}
    return _batch(what, found.num_rows, **taken)


def _batch(what: str, rows: int, **columns: Any) -> pa.RecordBatch:
    arrays: list[Any] = []
    for field in _SCHEMA:
        value = what if field.name == "what" else columns.get(field.name)
        if value is None and field.name in ("n", "s", "r"):
            value = 0
        if value is None or isinstance(value, str | int):
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
        elif isinstance(value, pa.ChunkedArray):
            arrays.append(value.combine_chunks().cast(field.type))
        elif isinstance(value, pa.Array):
            arrays.append(value.cast(field.type))
        else:
            arrays.append(pa.array(np.asarray(value).astype(np.int64), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
