"""Trace spans of requests to a gateway or a relay; they continue the caller's trace."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractContextManager

from structlog.contextvars import bind_contextvars

from headgate.http.routes import Answer, Call, Stream
from headgate.kit import traces


async def traced(call: Call, title: str, status: int, work: Awaitable[object]) -> object:
    """Run the handler of `METHOD /path` in a span; `status` is that of a result without its own status."""
    method, _, path = title.partition(" ")
    with _span(call, method, path) as span:
        result = await work
        if isinstance(result, Answer | Stream):
            status = result.status
        span.answer(204 if result is None else status)
        return result


async def traced_mount(call: Call, method: str, prefix: str, work: Awaitable[int]) -> None:
    """Run a mounted application in a span; it returns the status of its response."""
    with _span(call, method, f"{prefix.rstrip('/')}/{{path}}") as span:
        span.answer(await work)


def _span(call: Call, method: str, path: str) -> AbstractContextManager[traces.Span]:
    caller: dict[str, str] = {}
    for name in ("traceparent", "tracestate"):
        if (value := call.header(name)) is not None:
            caller[name] = value
    trace = traces.trace_id(caller.get("traceparent"))
    if trace is not None:
        bind_contextvars(trace_id=trace)
    return traces.request_span(method, path, caller=caller)
