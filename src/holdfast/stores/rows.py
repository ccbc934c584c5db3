"""Rows of the stores that keep a message in columns. On the hot path of every batch: plain tuples,
nothing decoded in vain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.backoff import Backoff
from holdfast.message import NO_HISTORY, Finished, History, Message
from holdfast.payload import JSON

COLUMNS = (
    "part, id, priority, key, type, content_type, headers, enqueued_at, available_at, attempts, "
    "ack_timeout, max_attempts, backoff, history, first_leased_at, body"
)
"""What makes a Message, in the order of `read_message`."""
WIDTH = COLUMNS.count(",") + 1

_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_history = msgspec.json.Decoder(History).decode
_backoff = msgspec.json.Decoder(dict[str, Any]).decode


def encode_json(value: Any) -> str:
    return _encode(value).decode()


def write_history(history: History | None) -> str | None:
    """None, which leaves a stored history alone, also for one that says nothing."""
    if history is None or history is NO_HISTORY or history == NO_HISTORY:
        return None
    return encode_json(history)


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


def first_of_each(rows: Sequence[Finished]) -> Iterable[Finished]:
    """Rows of a log without those that are there twice: the same id, finished at the same time."""
    return {(row.message.id, row.finished_at): row for row in rows}.values()


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
