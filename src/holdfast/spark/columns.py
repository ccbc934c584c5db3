"""Messages as columns: what a DataFrame of each view has, and Arrow batches of it."""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as compute
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.model.fields import PLAIN, Field
from holdfast.model.message import NO_HISTORY, Finished, History, Message
from holdfast.model.payload import JSON
from holdfast.stores.contract import Entry

_KINDS: dict[str, DataType] = {
    "flag": BooleanType(),
    "text": StringType(),
    "bytes": BinaryType(),
    "int": IntegerType(),
    "real": DoubleType(),
    "time": TimestampType(),
}


def _struct(fields: str) -> StructType:
    """Of "name kind, ...": Spark's own notation can be read on the driver only."""
    pairs = [field.split() for field in fields.split(", ")]
    return StructType([StructField(name, _KINDS[kind]) for name, kind in pairs])


_ERROR = "message text, code text, at time, attempt int, consumer text, handler text"
_WHERE = "id text, queue text, partition int, key text, type text"
_WHAT = "payload text, body bytes, content_type text"
_WHEN = (
    "priority int, attempts int, max_attempts int, ack_timeout real, enqueued_at time, "
    "available_at time"
)
MESSAGE = StructType(
    [
        *_struct(f"{_WHERE}, {_WHAT}").fields,
        StructField("headers", MapType(StringType(), StringType())),
        *_struct(_WHEN).fields,
        StructField("errors", ArrayType(_struct(_ERROR))),
        *(StructField(field.name, _KINDS[field.arrow]) for field in PLAIN if field.arrow),
    ]
)
"""`payload` is the body as text where it is JSON or text; else it is null and `body` has it."""


def _and(more: str) -> StructType:
    return StructType([*MESSAGE.fields, *_struct(more).fields])


SCHEMAS = {
    "ready": MESSAGE,
    "delayed": MESSAGE,
    "leased": _and("owner text, leased_at time, deadline time"),
    "dead": _and(
        "source text, dead_at time, reason text, error text, error_code text, redriven int"
    ),
    "log": _and(
        "status text, result text, finished_at time, first_leased_at time, last_leased_at time, "
        "consumer text, reason text"
    ),
}
VALUE = _struct("key text, type text, payload text, attempts int, enqueued_at time, result text")
"""What a sink gets of a message whose handlers succeeded, beside its id."""


def with_lease() -> StructType:
    return StructType([*MESSAGE.fields, *_struct("hold text, lease bytes").fields])


def outcomes(value: StructType) -> StructType:
    """One row for each message of a batch: how it went, the verdict, what the sink gets."""
    judged = _struct("id text, hold text").add("ok", BooleanType()).add("judged", BinaryType())
    return judged.add("value", value)


_encode = msgspec.json.Encoder().encode
pc: Any = compute  # made at run time: no checker knows its functions


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def is_text(message: Message) -> bool:
    return message.content_type == JSON or message.content_type.startswith("text/")


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1000


def _errors(message: Message) -> list[dict[str, Any]]:
    return _errors_of(message.history)


def _errors_of(history: History) -> list[dict[str, Any]]:
    return [
        {
            "message": e.message,
            "code": e.code,
            "at": e.at * 1000,
            "attempt": e.attempt,
            "consumer": e.consumer,
            "handler": e.handler,
        }
        for e in history.errors
    ]


def _finished(entry: Entry) -> Finished:
    assert entry.finished is not None
    return entry.finished


def _result(entry: Entry) -> str | None:
    result = _finished(entry).result
    return None if result is None else _encode(result).decode()


def _plain(field: Field) -> Callable[[Any], Any]:
    """Of a message, or of its history: a plain field has the same name in both."""
    value = attrgetter(field.name)
    return (lambda source: _us(value(source))) if field.arrow == "time" else value


_OF_MESSAGE: dict[str, Callable[[Message], Any]] = {
    "id": lambda m: m.id,
    "queue": lambda m: m.queue,
    "partition": lambda m: m.partition,
    "key": lambda m: m.key,
    "type": lambda m: m.type,
    "payload": lambda m: m.body if is_text(m) else None,
    "body": lambda m: None if is_text(m) else m.body,
    "content_type": lambda m: m.content_type,
    "headers": lambda m: list(m.headers.items()),
    "priority": lambda m: m.priority,
    "attempts": lambda m: m.attempts,
    "max_attempts": lambda m: m.max_attempts,
    "ack_timeout": lambda m: m.ack_timeout,
    "enqueued_at": lambda m: m.enqueued_at * 1000,
    "available_at": lambda m: m.available_at * 1000,
    "errors": _errors,
    "source": lambda m: m.history.source,
    "dead_at": lambda m: _us(m.history.dead_at),
    "reason": lambda m: m.history.reason,
    "error": lambda m: m.history.errors[-1].message if m.history.errors else None,
    "error_code": lambda m: m.history.errors[-1].code if m.history.errors else None,
    "redriven": lambda m: m.history.redriven,
    **{field.name: _plain(field) for field in PLAIN if field.arrow},
}
_OF_ENTRY: dict[str, Callable[[Entry], Any]] = {
    "place": lambda e: e.place,
    "owner": lambda e: e.lease.owner if e.lease else None,
    "leased_at": lambda e: _us(e.lease.leased_at) if e.lease else None,
    "deadline": lambda e: _us(e.lease.deadline) if e.lease else None,
    "status": lambda e: _finished(e).status,
    "result": _result,
    "finished_at": lambda e: _us(_finished(e).finished_at),
    "first_leased_at": lambda e: _us(_finished(e).first_leased_at),
    "last_leased_at": lambda e: _us(_finished(e).last_leased_at),
    "consumer": lambda e: _finished(e).consumer,
}


