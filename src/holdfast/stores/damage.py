"""Reading what a row says in JSON, however damaged it is, and a count of the rows that were.

A row that cannot be read must not stop a sweep, a page or its neighbours. What is sound is kept,
what is not is dropped, and a text that says nothing becomes an error with the code DAMAGED_ROW in
the history. The stores decode what is sound themselves; this is where they go when that fails.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model.backoff import SECONDS_MAX, Backoff
from holdfast.model.message import (
    ERROR_CODE_MAX,
    ERROR_TEXT_MAX,
    ERRORS_MAX,
    NO_HISTORY,
    ErrorInfo,
    History,
    Message,
)
from holdfast.model.payload import BYTES

DAMAGED_CODE = "DAMAGED_ROW"
REMEMBERED = 1000
"""Damaged rows that are told apart; further ones are counted each time that they are read."""

logger = logging.getLogger("holdfast.stores")
_history = msgspec.json.Decoder(History).decode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_backoff = msgspec.json.Decoder(dict[str, Any]).decode
_lock = threading.Lock()
_seen: set[tuple[str, str]] = set()
_watchers: list[dict[tuple[str, str], str]] = []
_counts: Counter[str] = Counter()
_FAILURES = (ValueError, TypeError, RecursionError, AttributeError, msgspec.MsgspecError)


def counts() -> dict[str, int]:
    """By queue: the damaged rows that this process has met."""
    with _lock:
        return dict(_counts)


@contextmanager
def watched() -> Generator[dict[tuple[str, str], str], None, None]:
    """Damaged rows that this process meets meanwhile: what is wrong, by queue and id."""
    found: dict[tuple[str, str], str] = {}
    with _lock:
        _watchers.append(found)
    try:
        yield found
    finally:
        with _lock:
            _watchers[:] = [other for other in _watchers if other is not found]


def note(queue: str, id: str, problem: str) -> None:
    with _lock:
        for found in _watchers:
            found.setdefault((queue, id), problem)
        if (queue, id) in _seen:
            return
        if len(_seen) < REMEMBERED:
            _seen.add((queue, id))
        _counts[queue] += 1
    logger.warning("%s: the row of %s is damaged: %s", queue, id, problem)


def read_history(stored: Any, queue: str, id: str) -> History:
    try:
        return _history(stored)
    except _FAILURES as error:
        note(queue, id, f"history: {error}")
    found = _json(stored)
    if not isinstance(found, dict):
        return History(errors=(damaged("its history"),))
    given: dict[str, Any] = found  # pyright: ignore[reportUnknownVariableType]
    errors = given.get("errors")
    handled = given.get("handled")
    return History(
        errors=tuple(map(_error, errors))[-ERRORS_MAX:] if isinstance(errors, list) else (),  # pyright: ignore[reportUnknownArgumentType]
        handled=handled if isinstance(handled, dict) else {},  # pyright: ignore[reportUnknownArgumentType]
        delay=_number(given.get("delay")),
        source=_text_or_none(given.get("source")),
        dead_at=_whole(given.get("dead_at")),
        reason=_text_or_none(given.get("reason")),
        redriven=_whole(given.get("redriven")) or 0,
        origin=_text_or_none(given.get("origin")),
    )


def read_headers(stored: Any, queue: str, id: str) -> dict[str, str]:
    try:
        return _headers(stored)
    except _FAILURES as error:
        note(queue, id, f"headers: {error}")
    found = _json(stored)
    return {text(k): text(v) for k, v in found.items()} if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def read_backoff(stored: Any, queue: str, id: str) -> Backoff | None:
    """None, which is the queue's own, if it is no backoff."""
    try:
        return Backoff(**(stored if isinstance(stored, dict) else _backoff(stored)))  # pyright: ignore[reportUnknownArgumentType]
    except (*_FAILURES, InvalidArgument) as error:
        note(queue, id, f"backoff: {error}")
        return None


def read_result(stored: Any, queue: str, id: str) -> Any:
    try:
        return msgspec.json.decode(stored)
    except _FAILURES as error:
        note(queue, id, f"result: {error}")
        return _json(stored)


def mended(message: Message, problem: str) -> Message:
    """A message whose fields are of the right types, whatever they were, so that every rule can
    decide about it; it says in its history that it was damaged."""
    note(message.queue, message.id, problem)
    m, past = message, message.history
    errors = (*past.errors, damaged(problem))[-ERRORS_MAX:]
    enqueued_at = _whole(m.enqueued_at) or 0
    return msgspec.structs.replace(
        m,
        id=text(m.id),
        partition=_whole(m.partition) or 0,
        priority=min(9, _whole(m.priority) or 0),
        key=_text_or_none(m.key),
        type=_text_or_none(m.type),
        body=m.body if isinstance(m.body, bytes) else text(m.body).encode(),  # pyright: ignore[reportUnnecessaryIsInstance]
        content_type=_text_or_none(m.content_type) or BYTES,
        enqueued_at=enqueued_at,
        available_at=enqueued_at if (at := _whole(m.available_at)) is None else at,
        attempts=_whole(m.attempts) or 0,
        ack_timeout=m.ack_timeout if is_timeout(m.ack_timeout) else None,
        max_attempts=m.max_attempts if is_attempts(m.max_attempts) else None,
        first_leased_at=_whole(m.first_leased_at),
        history=msgspec.structs.replace(past, errors=errors),
    )


def stand_in(queue: str, id: str, body: bytes, problem: str) -> Message:
    """For a row of which nothing can be read: its bytes, so that somebody can look at them."""
    blank = Message(id, queue, 0, 0, None, None, body, BYTES, {}, 0, 0, 0, history=NO_HISTORY)
    return mended(blank, problem)


def damaged(what: str) -> ErrorInfo:
    text = f"the store's row was damaged: {what}"[:ERROR_TEXT_MAX]
    return ErrorInfo(text, DAMAGED_CODE, 0, 0)


def _json(stored: Any) -> Any:
    """As much of a JSON text as Python's own decoder, which is more lenient, makes of it."""
    try:
        text = stored.decode(errors="replace") if isinstance(stored, bytes) else stored
        return _clean(json.loads(text))
    except _FAILURES:
        return None


def _clean(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case list():
            return [_clean(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case _:
            return value


def _error(found: Any) -> ErrorInfo:
    if not isinstance(found, dict):
        return damaged(f"an error of its history: {text(found)}")
    given: dict[str, Any] = found  # pyright: ignore[reportUnknownVariableType]
    return ErrorInfo(
        text(given.get("message", ""))[:ERROR_TEXT_MAX],
        text(given.get("code", DAMAGED_CODE))[:ERROR_CODE_MAX],
        _whole(given.get("at")) or 0,
        _whole(given.get("attempt")) or 0,
        _text_or_none(given.get("consumer")),
        _text_or_none(given.get("handler")),
    )


def text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else str(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else text(value)


def _whole(value: Any) -> int | None:
    """A number that a store can hold, and none below zero."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**53 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 2**53 else None


def is_attempts(value: Any) -> bool:
    return isinstance(value, int) and 0 < value < 2**31


def is_timeout(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value <= SECONDS_MAX
