"""One trace from a producer over the wire, through the server and the queue, into the handler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import holdfast
from holdfast.testing import drain
from tests.server.rig import serving
from tests.traces import provider


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider().add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    exporter.clear()
    exporter.shutdown()


@pytest.mark.promise("SERVER-6")
@pytest.mark.parametrize("door", ["http", "grpc"])
@pytest.mark.parametrize("many", [False, True])
def test_producer_server_and_handler_are_one_trace(
    exporter: InMemorySpanExporter, tmp_path: Path, door: str, many: bool
) -> None:
    with (
        holdfast.connect(f"sqlite:///{tmp_path}/test.db") as hf,
        serving(hf) as doors,
        holdfast.connect(doors.url(door)) as remote,
    ):
        hf.handler("orders")(lambda payload: None)
        queue = remote.queue("orders")
        with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
            if many:
                queue.enqueue_many([1, 2])
            else:
                queue.enqueue(1)
        drain(hf)
    ids = checkout.get_span_context()
    mine = [span for span in exporter.get_finished_spans() if span.context.trace_id == ids.trace_id]
    by_name = {span.name: span for span in mine}
    served = by_name["serve EnqueueBatch" if many else "serve Enqueue"]
    handled = by_name["handle orders"]
    assert (served.kind, handled.kind) == (SpanKind.SERVER, SpanKind.CONSUMER)
    assert served.parent is not None
    assert served.parent.span_id == ids.span_id
    parents = {span.context.span_id: span.parent for span in mine}
    above = handled.parent
    seen = []
    while above is not None:  # up from the handler
        seen.append(above.span_id)
        above = parents.get(above.span_id)
    assert served.context.span_id in seen
    assert seen[-1] == ids.span_id
