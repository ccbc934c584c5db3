"""Checks of single arguments. Each error names its field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar, cast

from holdfast.errors import (
    InvalidArgument,
    shown,
)
from holdfast.model.message import (
    PRIORITY_MAX,
)
from holdfast.model.moves import State
from holdfast.model.policy import seconds, whole
from holdfast.rules.lifecycle import ms

T = TypeVar("T")

PARTITIONS_TOTAL = 1024
"""With those of earlier generations (see `QueueSpec.starts`)."""
HEADERS_MAX = 64 * 1024
TEXT_MAX = 1024


def check_priority(value: Any) -> int:
    if type(value) is int and value == 0:
        return 0
    whole("priority", check_given("priority", value), low=0, high=PRIORITY_MAX)
    return value


def check_items(items: Any) -> list[Any]:
    if isinstance(items, str | bytes | Mapping):
        raise InvalidArgument("items", "must be a list of payloads, not one payload")
    if not isinstance(items, Iterable):
        raise InvalidArgument("items", f"must be a list of payloads, not {shown(items)}")
    return list(items)  # pyright: ignore[reportUnknownArgumentType]


def check_given(field: str, value: T) -> T:
    if value is None:
        raise InvalidArgument(field, "must be given, not None")
    return value


def check_range(since: Any, until: Any) -> None:
    """Milliseconds since 1970, as stores compare them."""
    whole("since", since, low=-(2**62), high=2**62)
    whole("until", until, low=-(2**62), high=2**62)


def check_key(value: Any) -> str | None:
    """Text; bytes are the text that they encode, or else their digits, so that all can show it."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            value = f"0x{value.hex()}"
    elif value is not None and not isinstance(value, str):
        raise InvalidArgument("key", f"must be text or bytes, not {shown(value)}")
    return check_text("key", value)


def check_text(field: str, value: Any) -> str | None:
    """Text that every store can keep as it is; or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgument(field, f"must be text, not {shown(value)}")
    if len(value) > TEXT_MAX:
        raise InvalidArgument(field, f"{len(value)} characters; the limit is {TEXT_MAX}")
    if "\0" in value:  # PostgreSQL keeps none
        raise InvalidArgument(field, "must not have a NUL character")
    return check_encodable(field, value)


def check_content_type(value: Any) -> str:
    check_text("content_type", value)
    if not value or not value.isprintable():
        raise InvalidArgument("content_type", f"must be a media type, not {shown(value)}")
    return value


def check_partitions(numbers: Any) -> tuple[int, ...]:
    if not isinstance(numbers, Iterable) or isinstance(numbers, str | bytes):
        raise InvalidArgument("partitions", f"must be a list of numbers, not {shown(numbers)}")
    chosen: list[Any] = list(numbers)  # pyright: ignore[reportUnknownArgumentType]
    if not chosen:
        raise InvalidArgument("partitions", "name one at least, or leave it out")
    for number in chosen:
        if number is None:
            raise InvalidArgument("partitions", "must be whole numbers, not None")
        whole("partitions", number, low=0, high=PARTITIONS_TOTAL - 1)
    return tuple(dict.fromkeys(chosen))


def check_encodable(field: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(field, f"not text: {error}") from error
    return value


def check_headers(headers: Any) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidArgument("headers", f"must be a mapping of text to text, not {shown(headers)}")
    size = 0
    for name, value in headers.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(name, str) or not isinstance(value, str):
            problem = f"must be text, not {shown(cast('object', value))}"
            raise InvalidArgument(f"headers.{name}", problem)
        size += len(check_encodable("headers", name)) + len(
            check_encodable(f"headers.{name}", value)
        )
    if size > HEADERS_MAX:
        raise InvalidArgument("headers", f"{size} characters; the limit is {HEADERS_MAX}")
    return dict(headers)  # pyright: ignore[reportUnknownArgumentType]


def check_time(field: str, at: Any) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidArgument(field, "a datetime must say its time zone")
        return max(0, int(at.timestamp() * 1000))
    seconds(field, at)
    return ms(at)


def check_state(value: State | str) -> State:
    try:
        return State(value)
    except ValueError:
        known = ", ".join(State)
        raise InvalidArgument("state", f"{shown(value)}; must be one of {known}") from None