def of_messages(messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    """Those columns of MESSAGE (and the errors) that the schema names."""
    return pa.RecordBatch.from_arrays(
        [_column(messages, _OF_MESSAGE[field.name], field.type) for field in schema], schema=schema
    )


def of_entries(entries: Sequence[Entry], schema: pa.Schema) -> pa.RecordBatch:
    messages = [entry.message for entry in entries]
    arrays: list[pa.Array] = []
    for field in schema:
        if field.name in _OF_ENTRY:
            arrays.append(_column(entries, _OF_ENTRY[field.name], field.type))
        else:
            arrays.append(_column(messages, _OF_MESSAGE[field.name], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(rows: Iterable[Any], value: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    return pa.array([value(row) for row in rows], kind)


# Straight from the columns of a store (stores/rows.py), without a Python object per message.


def of_raw(raw: pa.RecordBatch, queue: str, schema: pa.Schema) -> pa.RecordBatch:
    histories: list[History] = []
    if raw.column("history").null_count < raw.num_rows:
        histories = [
            NO_HISTORY if text is None else _history(text)
            for text in raw.column("history").to_pylist()
        ]
    arrays = [_raw_column(raw, queue, field, histories) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_history = msgspec.json.Decoder(History).decode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_RENAMED = {"partition": "part", "last_leased_at": "leased_at", "consumer": "owner"}
_OF_HISTORY: dict[str, Callable[[History], Any]] = {
    "source": lambda h: h.source,
    "dead_at": lambda h: _us(h.dead_at),
    "reason": lambda h: h.reason,
    "error": lambda h: h.errors[-1].message if h.errors else None,
    "error_code": lambda h: h.errors[-1].code if h.errors else None,
    "redriven": lambda h: h.redriven,
    "errors": _errors_of,
    **{field.name: _plain(field) for field in PLAIN if field.arrow},
}


def _raw_column(
    raw: pa.RecordBatch, queue: str, field: pa.Field, histories: list[History]
) -> pa.Array:
    n, kind = raw.num_rows, field.type
    match field.name:
        case "queue":
            return pa.repeat(pa.scalar(queue, kind), n)
        case "content_type":
            return pc.fill_null(raw.column("content_type"), JSON).cast(kind)
        case "payload":
            return _texts(raw, kind)
        case "body":
            return pc.if_else(_are_text(raw), pa.scalar(None, pa.binary()), raw.column("body"))
        case "headers":
            return _maps(raw.column("headers"), kind)
        case name if name in _OF_HISTORY:
            if not histories:
                return _alike(_OF_HISTORY[name](NO_HISTORY), kind, n)
            return pa.array([_OF_HISTORY[name](history) for history in histories], kind)
        case name:
            column = raw.column(_RENAMED.get(name, name))
            if pa.types.is_timestamp(kind):
                return column.cast(pa.timestamp("ms", "UTC")).cast(kind)
            return column.cast(kind)


def _alike(value: Any, kind: pa.DataType, n: int) -> pa.Array:
    """One value for all; an empty list is its offsets only."""
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_zeros(n + 1), pa.array([], kind.value_type))
    return pa.repeat(pa.scalar(value, kind), n)


def _zeros(n: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int32()), n)


def _are_text(raw: pa.RecordBatch) -> pa.Array:
    given = raw.column("content_type")
    if given.null_count == raw.num_rows:
        return pa.repeat(pa.scalar(True), raw.num_rows)
    known = pc.fill_null(given, JSON)
    return pc.or_(pc.equal(known, JSON), pc.starts_with(known, "text/"))


def _texts(raw: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    body = raw.column("body")
    if raw.column("content_type").null_count < raw.num_rows:
        body = pc.if_else(_are_text(raw), body, pa.scalar(None, pa.binary()))
    return body.cast(kind)


def _maps(headers: pa.Array, kind: pa.DataType) -> pa.Array:
    if headers.null_count == len(headers):
        none = pa.array([], pa.string())
        return pa.MapArray.from_arrays(_zeros(len(headers) + 1), none, none)
    values = [[] if text is None else list(_headers(text).items()) for text in headers.to_pylist()]
    return pa.array(values, kind)
