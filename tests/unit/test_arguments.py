"""Whatever is passed to a public verb is taken, or refused by an error that names the argument."""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Backoff, Holdfast, HoldfastError, InvalidArgument, Policy
from holdfast.model.payload import DEPTH_MAX
from holdfast.queue.redrive import DeadFilter
from holdfast.testing import ManualClock


class Nameless:
    def __repr__(self) -> str:
        raise ValueError("no text")


ODD: list[Any] = [
    10**400, -(10**400), 10**5000, Nameless(), -1, 2**63,
    None, True, "x", "\ud800", "\0", b"\xff", 1.5,
    float("nan"), float("inf"), [], [None], {}, {1: 2}, {"a": "\ud800"}, object(), int,
    datetime(1, 1, 1), datetime.max.replace(tzinfo=UTC), Backoff(), lambda: 1,
]  # fmt: skip
Verb = Callable[[Holdfast, Any], Any]


def of(fields: str, call: Callable[[Holdfast, dict[str, Any]], Any]) -> dict[str, Verb]:
    """A verb with each of its arguments."""

    def with_field(name: str) -> Verb:
        return lambda hf, value: call(hf, {name: value})

    return {name: with_field(name) for name in fields.split()}


POLICY = (
    "ack_timeout max_attempts backoff overdue_backoff exhausted log retention retention_count "
    "duplicate_window payload_max on_failure"
)
MESSAGE = "id key type priority delay at headers ack_timeout max_attempts backoff content_type"


def leased(hf: Holdfast) -> Any:
    queue = hf.queue("leased")
    queue.enqueue(1)
    return queue, queue.lease()[0]


def browse(hf: Holdfast, options: dict[str, Any]) -> list[Any]:
    return list(hf.queue("q").browse(**{"state": "log", **options}))


CALLS: dict[str, dict[str, Verb]] = {
    "policy": of(POLICY, lambda hf, o: Policy(**o)),
    "backoff": of("base factor max jitter", lambda hf, o: Backoff(**o)),
    "queue": of(f"name partitions ordered {POLICY}", lambda hf, o: hf.queue(**{"name": "n", **o})),
    "enqueue": of(f"payload {MESSAGE}", lambda hf, o: hf.queue("q").enqueue(**{"payload": 1, **o})),
    "enqueue_many": of(
        "items receipt", lambda hf, o: hf.queue("q").enqueue_many(**{"items": [1], **o})
    ),
    "publish": of(f"payload {MESSAGE}", lambda hf, o: hf.topic("t").publish(**{"payload": 1, **o})),
    "publish_many": of("items", lambda hf, o: hf.topic("t").publish_many(**o)),
    "topic": of("name log retention", lambda hf, o: hf.topic(**{"name": "t", **o})),
    "bind": of("group start", lambda hf, o: hf.topic("t").bind(**{"group": "g", **o})),
    "lease": of(
        "limit wait owner partitions batch", lambda hf, o: hf.queue("q").lease(**{"limit": 1, **o})
    ),
    "ack": of("lease result", lambda hf, o: _on_lease(hf, "ack", o)),
    "nack": of("lease delay", lambda hf, o: _on_lease(hf, "nack", o)),
    "fail": of("lease", lambda hf, o: _on_lease(hf, "fail", o)),
    "release": of("lease", lambda hf, o: _on_lease(hf, "release", o)),
    "extend": of("lease seconds", lambda hf, o: _on_lease(hf, "extend", o)),
    "settle": of("items", lambda hf, o: hf.queue("q").settle(**o)),
    "get": of("id", lambda hf, o: hf.queue("q").get(**o)),
    "browse": of("state since until", browse),
    "log": of("since until", lambda hf, o: list(hf.queue("q").log(**o))),
    "replay": of("id since until", lambda hf, o: hf.queue("q").replay(**o)),
    "redrive": of(
        "dlq count ids where rate to edit cancel",
        lambda hf, o: hf.redrive(**{"dlq": "q.dlq", **o}),
    ),
    "start_redrive": of(
        "dlq count ids where rate to edit",
        lambda hf, o: hf.start_redrive(**{"dlq": "q.dlq", **o}),
    ),
    "get_redrive": of("id", lambda hf, o: hf.get_redrive(**o)),
    "cancel_redrive": of("id", lambda hf, o: hf.cancel_redrive(**o)),
    "filter": of(
        "reason code key type older_than newer_than headers fields fingerprint",
        lambda hf, o: DeadFilter(**o),
    ),
    "connect": of(POLICY, lambda hf, o: holdfast.connect("memory://", **o).close()),
}  # fmt: skip


