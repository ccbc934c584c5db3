"""Messages to rows and back. The hot path of every batch: plain tuples, nothing decoded in vain."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.backoff import Backoff
from holdfast.message import NO_HISTORY, Finished, History, Lease, Message
from holdfast.payload import JSON
from holdfast.store import LeaseAsk

COLUMNS = (
    "part, id, priority, key, type, content_type, headers, enqueued_at, available_at, attempts, "
    "ack_timeout, max_attempts, backoff, history, first_leased_at, body"
)
"""What makes a Message, in the order of `write_message` and `read_message`."""
WIDTH = COLUMNS.count(",") + 1

_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_history = msgspec.json.Decoder(History).decode
_backoff = msgspec.json.Decoder(dict[str, Any]).decode


LEASED_COLUMNS = (
    "call || '.' || lease || '.' || seq, deadline, leased_at, owner, "
    + COLUMNS.replace("first_leased_at", "coalesce(first_leased_at, leased_at)")
)
"""What makes a Lease, of holdfast_message joined with holdfast_lease."""


def write_message(m: Message) -> tuple[Any, ...]:
    return (
        m.partition,
        m.id,
        m.priority,
        m.key,
        m.type,
        None if m.content_type == JSON else m.content_type,
        _encode(m.headers).decode() if m.headers else None,
        m.enqueued_at,
        m.available_at,
        m.attempts,
        m.ack_timeout,
        m.max_attempts,
        None if m.backoff is None else _encode(m.backoff.to_dict()).decode(),
        write_history(m.history),
        m.first_leased_at,
        bytearray(m.body),
    )


PLAIN_COLUMNS = "part, id, priority, enqueued_at, available_at, attempts, body"
"""All that a message has which is only a JSON value with a priority."""
PLAIN_WIDTH = PLAIN_COLUMNS.count(",") + 1


def write_plain(m: Message) -> tuple[Any, ...] | None:
    """The PLAIN_COLUMNS of a message that needs no others, else None.

    Python's sqlite3 takes about 0.6 us for every None, and for bytes (not for a bytearray), that it
    binds; left out, they cost nothing. Bulk enqueue is a third faster so.
    """
    if (
        m.key is None
        and m.type is None
        and m.content_type == JSON
        and not m.headers
        and m.ack_timeout is None
        and m.max_attempts is None
        and m.backoff is None
        and m.first_leased_at is None
        and m.history == NO_HISTORY
    ):
        body = bytearray(m.body)
        return m.partition, m.id, m.priority, m.enqueued_at, m.available_at, m.attempts, body
    return None


def write_history(history: History | None) -> str | None:
    """None, which leaves a stored history alone, also for one that says nothing."""
    if history is None or history == NO_HISTORY:
        return None
    return _encode(history).decode()


def read_message(
    row: tuple[Any, ...], queue: str, at: int, leasing_at: int | None = None
) -> Message:
    """The message whose COLUMNS start at index `at` of a row; one that is being leased right now
    has one attempt more, and this as its first lease if there was none before."""
    (
        part, id, priority, key, type, content_type, headers, enqueued_at, available_at, attempts,
        ack_timeout, max_attempts, backoff, history, first_leased_at, body,
    ) = row[at : at + WIDTH]  # fmt: skip
    if leasing_at is not None:
        attempts += 1
        first_leased_at = first_leased_at or leasing_at
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


def take_lease(row: tuple[Any, ...], ask: LeaseAsk, lease: int, now: int) -> Lease:
    """The lease on a waiting row (its seq, then COLUMNS) that is being leased right now."""
    message = read_message(row, ask.queue, 1, now)
    own = message.ack_timeout
    length = ask.timeout_ms if own is None else int(own * 1000 + 0.5)  # as TAKE rounds it
    return Lease(message, f"{ask.token}.{lease}.{row[0]}", now + length, now, ask.owner)


def read_lease(row: tuple[Any, ...], queue: str, at: int) -> Lease:
    """The lease whose LEASED_COLUMNS start at index `at`."""
    message = read_message(row, queue, at + 4)
    return Lease(message, row[at], row[at + 1], row[at + 2], row[at + 3])


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
