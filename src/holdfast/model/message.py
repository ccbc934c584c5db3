"""The values everything speaks of: a message, what happened to it, a lease on it."""

from __future__ import annotations

import os
import random
import re
import threading
import uuid
from collections.abc import Iterator
from itertools import accumulate
from struct import pack, unpack
from typing import Any, Literal

import msgspec

from holdfast.errors import InvalidArgument, shown
from holdfast.model import fields
from holdfast.model import payload as payloads
from holdfast.model.backoff import Backoff

DLQ_SUFFIX = ".dlq"
PRIORITY_MAX = 9
ERRORS_MAX = 200
"""Errors kept on a message: the newest. Attempts end long before, redrives may not."""
ERROR_TEXT_MAX = 2000
ERROR_CODE_MAX = 200

Status = Literal["COMPLETED", "COMPLETED_WITH_ERRORS"]


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed delivery: what went wrong, when, in whose hands."""

    message: str
    code: str
    at: int
    attempt: int
    consumer: str | None = None
    handler: str | None = None
    traceback: str | None = None
    """Where a handler raised it, as far as the policy's `traceback_max` lets it be kept."""


class History(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a message that did not go straight through; replaced as a whole."""

    errors: tuple[ErrorInfo, ...] = ()
    handled: dict[str, Any] = {}
    """Handlers that already succeeded, with their results: they do not run again."""
    delay: float | None = None
    """Seconds of the last backoff; decorrelated jitter grows from it."""
    source: str | None = None
    dead_at: int | None = None
    reason: str | None = None
    redriven: int = 0
    origin: str | None = None
    """Id of the finished message that this one replays."""


NO_HISTORY = History()


def starting_again(history: History, *, origin: str | None = None) -> History:
    """The history of a message that is enqueued again: what its producer set, and nothing else."""
    kept = {name: getattr(history, name) for name in fields.SENT_IN_HISTORY}
    return History(origin=origin, **kept)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as the store holds it. Times are milliseconds since 1970, by the store's clock."""

    id: str
    queue: str
    partition: int
    priority: int
    key: str | None
    type: str | None
    body: bytes
    content_type: str
    headers: dict[str, str]
    enqueued_at: int
    available_at: int
    attempts: int
    """Deliveries started, the one in hand included."""
    ack_timeout: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    first_leased_at: int | None = None
    history: History = NO_HISTORY
    duplicate: bool = False
    """True on what `enqueue` returns when the queue already held this id: nothing was stored."""

    @property
    def payload(self) -> Any:
        """The body decoded by its content type: a JSON value, text, or the bytes themselves."""
        return payloads.decode(self.body, self.content_type)

    @property
    def errors(self) -> tuple[ErrorInfo, ...]:
        return self.history.errors

    @property
    def source(self) -> str | None:
        """The queue that a dead letter came from."""
        return self.history.source

    @property
    def dead_at(self) -> int | None:
        return self.history.dead_at

    @property
    def reason(self) -> str | None:
        """Why it is dead."""
        return self.history.reason

    @property
    def redriven(self) -> int:
        return self.history.redriven

    @property
    def origin(self) -> str | None:
        """The finished message that this one replays."""
        return self.history.origin


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to finish one delivery of a message. The token fences every later write."""

    message: Message
    token: str
    deadline: int
    leased_at: int
    owner: str

    @property
    def id(self) -> str:
        return self.message.id


class Finished(msgspec.Struct, frozen=True):
    """A message in the log, with how it ended."""

    message: Message
    status: Status
    finished_at: int
    first_leased_at: int | None
    last_leased_at: int | None
    consumer: str | None
    result: Any = None


class Outgoing(msgspec.Struct, frozen=True, kw_only=False):
    """One message of an `enqueue_many`, when a payload alone does not say enough."""

    payload: Any
    id: str | uuid.UUID | None = None
    key: str | bytes | None = None
    type: str | None = None
    priority: int = 0
    delay: float | None = None
    at: Any = None
    headers: dict[str, str] | None = None
    ack_timeout: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    content_type: str | None = None


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(@[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
NAME_MAX = 128


def check_queue_name(name: Any, field: str = "queue") -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(field, f"a queue needs a name, not {shown(name)}")
    if len(name) > NAME_MAX:
        raise InvalidArgument(field, f"a name has at most {NAME_MAX} characters, not {len(name)}")
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            field,
            f"{shown(name)}: letters, digits, '_', '.', '-', and one '@' before a group's name",
        )
    if name.endswith(DLQ_SUFFIX * 2) or name == DLQ_SUFFIX:
        raise InvalidArgument(field, f"{name!r}: a dead-letter queue has none of its own")
    return name


def is_dlq(queue: str) -> bool:
    return queue.endswith(DLQ_SUFFIX)


def dlq_of(queue: str) -> str:
    return queue if is_dlq(queue) else queue + DLQ_SUFFIX


def home_of(queue: str) -> str:
    """The queue itself, or the one whose dead letters it holds. An id lives once per home."""
    return queue.removesuffix(DLQ_SUFFIX)


# UUIDv7: 48 bits of milliseconds, then 74 bits that only grow within a millisecond, so that ids
# of one process sort in the order in which they were made, also when the clock steps back.
_ids_lock = threading.Lock()
_ids_last = (0, 0)
_LOW_48 = (1 << 48) - 1


def _forget_last_id() -> None:
    global _ids_last
    _ids_last = (0, 0)


os.register_at_fork(after_in_child=_forget_last_id)


def new_ids(n: int, now: int) -> Iterator[str]:
    """`n` fresh ids in ascending order."""
    global _ids_last
    with _ids_lock:
        ms, tail = _ids_last
        if now > ms:
            ms, tail = now, random.getrandbits(73)  # the top bit is room to count
        high, low = tail >> 48, tail & _LOW_48
        made: list[str] = []
        while (count := min(n - len(made), 4096)) > 0:
            if low + (count << 32) > _LOW_48:
                high, low = high + 1, 0
            steps = unpack(f">{count}I", random.randbytes(4 * count))
            lows = list(accumulate(map((1).__add__, steps), initial=low))
            head, low = _id_head(ms, high), lows[-1]
            digits = pack(f">{count + 1}Q", *lows).hex()  # a third faster than one by one
            made += [head + digits[at : at + 12] for at in range(20, len(digits), 16)]
        _ids_last = (ms, high << 48 | low)
    return iter(made)


def _id_head(ms: int, high: int) -> str:
    """All of an id but its last 48 bits, which is what changes from one to the next."""
    return (
        f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{high >> 14 & 0xFFF:03x}-{high & 0x3FFF | 0x8000:04x}-"
    )


_PLAIN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def check_id(value: Any) -> str:
    if type(value) is str and _PLAIN_ID(value):
        return value
    try:
        return str(value if isinstance(value, uuid.UUID) else uuid.UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise InvalidArgument("id", f"must be a UUID, not {shown(value)}") from None
