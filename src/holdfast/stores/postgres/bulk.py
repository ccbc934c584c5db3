"""Large batches go in by COPY, which writes whole pages at once: about twice as fast as INSERT.

COPY cannot skip ids that are held, so this is the hopeful way: new ids never are. If one is, the
whole transaction fails and the batch goes the way that can (ENQUEUE in store.py).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from holdfast.message import Message
from holdfast.payload import JSON
from holdfast.stores.postgres.connections import Connection, Sql
from holdfast.stores.postgres.rows import encode_json, write_history
from holdfast.stores.postgres.settle import COUNT, DELAYED, READY, Counts

COPY_MIN = 250
"""Below this the round trips cost more than the pages save."""

# Primary key: nobody deletes the queue meanwhile.
NUMBERS = """
SELECT qid, partitions > 1, ARRAY(SELECT nextval('holdfast.seq') FROM generate_series(1, %(n)s))
FROM holdfast.queue WHERE name = %(queue)s FOR KEY SHARE
"""
_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_TRAILER = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)

_Column = bytes | list[bytes]


def copy_in(db: Connection, sql: Sql, messages: Sequence[Message], now: int) -> int | None:
    """Store all of them in the transaction that is open on `db`; the qid, None if there is none."""
    bind = {"queue": messages[0].queue, "n": len(messages)}
    found = db.execute(sql(NUMBERS), bind, binary=True).fetchone()
    if found is None:
        return None
    qid, split, seqs = found
    # In order of the ids: two batches that name the same messages never deadlock.
    line = sorted(zip(messages, seqs, strict=True), key=lambda pair: pair[0].id)
    messages, seqs = [message for message, _ in line], [seq for _, seq in line]
    columns = _columns(messages, qid, split, seqs, now)
    statement = f"COPY holdfast.message ({', '.join(columns)}) FROM STDIN (FORMAT binary)"
    with db.cursor() as cursor, cursor.copy(sql(statement)) as copy:
        copy.write(_rows(columns, len(messages)))
    counts = Counts()
    states = Counter((m.partition, READY if m.available_at <= now else DELAYED) for m in messages)
    for (part, state), n in states.items():
        counts.move(qid, part, state, n)
    counts.write(db, sql(COUNT))
    return qid


def _columns(
    messages: Sequence[Message], qid: int, split: bool, seqs: Sequence[int], now: int
) -> dict[str, _Column]:
    """Every column in its binary form; those that are NULL throughout are left out."""
    dead = qid % 2 == 1
    places = _each(">iq", 8, seqs)
    columns: dict[str, _Column | None] = {
        "home": struct.pack(">ii", 4, qid // 2),
        "qid": struct.pack(">ii", 4, qid),
        "split": struct.pack(">i?", 1, split),
        "part": _each(">ii", 4, [m.partition for m in messages]),
        "attempts": _each(">ii", 4, [m.attempts for m in messages]),
        "priority": _each(">ih", 2, [m.priority for m in messages]),
        "rank": _each(">ih", 2, [9 if dead else 9 - m.priority for m in messages]),
        "state": _each(">ih", 2, [READY if m.available_at <= now else DELAYED for m in messages]),
        "enqueued_at": _each(">iq", 8, [m.enqueued_at for m in messages]),
        "available_at": _each(">iq", 8, [m.available_at for m in messages]),
        "max_attempts": _each(">ii", 4, [m.max_attempts for m in messages]),
        "ack_timeout": _each(">id", 8, [m.ack_timeout for m in messages]),
        "key": _texts([m.key for m in messages]),
        "type": _texts([m.type for m in messages]),
        "content_type": _texts(
            [None if m.content_type == JSON else m.content_type for m in messages]
        ),
        "headers": _texts([encode_json(m.headers) if m.headers else None for m in messages]),
        "backoff": _texts(
            [None if m.backoff is None else encode_json(m.backoff.to_dict()) for m in messages]
        ),
        "history": _texts([write_history(m.history) for m in messages]),
        "seq": places,
        "place": places,
        "id": [_ID + bytes.fromhex(m.id.replace("-", "")) for m in messages],
        "body": [struct.pack(">i", len(m.body)) + m.body for m in messages],
    }
    return {name: column for name, column in columns.items() if column is not None}


_ID = struct.pack(">i", 16)


def _each(shape: str, size: int, values: Sequence[Any]) -> _Column | None:
    """Numbers, each behind its size; a single field if they are all the same."""
    pack = struct.Struct(shape).pack
    if len(set(values)) == 1:
        return None if values[0] is None else pack(size, values[0])
    return [_NULL if value is None else pack(size, value) for value in values]


def _texts(values: Sequence[str | None]) -> _Column | None:
    if all(value is None for value in values):
        return None
    encoded = [None if value is None else value.encode() for value in values]
    return [_NULL if text is None else struct.pack(">i", len(text)) + text for text in encoded]


def _rows(columns: dict[str, _Column], n: int) -> bytes:
    count = struct.pack(">h", len(columns))
    fields = [
        repeat(column) if isinstance(column, bytes) else column for column in columns.values()
    ]
    rows = [b"".join(row) for row in zip(repeat(count, n), *fields, strict=False)]
    return b"".join([_HEADER, *rows, _TRAILER])
