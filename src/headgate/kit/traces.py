"""Traces: OpenTelemetry if an endpoint is configured, else no work at all.

`with span("promote", queue=name):` costs one comparison while tracing is off. A caller's W3C trace context is continued by
`span(…, caller=…)`, and `headers()` gives the one to send on. Names, kinds, attributes and statuses follow the semantic
conventions for HTTP and databases. `span(…, inner=True)` records only below a span: what a process does by itself, again and
again, is no trace. `OTEL_…` variables work as the OpenTelemetry SDK documents them, which reads them itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from time import time_ns
from typing import TYPE_CHECKING, Annotated, Final, Protocol

from msgspec import Meta

from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.kit.settings import Doc, Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OpenTelemetrySpan
    from opentelemetry.trace import Tracer

Attribute = str | int | float | bool
Attributes = Mapping[str, Attribute]

log = get_logger()
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_UNNAMED: Final = "unknown_service"  # the SDK's default prefix of a service name


class TracesMissing(HeadgateError):
    """Traces are configured but OpenTelemetry is not installed; install headgate[traces]."""

    code = "traces_missing"


class TraceSettings(Settings, section="traces"):
    """Where traces go."""

    endpoint: Annotated[
        str, Doc("OTLP over HTTP, such as http://localhost:4318; empty: no traces", env="OTEL_EXPORTER_OTLP_ENDPOINT")
    ] = ""
    full_endpoint: Annotated[
        str,
        Doc(
            "the same as a whole address, to which /v1/traces is not added; goes before endpoint",
            env="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        ),
    ] = ""
    sample: Annotated[
        float,
        Meta(ge=0, le=1),
        Doc("share of new traces that are kept; continued ones follow their caller; at 1, OTEL_TRACES_SAMPLER decides"),
    ] = 1.0


class SpanKind(StrEnum):
    """The kind of a span, as OpenTelemetry names it."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    CONSUMER = "CONSUMER"


class Span(Protocol):
    """A span in progress."""

    def set(self, **attributes: Attribute) -> None:
        """Add attributes."""

    def answer(self, status: int) -> None:
        """Set the HTTP status of the response."""

    def fail(self, code: str) -> None:
        """Set the error's code."""


class _Nothing:
    def set(self, **attributes: Attribute) -> None:
        pass

    def answer(self, status: int) -> None:
        pass

    def fail(self, code: str) -> None:
        pass


