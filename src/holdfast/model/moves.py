"""One step of one message, as the rules decide it and a store applies it, and what came of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.message import History, Status


class State(StrEnum):
    """Where a message is. A dead one is ready (or leased, or delayed) in a dead-letter queue."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    LOG = "log"


class Enqueued(StrEnum):
    STORED = "stored"
    HELD = "held"
    """The queue, or its dead-letter queue, holds this id, or finished it lately (see
    `Store.enqueue`): nothing was changed."""


class Settled(StrEnum):
    """What became of one transition of a batch."""

    APPLIED = "applied"
    ALREADY = "already"
    """This very transition had been applied before: a repeated call whose answer was lost."""
    STALE = "stale"
    """The token (or, without one, the place) is not the message's any more: nothing changed."""


class Verb(StrEnum):
    """Who moved a message. Kept beside the token to tell a repeated call from a lost race."""

    ACK = "ack"
    NACK = "nack"
    FAIL = "fail"
    RELEASE = "release"
    EXTEND = "extend"
    EXPIRE = "expire"
    REDRIVE = "redrive"


class Target(StrEnum):
    WAITING = "waiting"
    """Ready in `to_queue`, or delayed when `available_at` lies ahead."""
    LEASED = "leased"
    """Stays with its holder until `deadline`."""
    DONE = "done"
    """Leaves the queue, into the log if `status` says how it ended."""


class Transition(msgspec.Struct, frozen=True, gc=False):
    """One move of one message, decided; the store only has to compare and write it.

    Applies when the message is leased with `token` (and, if `overdue_at` is given, its deadline is
    not after that); without a token, when it is waiting in `queue` at `place`. A message that would
    come to a queue that is gone, or that holds its id, stays where it is.
    """

    verb: Verb
    queue: str
    id: str
    target: Target
    token: str | None = None
    overdue_at: int | None = None
    place: int | None = None
    to_queue: str = ""
    tail: bool = False
    """To the end of the line; else it takes the place it had when it was first enqueued."""
    lane: int = 0
    """Leased highest first. A message's priority; 0 in a dead-letter queue."""
    available_at: int = 0
    deadline: int = 0
    attempts: int = 0
    history: History | None = None
    """The new history; None leaves it as it is."""
    status: Status | None = None
    result: bytes | None = None
    partition: int | None = None
    """WAITING: its partition in `to_queue`; None keeps the one it has."""
    body: bytes | None = None
    """WAITING, together with `content_type`: a new payload; None keeps the one it has."""
    content_type: str | None = None
