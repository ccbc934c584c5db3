"""Filters, edits and the pace of a redrive, for every value."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import DeadFilter, Edit, EditFailed, ErrorInfo, InvalidArgument, Message
from holdfast.model.message import History
from holdfast.queue.redrive.choosing import Options, checked, due, edited, matches, merged, step

NOW = 1_700_000_000_000

json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), json)


def letter(payload: Any = None, **fields: Any) -> Message:
    history = History(
        errors=(ErrorInfo("first", "A", NOW, 1), ErrorInfo("last", "B", NOW, 2)),
        source="orders",
        dead_at=fields.pop("dead_at", NOW),
        reason="failed",
    )
    body = msgspec.json.encode(payload)
    kind = fields.pop("content_type", "application/json")
    given: dict[str, Any] = {"key": "k", "type": "t", "headers": {"h": "v"}, **fields}
    return Message(
        "id",
        "orders.dlq",
        0,
        0,
        given["key"],
        given["type"],
        body,
        kind,
        given["headers"],
        NOW,
        NOW,
        1,
        history=history,
    )


def test_the_code_is_that_of_the_last_error() -> None:
    assert matches(DeadFilter(code="B"), letter(), NOW)
    assert not matches(DeadFilter(code="A"), letter(), NOW)


@given(st.integers(0, 10**9), st.floats(0, 10**6))
def test_every_letter_is_either_older_or_newer(ago_ms: int, age: float) -> None:
    dead = letter(dead_at=NOW - ago_ms)
    older = matches(DeadFilter(older_than=age), dead, NOW)
    newer = matches(DeadFilter(newer_than=age), dead, NOW)
    assert older != newer
    assert older == (ago_ms >= round(age * 1000))


def test_nobody_knows_the_age_of_one_that_was_put_there_by_hand() -> None:
    dead = letter(dead_at=None)
    assert not matches(DeadFilter(older_than=0), dead, NOW)
    assert not matches(DeadFilter(newer_than=1e9), dead, NOW)
    assert matches(DeadFilter(), dead, NOW)


def paths(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        inner = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, list):
        inner = [(str(n), v) for n, v in enumerate(value)]
    else:
        inner = []
    found: list[tuple[str, Any]] = []
    for name, item in inner:
        here = f"{path}.{name}" if path else name
        if "." not in name and name:
            found += [(here, item), *paths(item, here)]
    return found


@given(objects)
def test_whatever_is_in_a_payload_is_found_by_its_path(payload: Any) -> None:
    dead = letter(payload)
    for path, value in paths(payload):
        assert matches(DeadFilter(fields={path: value}), dead, NOW)
        assert not matches(DeadFilter(fields={path: [value, "not this"]}), dead, NOW)
        assert not matches(DeadFilter(fields={path + ".deeper": 1}), letter({"a": 1}), NOW)


@pytest.mark.parametrize(
    ("there", "asked", "same"),
    [
        (1, True, False),
        (0, False, False),
        (True, True, True),
        (1, 1.0, True),
        ([1, True], [True, 1], False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (None, None, True),
        ("7", 7, False),
        ([1], [1, 1], False),
    ],
)
def test_values_are_equal_as_json_has_it(there: Any, asked: Any, same: bool) -> None:
    assert matches(DeadFilter(fields={"x": asked}), letter({"x": there}), NOW) is same


def test_what_is_not_there_is_not_null() -> None:
    assert not matches(DeadFilter(fields={"y": None}), letter({"x": 1}), NOW)
    assert not matches(DeadFilter(fields={"x.3": None}), letter({"x": [1]}), NOW)
    assert not matches(DeadFilter(fields={"x": 1}), letter({"x": 1}, content_type="x/y"), NOW)


# RFC 7396, appendix A
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch(target: Any, patch: Any, result: Any) -> None:
    assert merged(target, patch) == result


@given(json, objects)
def test_merging_twice_is_merging_once_and_changes_no_argument(target: Any, patch: Any) -> None:
    before = msgspec.json.encode([target, patch])
    once = merged(target, patch)
    assert merged(once, patch) == once
    assert msgspec.json.encode([target, patch]) == before


@given(json)
def test_an_edit_and_options_survive_the_wire(value: Any) -> None:
    for edit in (Edit(payload=value), Edit(merge={"a": value})):
        options, _ = checked(3, where={"fields": {"a": value}}, edit=edit, rate=2)
        sent = msgspec.json.encode(options)
        back = msgspec.json.decode(sent, type=Options)
        assert back == options


def test_what_no_edit_is() -> None:
    for bad in ({}, {"payload": 1, "merge": {}}, {"merge": [1]}, {"payload": float("nan")}):
        with pytest.raises(InvalidArgument, match="edit"):
            Edit(**bad)
    with pytest.raises(InvalidArgument, match="did you mean 'payload'"):
        Edit.of(paylod=1)


def test_a_payload_has_its_limit() -> None:
    assert edited(lambda m: "xx", letter(), 4) == (b'"xx"', "application/json")
    assert edited(lambda m: None, letter(), 0) is None
    with pytest.raises(InvalidArgument, match="limit is 3"):
        edited(lambda m: "xx", letter(), 3)
    with pytest.raises(InvalidArgument, match="limit is 3"):
        edited(Edit(payload="xx"), letter(), 3)
    with pytest.raises(InvalidArgument, match="not JSON"):
        edited(lambda m: b"{", letter(), 100)


def test_an_error_can_be_sent_to_another_process() -> None:
    error = EditFailed("id", "too large", 3)
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.id, back.redriven) == (str(error), "id", 3)


@given(
    st.floats(0.001, 100_000),
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 200)), min_size=2, max_size=30),
)
def test_no_stretch_of_time_sees_more_than_its_rate(
    rate: float, batches: list[tuple[float, int]]
) -> None:
    """Whatever delays come between: of every two moments, and what went from one to the other."""
    now, next_at = 100.0, 0.0
    moments: list[tuple[float, int]] = []
    for delay, moved in batches:
        now = max(now, next_at) + delay
        moments.append((now, moved))
        next_at = due(next_at, now, moved, rate)
    for i, (start, _) in enumerate(moments):
        for j in range(i + 1, len(moments)):
            gone = sum(moved for _, moved in moments[i:j])
            assert gone <= rate * (moments[j][0] - start) * (1 + 1e-9) + 1e-6 * rate


@given(st.floats(0.001, 1_000_000), st.integers(1, 1000))
def test_a_step_is_a_tenth_of_a_second_or_one_message(rate: float, most: int) -> None:
    n = step(rate, most)
    assert 1 <= n <= most
    assert n == 1 or n <= rate / 10
    assert step(None, most) == most
