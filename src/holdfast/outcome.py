"""How a delivery ends. `Retry` and `Fail` can also be raised in a handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.message import ERROR_CODE_MAX, ERROR_TEXT_MAX, ErrorInfo, Lease
from holdfast.policy import positive, seconds

RESULT_MAX = 64 * 1024
"""Bytes that the result of a delivery may have in the log."""


class Done(msgspec.Struct, frozen=True):
    """Finished, with a result for the log if there is one."""

    result: Any = None


class Retry(Exception):
    """Not this time: again after `delay` seconds, or after the backoff if none is given."""

    def __init__(
        self, error: Any = "retry", *, delay: float | None = None, code: str | None = None
    ) -> None:
        super().__init__(error)
        seconds("delay", delay)
        self.error = error
        self.delay = delay
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return _retry, (self.error, self.delay, self.code)


class Fail(Exception):
    """Never: dead-letter at once."""

    def __init__(self, error: Any = "failed", *, code: str | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return _fail, (self.error, self.code)


class Release(msgspec.Struct, frozen=True):
    """Given back at once; does not count as an attempt."""


class Extend(msgspec.Struct, frozen=True):
    """Hold it for `seconds` from now, or for its own time-out."""

    seconds: float | None = None

    def __post_init__(self) -> None:
        positive("seconds", self.seconds)


Outcome = Done | Retry | Fail | Release | Extend


def error_info(
    error: Any, lease: Lease, now: int, *, code: str | None = None, handler: str | None = None
) -> ErrorInfo:
    """Whatever a caller calls an error (text, exception, mapping), as what is kept."""
    if isinstance(error, ErrorInfo):
        return error
    text, own_code = describe(error)
    return ErrorInfo(
        text[:ERROR_TEXT_MAX],
        (code or own_code)[:ERROR_CODE_MAX],
        now,
        lease.message.attempts,
        lease.owner,
        handler,
    )


def describe(error: Any) -> tuple[str, str]:
    match error:
        case Retry() | Fail():
            text, code = describe(error.error)
            return text, error.code or code
        case BaseException():
            return str(error) or type(error).__name__, type(error).__name__
        case Mapping():
            given: dict[Any, Any] = dict(error)  # pyright: ignore[reportUnknownArgumentType]
            return str(given.get("message", "")), str(given.get("code", "ERROR"))
        case None:
            return "nacked", "ERROR"
        case str():
            return error, "ERROR"
        case _:
            raise InvalidArgument(
                "error", f"must be text, an exception or a mapping, not {error!r}"
            )


def _retry(error: Any, delay: float | None, code: str | None) -> Retry:
    return Retry(error, delay=delay, code=code)


def _fail(error: Any, code: str | None) -> Fail:
    return Fail(error, code=code)
