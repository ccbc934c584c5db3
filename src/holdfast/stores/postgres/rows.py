"""Messages to columns and rows back. The hot path of every batch: nothing is decoded in vain."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast.backoff import Backoff
from holdfast.message import NO_HISTORY, Finished, History, Lease, Message
from holdfast.payload import JSON
from holdfast.store import LeaseAsk
from holdfast.stores.postgres import arrays

COLUMNS = (
    "part, id::text, priority, key, type, content_type, headers, enqueued_at, available_at, "
    "attempts, ack_timeout, max_attempts, backoff, history, first_leased_at, body"
)
"""What makes a Message, in the order of `read_message`."""
WIDTH = COLUMNS.count(",") + 1
LEASED_COLUMNS = "token, deadline, leased_at, owner, " + COLUMNS
"""What makes a Lease."""

_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_history = msgspec.json.Decoder(History).decode
_backoff = msgspec.json.Decoder(dict[str, Any]).decode


def encode_json(value: Any) -> str:
    return _encode(value).decode()


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
        "histories": arrays.texts([write_history(m.history) for m in messages]),
        "bodies": arrays.blobs([m.body for m in messages]),
        "now": now,
    }


def write_history(history: History | None) -> str | None:
    """None, which leaves a stored history alone, also for one that says nothing."""
    if history is None or history is NO_HISTORY or history == NO_HISTORY:
        return None
    return encode_json(history)


def read_message(row: tuple[Any, ...], queue: str, at: int) -> Message:
    """The message whose COLUMNS start at index `at` of a row."""
    (
        part, id, priority, key, type, content_type, headers, enqueued_at, available_at, attempts,
        ack_timeout, max_attempts, backoff, history, first_leased_at, body,
    ) = row[at : at + WIDTH]  # fmt: skip
    return Message(
        id,
        queue,
        part,
        priority,
        key,
        type,
        body,
        content_type or JSON,
        _headers(headers) if headers else {},
        enqueued_at,
        available_at,
        attempts,
        ack_timeout,
        max_attempts,
        Backoff(**_backoff(backoff)) if backoff else None,
        first_leased_at,
        _history(history) if history else NO_HISTORY,
    )


def read_lease(row: tuple[Any, ...], queue: str, at: int) -> Lease:
    """The lease whose LEASED_COLUMNS start at index `at`."""
    return Lease(
        read_message(row, queue, at + 4), f"{row[at]:x}", row[at + 1], row[at + 2], row[at + 3]
    )


def take_lease(row: tuple[Any, ...], ask: LeaseAsk, now: int) -> Lease:
    """The lease on a row that was leased right now: rank, place, token, deadline, then COLUMNS."""
    return Lease(read_message(row, ask.queue, 4), f"{row[2]:x}", row[3], now, ask.owner)


def read_finished(row: tuple[Any, ...], queue: str, at: int) -> Finished:
    """The log row whose finished_at, status, leased_at, owner, result and COLUMNS start at `at`."""
    finished_at, status, leased_at, owner, result = row[at : at + 5]
    message = read_message(row, queue, at + 5)
    return Finished(
        message,
        status,
        finished_at,
        message.first_leased_at,
        leased_at,
        owner,
        None if result is None else msgspec.json.decode(result),
    )


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
