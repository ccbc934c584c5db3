"""Messages to columns and rows back. The hot path of every batch: nothing is decoded in vain."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from holdfast.model.message import Finished, Lease, Message
from holdfast.model.payload import JSON
from holdfast.stores import rows
from holdfast.stores.contract import LeaseAsk
from holdfast.stores.postgres import arrays
from holdfast.stores.rows import encode_json, read_message, write_history

COLUMNS = rows.columns(id="id::text")
"""What makes a Message."""
LEASED_COLUMNS = "token, deadline, leased_at, owner, " + COLUMNS
"""What makes a Lease."""


def write_messages(messages: Sequence[Message], now: int) -> dict[str, Any]:
    """The columns of a batch, as ENQUEUE binds them; those that say nothing are empty."""
    return {
        "ids": arrays.uuids([m.id for m in messages]),
        "parts": arrays.ints([m.partition for m in messages], 0),
        "priorities": arrays.ints([m.priority for m in messages], 0),
        "keys": arrays.texts([m.key for m in messages]),
        "types": arrays.texts([m.type for m in messages]),
        "content_types": arrays.texts(
            [None if m.content_type == JSON else m.content_type for m in messages]
        ),
        "headers": arrays.texts([encode_json(m.headers) if m.headers else None for m in messages]),
        "enqueued_ats": arrays.ints([m.enqueued_at for m in messages], now),
        "available_ats": arrays.ints([m.available_at for m in messages], now),
        "attempts": arrays.ints([m.attempts for m in messages], 0),
        "ack_timeouts": arrays.floats([m.ack_timeout for m in messages]),
        "max_attempts": arrays.ints([m.max_attempts for m in messages]),
        "backoffs": arrays.texts(
            [None if m.backoff is None else encode_json(m.backoff.to_dict()) for m in messages]
        ),
        "first_leased_ats": arrays.ints([m.first_leased_at for m in messages]),
        "histories": arrays.texts([write_history(m.history) for m in messages]),
        "bodies": arrays.blobs([m.body for m in messages]),
        "now": now,
    }


def write_finished(rows: Sequence[Finished], now: int) -> dict[str, Any]:
    """The columns of rows of a log, as RESTORE binds them."""
    return {
        **write_messages([row.message for row in rows], now),
        "finished_ats": arrays.ints([row.finished_at for row in rows]),
        "statuses": arrays.texts([row.status for row in rows]),
        "leased_ats": arrays.ints([row.last_leased_at for row in rows]),
        "owners": arrays.texts([row.consumer for row in rows]),
        "results": arrays.blobs(
            [None if row.result is None else encode_json(row.result).encode() for row in rows]
        ),
    }


def read_lease(row: tuple[Any, ...], queue: str, at: int) -> Lease:
    """The lease whose LEASED_COLUMNS start at index `at`."""
    return Lease(
        read_message(row, queue, at + 4), f"{row[at]:x}", row[at + 1], row[at + 2], row[at + 3]
    )


def take_lease(row: tuple[Any, ...], ask: LeaseAsk, now: int) -> Lease:
    """The lease on a row that was leased right now: rank, place, token, deadline, then COLUMNS."""
    return Lease(read_message(row, ask.queue, 4), f"{row[2]:x}", row[3], now, ask.owner)


def take_lease_of(row: tuple[Any, ...], asks: Sequence[LeaseAsk], now: int) -> Lease:
    """The same for several queues: the number of its ask, from 1, comes first."""
    number: int = row[0]
    return take_lease(row[1:], asks[number - 1], now)


def token_base(call: str) -> int:
    """A lease's token is this plus the message's seq: new for every call, its own per message."""
    return int.from_bytes(blake2b(call.encode(), digest_size=8).digest()) >> 2


def read_token(token: str | None) -> int:
    """The number of a token; 0, which no lease has, for what is not one."""
    try:
        number = int(token or "0", 16)
    except ValueError:
        return 0
    return number if f"{number:x}" == token and number < 2**63 else 0
