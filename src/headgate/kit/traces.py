"""Traces: OpenTelemetry when an endpoint is configured, nothing at all when not.

`with span("promote", queue=name):` costs one comparison while tracing is off. A caller's W3C `traceparent` is continued by
`span(…, traceparent=header)`, and `traceparent()` gives the one to send on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Protocol

import structlog
from msgspec import Meta

from headgate.kit.problems import HeadgateError
from headgate.kit.settings import Doc, Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OpenTelemetrySpan
    from opentelemetry.trace import Tracer

Attribute = str | int | float | bool

log = structlog.get_logger()
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


class TracesMissing(HeadgateError):
    """Traces are configured but OpenTelemetry is not installed; install headgate[traces]."""

    code = "traces_missing"


class TraceSettings(Settings, section="traces"):
    """Where traces go."""

    endpoint: Annotated[
        str, Doc("OTLP over HTTP, such as http://localhost:4318; empty: no traces", env="OTEL_EXPORTER_OTLP_ENDPOINT")
    ] = ""
    sample: Annotated[
        float, Meta(ge=0, le=1), Doc("share of new traces that are kept; continued ones follow their caller")
    ] = 1.0


class Span(Protocol):
    """A stretch of work under way."""

    def set(self, **attributes: Attribute) -> None:
        """Add what became known meanwhile."""


class _Nothing:
    def set(self, **attributes: Attribute) -> None:
        pass


class _Recorded:
    def __init__(self, span: OpenTelemetrySpan) -> None:
        self._span = span

    def set(self, **attributes: Attribute) -> None:
        self._span.set_attributes(attributes)


_NOTHING: AbstractContextManager[Span] = nullcontext(_Nothing())
_tracer: Tracer | None = None
_provider: TracerProvider | None = None


def configure(settings: TraceSettings, process: str, version: str) -> None:
    """Send this process's traces to the endpoint of the settings, if there is one."""
    global _tracer, _provider
    if not settings.endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise TracesMissing from error
    resource = Resource.create({"service.name": f"headgate-{process}", "service.version": version})
    _provider = TracerProvider(resource=resource, sampler=ParentBasedTraceIdRatio(settings.sample))
    exporter = OTLPSpanExporter(endpoint=f"{settings.endpoint.rstrip('/')}/v1/traces")
    _provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = _provider.get_tracer("headgate", version)
    log.info("traces on", endpoint=settings.endpoint)


def close() -> None:
    """Send what is left and stop; tracing is off afterwards. This may block for as long as the exporter takes."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        provider.shutdown()


def on() -> bool:
    """Tell whether traces are recorded."""
    return _tracer is not None


def span(name: str, *, traceparent: str | None = None, **attributes: Attribute) -> AbstractContextManager[Span]:
    """Record a stretch of work: below the current span, or below the caller's if a `traceparent` header is given."""
    if _tracer is None:
        return _NOTHING
    return _recorded(_tracer, name, traceparent, attributes)


def traceparent() -> str | None:
    """Give the header to send with a call that belongs to the current span."""
    if _tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def trace_id(header: str | None) -> str | None:
    """Read the trace id out of a `traceparent` header; None if it is not valid. Works with tracing off, for logs."""
    found = _TRACEPARENT.fullmatch(header) if header else None
    return found.group(1) if found else None


@contextmanager
def _recorded(tracer: Tracer, name: str, header: str | None, attributes: dict[str, Attribute]) -> Iterator[Span]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({"traceparent": header}) if header else None
    with tracer.start_as_current_span(name, context=context, attributes=attributes) as started:
        yield _Recorded(started)
