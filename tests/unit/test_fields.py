"""Every place that lists a message's fields has exactly those of the table (model/fields.py).

Stores are tested in tests/conformance/test_fields.py, Spark in tests/spark/test_spark_columns.py.
"""

from __future__ import annotations

import inspect
import re
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import ErrorInfo, Outgoing, Queue
from holdfast.cli import shapes as cli
from holdfast.model.fields import FIELDS, PLAIN, Field
from holdfast.model.message import History, Message
from holdfast.queue.interface import Topic
from holdfast.server.limits import Limits
from holdfast.server.openapi import openapi
from holdfast.stores import rows
from holdfast.wire import shapes as s
from holdfast.wire import typescript
from holdfast.wire.proto import fields_of

ROOT = Path(__file__).parents[2]
IN_HISTORY = [field for field in FIELDS if field.kept == "history"]
SENT = [field for field in FIELDS if field.sent is not None]
SHOWN = [field for field in FIELDS if field.number is not None]
TYPES = {
    "text": "str",
    "int": "int",
    "real": "float",
    "time": "int",
    "flag": "bool",
    "bytes": "bytes",
    "texts": "dict[str, str]",
    "json": "dict[str, Any]",
    "backoff": "Backoff",
    "errors": "tuple[ErrorInfo, ...]",
}
PROTO = {"text": str, "int": int, "real": float, "time": int, "flag": bool, "bytes": bytes}


def compare(place: str, wanted: Iterable[str], found: Iterable[str]) -> None:
    """Fails with the names that differ, and where."""
    wanted, found = list(wanted), list(found)
    problems = [f"{name}: missing in {place}" for name in wanted if name not in found]
    problems += [f"{name}: only in {place}" for name in found if name not in wanted]
    assert not problems, "; ".join(problems)


def test_the_table_is_sound() -> None:
    numbers = [field.number for field in SHOWN]
    assert numbers == list(range(1, len(numbers) + 1))
    sent = sorted(field.sent for field in SENT if field.sent is not None)
    assert sent == [n for n in range(1, len(sent) + 2) if n != 14][: len(sent)]
    for field in PLAIN:
        assert (field.kept, field.attribute) == ("history", None), field.name
        assert field.default is not msgspec.UNSET, f"{field.name}: older messages have none"
        assert field.kind in PROTO, f"{field.name}: a {field.kind} is not plain"
        assert field.about, f"{field.name}: nothing says what it is"


def test_message() -> None:
    stored = [field.name for field in FIELDS if field.kept == "column"]
    compare("Message", [*stored, "history", "duplicate"], Message.__struct_fields__)
    for field in SHOWN:
        if field.name not in ("handled", "last_delay"):
            assert hasattr(Message, field.name), f"{field.name}: missing in Message"
    check_types("Message", Message, [f for f in FIELDS if f.kept == "column"], lambda f: f.name)


def test_history() -> None:
    compare("History", [field.in_history for field in IN_HISTORY], History.__struct_fields__)
    check_types("History", History, IN_HISTORY, lambda field: field.in_history)


def check_types(
    place: str, struct: type[Any], fields: Iterable[Field], name_of: Callable[[Field], str]
) -> None:
    found = {field.name: field for field in msgspec.structs.fields(struct)}
    for field in fields:
        there = found[name_of(field)]
        wanted = TYPES[field.kind] + (" | None" if field.default is None else "")
        assert struct.__annotations__[name_of(field)] == wanted, f"{field.name}: type in {place}"
        default = there.default
        if there.default_factory is not msgspec.NODEFAULT:
            default = there.default_factory()
        wanted = msgspec.NODEFAULT if field.default is msgspec.UNSET else field.default
        if struct is not Message or default is not msgspec.NODEFAULT:  # the library gives all
            assert default == wanted, f"{field.name}: default in {place}"


def test_what_a_producer_gives() -> None:
    """A body is given as the payload, with its content type."""
    wanted = [field.name for field in SENT if field.name != "body"]
    compare("Outgoing", wanted, Outgoing.__struct_fields__)
    for verb in (Queue.enqueue, Topic.publish):
        given = inspect.signature(verb).parameters
        names = [name for name in given if name not in ("self", "within")]
        compare(verb.__qualname__, wanted, names)
        for field in msgspec.structs.fields(Outgoing):
            default = given[field.name].default
            if not field.required:
                assert default == field.default, f"{field.name}: default in {verb.__qualname__}"


def columns() -> list[str]:
    return [field.in_sql for field in FIELDS if field.kept == "column" and field.name != "queue"]


