"""Rows of the stores that keep a message in columns. On the hot path of every batch: plain tuples,
nothing decoded in vain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

import msgspec

from holdfast.model.message import NO_HISTORY, Finished, History, Message, Status
from holdfast.model.payload import JSON
from holdfast.stores import damage

COLUMNS = (
    "part, id, priority, key, type, content_type, headers, enqueued_at, available_at, attempts, "
    "ack_timeout, max_attempts, backoff, history, first_leased_at, body"
)
"""What makes a Message, in the order of `read_message`."""
WIDTH = COLUMNS.count(",") + 1


def columns(**read_as: str) -> str:
    """COLUMNS, some of them as the value of an expression."""
    names = COLUMNS.split(", ")
    if unknown := read_as.keys() - set(names):
        raise KeyError(*unknown)
    return ", ".join(read_as.get(name, name) for name in names)


STATUSES = frozenset(get_args(Status))
_encode = msgspec.json.Encoder().encode


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
        part, id, priority, key, kind, content_type, headers, enqueued_at, available_at, attempts,
        ack_timeout, max_attempts, backoff, history, first_leased_at, body,
    ) = row[at : at + WIDTH]  # fmt: skip
    sound = (  # SQLite keeps whatever somebody wrote into a column
        type(attempts) is int
        and type(available_at) is int
        and type(enqueued_at) is int
        and type(part) is int
        and type(priority) is int
        and type(body) is bytes
        and type(id) is str
        and (key is None or type(key) is str)
        and (kind is None or type(kind) is str)
        and (content_type is None or type(content_type) is str)
        and (max_attempts is None or damage.is_attempts(max_attempts))
        and (first_leased_at is None or type(first_leased_at) is int)
        and (ack_timeout is None or damage.is_timeout(ack_timeout))
    )
    if not sound:
        id = damage.text(id)
    if leasing_at is not None:
        attempts = attempts + 1 if sound else attempts
        first_leased_at = (first_leased_at if sound else None) or leasing_at
    message = Message(
        id,
        queue,
        part,
        priority,
        key,
        kind,
        body,
        content_type or JSON,
        damage.read_headers(headers, queue, id) if headers else {},
        enqueued_at,
        available_at,
        attempts,
        ack_timeout,
        max_attempts,
        damage.read_backoff(backoff, queue, id) if backoff else None,
        first_leased_at,
        damage.read_history(history, queue, id) if history else NO_HISTORY,
    )
    return message if sound else damage.mended(message, "a column is of another type")


def first_of_each(rows: Sequence[Finished]) -> Iterable[Finished]:
    """Rows of a log without those that are there twice: the same id, finished at the same time."""
    return {(row.message.id, row.finished_at): row for row in rows}.values()


def read_finished(row: tuple[Any, ...], queue: str, at: int) -> Finished:
    """The log row whose finished_at, status, leased_at, owner, result and COLUMNS start at `at`."""
    finished_at, status, leased_at, owner, result = row[at : at + 5]
    message = read_message(row, queue, at + 5)
    if (
        status not in STATUSES
        or (leased_at is not None and type(leased_at) is not int)
        or (owner is not None and type(owner) is not str)
    ):
        damage.note(queue, message.id, "a column of its row in the log is of another type")
        status = status if status in STATUSES else "COMPLETED_WITH_ERRORS"
        leased_at = leased_at if type(leased_at) is int else None
        owner = None if owner is None else damage.text(owner)
    return Finished(
        message,
        status,
        finished_at,
        message.first_leased_at,
        leased_at,
        owner,
        None if result is None else damage.read_result(result, queue, message.id),
    )