class _Recorded:
    def __init__(self, span: OpenTelemetrySpan, kind: SpanKind) -> None:
        self._span = span
        self._kind = kind

    def set(self, **attributes: Attribute) -> None:
        self._span.set_attributes(attributes)

    def answer(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        # A 4xx is an error of the client's span, but not of the server's.
        if status >= (500 if self._kind is SpanKind.SERVER else 400):
            self.fail(str(status))

    def fail(self, code: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", code)
        self._span.set_status(Status(StatusCode.ERROR))


_NOTHING: AbstractContextManager[Span] = nullcontext(_Nothing())
_tracer: Tracer | None = None
_provider: TracerProvider | None = None


def configure(settings: TraceSettings, process: str, version: str) -> None:
    """Send this process's traces to the endpoint of the settings, if there is one."""
    global _tracer, _provider
    endpoint = settings.full_endpoint or (settings.endpoint and f"{settings.endpoint.rstrip('/')}/v1/traces")
    if not endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise TracesMissing from error
    resource = Resource.create({"service.version": version})
    if str(resource.attributes["service.name"]).startswith(_UNNAMED):
        resource = resource.merge(Resource({"service.name": f"headgate-{process}"}))
    sampler = ParentBasedTraceIdRatio(settings.sample) if settings.sample < 1 else None
    _provider = TracerProvider(resource=resource, sampler=sampler)
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    _tracer = _provider.get_tracer("headgate", version)
    log.info("traces on", endpoint=endpoint)


def close() -> None:
    """Export the remaining spans and switch tracing off. This may block for as long as the exporter takes."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        provider.shutdown()


def on() -> bool:
    """Tell whether traces are recorded."""
    return _tracer is not None


def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    caller: Mapping[str, str] | None = None,
    traceparent: str | None = None,
    inner: bool = False,
    attributes: Attributes | None = None,
    **more: Attribute,
) -> AbstractContextManager[Span]:
    """Record a span below the current one, or below the caller's.

    `caller` is the request's headers, of which `traceparent` and `tracestate` are used; `traceparent` may be given alone. An
    `inner` span is recorded only below another.
    """
    if _tracer is None or (inner and not _below()):
        return _NOTHING
    if traceparent is not None:
        caller = {"traceparent": traceparent}
    return _recorded(_tracer, name, kind, caller, {**(attributes or {}), **more})


def past(name: str, seconds: float, **attributes: Attribute) -> None:
    """Record a span that has just ended, for a caller that decides afterwards whether to record it."""
    if _tracer is not None:
        now = time_ns()
        _tracer.start_span(name, start_time=now - int(seconds * 1e9), attributes=attributes).end(now)


def request_span(
    method: str, route: str, *, caller: Mapping[str, str] | None = None, attributes: Attributes | None = None
) -> AbstractContextManager[Span]:
    """Record an HTTP request that we serve, without its path and query: they may hold a ticket."""
    if _tracer is None:
        return _NOTHING
    known = method if method in _METHODS else "_OTHER"
    known_attributes = {"http.request.method": known, "http.route": route, "url.path": route, "url.scheme": "http"}
    name = f"{known if known == method else 'HTTP'} {route}"
    return span(name, kind=SpanKind.SERVER, caller=caller, attributes={**known_attributes, **(attributes or {})})


def call_span(
    method: str, host: str, port: int, url: str, *, attributes: Attributes | None = None
) -> AbstractContextManager[Span]:
    """Record an HTTP request that we send, below the current span; the query is left out, as it may hold a secret."""
    if _tracer is None:
        return _NOTHING
    known = method if method in _METHODS else "_OTHER"
    known_attributes: dict[str, Attribute] = {
        "http.request.method": known,
        "server.address": host,
        "server.port": port,
        "url.full": url.partition("?")[0],
    }
    name = known if known == method else "HTTP"
    return span(name, kind=SpanKind.CLIENT, inner=True, attributes={**known_attributes, **(attributes or {})})


def headers() -> dict[str, str]:
    """Give the headers to send with a call that belongs to the current span: `traceparent`, and `tracestate` if there is one."""
    carrier: dict[str, str] = {}
    if _tracer is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(carrier)
    return carrier


def traceparent() -> str | None:
    """Give the header to send with a call that belongs to the current span."""
    return headers().get("traceparent")


def trace_id(header: str | None) -> str | None:
    """Read the trace id out of a `traceparent` header; None if it is not valid. Works with tracing off, for logs."""
    found = _TRACEPARENT.fullmatch(header) if header else None
    return found.group(1) if found else None


def _below() -> bool:
    """Tell whether a span is in progress; in a task that outlives its request, the request's span has ended."""
    from opentelemetry.trace import get_current_span

    return get_current_span().is_recording()


@contextmanager
def _recorded(
    tracer: Tracer, name: str, kind: SpanKind, caller: Mapping[str, str] | None, attributes: Attributes
) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind as OpenTelemetryKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract(caller) if caller else None
    with tracer.start_as_current_span(
        name,
        context=context,
        kind=OpenTelemetryKind[kind],
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as started:
        recorded = _Recorded(started, kind)
        try:
            yield recorded
        except HeadgateError as error:
            if kind is not SpanKind.SERVER:
                recorded.fail(error.code)
            else:
                recorded.answer(error.status)
            raise
        except Exception as error:
            started.record_exception(error)
            if kind is SpanKind.SERVER:
                recorded.answer(500)
            recorded.fail(type(error).__qualname__)
            raise