def test_columns_of_rows() -> None:
    compare("stores/rows.py COLUMNS", [*columns(), "history"], rows.COLUMNS.split(", "))


def test_columns_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    holdfast.connect(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as db:
        for table in ("holdfast_message", "holdfast_log"):
            there = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            missing = [name for name in [*columns(), "qid", "history"] if name not in there]
            assert not missing, f"{missing}: missing in {table} of SQLite"


def test_columns_of_postgresql() -> None:
    """By the text of its migrations: what is stored there is looked at by tests on each store."""
    files = (ROOT / "src/holdfast/stores/postgres").rglob("*.sql")
    words = set(re.findall(r"\w+", " ".join(file.read_text() for file in files)))
    missing = [name for name in [*columns(), "qid", "history"] if name not in words]
    assert not missing, f"{missing}: missing in the tables of PostgreSQL"


@pytest.mark.parametrize(
    ("struct", "number_of"),
    [
        pytest.param(s.MessageDoc, lambda field: field.number, id="MessageDoc"),
        pytest.param(s.OutgoingDoc, lambda field: field.sent, id="OutgoingDoc"),
    ],
)
def test_documents(struct: type[Any], number_of: Callable[[Field], int | None]) -> None:
    there = {field.name: field for field in fields_of(struct)}
    wanted = [field for field in FIELDS if number_of(field) is not None]
    compare(struct.__name__, [field.name for field in wanted], there)
    for field in wanted:
        found = there[field.name]
        assert found.number == number_of(field), f"{field.name}: number in {struct.__name__}"
        if field.kind in PROTO:
            assert found.of is PROTO[field.kind], f"{field.name}: type in {struct.__name__}"


@pytest.mark.parametrize("struct", [s.EnqueueAsk, s.PublishAsk])
def test_a_new_field_changes_no_number(struct: type[Any]) -> None:
    numbers = [field.number for field in fields_of(struct)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert next(f.number for f in fields_of(struct) if f.name in ("queue", "topic")) == 14


def test_openapi() -> None:
    spec = openapi(Limits())
    message = spec["components"]["schemas"]["MessageDoc"]["properties"]
    compare("OpenAPI's MessageDoc", [field.name for field in SHOWN], message)
    operation = spec["paths"]["/v1/queues/{queue}/messages"]["post"]
    ask = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
    compare("OpenAPI's Enqueue", [field.name for field in SENT], ask)


def test_a_message_survives_the_wire() -> None:
    """With all that it has: nothing is forgotten on the way there or back."""
    message = full_message()
    doc = s.MessageDoc.of(message)
    for field in SHOWN:
        if field.name != "body":
            value = getattr(doc, field.name)
            nothing = (field.default, msgspec.UNSET)
            assert value not in nothing, f"{field.name}: not in MessageDoc.of"
    back = doc.value()
    for name in Message.__struct_fields__:
        assert getattr(back, name) == getattr(message, name), f"{name}: not in MessageDoc.value"


def full_message() -> Message:
    """With a value of its own in every field."""
    history = History(
        **{field.in_history: sample(field, n) for n, field in enumerate(IN_HISTORY, 3)}
    )
    kept = {f.name: sample(f, n) for n, f in enumerate(FIELDS, 3) if f.kept == "column"}
    given = {**kept, "body": b"[1]", "content_type": "application/json"}
    return Message(**given, history=history, duplicate=True)


def sample(field: Field, n: int) -> Any:
    match field.kind:
        case "text":
            return f"{field.name}-{n}"
        case "int" | "time":
            return n
        case "real":
            return n + 0.5
        case "flag":
            return True
        case "bytes":
            return field.name.encode()
        case "texts" | "json":
            return {field.name: str(n)}
        case "backoff":
            return holdfast.Backoff(base=n)
        case "errors":
            return (ErrorInfo("no", "Error", 1, 2),)


def test_the_command_line() -> None:
    """Its JSON has the body as `payload`, and nothing of how a message is worked."""
    left_out = {"body", "handled", "last_delay", "duplicate"}
    wanted = [field.name for field in SHOWN if field.name not in left_out]
    found = cli.of_message(full_message())
    compare("cli/shapes.py", wanted, [name for name in found if name != "payload_encoding"])


def test_the_dashboard() -> None:
    file = "web/src/api/message.ts"
    printed = typescript.text()
    assert (ROOT / file).read_text() == printed, f"python -m holdfast.wire.typescript > {file}"
