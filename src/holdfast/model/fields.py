"""The table of a message's fields: what each is, who sets it, and how it is stored and shown.

The structs of `message.py`, the stores' columns, HTTP and gRPC, Spark's columns, the command line
and the dashboard's types follow it; tests compare each of them with it (tests/unit/test_fields.py).
CONTRIBUTING.md says how to add a field.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

Kind = Literal["text", "int", "real", "time", "flag", "bytes", "json", "texts", "backoff", "errors"]
"""`time` is in milliseconds; `texts` is text by name."""
Kept = Literal["column", "history", "body", "nowhere"]
"""`column`: every store has a place for it. `history`: in the message's history, which every store
writes as one JSON value, so that a field more needs no change there. `body`: made from the body.
`nowhere`: part of a call only."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    kept: Kept
    default: Any = msgspec.UNSET
    """Of a message of which nobody said otherwise; UNSET: every message has one."""
    column: str | None = None
    """In SQL, where that is not `name`."""
    attribute: str | None = None
    """Of `History`, where that is not `name`."""
    number: int | None = None
    """In the protocol buffers' MessageDoc. A number is never used again."""
    sent: int | None = None
    """The same in OutgoingDoc: the producer sets this field. Others are set by the library."""
    arrow: Kind | None = None
    """The type of Spark's column; None: there is none."""
    plain: bool = False
    """Nothing knows it by name but `message.py` and the code that sets it: it travels as it is,
    behind the fields that are written out. New fields are plain."""
    about: str = ""
    """The description of a plain field in the OpenAPI file."""

    @property
    def in_history(self) -> str:
        return self.attribute or self.name

    @property
    def in_sql(self) -> str:
        return self.column or self.name


def _column(name: str, kind: Kind, number: int, **given: Any) -> Field:
    return Field(name=name, kind=kind, kept="column", number=number, **given)


def _history(name: str, kind: Kind, number: int, **given: Any) -> Field:
    return Field(name=name, kind=kind, kept="history", number=number, **given)


FIELDS = (
    _column("id", "text", 1, sent=4, arrow="text"),
    _column("queue", "text", 2, column="qid", arrow="text"),
    _column("partition", "int", 3, column="part", arrow="int"),
    _column("priority", "int", 4, sent=7, arrow="int"),
    _column("key", "text", 5, default=None, sent=5, arrow="text"),
    _column("type", "text", 6, default=None, sent=6, arrow="text"),
    _column("content_type", "text", 7, sent=3, arrow="text"),
    Field(name="payload", kind="json", kept="body", number=8, sent=1, arrow="text"),
    _column("body", "bytes", 9, sent=2, arrow="bytes"),
    _column("headers", "texts", 10, sent=10, arrow="texts"),
    _column("enqueued_at", "time", 11, arrow="time"),
    _column("available_at", "time", 12, arrow="time"),
    Field(name="delay", kind="real", kept="nowhere", default=None, sent=8),
    Field(name="at", kind="real", kept="nowhere", default=None, sent=9),
    _column("attempts", "int", 13, arrow="int"),
    _column("ack_timeout", "real", 14, default=None, sent=11, arrow="real"),
    _column("max_attempts", "int", 15, default=None, sent=12, arrow="int"),
    _column("backoff", "backoff", 16, default=None, sent=13),
    _column("first_leased_at", "time", 17, default=None, arrow="time"),
    _history("errors", "errors", 18, default=(), arrow="errors"),
    _history("handled", "json", 19, default={}),
    _history("last_delay", "real", 20, default=None, attribute="delay"),
    _history("source", "text", 21, default=None, arrow="text"),
    _history("dead_at", "time", 22, default=None, arrow="time"),
    _history("reason", "text", 23, default=None, arrow="text"),
    _history("redriven", "int", 24, default=0, arrow="int"),
    _history("origin", "text", 25, default=None),
    Field(name="duplicate", kind="flag", kept="nowhere", default=False, number=26),
)
"""In the order of MessageDoc's numbers. In OutgoingDoc 14 is taken by the queue or the topic."""

PLAIN = tuple(field for field in FIELDS if field.plain)
SENT_IN_HISTORY = tuple(
    field.in_history for field in FIELDS if field.kept == "history" and field.sent is not None
)
"""What a producer sets, and therefore stays with a message that starts again."""


def plain_values(source: object, *, sent: bool = False) -> dict[str, Any]:
    """The plain fields of a message or a document; `sent`: only those that a producer sets."""
    return {
        field.name: getattr(source, field.name)
        for field in PLAIN
        if field.sent is not None or not sent
    }


def with_plain(struct: T, source: object, *, sent: bool = False) -> T:
    """The struct with the plain fields of a message or a document. Costs nothing without any."""
    if not PLAIN:
        return struct
    return msgspec.structs.replace(struct, **plain_values(source, sent=sent))
