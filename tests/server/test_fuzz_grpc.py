"""Bytes and odd messages to every gRPC method: a status that says what is wrong, and no hang."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Holdfast, Outgoing
from holdfast.server.limits import Limits
from holdfast.wire.operations import OPERATIONS, STREAMS, Operation
from holdfast.wire.proto import fields_of, message_class, service_name
from tests.server.rig import serving

pytestmark = pytest.mark.promise("SERVER-5")

EVERY = [*OPERATIONS, *STREAMS]
DEADLINE_S = 20.0
STREAM_S = 0.2
"""A stream that is served ends by its deadline, which is no fault."""
FAULTS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED}


class Caller:
    """Sends bytes as they are; says how it ended."""

    def __init__(self, hf: Holdfast, url: str) -> None:
        self.hf = hf
        self._channel = grpc.insecure_channel(url.removeprefix("grpc://"))
        self.done: set[str] = set()

    def __call__(self, operation: Operation, data: bytes) -> grpc.StatusCode:
        self.fill()
        streams = operation in STREAMS
        open_ = self._channel.unary_stream if streams else self._channel.unary_unary
        call = open_(f"/{service_name(operation)}/{operation.name}")
        try:
            answer = call(data, timeout=STREAM_S if streams else DEADLINE_S)
            code = _first(answer) if streams else grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()  # type: ignore[attr-defined]
        if code is grpc.StatusCode.OK:
            self.done.add(operation.name)
        return code

    def fill(self) -> None:
        queue = self.hf.queue("orders")
        stats = queue.stats()
        if stats.ready < 2 or not stats.dead or not stats.done or stats.paused:
            queue.resume()
            queue.enqueue_many([Outgoing(n, priority=9) for n in range(9)])
            first, second = queue.lease(2)
            queue.ack(first)
            queue.fail(second, "no route")
        topic = self.hf.topic("news")
        if "mail" not in topic.groups():
            topic.bind("mail")

    def close(self) -> None:
        self._channel.close()


def _first(stream: Any) -> grpc.StatusCode:
    """Of a stream: served, or how it was refused."""
    try:
        next(stream, None)
        stream.cancel()
    except grpc.RpcError as error:
        code = error.code()  # type: ignore[attr-defined]
        return grpc.StatusCode.OK if code is grpc.StatusCode.DEADLINE_EXCEEDED else code
    return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    url = f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/fuzz.db"
    limits = Limits(wait_seconds=0.02)
    with holdfast.connect(url) as hf, serving(hf, limits=limits) as doors:
        caller = Caller(hf, doors.grpc)
        yield caller
        caller.close()


def fuzz(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


ODD_TEXT = [
    "", "\0", "\n", "..", "a/b", "%00", "null", "{}", "[", "1.1", "x" * 2000, "\U0001f41f",
    "orders", "orders.dlq", "news", "mail", "01890000-0000-7000-8000-000000000000",
]  # fmt: skip
ODD_NUMBERS = [0, 1, -1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63)]
ODD_FLOATS = [0.0, -0.0, 1.5, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324]
ODD_JSON = ["", "null", "{}", "[]", "1e999", "NaN", '"\\ud800"', "{", "[" * 2000, "9" * 5000,
            '{"a":{"a":null}}', "true"]  # fmt: skip


KNOWN = {
    "queue": st.just("orders"),
    "topic": st.just("news"),
    "group": st.just("mail"),
    "dlq_queue": st.just("orders.dlq"),
}
"""What there is: names that are made up hit nothing."""


def values(kind: str, of: Any) -> st.SearchStrategy[Any]:
    if kind == "json":
        return st.sampled_from(ODD_JSON)
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        return messages(of)
    return {
        str: st.sampled_from(ODD_TEXT) | st.text(max_size=20),
        int: st.sampled_from(ODD_NUMBERS) | st.integers(-(2**63), 2**63 - 1),
        float: st.sampled_from(ODD_FLOATS) | st.floats(),
        bool: st.booleans(),
        bytes: st.binary(max_size=20),
    }[of]


def messages(ask: type[Any]) -> st.SearchStrategy[Any]:
    """Messages of this type that a client can send, a few of its fields odd."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields_of(ask):
        one = values(field.kind, field.of)
        if field.name == "after" and field.of is str:
            one = st.sampled_from(["0.0", "1.1"]) | one  # cursors
        if field.kind == "list":
            one = st.lists(one, max_size=3)
        elif field.kind == "map":
            one = st.dictionaries(st.sampled_from(ODD_TEXT), one, max_size=2)
        fields[field.proto] = KNOWN.get(field.name, st.nothing()) | one
    rest = {name: fields.pop(name) for name in [*fields] if name not in KNOWN}
    few = st.lists(st.sampled_from([*rest] or [""]), max_size=3, unique=True)
    some = few.flatmap(
        lambda names: st.fixed_dictionaries(fields | {n: rest[n] for n in names if n in rest})
    )
    return some.map(lambda given: message_class(ask)(**given))


NEED_A_LEASE = {"Ack", "Nack", "Fail", "Release", "Extend"}
NEED_AN_ID = {"GetReport", "GetMessage", "GetRedrive", "CancelRedrive"}


@pytest.mark.parametrize("operation", EVERY, ids=lambda operation: operation.name)
def test_bytes(operation: Operation, caller: Caller) -> None:
    @fuzz(10)
    @given(st.binary(max_size=200))
    def check(data: bytes) -> None:
        assert caller(operation, data) not in FAULTS

    check()
    assert caller(operation, b"\xff\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("operation", EVERY, ids=lambda operation: operation.name)
def test_odd_messages(operation: Operation, caller: Caller) -> None:
    run(operation, caller, 8 if operation in STREAMS else 40)
    # Done, and not only refused; those that need an id nobody guesses are fuzzed over HTTP.
    assert operation.name in caller.done | NEED_A_LEASE | NEED_AN_ID


@pytest.mark.soak
@pytest.mark.parametrize("operation", EVERY, ids=lambda operation: operation.name)
def test_odd_messages_at_length(operation: Operation, caller: Caller) -> None:
    run(operation, caller, 50 if operation in STREAMS else 1000)


def run(operation: Operation, caller: Caller, examples: int) -> None:
    @fuzz(examples)
    @given(messages(operation.ask))
    def check(message: Any) -> None:
        assert caller(operation, message.SerializeToString()) not in FAULTS

    check()


def test_a_method_that_is_not_there(caller: Caller) -> None:
    call = caller._channel.unary_unary("/holdfast.v1.AdminService/Nonsense")
    with pytest.raises(grpc.RpcError) as error:
        call(b"", timeout=DEADLINE_S)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
