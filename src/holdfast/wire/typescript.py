"""TypeScript types of a message for the dashboard, from the documents that the server sends.

`web/src/api/message.ts` is printed from here (`python -m holdfast.wire.typescript`), and a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Raw, UnsetType

from holdfast.wire import shapes as s

_INTERFACES: dict[type[msgspec.Struct], str] = {
    s.BackoffDoc: "Backoff",
    s.ErrorDoc: "ErrorDoc",
    s.MessageDoc: "Message",
}
_TYPES: dict[Any, str] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    bytes: "string",
    Raw: "Json",
    **_INTERFACES,
}


def text() -> str:
    lines = ["// Printed: python -m holdfast.wire.typescript > web/src/api/message.ts"]
    lines += ["// A field that has its default is left out by the server. Bytes are in base64."]
    lines += ['import type { Json } from "./types";']
    for struct, name in _INTERFACES.items():
        lines += ["", f"export interface {name} {{", *_fields(struct), "}"]
    return "\n".join(lines) + "\n"


def _fields(struct: type[msgspec.Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        mark = "" if field.required else "?"
        yield f"  {field.name}{mark}: {_type(field.type)};"


def _type(annotated: Any) -> str:
    """Null is never sent: a field that has no value is left out."""
    if get_origin(annotated) is Annotated:
        return _type(get_args(annotated)[0])
    if isinstance(annotated, type) and annotated in _TYPES:
        return _TYPES[annotated]
    args = [arg for arg in get_args(annotated) if arg not in (type(None), UnsetType)]
    if get_origin(annotated) is list:
        return f"{_type(args[0])}[]"
    if get_origin(annotated) is dict:
        return f"Record<string, {_type(args[1])}>"
    assert get_origin(annotated) is Union or len(args) == 1, annotated
    return _type(args[0])


if __name__ == "__main__":
    print(text(), end="")
