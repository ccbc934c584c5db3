"""What all shapes share: the base classes, and the types of fields with their limits.

Times are milliseconds since 1970 by the store's clock, lengths of time are seconds. Numeric limits
(`Meta`) are checked here. What the library checks is left to it, so that HTTP, gRPC and the library
raise the same errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, UnsetType

from holdfast.model.message import NAME_MAX

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
