"""Columns of a batch as binary array parameters, built in a few calls for the whole column.

psycopg dumps a list element by element; for a batch of a thousand messages that would be most of
the time of a bulk enqueue.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from psycopg import adapters
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

_UUID, _INT8, _FLOAT8, _TEXT, _BYTEA = 2950, 20, 701, 25, 17


class _Column(bytes):
    """An array in PostgreSQL's binary form; each subclass is one element type."""


class Uuids(_Column): ...


class Ints(_Column): ...


class Floats(_Column): ...


class Texts(_Column): ...


class Bytes(_Column): ...


def uuids(ids: Sequence[str]) -> Uuids:
    text = "00000010".join(["", *ids]).replace("-", "")
    return Uuids(_header(_UUID, len(ids)) + bytes.fromhex(text))


def ints(values: Sequence[int | None], default: int | None = None) -> Ints:
    """Empty when every value is the default: unnest fills up with NULLs, a statement with that."""
    if values.count(default) == len(values):
        return Ints(_header(_INT8, 0))
    if None not in values:
        flat: list[int | None] = [8] * (2 * len(values))
        flat[1::2] = values
        return Ints(_header(_INT8, len(values)) + struct.pack(">" + "iq" * len(values), *flat))
    packed = [None if value is None else struct.pack(">q", value) for value in values]
    return Ints(_header(_INT8, len(values)) + _elements(packed))


def floats(values: Sequence[float | None]) -> Floats:
    if values.count(None) == len(values):
        return Floats(_header(_FLOAT8, 0))
    packed = [None if value is None else struct.pack(">d", value) for value in values]
    return Floats(_header(_FLOAT8, len(values)) + _elements(packed))


def texts(values: Sequence[str | None]) -> Texts:
    if values.count(None) == len(values):
        return Texts(_header(_TEXT, 0))
    encoded = [None if value is None else value.encode() for value in values]
    return Texts(_header(_TEXT, len(values)) + _elements(encoded))


def blobs(values: Sequence[bytes | None]) -> Bytes:
    if values.count(None) == len(values):
        return Bytes(_header(_BYTEA, 0))
    return Bytes(_header(_BYTEA, len(values)) + _elements(values))


def _header(oid: int, n: int) -> bytes:
    return struct.pack(">iiiii", 1, 1, oid, n, 1) if n else struct.pack(">iii", 0, 0, oid)


def _elements(values: Sequence[bytes | None]) -> bytes:
    length = struct.Struct(">i").pack
    null = length(-1)
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(null)
        else:
            parts += (length(len(value)), value)
    return b"".join(parts)


def _register(kind: type[_Column], array_oid: int) -> None:
    class ColumnDumper(Dumper):
        oid = array_oid
        format = Format.BINARY

        def dump(self, obj: Any) -> Buffer:
            return obj

    adapters.register_dumper(kind, ColumnDumper)


_register(Uuids, 2951)
_register(Ints, 1016)
_register(Floats, 1022)
_register(Texts, 1009)
_register(Bytes, 1001)
