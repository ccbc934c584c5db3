"""One trace from the producer over the queue into the handler, for programs that use OpenTelemetry.

The context travels in a message's headers, as W3C Trace Context writes it. Nothing here imports
OpenTelemetry before the program has: who never did can have no span open, and pays one look into
a dict.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.model.message import Lease, Message

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

logger = logging.getLogger("holdfast.tracing")

TRACEPARENT = "traceparent"
SYSTEM = "holdfast"


def inject(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers, with the context of the span that is open here; one that they bring stays."""
    given = dict(headers or {})
    if not is_loaded() or TRACEPARENT in given:
        return given
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return {**given, **carrier} if carrier else given


def extract(headers: Mapping[str, str]) -> Context | None:
    """The context that they carry: to be the parent of a span. None without OpenTelemetry."""
    if not is_loaded():
        return None
    from opentelemetry.context import Context

    return _propagator().extract({name.lower(): headers[name] for name in headers}, Context())


@contextmanager
def continuing(headers: Mapping[str, str]) -> Generator[None]:
    """What is done in here belongs to the trace that the headers carry, if they carry one."""
    context = extract(headers) if is_loaded() else None
    if not context:
        yield
        return
    from opentelemetry.context import attach, detach

    token = attach(context)
    try:
        yield
    finally:
        detach(token)


@contextmanager
def serving(operation: str, headers: Mapping[str, str]) -> Generator[None]:
    """A span around a call that came over a wire, of the trace that its headers carry."""
    context = extract(headers) if is_loaded() else None
    if not context:
        yield
        return
    from opentelemetry.trace import SpanKind, get_tracer

    about = {"rpc.system": SYSTEM, "rpc.method": operation}
    with get_tracer(SYSTEM).start_as_current_span(
        f"serve {operation}", context=context, kind=SpanKind.SERVER, attributes=about
    ):
        yield


def producing(verb: str, to: str, count: int) -> AbstractContextManager[dict[str, str]] | None:
    """A span around an enqueue, which gives the headers for its messages. None where no span is
    open: a producer that is part of no trace begins none."""
    if not is_loaded():
        return None
    from opentelemetry.trace import get_current_span

    if not get_current_span().get_span_context().is_valid:
        return None
    return _producing(verb, to, count)


@contextmanager
def _producing(verb: str, to: str, count: int) -> Generator[dict[str, str]]:
    from opentelemetry.trace import SpanKind, get_tracer

    about = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": verb,
        "messaging.operation.type": "send",
        "messaging.destination.name": to,
        "messaging.batch.message_count": count,
    }
    with get_tracer(SYSTEM).start_as_current_span(
        f"{verb} {to}", kind=SpanKind.PRODUCER, attributes=about
    ):
        yield inject()


def carrying(messages: list[Message], headers: Mapping[str, str]) -> list[Message]:
    """The messages with these headers too, but those that bring a context of their own."""
    from msgspec.structs import replace

    return [
        message
        if TRACEPARENT in message.headers
        else replace(message, headers={**message.headers, **headers})
        for message in messages
    ]


class Handling:
    """Nobody looks at how a delivery is handled."""

    def __enter__(self) -> Handling:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def failed(self, code: str, message: str, *, recorded: bool) -> None:
        """`recorded`: the error itself was, where it was raised."""


_UNSEEN = Handling()


def handling(lease: Lease) -> Handling:
    """A span around the handlers of one delivery: of the trace in which it was enqueued."""
    return _Spanned(lease) if is_loaded() else _UNSEEN


class _Spanned(Handling):
    """What the program's exporters and processors raise is logged, and changes nothing else."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._opened: AbstractContextManager[Span] | None = None
        self._span: Span | None = None

    def __enter__(self) -> Handling:
        with _harmless():
            opened = _open(self._lease)
            self._span = opened.__enter__()
            self._opened = opened
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._opened is not None:
            with _harmless():
                self._opened.__exit__(*raised)

    def failed(self, code: str, message: str, *, recorded: bool) -> None:
        from opentelemetry.trace import Status, StatusCode

        with _harmless():
            if self._span is None:
                return
            if not recorded:
                told = {"exception.type": code, "exception.message": message}
                self._span.add_event("exception", told)
            self._span.set_status(Status(StatusCode.ERROR, f"{code}: {message}"))


@contextmanager
def _harmless() -> Generator[None]:
    try:
        yield
    except Exception:
        logger.exception("tracing failed")


def _open(lease: Lease) -> AbstractContextManager[Span]:
    from opentelemetry.trace import SpanKind, get_tracer

    message = lease.message
    about = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "handle",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.queue,
        "messaging.message.id": message.id,
        "holdfast.attempt": message.attempts,
    }
    return get_tracer(SYSTEM).start_as_current_span(
        f"handle {message.queue}",
        context=extract(message.headers),
        kind=SpanKind.CONSUMER,
        attributes=about,
    )


def record(error: BaseException) -> None:
    """An error of a handler, with where it came from, on the span that is open here."""
    if is_loaded():
        from opentelemetry.trace import get_current_span

        with _harmless():
            get_current_span().record_exception(error)


def is_loaded() -> bool:
    return "opentelemetry.trace" in sys.modules


def _propagator() -> Any:
    """W3C's, whatever else the program is set up for: the other end knows nothing of that."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