def _on_lease(hf: Holdfast, verb: str, options: dict[str, Any]) -> Any:
    queue, lease = leased(hf)
    return getattr(queue, verb)(**{"lease": lease, **options})


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.connect("memory://", clock=ManualClock()) as opened:
        opened.queue("q").enqueue(1)
        opened.queue("leased")
        opened.topic("t").bind("first")
        yield opened


@pytest.mark.parametrize(
    ("verb", "argument"), [(verb, name) for verb, calls in CALLS.items() for name in calls]
)
def test_an_odd_argument_is_taken_or_refused_by_its_name(
    hf: Holdfast, verb: str, argument: str
) -> None:
    named: set[str] = set()
    for value in ODD:
        try:
            CALLS[verb][argument](hf, value)
        except InvalidArgument as error:
            named.add(error.field.split(".")[0].split("[")[0])
        except HoldfastError:
            pass
        assert hf.stats()
    assert named <= {argument, *ALSO.get(argument, ())}


ALSO = {
    "content_type": ("payload",), "until": ("id",), "since": ("id",), "result": ("payload",),
    **dict.fromkeys(DeadFilter.__struct_fields__, ("where", "payload")),
    "name": ("queue", "topic"),
    "base": ("backoff",), "factor": ("backoff",), "max": ("backoff",), "jitter": ("backoff",),
    "items": ("payload", "lease"),
    "dlq": ("queue",), "ids": ("id",), "where": ("reason", "code"),
}  # fmt: skip


@pytest.mark.parametrize("argument", ["priority"])
def test_what_must_be_given_is_not_none(hf: Holdfast, argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}: must be given, not None"):
        hf.queue("q").enqueue(1, **{argument: None})


@pytest.mark.parametrize("argument", ["limit", "wait"])
def test_a_lease_needs_its_numbers(hf: Holdfast, argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}: must be given, not None"):
        hf.queue("q").lease(**{argument: None})


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("as_written", [True, False])
@pytest.mark.parametrize("many", [True, False])
def test_json_is_nested_so_deep_and_no_deeper(hf: Holdfast, as_written: bool, many: bool) -> None:
    def send(text: str) -> None:
        value = msgspec.Raw(text.encode()) if as_written else msgspec.json.decode(text)
        queue = hf.queue("q")
        queue.enqueue_many([value, 1]) if many else queue.enqueue(value)

    send(nested(DEPTH_MAX))
    send("[" + ",".join(["[[]]"] * 1000) + "]")
    send(f'["{"[" * 1000}", {{"a": "\\\\\\"{"{" * 1000}"}}]')
    before = hf.queue("q").stats().ready
    hidden = '["]",' * DEPTH_MAX + "[]" + ',"["]' * DEPTH_MAX
    for text in (nested(DEPTH_MAX + 1), nested(500), hidden, '{"a":' * 300 + "1" + "}" * 300):
        with pytest.raises(InvalidArgument, match=f"payload: JSON may be nested {DEPTH_MAX} deep"):
            send(text)
    assert hf.queue("q").stats().ready == before


def test_json_in_bytes_and_in_results_is_nested_no_deeper(hf: Holdfast) -> None:
    queue = hf.queue("q")
    deep = nested(DEPTH_MAX + 1)
    with pytest.raises(InvalidArgument, match=r"^payload: JSON may be nested"):
        queue.enqueue(deep.encode(), content_type="application/json")
    with pytest.raises(InvalidArgument, match=r"^result: JSON may be nested"):
        queue.ack(queue.lease()[0], result=msgspec.json.decode(deep))
