"""What an exception says, as bounded text that every store can keep.

Exceptions come from users' code: their text can be huge, hold characters that no encoding has, or
raise when it is asked for. Nothing in here raises.
"""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

TRACEBACK_MAX = 64 * 1024
"""Characters of one traceback, and of all that a message keeps: the oldest go first."""
FRAMES_MAX = 60
"""Innermost frames of each exception in a traceback."""
CAUSES_MAX = 16
"""Exceptions in a chain of causes; a longer one is cut."""
_CUT = "\n[... {} characters left out ...]\n"


def clean(value: Any, limit: int) -> str:
    """The value's text, at most `limit` characters, without what a store or JSON cannot carry."""
    try:
        text = value if type(value) is str else str(value)
        text = text[:limit]
        if not text.isascii():  # a lone surrogate has no encoding
            text = text.encode("utf-8", "backslashreplace").decode()
        return str(text[:limit])
    except BaseException:
        return f"<{_type_name(value)} whose text cannot be read>"[:limit]


def name_of(error: BaseException, limit: int) -> str:
    """The name of its class."""
    return clean(_type_name(error), limit)


def traceback_of(error: BaseException, limit: int, *, skip: str = "") -> str | None:
    """Where it was raised and what caused it, at most `limit` characters; None if there is none.

    The outermost frames from the file `skip` are left out: they are the same in every traceback.
    """
    try:
        if limit <= 0 or error.__traceback__ is None:
            return None
        if _is_long_chain(error):
            shown = traceback.format_exception(error, limit=-FRAMES_MAX, chain=False)
        else:
            start = _behind(error.__traceback__, skip)
            shown = traceback.format_exception(type(error), error, start, limit=-FRAMES_MAX)
        return shortened(clean("".join(shown), 8 * limit), limit)
    except BaseException:
        return None


def _type_name(value: Any) -> str:
    try:
        return str(type(value).__name__)
    except BaseException:
        return "object"


def _is_long_chain(error: BaseException) -> bool:
    """The traceback module follows causes by recursion."""
    inner: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if inner is None:
            return False
        inner = inner.__cause__ or inner.__context__
    return inner is not None


def _behind(start: TracebackType, skip: str) -> TracebackType:
    frame = start
    while frame.tb_frame.f_code.co_filename == skip and frame.tb_next is not None:
        frame = frame.tb_next
    return frame


def shortened(text: str, limit: int) -> str:
    """The beginning says how it came about, the end what it was: the middle goes."""
    if len(text) <= limit:
        return text
    cut = _CUT.format(len(text) - limit)
    room = limit - len(cut)
    if room < 2:
        return text[len(text) - limit :] if limit > 0 else ""
    return text[: room // 4] + cut + text[len(text) - (room - room // 4) :]
