"""Traces: nothing without an endpoint; with one, spans arrive there and continue the caller's trace."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headgate.kit import traces
from headgate.kit.problems import NotFound, StoreUnavailable
from headgate.kit.traces import TraceSettings

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(HTTPServer):
    """A place that OTLP over HTTP is sent to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.received: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def spans_of(collector: Collector) -> dict[str, tuple[str, str, str, dict[str, object]]]:
    """Give name -> (trace, span, parent, attributes) of all spans that arrived."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found: dict[str, tuple[str, str, str, dict[str, object]]] = {}
    for path, body in collector.received:
        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
            assert names == ["headgate-tests"]
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                attributes: dict[str, object] = {
                    a.key: a.value.string_value or a.value.int_value for a in span.attributes
                }
                found[span.name] = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), attributes)
    return found


def test_without_an_endpoint_nothing_is_recorded_and_the_library_is_not_even_loaded() -> None:
    code = """
import sys
from headgate.kit import traces
traces.configure(traces.TraceSettings(), "tests", "0")
with traces.span("work", queue="main") as span:
    span.set(more=1)
    assert traces.traceparent() is None
assert traces.span("a") is traces.span("b")
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def test_spans_arrive_below_the_callers_and_below_each_other(collector: Collector) -> None:
    traces.configure(TraceSettings(endpoint=collector.url), "tests", "0")
    try:
        with traces.span("request", traceparent=CALLER, route="/a"):
            sent_on = traces.traceparent()
            with traces.span("script", calls=1) as span:
                span.set(replies=2)
    finally:
        traces.close()
    spans = spans_of(collector)
    trace, request, parent, attributes = spans["request"]
    assert (trace, parent) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert attributes == {"route": "/a"}
    assert sent_on == f"00-{trace}-{request}-01"
    assert spans["script"][0] == trace
    assert spans["script"][2] == request
    assert spans["script"][3] == {"calls": 1, "replies": 2}


def test_an_inner_span_is_recorded_only_below_one_that_is_under_way(collector: Collector) -> None:
    traces.configure(TraceSettings(endpoint=collector.url), "tests", "0")
    try:
        with traces.span("tick", inner=True):
            pass
        with traces.span("request"):
            left = copy_context()
            with traces.span("script", inner=True):
                pass
        left.run(lambda: traces.span("later", inner=True).__enter__())
    finally:
        traces.close()
    assert spans_of(collector).keys() == {"request", "script"}


def test_what_went_wrong_is_said_as_the_conventions_want_it(collector: Collector) -> None:
    traces.configure(TraceSettings(endpoint=collector.url), "tests", "0")
    try:
        with suppress(NotFound), traces.request_span("GET", "/a"):
            raise NotFound
        with suppress(StoreUnavailable), traces.request_span("PUT", "/a"):
            raise StoreUnavailable
        with suppress(ZeroDivisionError), traces.request_span("SPAM", "/a"):
            raise ZeroDivisionError
        with (
            traces.span("outer"),
            suppress(NotFound),
            traces.call_span("GET", "localhost", 80, "http://localhost/a?b=c"),
        ):
            raise NotFound
    finally:
        traces.close()
    found = {name: attributes for name, (_, _, _, attributes) in spans_of(collector).items()}
    assert "error.type" not in found["GET /a"]
    assert (found["PUT /a"]["error.type"], found["PUT /a"]["http.response.status_code"]) == ("503", 503)
    assert (found["HTTP /a"]["error.type"], found["HTTP /a"]["http.request.method"]) == ("ZeroDivisionError", "_OTHER")
    assert (found["GET"]["error.type"], found["GET"]["url.full"]) == ("not_found", "http://localhost/a")


def test_a_broken_traceparent_starts_a_trace_of_our_own(collector: Collector) -> None:
    traces.configure(TraceSettings(endpoint=collector.url), "tests", "0")
    try:
        with traces.span("request", traceparent="00-nonsense"):
            pass
    finally:
        traces.close()
    assert spans_of(collector)["request"][2] == ""


def test_a_caller_who_does_not_record_is_followed(collector: Collector) -> None:
    traces.configure(TraceSettings(endpoint=collector.url), "tests", "0")
    try:
        with traces.span("request", traceparent=CALLER[:-2] + "00"):
            pass
    finally:
        traces.close()
    assert spans_of(collector) == {}


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (CALLER, "0af7651916cd43dd8448eb211c80319c"),
        ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later", "0af7651916cd43dd8448eb211c80319c"),
        (None, None),
        ("", None),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
        ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
    ],
)
def test_the_trace_id_is_read_from_a_valid_header_only(header: str | None, trace: str | None) -> None:
    assert traces.trace_id(header) == trace
