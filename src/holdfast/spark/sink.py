"""`df.write.format("holdfast")` and `writeStream`: bulk enqueue from the executors.

Spark may run a task again, after it wrote some or all of its rows, and a stream runs a batch again.
So a row's id is made of the write, the partition and its content, and every chunk of rows leaves a
receipt in the same step that stores it: the same rows again add nothing, also when consumers have
finished them meanwhile. There is no receipt of a whole task: when what feeds it fails, its rows
just end, and it cannot know that these were not all.
"""

# pyright: basic

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.errors import InvalidArgument, QueueNotFound, did_you_mean
from holdfast.model.message import Outgoing
from holdfast.model.payload import JSON
from holdfast.queue.context import Context
from holdfast.queue.queue import Queue
from holdfast.queue.topic import is_hidden
from holdfast.spark.connections import context, patiently
from holdfast.spark.options import Options

CHUNK = 5000
"""Rows of one step of the store."""
T = TypeVar("T")

_WHOLE = (ShortType, IntegerType, LongType)
_NUMBER = (*_WHOLE, FloatType, DoubleType)
_TIME = (TimestampType, TimestampNTZType)
FIELDS: dict[str, tuple[type[DataType], ...]] = {
    "id": (StringType,),
    "key": (StringType,),
    "type": (StringType,),
    "payload": (StringType, BinaryType),
    "body": (BinaryType,),
    "content_type": (StringType,),
    "headers": (MapType,),
    "priority": _WHOLE,
    "delay": _NUMBER,
    "available_at": _TIME,
    "ack_timeout": _NUMBER,
    "max_attempts": _WHOLE,
}
"""Columns that become fields of a message."""


class Written(WriterCommitMessage):
    def __init__(self, rows: int, held: int) -> None:
        self.rows = rows
        self.held = held


def check_columns(schema: StructType) -> None:
    names = [field.name for field in schema.fields]
    if "payload" not in names and "body" not in names:
        raise InvalidArgument(
            "column payload",
            'is needed: .select(to_json(struct("*")).alias("payload")) makes one of all columns',
        )
    for field in schema.fields:
        kinds = FIELDS.get(field.name)
        if kinds is None:
            raise InvalidArgument(
                f"column {field.name}", f"a message has no such field; {_near(field.name)}"
            )
        if not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind().simpleString() for kind in kinds if kind is not MapType)
            raise InvalidArgument(
                f"column {field.name}",
                f"must be {wanted or 'map<string,string>'}, not {field.dataType.simpleString()}",
            )


def _near(name: str) -> str:
    return did_you_mean(name, FIELDS)


class _Sink:
    def __init__(self, given: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument("mode", 'a queue is only added to: .mode("append")')
        check_columns(schema)
        at = context(given.url, timeout=given.store_timeout)
        found = patiently(
            lambda: at.spec(given.queue),
            f"planning to write to {given.queue}",
            given.store_timeout,
        )
        if found is None:
            known = [spec.name for spec in at.store.queues() if not is_hidden(spec.name)]
            raise QueueNotFound(
                f"option queue: no queue {given.queue!r}; {did_you_mean(given.queue, known)}"
            )
        self._options = given
        self._write_id = given.write_id or secrets.token_hex(8)

    def _write(self, rows: Iterator[pa.RecordBatch], write: str) -> Written:
        task = TaskContext.get()
        part = task.partitionId() if task else 0
        given = self._options
        queue = Queue(self._at(), given.queue)
        name = f"{given.queue}/{write}/{part}"
        seen: Counter[str] = Counter()
        stored = held = number = 0
        for chunk in _chunks(rows):
            with _named(number):
                items = _outgoing(chunk, given, f"{name}/", seen)
                kept = self._patiently(lambda items=items: _enqueue(queue, items, name))
            number += len(items)
            stored += kept
            held += len(items) - kept
        return Written(stored, held)

    def _at(self) -> Context:
        return context(self._options.url, timeout=self._options.store_timeout)

    def _patiently(self, act: Callable[[], T]) -> T:
        given = self._options
        return patiently(act, f"writing to {given.queue}", given.store_timeout)


class BatchSink(_Sink, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator, self._write_id)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        query = batch = None
        if task is not None:
            query = task.getLocalProperty("sql.streaming.queryId")
            batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise InvalidArgument("writeStream", "this Spark does not tell a task its batch")
        return self._write(iterator, f"{self._options.write_id or query}/{batch}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None: ...

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None: ...


def _chunks(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of equal length whatever Spark's batches are, so that a repeated task cuts alike."""
    waiting: list[pa.RecordBatch] = []
    n = 0
    for batch in rows:
        while n + batch.num_rows >= CHUNK:
            take = CHUNK - n
            waiting.append(batch.slice(0, take))
            yield pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
            batch, waiting, n = batch.slice(take), [], 0
        if batch.num_rows:
            waiting.append(batch)
            n += batch.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]


def _outgoing(
    chunk: pa.RecordBatch, given: Options, name: str, seen: Counter[str]
) -> list[Outgoing]:
    names = sorted(chunk.schema.names)
    own = "id" in names
    key = blake2b(name.encode(), digest_size=32).digest()
    items: list[Outgoing] = []
    try:
        for values in zip(*(chunk.column(field).to_pylist() for field in names), strict=True):
            row = {
                field: value
                for field, value in zip(names, values, strict=True)
                if value is not None
            }
            id = row.get("id") if own else None
            items.append(_one(row, given, id or _derived(values, key, seen)))
    except InvalidArgument as error:
        error.index = len(items)
        raise
    return items


@contextmanager
def _named(first: int) -> Iterator[None]:
    """A bad row is named by its column and its number in its partition."""
    try:
        yield
    except InvalidArgument as error:
        row = first + (error.index or 0)
        column = "available_at" if error.field == "at" else error.field
        raise InvalidArgument(
            f"column {column}", f"row {row} of its partition: {error.problem}"
        ) from None


def _one(row: dict[str, Any], given: Options, id: str) -> Outgoing:
    kind = row.pop("content_type", None)
    payload = row.pop("payload", None)
    body = row.pop("body", None)
    if isinstance(payload, str):
        kind = kind or ("text/plain" if given.payload_format == "text" else JSON)
        payload = payload.encode()
    elif payload is None:
        if body is None:
            raise InvalidArgument("payload", "is null")
        payload = body
    row["id"] = id
    if "available_at" in row:
        row["at"] = _in_utc(row.pop("available_at"))
    if "headers" in row:
        row["headers"] = dict(row["headers"])
    return Outgoing(payload, content_type=kind, **row)


def _in_utc(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _derived(values: tuple[Any, ...], key: bytes, seen: Counter[str]) -> str:
    """An id of the write and the content: alike rows of a partition are told apart by counting."""
    content = msgspec.msgpack.encode(values)
    h = blake2b(content, digest_size=16, key=key).hexdigest()
    seen[h] += 1
    if seen[h] > 1:
        content += seen[h].to_bytes(8)
        h = blake2b(content, digest_size=16, key=key).hexdigest()
    return f"{h[:8]}-{h[8:12]}-5{h[13:16]}-a{h[17:20]}-{h[20:]}"


def _enqueue(queue: Queue, items: list[Outgoing], name: str) -> int:
    """Store a chunk once; how many of it are new."""
    ids = blake2b("".join(sorted(str(item.id) for item in items)).encode(), digest_size=12)
    messages = queue.enqueue_many(items, receipt=f"{name}/{ids.hexdigest()}")
    return sum(not message.duplicate for message in messages)
