"""`df.write.format("holdfast")` and `writeStream`: bulk enqueue from the executors.

Spark may run a task again, after it wrote some or all of its rows, and a stream runs a batch again.
So a row's id is made of the write, the partition and its content, and every chunk of rows leaves a
receipt in the same step that stores it: the same rows again add nothing, also when consumers have
finished them meanwhile.
"""

# pyright: basic

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

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
from holdfast.message import Outgoing
from holdfast.payload import JSON
from holdfast.queue import Queue
from holdfast.spark.connections import context, patiently
from holdfast.spark.options import Options

CHUNK = 5000
"""Rows of one step of the store."""

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
        at = context(given.url)
        if at.store.get_queue(given.queue) is None:
            known = [spec.name for spec in at.store.queues()]
            raise QueueNotFound(
                f"option queue: no queue {given.queue!r}; {did_you_mean(given.queue, known)}"
            )
        self._options = given
        self._write_id = given.write_id or secrets.token_hex(8)

    def _write(self, rows: Iterator[pa.RecordBatch], write: str) -> Written:
        task = TaskContext.get()
        part = task.partitionId() if task else 0
        given = self._options
        queue = Queue(context(given.url), given.queue)
        name = f"{given.queue}/{write}/{part}"
        seen: Counter[bytes] = Counter()
        stored = held = number = 0
        for chunk in _chunks(rows):
            with _named(number):
                items = _outgoing(chunk, given, f"{name}/", seen)
                kept = patiently(
                    lambda items=items: _enqueue(queue, items, name),
                    f"writing to {given.queue}",
                    given.store_timeout,
                )
            number += len(items)
            stored += kept
            held += len(items) - kept
        return Written(stored, held)


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
    chunk: pa.RecordBatch, given: Options, name: str, seen: Counter[bytes]
) -> list[Outgoing]:
    columns = {field: chunk.column(field).to_pylist() for field in chunk.schema.names}
    items: list[Outgoing] = []
    for n in range(chunk.num_rows):
        row = {field: values[n] for field, values in columns.items()}
        row = {field: value for field, value in row.items() if value is not None}
        try:
            items.append(_one(row, given, name, seen))
        except InvalidArgument as error:
            error.index = n
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


def _one(row: dict[str, Any], given: Options, name: str, seen: Counter[bytes]) -> Outgoing:
    kind = row.get("content_type")
    if "payload" in row:
        payload = row["payload"]
        if isinstance(payload, str):
            kind = kind or ("text/plain" if given.payload_format == "text" else JSON)
            payload = payload.encode()
    elif "body" in row:
        payload = row["body"]
    else:
        raise InvalidArgument("payload", "is null")
    id = row.get("id")
    at = row.get("available_at")
    return Outgoing(
        payload,
        id=id if id is not None else _derived(row, name, seen),
        key=row.get("key"),
        type=row.get("type"),
        priority=row.get("priority", 0),
        delay=row.get("delay"),
        at=None if at is None else _in_utc(at),
        headers=dict(row["headers"]) if "headers" in row else None,
        ack_timeout=row.get("ack_timeout"),
        max_attempts=row.get("max_attempts"),
        content_type=kind,
    )


def _in_utc(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _derived(row: dict[str, Any], name: str, seen: Counter[bytes]) -> str:
    """An id of the write and the content: alike rows of a partition are told apart by counting."""
    content = blake2b(msgspec.msgpack.encode(sorted(row.items())), digest_size=16).digest()
    seen[content] += 1
    full = blake2b(name.encode() + content + seen[content].to_bytes(8), digest_size=16).digest()
    return str(uuid.UUID(bytes=full, version=5))


def _enqueue(queue: Queue, items: list[Outgoing], name: str) -> int:
    """Store a chunk once; how many of it are new."""
    ids = blake2b("".join(sorted(str(item.id) for item in items)).encode(), digest_size=12)
    messages = queue.enqueue_many(items, receipt=f"{name}/{ids.hexdigest()}")
    return sum(not message.duplicate for message in messages)
