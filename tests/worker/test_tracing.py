"""One trace over the queue: producer and handler, on every executor; and nothing without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import holdfast
from holdfast import Backoff, Fail, Holdfast, Outgoing
from holdfast.stores.contract import Store
from holdfast.telemetry import tracing
from holdfast.testing import drain
from tests.traces import provider

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module")
def tracer() -> trace.Tracer:
    """Outside of this file nothing is kept of its spans."""
    provider().add_span_processor(SimpleSpanProcessor(EXPORTER))
    return trace.get_tracer("shop")


@pytest.fixture(autouse=True)
def spans(tracer: trace.Tracer) -> Iterator[Callable[[str], list[ReadableSpan]]]:
    """Those that ended, by name, in the order in which they did."""
    EXPORTER._stopped = False
    yield lambda name: [span for span in EXPORTER.get_finished_spans() if span.name == name]
    EXPORTER.clear()
    EXPORTER.shutdown()


Spans = Callable[[str], list[ReadableSpan]]


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.connect("memory://", max_attempts=3, backoff=Backoff(base=0)) as hf:
        yield hf


def parent(span: ReadableSpan) -> str:
    return f"{span.parent.span_id:016x}" if span.parent else ""


def named(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


@pytest.mark.promise("SERVER-6")
def test_producer_and_handlers_are_one_trace(
    store_factory: Callable[[], Store], tracer: trace.Tracer, spans: Spans
) -> None:
    hf = holdfast.connect(store_factory(), backoff=Backoff(base=0))

    @hf.handler("orders")
    def handle(payload: str, attempt: int) -> None:
        if attempt == 1:
            raise KeyError("not yet")
        hf.queue("letters").enqueue("thanks")

    queue = hf.queue("orders")
    hf.queue("letters")
    with tracer.start_as_current_span("checkout") as checkout:
        message = queue.enqueue("one")
    drain(hf)

    [producer] = spans("enqueue orders")
    first, second = spans("handle orders")
    [letter] = spans("enqueue letters")
    everything = [producer, first, second, letter]
    assert {span.context.trace_id for span in everything} == {checkout.get_span_context().trace_id}
    assert parent(producer) == f"{checkout.get_span_context().span_id:016x}"
    assert parent(first) == parent(second) == named(producer)
    assert parent(letter) == named(second)
    assert (producer.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert message.headers["traceparent"].split("-")[2] == named(producer)
    assert dict(second.attributes or {}) == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "handle",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": message.id,
        "holdfast.attempt": 2,
    }
    assert (first.status.status_code, first.status.description) == (
        StatusCode.ERROR,
        "KeyError: 'not yet'",
    )
    [event] = first.events
    assert event.attributes and event.attributes["exception.type"] == "KeyError"
    assert "in handle" in str(event.attributes["exception.stacktrace"])
    assert second.status.is_ok
    assert not second.events


def test_a_batch_is_one_span_and_each_message_carries_it(
    hf: Holdfast, tracer: trace.Tracer, spans: Spans
) -> None:
    own = Outgoing(3, headers={"traceparent": PARENT, "a": "b"})
    with tracer.start_as_current_span("import"):
        made = hf.queue("orders").enqueue_many([1, Outgoing(2, headers={"a": "b"}), own])
    [producer] = spans("enqueue orders")
    assert producer.attributes and producer.attributes["messaging.batch.message_count"] == 3
    assert [m.headers["traceparent"].split("-")[2] for m in made] == [
        named(producer),
        named(producer),
        "00f067aa0ba902b7",  # what the caller says stays
    ]
    assert made[1].headers["a"] == "b"
    assert made[2].headers == own.headers


def test_a_topic_carries_it_to_every_group(
    hf: Holdfast, tracer: trace.Tracer, spans: Spans
) -> None:
    topic = hf.topic("orders")
    for group in ("billing", "shipping"):
        topic.bind(group)
        hf.handler(f"orders@{group}", name=group)(lambda payload: None)
    with tracer.start_as_current_span("checkout"):
        topic.publish(1)
    drain(hf)
    [producer] = spans("publish orders")
    handled = spans("handle orders@billing") + spans("handle orders@shipping")
    assert [parent(span) for span in handled] == [named(producer)] * 2


def test_async_handlers_run_inside_their_span(
    hf: Holdfast, tracer: trace.Tracer, spans: Spans
) -> None:
    seen: dict[int, str] = {}

    @hf.handler("orders")
    async def handle(payload: int) -> None:
        seen[payload] = f"{trace.get_current_span().get_span_context().span_id:016x}"
        if payload == 2:
            raise Fail(ValueError("never"), code="NEVER")

    with tracer.start_as_current_span("checkout"):
        hf.queue("orders").enqueue_many([1, 2])
    drain(hf)
    handled = spans("handle orders")
    assert {named(span) for span in handled} == set(seen.values())
    assert len(seen) == 2
    [failed] = [span for span in handled if not span.status.is_ok]
    assert (named(failed), failed.status.description) == (seen[2], "NEVER: never")
    assert failed.events[0].attributes
    assert failed.events[0].attributes["exception.type"] == "ValueError"


def test_handlers_in_processes_have_a_span_around_them(
    hf: Holdfast,
    tracer: trace.Tracer,
    spans: Spans,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"traced_handlers_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text("def handle(payload):\n    raise KeyError(payload)\n")
    monkeypatch.syspath_prepend(tmp_path)
    hf.handler("orders")(__import__(name).handle)
    with tracer.start_as_current_span("checkout"):
        hf.queue("orders", max_attempts=1).enqueue("missing")
    assert hf.worker(until_empty=True, sweep=False, executor="process", concurrency=1).run()
    [producer], [handled] = spans("enqueue orders"), spans("handle orders")
    assert parent(handled) == named(producer)
    assert handled.status.description == "KeyError: 'missing'"
    assert dict(handled.events[0].attributes or {}) == {
        "exception.type": "KeyError",
        "exception.message": "'missing'",
    }


def test_a_producer_that_is_part_of_no_trace_begins_none(hf: Holdfast, spans: Spans) -> None:
    hf.handler("orders")(lambda payload: None)
    assert hf.queue("orders").enqueue(1).headers == {}
    drain(hf)
    assert not spans("enqueue orders")
    [handled] = spans("handle orders")
    assert handled.parent is None


def test_what_others_sent_is_gone_on_with(hf: Holdfast, tracer: trace.Tracer, spans: Spans) -> None:
    with tracing.continuing({"Traceparent": PARENT, "tracestate": "shop=7"}):
        carried = hf.queue("orders").enqueue(1).headers
        assert tracing.inject({"a": "b"}).keys() == {"a", "traceparent", "tracestate"}
        assert tracing.inject({"traceparent": PARENT}) == {"traceparent": PARENT}
    [producer] = spans("enqueue orders")
    assert parent(producer) == PARENT.split("-")[2]
    assert carried["tracestate"] == "shop=7"
    with tracing.continuing({"traceparent": "nonsense"}):
        assert tracing.inject() == {}
    with tracer.start_as_current_span("next", context=tracing.extract({"traceparent": PARENT})):
        pass
    assert parent(spans("next")[0]) == PARENT.split("-")[2]


def test_a_trace_that_is_not_sampled_stays_so(hf: Holdfast, spans: Spans) -> None:
    hf.handler("orders")(lambda payload: None)
    with tracing.continuing({"traceparent": PARENT[:-2] + "00"}):
        message = hf.queue("orders").enqueue(1)
    drain(hf)
    assert message.headers["traceparent"].startswith(PARENT[:35])
    assert message.headers["traceparent"].endswith("-00")
    assert EXPORTER.get_finished_spans() == ()


UNTRACED = """
import sys
for name in [{blocked}]:
    sys.modules[name] = None
import holdfast
from holdfast.telemetry import tracing
from holdfast.testing import drain
hf = holdfast.connect("memory://")
done = []
hf.handler("orders")(done.append)
with tracing.continuing({{"traceparent": "{parent}"}}):
    assert hf.queue("orders").enqueue(1).headers == {{}}
assert tracing.inject({{"a": "b"}}) == {{"a": "b"}} and tracing.extract({{}}) is None
drain(hf)
assert done == [1]
print([name for name, module in sys.modules.items() if name.startswith("opentelemetry") and module])
"""


@pytest.mark.parametrize("blocked", ["", "'opentelemetry'"])
def test_without_it_nothing_is_imported_and_all_works(blocked: str) -> None:
    code = UNTRACED.format(blocked=blocked, parent=PARENT)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
