"""Every error Holdfast raises, on one screen. Each carries the code that a wire protocol shows."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class HoldfastError(Exception):
    """Base of every error; catch this to catch them all."""

    code = "INTERNAL"


class InvalidArgument(HoldfastError, ValueError):
    """Something the caller passed is wrong. `field` names it; nothing was stored."""

    code = "INVALID_ARGUMENT"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.index: int | None = None
        """Of a batch: which item, counted from 0."""

    def __reduce__(self) -> tuple[type[InvalidArgument], tuple[str, str]]:
        return InvalidArgument, (self.field, self.problem)


class NotFound(HoldfastError, LookupError):
    code = "NOT_FOUND"


class QueueNotFound(NotFound):
    """No queue has that name."""


class GroupNotFound(NotFound):
    """The topic has no group of that name."""


class MessageNotFound(NotFound):
    """The queue and its log hold no message with that id."""


class FailedPrecondition(HoldfastError):
    code = "FAILED_PRECONDITION"


class QueueNotEmpty(FailedPrecondition):
    """The queue or its dead letters hold messages; pass force=True to delete them as well."""


class SourceQueueGone(FailedPrecondition):
    """The queue that these dead letters came from does not exist any more."""


class LeaseLost(HoldfastError):
    """The lease is no longer this consumer's: it ran out and was swept, or ended in another way.

    Nothing was changed. Whoever holds the message now will finish it.
    """

    code = "ABORTED"


class StoreError(HoldfastError):
    """The store failed. What was written before is written whole; nothing is half done."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or is busy, right now: the same call may work later."""

    code = "UNAVAILABLE"


class StoreReadOnly(StoreError):
    """The store refuses writes."""


class StoreFull(StoreError):
    """The disk (or the store's own limit) is full. Nothing was written."""

    code = "RESOURCE_EXHAUSTED"


class StoreCorrupt(StoreError):
    """What lies there is not a Holdfast store, or it is damaged."""


class SchemaTooNew(StoreError):
    """The store was written by a newer Holdfast; upgrade this one."""

    code = "FAILED_PRECONDITION"


class RedriveFailed(StoreError):
    """The store failed in the middle of a redrive; `redriven` messages were moved before that."""

    def __init__(self, problem: str, redriven: int) -> None:
        super().__init__(f"{problem} ({redriven} redriven before that)")
        self.problem = problem
        self.redriven = redriven

    def __reduce__(self) -> tuple[type[RedriveFailed], tuple[str, int]]:
        return RedriveFailed, (self.problem, self.redriven)


class MissingExtra(HoldfastError, ImportError):
    """A store, or a part, whose driver is not installed. The message says which extra to add."""

    code = "FAILED_PRECONDITION"


class Unauthenticated(HoldfastError):
    """No key came with the call, or one that does not count: wrong, expired, revoked."""

    code = "UNAUTHENTICATED"


class PermissionDenied(HoldfastError):
    """The key is good, and does not allow this. The message names the right and the queue."""

    code = "PERMISSION_DENIED"


SHOWN = 10
SHOWN_TEXT = 100


def shown(value: object) -> str:
    """What was given, for an error: bounded, and whatever it is, no error of its own."""
    try:
        text = repr(value)
    except Exception:  # a number of too many digits, or an object's own __repr__
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to append to an error: the known word nearest to `word`, or all of them."""
    words = sorted(known)
    near = get_close_matches(word, words, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", ..." if len(words) > SHOWN else ""
    return f"known: {', '.join(words[:SHOWN])}{more}" if words else "none is known"
