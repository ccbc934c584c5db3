"""Payloads are bytes with a content type. JSON values go in and come out equal."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidArgument, shown

DEPTH_MAX = 200
"""Levels of JSON. A decoder gives up somewhere below 1,000, sooner the deeper the stack is that it
is called from: a worker could not read what a producer could write."""
JSON = "application/json"
BYTES = "application/octet-stream"

_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_BYTES = (bytes, bytearray)
_encode, _encode_lines = msgspec.json.Encoder().encode, msgspec.json.Encoder().encode_lines
_decode, _decode_lines = msgspec.json.Decoder().decode, msgspec.json.Decoder().decode_lines


def encode(payload: Any, content_type: str | None, limit: int) -> tuple[bytes, str]:
    """The body and its content type; bytes go as they are, everything else as JSON.

    A `msgspec.Raw` is JSON that somebody has written already.
    """
    if isinstance(payload, msgspec.Raw):
        payload, content_type = bytes(payload), content_type or JSON
    if isinstance(payload, _BYTES):
        body, kind = bytes(payload), content_type or BYTES
        if kind == JSON:
            _must_parse(body)
    elif content_type in (None, JSON):
        body, kind = _to_json(payload), JSON
    elif (
        isinstance(payload, str)
        and isinstance(content_type, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        and content_type.startswith("text/")
    ):
        body, kind = _utf8(payload), content_type
    else:
        if not isinstance(content_type, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument("content_type", f"must be text, not {shown(content_type)}")
        raise InvalidArgument("payload", f"must be bytes (or text) for content type {content_type}")
    if len(body) > limit:
        raise InvalidArgument("payload", f"{len(body)} bytes; the limit is {limit}")
    if kind == JSON and _is_too_deep(body):
        raise InvalidArgument("payload", f"JSON may be nested {DEPTH_MAX} deep, and this is deeper")
    return body, kind


def encode_plain(payloads: list[Any], limit: int) -> list[bytes] | None:
    """The bodies of JSON values that all come out equal; None if any of them needs a closer look.

    All at once takes half as long as one by one.
    """
    try:
        written = set(map(type, payloads)) == {msgspec.Raw}
        bodies = _as_written(payloads) if written else _as_lines(payloads)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    longest = max(map(len, bodies), default=0)
    if len(bodies) != len(payloads) or longest > limit:
        return None
    if longest > 2 * DEPTH_MAX and any(map(_is_too_deep, bodies)):
        return None
    return bodies


def _is_too_deep(body: bytes) -> bool:
    """Of JSON that has been parsed. Each level takes two bytes, and most bodies have few levels."""
    if len(body) <= 2 * DEPTH_MAX or body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return False
    brackets = _TEXTS.sub(b"", body).translate(None, _NO_BRACKETS)
    for _ in range(DEPTH_MAX):  # each turn takes away what is innermost
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


def _as_written(payloads: list[msgspec.Raw]) -> list[bytes]:
    bodies = list(map(bytes, payloads))
    deque(map(_decode, bodies), maxlen=0)  # each must be JSON
    return bodies


def _as_lines(payloads: list[Any]) -> list[bytes]:
    lines = _encode_lines(payloads)
    if _decode_lines(lines) != payloads:
        return []
    return lines.split(b"\n")[:-1]  # there is nothing behind the last line's end


def decode(body: bytes, content_type: str) -> Any:
    if content_type == JSON:
        return _decode(body)
    if content_type.startswith("text/"):
        return body.decode()
    return body


def decoder(wanted: Any) -> Callable[[bytes, str], Any]:
    """How to make the type that a handler annotates out of a body."""
    if wanted is Any or wanted is bytes:
        return decode if wanted is Any else lambda body, _: body
    validate: Callable[[bytes], Any] | None = getattr(wanted, "model_validate_json", None)
    into = validate or msgspec.json.Decoder(wanted).decode

    def typed(body: bytes, content_type: str) -> Any:
        return into(body) if content_type == JSON else decode(body, content_type)

    return typed


def _to_json(payload: Any) -> bytes:
    try:
        body = _encode(payload)
        same = _decode(body) == payload
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument("payload", f"not JSON: {error}") from error
    if not same:  # only then look for what JSON cannot carry
        _check_json(payload, "payload")
    return body


def _check_json(value: Any, path: str) -> None:
    match value:
        case float() if not math.isfinite(value):
            raise InvalidArgument(path, f"{value} is not a JSON number")
        case bytes() | bytearray():
            raise InvalidArgument(path, "bytes do not go into JSON; send bytes alone, or base64")
        case Mapping():
            for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
                if not isinstance(key, str):
                    raise InvalidArgument(path, f"a JSON object has text keys, not {key!r}")
                _check_json(inner, f"{path}.{key}")
        case list() | tuple():
            for n, inner in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                _check_json(inner, f"{path}[{n}]")
        case _:
            pass  # dataclasses, structs, dates: they go in as the JSON that stands for them


def _must_parse(body: bytes) -> None:
    try:
        _decode(body)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument("payload", f"not JSON: {error}") from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("payload", f"not text: {error}") from error
