"""How a delivery ends. A handler may return or raise any of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model.errortext import TRACEBACK_MAX, clean, name_of, shortened, traceback_of
from holdfast.model.message import ERROR_CODE_MAX, ERROR_TEXT_MAX, ErrorInfo, Lease
from holdfast.model.policy import positive, seconds

RESULT_MAX = 64 * 1024
"""Bytes that the result of a delivery may have in the log."""


class _Shown(Exception):
    """Shown as it was made: an exception without arguments has no text."""

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    __repr__ = __str__


class Done(_Shown):
    """Finished, with a result for the log if there is one."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return Done, (self.result,)


class Retry(Exception):
    """Not this time: again after `delay` seconds, or after the backoff if none is given."""

    def __init__(
        self, error: Any = "retry", *, delay: float | None = None, code: Any = None
    ) -> None:
        super().__init__(error)
        seconds("delay", delay)
        self.error = error
        self.delay = delay
        self.code = _code(code)

    def __reduce__(self) -> tuple[Any, ...]:
        return _retry, (self.error, self.delay, self.code)


class Fail(Exception):
    """Never: dead-letter at once."""

    def __init__(self, error: Any = "failed", *, code: Any = None) -> None:
        super().__init__(error)
        self.error = error
        self.code = _code(code)

    def __reduce__(self) -> tuple[Any, ...]:
        return _fail, (self.error, self.code)


class Release(_Shown):
    """Given back, at once or after `delay` seconds; does not count as an attempt."""

    def __init__(self, *, delay: float | None = None) -> None:
        super().__init__()
        seconds("delay", delay)
        self.delay = delay

    def __reduce__(self) -> tuple[Any, ...]:
        return _release, (self.delay,)


class Extend(_Shown):
    """Hold it for `seconds` from now, or for its own time-out.

    From a handler: the worker renews the lease no longer, and another process that was given its
    token settles the message by then.
    """

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__()
        positive("seconds", seconds)
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return Extend, (self.seconds,)


Outcome = Done | Retry | Fail | Release | Extend


class Reported(msgspec.Struct, frozen=True):
    """An error as another process reports it, with the traceback from there."""

    message: str
    code: str | None = None
    traceback: str | None = None


def error_info(outcome: Retry | Fail, lease: Lease, now: int, *, traceback_max: int) -> ErrorInfo:
    """What is kept of an error that a caller gave: text, an exception or a mapping."""
    error = outcome.error
    if isinstance(error, ErrorInfo):
        return cleaned(error)
    text, code = describe(outcome)
    where: str | None = None
    if isinstance(error, BaseException):
        where = traceback_of(error, traceback_max)
    elif isinstance(error, Reported) and error.traceback:
        where = shortened(clean(error.traceback, TRACEBACK_MAX), traceback_max) or None
    message = lease.message
    return ErrorInfo(text, code, now, message.attempts, lease.owner, traceback=where)


def cleaned(error: ErrorInfo) -> ErrorInfo:
    """The same with text that every store can keep: it may come from outside."""
    handler = error.handler
    return msgspec.structs.replace(
        error,
        message=clean(error.message, ERROR_TEXT_MAX),
        code=clean(error.code, ERROR_CODE_MAX),
        handler=None if handler is None else clean(handler, ERROR_CODE_MAX),
    )


def describe(error: Any) -> tuple[str, str]:
    """Text and code of an error, as every store can keep them."""
    match error:
        case Retry() | Fail():
            text, code = describe(error.error)
            return text, error.code or code
        case BaseException():
            name = name_of(error, ERROR_CODE_MAX)
            return clean(error, ERROR_TEXT_MAX) or name, name
        case Mapping():
            given: dict[Any, Any] = dict(error)  # pyright: ignore[reportUnknownArgumentType]
            code = clean(given.get("code", "ERROR"), ERROR_CODE_MAX)
            return clean(given.get("message", ""), ERROR_TEXT_MAX), code
        case Reported():
            code = clean(error.code or "ERROR", ERROR_CODE_MAX)
            return clean(error.message, ERROR_TEXT_MAX), code
        case None:
            return "nacked", "ERROR"
        case str():
            return clean(error, ERROR_TEXT_MAX), "ERROR"
        case _:
            raise InvalidArgument(
                "error", f"must be text, an exception or a mapping, not {error!r}"
            )


def _code(value: Any) -> str | None:
    return None if value is None else clean(value, ERROR_CODE_MAX)


def _retry(error: Any, delay: float | None, code: str | None) -> Retry:
    return Retry(error, delay=delay, code=code)


def _fail(error: Any, code: str | None) -> Fail:
    return Fail(error, code=code)


def _release(delay: float | None) -> Release:
    return Release(delay=delay)
