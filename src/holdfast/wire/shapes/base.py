"""What all shapes share: the base classes, and the types of fields with their limits.

Times are milliseconds since 1970 by the store's clock, lengths of time are seconds. Numeric limits
(`Meta`) are checked here. What the library checks is left to it, so that HTTP, gRPC and the library
raise the same errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Raw, UnsetType

from holdfast.model.fields import PLAIN, Field
from holdfast.model.message import NAME_MAX

T = TypeVar("T", bound=msgspec.Struct)

PAGE_MAX = 1000
BATCH_MAX = 10_000
WAIT_MAX_S = 60.0
WHOLE_MAX = 2**53 - 1


def says(text: str, **schema: Any) -> Meta:
    """A description and limits for the OpenAPI file; the library checks them."""
    return Meta(description=text, extra_json_schema=schema or None)


Time = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Name = Annotated[str, says("Letters, digits, '_', '.', '-' and one '@'.", maxLength=NAME_MAX)]
Id = Annotated[str, says("A UUID.")]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1), says("0 to 9, highest first.")]
Seconds = Annotated[float, says("Seconds.", minimum=0)]
Token = Annotated[str, says("Of the lease; it ends with it.", maxLength=1024)]
Headers = Annotated[dict[str, str], says("Text by name; 64 KiB in all.")]
Payload = Annotated[Raw | UnsetType, says("Any JSON value; or give `body`.")]
Body = Annotated[bytes | None, says("Bytes, in base64; instead of `payload`.")]
Whole = Annotated[int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="At most so many.")]
Cursor = Annotated[str | None, says("The `after` of the page before.")]
State = Literal["ready", "delayed", "leased", "log"]


def number(n: int) -> Meta:
    """The field's number in the protocol buffers, where it does not follow from the order."""
    return Meta(extra={"number": n})


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client sends: a field that is not known is refused, not passed over."""


class Doc(msgspec.Struct, frozen=True, omit_defaults=True):
    """What comes back. A field that is not there has its default."""


class Nothing(Doc, frozen=True):
    """There is nothing to say."""


class NoAsk(Ask, frozen=True):
    """Nothing to say."""


class CountDoc(Doc, frozen=True, omit_defaults=False):
    count: int


class ListAsk(Ask, frozen=True):
    prefix: Annotated[str, says("Only names that begin so.")] = ""
    after: Annotated[str, says("Only names behind this one.")] = ""
    limit: Limit = PAGE_MAX


_PLAIN: dict[str, Any] = {"text": str, "int": Whole, "real": float, "time": Time, "flag": bool}


def with_plain_fields(*, sent: bool) -> Callable[[type[T]], type[T]]:
    """Append the plain fields of the table (model/fields.py) to a struct: all of them, or those
    that a producer sets, which are numbered as the table says."""

    def extend(struct: type[T]) -> type[T]:
        given = [field for field in PLAIN if field.sent is not None or not sent]
        return _extended(struct, [_plain(field, field.sent if sent else None) for field in given])

    return extend


def _plain(field: Field, n: int | None) -> tuple[str, Any, Any]:
    kind = _PLAIN[field.kind]
    described = Annotated[kind | None if field.default is None else kind, says(field.about)]
    return field.name, described if n is None else Annotated[described, number(n)], field.default


def _extended(struct: type[T], fields: list[tuple[str, Any, Any]]) -> type[T]:
    if not fields:
        return struct
    named = {"__doc__": struct.__doc__, "__qualname__": struct.__qualname__}
    return cast(
        "type[T]",
        msgspec.defstruct(
            struct.__name__,
            fields,
            bases=(struct,),
            frozen=True,
            kw_only=True,
            module=struct.__module__,
            namespace=named,
        ),
    )
