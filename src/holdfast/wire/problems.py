"""One table of errors: exception, HTTP problem (RFC 9457), gRPC status; and the way back."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError, InvalidArgument, RedriveFailed
from holdfast.queue.redrive import EditFailed, RedriveNotFound

MEDIA_TYPE = "application/problem+json"
TRAILER = "holdfast-problem"
"""Trailing metadata of a gRPC call that failed: the same problem, as JSON in ASCII."""

DETAIL_MAX = 1000
FIELD_MAX = 200

STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 507,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
}
"""HTTP status by the code of an error. The code itself is the name of the gRPC status."""


class RequestError(HoldfastError):
    """What only a wire can get wrong. Never raised by the library itself."""

    code = "INVALID_ARGUMENT"
    status = 400


class BodyTooLarge(RequestError):
    code = "RESOURCE_EXHAUSTED"
    status = 413


class MediaTypeUnknown(RequestError):
    status = 415


class RequestTimeout(RequestError):
    code = "DEADLINE_EXCEEDED"
    status = 408


class TooManyStreams(RequestError):
    code = "RESOURCE_EXHAUSTED"
    status = 429


class ServerBusy(RequestError):
    """Clients have not read too many large answers yet."""

    code = "UNAVAILABLE"
    status = 503


class Stopping(RequestError):
    """The server is about to end; another one, or the next one, takes the call."""

    code = "UNAVAILABLE"
    status = 503


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What went wrong, for programs and people."""

    type: str
    title: str
    status: int
    detail: str = ""
    code: str = ""
    field: str | None = None
    """The field that is wrong."""
    index: int | None = None
    """Of a batch: which item, counted from 0."""
    redriven: int | None = None
    """Moved before a redrive failed."""


def problem_of(error: HoldfastError) -> Problem:
    """Where `error` is ours. What is not is a bug, and told as one without its details."""
    name = type(error).__name__
    return Problem(
        type=f"urn:holdfast:problem:{_dashed(name)}",
        title=name,
        status=getattr(error, "status", None) or STATUS.get(error.code, 500),
        detail=_shown(str(error), DETAIL_MAX),
        code=error.code,
        field=_shown(field, FIELD_MAX) if (field := getattr(error, "field", None)) else None,
        index=getattr(error, "index", None),
        redriven=getattr(error, "redriven", None),
    )


def unexpected() -> Problem:
    return Problem(
        type="urn:holdfast:problem:internal",
        title="Internal",
        status=500,
        detail="the server failed; its log says why",
        code="INTERNAL",
    )


def error_of(problem: Problem) -> HoldfastError:
    """The library's own exception again."""
    kind: Any = _OF_REDRIVES.get(problem.title) or getattr(errors, problem.title, None)
    if kind is EditFailed:
        return _edit_failed(problem)
    if kind is InvalidArgument or problem.field is not None:
        field = problem.field or "request"
        error = InvalidArgument(field, problem.detail.removeprefix(f"{field}: "))
        error.index = problem.index
        return error
    if kind is RedriveFailed:
        moved = problem.redriven or 0
        return RedriveFailed(problem.detail.removesuffix(f" ({moved} redriven before that)"), moved)
    if not (isinstance(kind, type) and issubclass(kind, HoldfastError)):
        kind = _BY_CODE.get(problem.code, HoldfastError)
    return kind(problem.detail)


def _edit_failed(problem: Problem) -> EditFailed:
    moved = problem.redriven or 0
    told = problem.detail.removesuffix(f" ({moved} redriven before that)")
    id, _, why = told.removeprefix("edit: ").partition(": ")
    return EditFailed(id, why, moved)


_OF_REDRIVES = {kind.__name__: kind for kind in (EditFailed, RedriveNotFound)}

_BY_CODE: dict[str, type[HoldfastError]] = {
    "UNAVAILABLE": errors.StoreUnavailable,
    "FAILED_PRECONDITION": errors.FailedPrecondition,
    "NOT_FOUND": errors.NotFound,
}


def invalid(error: msgspec.ValidationError, prefix: str = "") -> InvalidArgument:
    """What msgspec says of a document, as our error that names the field."""
    text = str(error)
    found = _AT.search(text)
    field = found.group(1).lstrip(".") if found else ""
    unknown = _UNKNOWN.search(text) or _MISSING.search(text)
    if unknown:
        field = f"{field}.{unknown.group(1)}".lstrip(".")
    at = _INDEX.search(field)
    problem = InvalidArgument(prefix + (field or "body"), _AT.sub("", text))
    problem.index = int(at.group(1)) if at else None
    return problem


_AT = re.compile(r" - at `\$(.*?)`$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(.*?)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(.*?)`", re.DOTALL)
_INDEX = re.compile(r"^(?:messages|items)\[(\d+)\]")


def _shown(text: str, most: int) -> str:
    """What somebody sent may be in it: not all of a megabyte, and only what is text."""
    cut = text if len(text) <= most else f"{text[:most]} ..."
    return cut.encode(errors="replace").decode()


def _dashed(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
