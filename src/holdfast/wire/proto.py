"""Protocol buffers from the table of operations: descriptors, message classes, and the .proto text.

A struct is a message, its fields are numbered in their order: a field that is added goes to the
end, and none is ever taken away. `holdfast.proto` beside this file is printed from here for clients
in other languages (`python -m holdfast.wire.proto`), and a test holds the two together, so that a
number that changes is seen. A field that is any JSON value is a string of JSON, `payload_json`.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterable
from functools import cache
from itertools import count
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from google.protobuf import descriptor_pb2 as pb
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message as ProtoMessage
from msgspec import UNSET, Raw, UnsetType

from holdfast.errors import InvalidArgument
from holdfast.wire.operations import OPERATIONS, STREAMS, Operation
from holdfast.wire.problems import invalid

PACKAGE = "holdfast.v1"
FILE = "holdfast/v1/holdfast.proto"
_F = pb.FieldDescriptorProto
_SCALARS: dict[Any, Any] = {
    str: _F.TYPE_STRING,
    int: _F.TYPE_INT64,
    float: _F.TYPE_DOUBLE,
    bool: _F.TYPE_BOOL,
    bytes: _F.TYPE_BYTES,
}
_NAMES = {
    _F.TYPE_STRING: "string",
    _F.TYPE_INT64: "int64",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_BOOL: "bool",
    _F.TYPE_BYTES: "bytes",
}
Kind = Literal["scalar", "json", "struct", "list", "given", "map"]


class Texts(msgspec.Struct, frozen=True):
    """A list that can be left out: one that is empty says something else, none of them."""

    items: list[str]


class Numbers(msgspec.Struct, frozen=True):
    """As Texts."""

    items: list[int]


_LISTS: dict[Any, Any] = {str: Texts, int: Numbers}


class Field(msgspec.Struct, frozen=True):
    """How one field of a struct travels."""

    name: str
    proto: str
    number: int
    kind: Kind
    of: Any
    """The scalar, or the struct; of a list or a map, that of its items."""
    optional: bool
    required: bool

    @property
    def holds_structs(self) -> bool:
        return isinstance(self.of, type) and issubclass(self.of, msgspec.Struct)


@cache
def fields_of(struct: type[msgspec.Struct]) -> tuple[Field, ...]:
    """In their order, and numbered in it, except those that say their number themselves."""
    numbers = count(1)
    return tuple(
        _field(field, _own_number(field.type) or next(numbers))
        for field in msgspec.structs.fields(struct)
    )


def _own_number(annotated: Any) -> int | None:
    metas = annotated.__metadata__ if get_origin(annotated) is Annotated else ()
    found = (meta.extra["number"] for meta in metas if meta.extra and "number" in meta.extra)
    return next(found, None)


def _field(field: msgspec.structs.FieldInfo, number: int) -> Field:
    of, optional = _bare(field.type)
    kind: Kind = "scalar"
    proto = field.name
    if of is Raw:
        kind, proto = "json", f"{field.name}_json"
    elif get_origin(of) is list:
        kind, of = "list", _bare(get_args(of)[0])[0]
        if optional:
            kind, of = "given", _LISTS[of]
    elif get_origin(of) is dict:
        kind, of = "map", _bare(get_args(of)[1])[0]
    elif isinstance(of, type) and issubclass(of, msgspec.Struct):
        kind = "struct"
    if kind == "scalar" and not field.required and field.default:
        optional = True  # or a zero that was sent would be taken for nothing, and that for this
    return Field(field.name, proto, number, kind, of, optional, field.required)


def _bare(annotated: Any) -> tuple[Any, bool]:
    """A type without what is said about it, and whether it may be left out."""
    while get_origin(annotated) is Annotated:
        annotated = get_args(annotated)[0]
    if get_origin(annotated) in (Union, types.UnionType):
        inner = [arg for arg in get_args(annotated) if arg not in (type(None), UnsetType)]
        return _bare(inner[0])[0], True
    if get_origin(annotated) is Literal:
        return str, False
    return annotated, annotated is Raw


# Structs to messages and back


def to_proto(value: msgspec.Struct) -> ProtoMessage:
    try:
        return message_class(type(value))(**_writer(type(value))(value))
    except (TypeError, ValueError) as error:  # not what its field takes: say which one
        _check(value)
        raise InvalidArgument("request", str(error)) from error


def _check(value: msgspec.Struct) -> None:
    try:
        msgspec.convert(msgspec.structs.asdict(value), type(value), from_attributes=True)
    except msgspec.ValidationError as error:
        raise invalid(error) from error


Writer = Callable[[Any], Any]


@cache
def _writer(struct: type[Any]) -> Writer:
    """Makes of a struct what the message's class takes: what it holds are dicts as well, and the
    class makes them once."""
    rows = [
        (field.name, field.proto, _nothing(field), _item_writer(field))
        for field in fields_of(struct)
    ]

    def write(value: Any) -> dict[str, Any]:
        filled: dict[str, Any] = {}
        for name, proto, zero, written in rows:
            item = getattr(value, name)
            if not item and (item is None or item is UNSET or type(item) is zero):
                continue
            filled[proto] = item if written is None else written(item)
        return filled

    return write


def _nothing(field: Field) -> type[Any] | None:
    """The type whose zero is the same as nothing, and need not be written."""
    if field.kind == "scalar":
        return None if field.optional else field.of
    return {"list": list, "map": dict}.get(field.kind)


def _item_writer(field: Field) -> Writer | None:
    """How a value is written, if it cannot go as it is."""
    if field.kind != "json" and not field.holds_structs:
        return None
    match field.kind:
        case "json":
            return lambda item: bytes(item).decode()
        case "map":  # which takes no dicts
            return lambda item: {name: to_proto(one) for name, one in item.items()}
        case "given":
            return lambda item: {"items": item}
        case _:
            write = _writer(field.of)
            return (lambda items: list(map(write, items))) if field.kind == "list" else write


def from_proto(message: ProtoMessage, struct: type[Any]) -> Any:
    """Checked like a JSON document; an InvalidArgument names the field."""
    try:
        return msgspec.convert(_reader(struct)(message), struct)
    except msgspec.ValidationError as error:
        raise invalid(error) from error


Reader = Callable[[Any], Any]


@cache
def _reader(struct: type[Any]) -> Reader:
    """Makes builtins of a message. Only what was set is looked at: most leave most fields out.
    A required one that was not sent says zero."""
    fields = fields_of(struct)
    known = {field.number: (field.name, _item_reader(field)) for field in fields}
    zeros = {field.name: _zero(field) for field in fields if field.required}
    missing = {name: zero for name, zero in zeros.items() if zero is not UNSET}

    def read(message: Any) -> dict[str, Any]:
        given = missing.copy()
        for descriptor, item in message.ListFields():
            name, made = known[descriptor.number]
            given[name] = item if made is None else made(item)
        return given

    return read


def _zero(field: Field) -> Any:
    if field.kind == "list":
        return []
    if field.kind == "map":
        return {}
    if field.optional:
        return None
    return UNSET if field.kind == "struct" else field.of()


def _item_reader(field: Field) -> Reader | None:
    """How a value is read, if it is not what it is."""
    match field.kind:
        case "scalar":
            return None
        case "json":
            return Raw  # what is in it is looked at where it is used, as that of a document
        case "struct":
            return _reader(field.of)
        case "given":
            return lambda item: list(item.items)
        case "list":
            read = _reader(field.of) if field.holds_structs else None
            return list if read is None else lambda items: list(map(read, items))
        case "map":
            read = _reader(field.of) if field.holds_structs else None
            return dict if read is None else lambda items: {k: read(items[k]) for k in items}


# Descriptors


@cache
def message_class(struct: type[Any]) -> Callable[..., ProtoMessage]:
    found = pool().FindMessageTypeByName(f"{PACKAGE}.{struct.__name__}")
    return message_factory.GetMessageClass(found)


def pool() -> descriptor_pool.DescriptorPool:
    with _adding:  # two threads that make their first call at once would both add it
        return _pool()


_adding = threading.Lock()


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    made = descriptor_pool.Default()
    made.AddSerializedFile(file_descriptor().SerializeToString())
    return made


def service_name(operation: Operation) -> str:
    return f"{PACKAGE}.{operation.service}"


@cache
def file_descriptor() -> pb.FileDescriptorProto:
    file = pb.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    for struct in structs():
        file.message_type.append(_descriptor(struct))
    for service in ("MessageService", "AdminService"):
        described = file.service.add(name=service)
        for operation in _of_service(service):
            described.method.add(
                name=operation.name,
                input_type=f".{PACKAGE}.{operation.ask.__name__}",
                output_type=f".{PACKAGE}.{operation.answer.__name__}",
                server_streaming=operation in STREAMS,
            )
    return file


def _of_service(service: str) -> list[Operation]:
    return [operation for operation in [*OPERATIONS, *STREAMS] if operation.service == service]


def structs() -> list[type[Any]]:
    """Every struct that travels, each once, in the order in which the table needs them."""
    found: dict[type[Any], None] = {}

    def add(struct: type[Any]) -> None:
        if struct not in found:
            found[struct] = None
            for field in fields_of(struct):
                if field.holds_structs:
                    add(field.of)

    for operation in [*OPERATIONS, *STREAMS]:
        add(operation.ask)
        add(operation.answer)
    return list(found)


def _descriptor(struct: type[Any]) -> pb.DescriptorProto:
    described = pb.DescriptorProto(name=struct.__name__)
    for field in fields_of(struct):
        made = described.field.add(name=field.proto, number=field.number)
        made.label = _F.LABEL_REPEATED if field.kind in ("list", "map") else _F.LABEL_OPTIONAL
        if field.kind == "map":
            entry = _map_entry(described, field)
            made.type, made.type_name = _F.TYPE_MESSAGE, f".{PACKAGE}.{struct.__name__}.{entry}"
            continue
        _set_type(made, field)
        if field.optional and field.kind in ("scalar", "json"):
            made.proto3_optional = True
            made.oneof_index = len(described.oneof_decl)
            described.oneof_decl.add(name=f"_{field.proto}")
    return described


def _map_entry(described: pb.DescriptorProto, field: Field) -> str:
    name = "".join(part.capitalize() for part in field.proto.split("_")) + "Entry"
    entry = described.nested_type.add(name=name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_F.LABEL_OPTIONAL, type=_F.TYPE_STRING)
    _set_type(entry.field.add(name="value", number=2, label=_F.LABEL_OPTIONAL), field)
    return name


def _set_type(made: Any, field: Field) -> None:
    if field.kind == "json":
        made.type = _F.TYPE_STRING
    elif field.holds_structs:
        made.type, made.type_name = _F.TYPE_MESSAGE, f".{PACKAGE}.{field.of.__name__}"
    else:
        made.type = _SCALARS[field.of]


# The .proto text


def proto_text() -> str:
    parts = [
        "// Printed from the table of operations: python -m holdfast.wire.proto",
        "// What each field means: /docs or /openapi.json of a server.",
        'syntax = "proto3";',
        "",
        f"package {PACKAGE};",
    ]
    for service in ("MessageService", "AdminService"):
        parts += ["", f"service {service} {{", *_methods(service), "}"]
    for struct in structs():
        parts += ["", *_comment(struct), f"message {struct.__name__} {{", *_lines(struct), "}"]
    return "\n".join(parts) + "\n"


def _methods(service: str) -> Iterable[str]:
    for operation in _of_service(service):
        stream = "stream " if operation in STREAMS else ""
        yield f"  // {operation.summary}"
        yield (
            f"  rpc {operation.name}({operation.ask.__name__})"
            f" returns ({stream}{operation.answer.__name__});"
        )


def _comment(struct: type[Any]) -> list[str]:
    own = vars(struct).get("__doc__") or ""
    return [f"// {line.strip()}" for line in own.strip().splitlines()]


def _lines(struct: type[Any]) -> Iterable[str]:
    for field in fields_of(struct):
        yield f"  {_label(field)}{_type_text(field)} {field.proto} = {field.number};"


def _label(field: Field) -> str:
    if field.kind == "list":
        return "repeated "
    return "optional " if field.optional and field.kind in ("scalar", "json") else ""


def _type_text(field: Field) -> str:
    if field.kind == "json":
        return "string"
    name = field.of.__name__ if field.holds_structs else _NAMES[_SCALARS[field.of]]
    return f"map<string, {name}>" if field.kind == "map" else name


if __name__ == "__main__":
    print(proto_text(), end="")
