"""Protocol buffers: the file for other languages is what this one speaks, and nothing is lost."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from subprocess import run
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw, inspect

from holdfast.wire import proto
from holdfast.wire.proto import from_proto, message_class, proto_text, structs, to_proto

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src/holdfast/wire/holdfast.proto"


@pytest.mark.promise("SERVER-2")
def test_the_file_is_what_is_printed() -> None:
    """A number that changes is seen here: clients that are out there would read other fields."""
    assert FILE.read_text() == proto_text(), "python -m holdfast.wire.proto > (the file)"


@pytest.mark.promise("SERVER-2")
def test_the_compiler_reads_the_same_from_it(tmp_path: Path) -> None:
    out = tmp_path / "set.pb"
    folder = tmp_path / "holdfast/v1"
    folder.mkdir(parents=True)
    (folder / "holdfast.proto").write_text(FILE.read_text())
    command = ["protoc", f"-I{tmp_path}", f"--descriptor_set_out={out}", proto.FILE]
    assert protoc.main(command) == 0
    [compiled] = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    ours = proto.file_descriptor()
    assert [told(one) for one in compiled.message_type] == [told(one) for one in ours.message_type]
    assert list(map(services, compiled.service)) == list(map(services, ours.service))
    assert (compiled.name, compiled.package, compiled.syntax) == (ours.name, ours.package, "proto3")


def told(message: Any) -> Any:
    """Names, numbers, types and presence of the fields."""
    fields = [
        (f.name, f.number, f.type, f.type_name, f.label, f.proto3_optional) for f in message.field
    ]
    return message.name, fields, [told(one) for one in message.nested_type]


def services(service: Any) -> Any:
    methods = [(m.name, m.input_type, m.output_type, m.server_streaming) for m in service.method]
    return service.name, methods


def test_the_wheel_has_the_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    without = {
        **os.environ,
        "HOLDFAST_NO_DASHBOARD": "1",
    }  # which takes time, and is tested elsewhere
    run(command, cwd=ROOT, check=True, capture_output=True, env=without)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read("holdfast/wire/holdfast.proto").decode() == proto_text()


# There and back


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Whatever a field of that type may hold."""
    match kind:
        case inspect.StructType(cls=cls):
            return documents(cls)
        case inspect.UnionType(types=types):
            return st.one_of([values(one) for one in types])
        case inspect.IntType(ge=low, le=high):
            return st.integers(-(2**53) if low is None else low, 2**53 if high is None else high)
        case inspect.ListType(item_type=item):
            return st.lists(values(item), max_size=2)
        case inspect.DictType(value_type=value):
            return st.dictionaries(TEXT, values(value), max_size=2)
        case inspect.LiteralType(values=chosen):
            return st.sampled_from(chosen)
        case inspect.Metadata(type=inner):
            return values(inner)
        case _:
            return SIMPLE[type(kind)]


SIMPLE: dict[type, st.SearchStrategy[Any]] = {
    inspect.StrType: TEXT,
    inspect.FloatType: st.floats(allow_nan=False, allow_infinity=False),
    inspect.BoolType: st.booleans(),
    inspect.BytesType: st.binary(max_size=8),
    inspect.NoneType: st.none(),
    inspect.RawType: JSON.map(lambda value: Raw(msgspec.json.encode(value))),
}


def documents(struct: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a struct; a field that has a default may be left out."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    required = {field.name: values(field.type) for field in info.fields if field.required}
    others = {field.name: values(field.type) for field in info.fields if not field.required}
    return st.fixed_dictionaries(required, optional=others).map(lambda given: struct(**given))


@pytest.mark.promise("SERVER-2")
@pytest.mark.parametrize("struct", structs(), ids=lambda struct: struct.__name__)
def test_every_document_survives_the_wire(struct: type[Any]) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(document=documents(struct))
    def there_and_back(document: Any) -> None:
        sent = to_proto(document).SerializeToString()
        parse: Any = message_class(struct)
        assert plain(from_proto(parse.FromString(sent), struct)) == plain(document)

    there_and_back()


def plain(value: Any) -> Any:
    """Comparable: raw JSON by its bytes. An optional map that is empty means the same as none."""
    match value:
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            return {name: plain(one) for name, one in fields.items() if one is not UNSET}
        case Raw():
            return bytes(value)
        case dict():
            return {name: plain(one) for name, one in value.items()} or None
        case list():
            return [plain(one) for one in value]
        case _:
            return value
