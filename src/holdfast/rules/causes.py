"""What a dead letter died of, so that those of one cause are known as one.

Errors of one cause differ in what was at hand: an id, a number, a path. With these taken out of the
text they are the same, and have the same fingerprint, today and on every other machine.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model.message import Message

_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


class Cause(msgspec.Struct, frozen=True):
    """`error` is normalised."""

    reason: str | None
    code: str | None
    handler: str | None
    error: str


def cause_of(message: Message) -> Cause:
    if not message.errors:
        return Cause(message.reason, None, None, "")
    last = message.errors[-1]
    return Cause(message.reason, last.code, last.handler, normalise(last.message))


def fingerprint_of(message: Message) -> str:
    cause = cause_of(message)
    return fingerprint(cause.reason, cause.code, cause.handler, cause.error)


def check_fingerprint(field: str, given: str | None) -> None:
    if given is not None and not _FINGERPRINT.fullmatch(given):
        raise InvalidArgument(field, f"must be 16 hex digits, as a group has them, not {given!r}")


def fingerprint(reason: str | None, code: str | None, handler: str | None, error: str) -> str:
    """Of a cause; `error` as an error says it, or normalised, which makes no difference."""
    said = msgspec.json.encode((reason, code, handler, normalise(error)))
    return hashlib.blake2b(said, digest_size=8).hexdigest()


def normalise(text: str) -> str:
    """A text without what differs from one time to the next. Twice makes no difference.

    >>> normalise("order 4711: no 'A-1' in /srv/stock/7.db")
    'order <n>: no <text> in <path>'
    """
    text = " ".join(text.split())
    # Nearly always once is enough, but quotes may pair up anew. It ends: whatever is replaced has a
    # digit, a quote or one of / \ @ -, and no placeholder has.
    while (less := _VARYING.sub(_placeholder, text)) != text:
        text = less
    return text


# What stands beside a placeholder may have stood beside a letter or a digit before: `>` and `<`
# count as such in what must stand alone. Else '1/x' would be a number, and then a path. A long hex
# number is a number like others: one in forty has digits only, and would be a group of its own.
_VARYING = re.compile(
    r"""
    (?P<uuid> [0-9a-f]{8} (?:-[0-9a-f]{4}){3} -[0-9a-f]{12} )
    | (?P<text> "[^"]*" | `[^`]*` | (?<![\w>])'[^']*'(?![\w<]) )
    | (?P<url> \b[a-z][a-z0-9+.-]{0,20}://[^\s'"`<>()]+ )
    | (?<![\w>./]) (?P<path> (?:~|\.{1,2}|[a-z]:)? [/\\] [^\s'"`<>()\[\]{}:,;|]+ )
    | (?<![\w.+>-]) (?P<address> [\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+ | \d+(?:\.\d+){3}(?::\d+)? )
    | \b (?P<hex> 0x[0-9a-f]+ ) \b
    | (?P<n> \b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b | \d+(?:[.,:]\d+)* )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def _placeholder(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"
