"""The spans of this process: it has one provider, for good, whichever test needs it first."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider


def provider() -> TracerProvider:
    known = trace.get_tracer_provider()
    if isinstance(known, TracerProvider):
        return known
    ours = TracerProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(ours)
    return ours
