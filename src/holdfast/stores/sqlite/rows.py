"""Messages to rows and back. The hot path of every batch: plain tuples, nothing decoded in vain."""

from __future__ import annotations

from typing import Any

from holdfast.model.message import NO_HISTORY, Lease, Message
from holdfast.model.payload import JSON
from holdfast.stores import damage
from holdfast.stores.contract import LeaseAsk
from holdfast.stores.rows import columns, encode_json, read_message, write_history

COLUMNS_SO_FAR = columns(first_leased_at="coalesce(first_leased_at, leased_at)")
"""Of a message that may be leased right now."""


def leased_columns(lease: str = "lease") -> str:
    """What makes a Lease, of holdfast_message left joined with holdfast_lease: without a row there,
    a leased message has a token without a call, and can still be settled."""
    return (
        f"coalesce(call, '') || '.' || {lease} || '.' || seq, deadline, coalesce(leased_at, 0), "
        f"coalesce(owner, ''), {COLUMNS_SO_FAR}"
    )


LEASED_COLUMNS = leased_columns()


def write_message(m: Message) -> tuple[Any, ...]:
    return (
        m.partition,
        m.id,
        m.priority,
        m.key,
        m.type,
        None if m.content_type == JSON else m.content_type,
        encode_json(m.headers) if m.headers else None,
        m.enqueued_at,
        m.available_at,
        m.attempts,
        m.ack_timeout,
        m.max_attempts,
        None if m.backoff is None else encode_json(m.backoff.to_dict()),
        write_history(m.history),
        m.first_leased_at,
        bytearray(m.body),
    )


PLAIN_COLUMNS = "part, id, priority, enqueued_at, available_at, attempts, body"
"""All that a message has which is only a JSON value with a priority."""
PLAIN_WIDTH = PLAIN_COLUMNS.count(",") + 1


def write_waiting(m: Message, seq: int, qid: int, state: int, lane: int) -> tuple[Any, ...]:
    """Where it stands, then its columns; only the PLAIN_COLUMNS if it needs no others.

    Python's sqlite3 takes about 0.6 us for every None, and for bytes (not for a bytearray), that it
    binds; left out, they cost nothing. Bulk enqueue is a third faster so.
    """
    at = m.available_at
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
        part, priority, since, attempts = m.partition, m.priority, m.enqueued_at, m.attempts
        return seq, qid, state, lane, at, part, m.id, priority, since, at, attempts, body
    return seq, qid, state, lane, at, *write_message(m)


def take_lease(row: tuple[Any, ...], ask: LeaseAsk, lease: int, now: int) -> Lease:
    """The lease on a waiting row (its seq, then COLUMNS) that is being leased right now."""
    message = read_message(row, ask.queue, 1, now)
    own = message.ack_timeout
    length = ask.timeout_ms if own is None else int(own * 1000 + 0.5)  # as TAKE rounds it
    return Lease(message, f"{ask.token}.{lease}.{row[0]}", now + length, now, ask.owner)


def read_lease(row: tuple[Any, ...], queue: str, at: int) -> Lease:
    """The lease whose LEASED_COLUMNS start at index `at`."""
    message = read_message(row, queue, at + 4)
    token, deadline, leased_at, owner = row[at : at + 4]
    if type(leased_at) is not int or type(owner) is not str or type(token) is not str:
        damage.note(queue, message.id, "a column of its lease is of another type")
        leased_at = leased_at if type(leased_at) is int else 0
        token, owner = damage.text(token), damage.text(owner)
    return Lease(message, token, deadline, leased_at, owner)
