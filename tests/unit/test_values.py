"""Ids, names, payloads, settings, errors, handlers: what enters from outside."""

from __future__ import annotations

import dataclasses
import datetime
import pickle
import subprocess
import sys
import threading
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import InvalidArgument, Outgoing, RedriveFailed
from holdfast.errors import StoreUnavailable, did_you_mean
from holdfast.model import message, payload, settings
from holdfast.model.clock import StoreClock
from holdfast.model.message import check_queue_name, dlq_of, home_of, is_dlq, new_ids
from holdfast.rules.lifecycle import partition_of
from holdfast.rules.outcome import Fail, Retry

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)  # fmt: skip
NO_JSON = [b"", b" ", b"1 2", b"1\n2", b"[1,", b"2]", b'"\xff"', b"nul", b'{"a":1}}']


@pytest.mark.promise("LIFE-11")
@given(JSON)
def test_every_json_value_comes_out_equal(value: Any) -> None:
    body, kind = payload.encode(value, None, 10**9)
    assert payload.decode(body, kind) == value


@given(st.lists(JSON | st.binary() | st.floats() | st.tuples(JSON), max_size=5))
def test_many_at_once_are_the_same_as_one_by_one(values: list[Any]) -> None:
    limit = 40
    bodies = payload.encode_plain(values, limit)
    if bodies is not None:
        assert bodies == [payload.encode(value, None, limit)[0] for value in values]
    elif all(type(value) in (int, str, bool) for value in values):
        with pytest.raises(InvalidArgument):
            _ = [payload.encode(value, None, limit) for value in values]


@given(st.lists(JSON.map(msgspec.json.encode) | st.sampled_from(NO_JSON), min_size=1, max_size=5))
def test_json_that_is_written_already_is_looked_at_and_kept(texts: list[bytes]) -> None:
    """As it comes over a wire. No two that are wrong may make up for each other."""
    limit = 40
    bodies = payload.encode_plain([msgspec.Raw(text) for text in texts], limit)
    if any(text in NO_JSON or len(text) > limit for text in texts):
        assert bodies is None
        with pytest.raises(InvalidArgument, match="payload"):
            _ = [payload.encode(msgspec.Raw(text), None, limit) for text in texts]
    else:
        assert bodies == texts
        assert [payload.encode(msgspec.Raw(text), None, limit)[0] for text in texts] == texts


@given(st.binary())
def test_all_bytes_come_out_equal(value: bytes) -> None:
    assert payload.decode(*payload.encode(value, None, 10**9)) == value


def test_what_stands_for_a_json_value_goes_in() -> None:
    @dataclasses.dataclass
    class Point:
        x: int

    value = {"at": datetime.date(2026, 1, 2), "points": (Point(1),), "id": uuid.UUID(int=0)}
    body, _ = payload.encode(value, None, 1000)
    assert payload.decode(body, payload.JSON) == {
        "at": "2026-01-02",
        "points": [{"x": 1}],
        "id": "00000000-0000-0000-0000-000000000000",
    }


def test_typed_decoders() -> None:
    class Order(msgspec.Struct):
        id: int

    class Model:
        """What a pydantic model looks like from here."""

        @classmethod
        def model_validate_json(cls, body: bytes) -> str:
            return f"validated {body!r}"

    assert payload.decoder(Order)(b'{"id":1}', payload.JSON) == Order(1)
    assert payload.decoder(Model)(b"{}", payload.JSON) == "validated b'{}'"
    assert payload.decoder(bytes)(b"{}", payload.JSON) == b"{}"
    assert payload.decoder(dict)(b"raw", "image/png") == b"raw"


def test_ids_are_uuid7_and_only_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "_ids_last", (0, 0))
    now = 1_700_000_000_000
    ids = [*new_ids(1000, now), *new_ids(1000, now - 5000), *new_ids(1000, now + 1)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 3000
    parsed = uuid.UUID(ids[-1])
    assert (parsed.version, parsed.variant, parsed.int >> 80) == (7, uuid.RFC_4122, now + 1)


def test_ids_grow_beyond_what_their_end_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000_000
    for low in (2**48 - 1, 2**48 - 2**33, 2**48 - 2**44):
        monkeypatch.setattr(message, "_ids_last", (now, 5 << 48 | low))
        ids = [*new_ids(3, now), *new_ids(10_000, now), *new_ids(1, now)]
        assert ids == sorted(set(ids))
        assert {uuid.UUID(id).version for id in ids} == {7}
        assert uuid.UUID(ids[0]).int & 2**62 - 1 > 5 << 48 | low


def test_ids_of_many_threads_are_distinct() -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.extend(new_ids(500, 1_800_000_000_000)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4000


def test_names_of_queues() -> None:
    for good in ("a", "orders", "A-1_b.c", "orders@billing", "x.dlq", "orders@billing.dlq"):
        assert check_queue_name(good) == good
    assert (dlq_of("a"), dlq_of("a.dlq"), home_of("a.dlq"), is_dlq("a")) == (
        "a.dlq",
        "a.dlq",
        "a",
        False,
    )


def test_the_partition_of_a_key_never_changes() -> None:
    known = {"": 4, "a": 15, "customer-7": 10, "ключ": 0}
    assert {key: partition_of(key, "ignored", 16) for key in known} == known
    assert partition_of("anything", "", 1) == 0


@pytest.mark.promise("OVERDUE-9")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_OVERDUE_CHECK_INTERVAL_MS", "soon"),
        ("HOLDFAST_OVERDUE_CHECK_INTERVAL_MS", "0"),
        ("HOLDFAST_REQUEUE_BATCH_SIZE", "-1"),
        ("HOLDFAST_ACK_TIMEOUT_SECONDS", "0"),
        ("HOLDFAST_ACK_TIMEOUT_SECONDS", "nan"),
        ("HOLDFAST_MAX_ATTEMPTS", "2.5"),
        ("HOLDFAST_MAX_ATEMPTS", "2"),
    ],
)
def test_a_bad_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        settings.load({name: value})
    assert caught.value.field == name
    assert settings.load({"HOLDFAST_TEST_ANYTHING": "x", "OTHER": "y"}) == settings.Settings()


def test_errors_survive_pickling_and_say_what_to_do() -> None:
    for error in (
        InvalidArgument("delay", "must not be negative"),
        RedriveFailed("gone", 7),
        Retry("x", delay=3, code="C"),
        Fail("x", code="C"),
        StoreUnavailable("down"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), copy.__dict__) == (str(error), error.__dict__)
    assert did_you_mean("ordrs", ["orders", "bills"]) == "did you mean 'orders'?"
    assert did_you_mean("zzz", []) == "none is known"


def test_the_clock_is_the_stores() -> None:
    ahead = StoreClock(lambda: 5_000_000_000_000)
    assert abs(ahead.now() - 5_000_000_000_000) < 10_000

    def down() -> int:
        raise StoreUnavailable("down")

    lost = StoreClock(down)
    assert abs(lost.now() - holdfast.connect("memory://").store.time()) < 10_000


@pytest.mark.promise("SETUP-2")
def test_importing_brings_no_driver_and_no_screen() -> None:
    heavy = ["click", "rich", "psycopg", "redis", "pymongo", "fastapi", "grpc", "pyspark"]
    code = f"import sys, holdfast; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_outgoing_takes_what_enqueue_takes() -> None:
    import inspect

    options = set(inspect.signature(holdfast.Queue.enqueue).parameters) - {"self", "within"}
    assert options == set(Outgoing.__struct_fields__)
