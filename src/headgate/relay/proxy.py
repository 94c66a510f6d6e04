"""The forwarding proxy: `ANY /relay/{upstream}/{path}`, streaming both ways.

Everything is accepted and waits here for its turn. A client that leaves gives its turn back; a relay that is told to stop
finishes what it has.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import Final
from urllib.parse import unquote

import msgspec
import structlog

from headgate.kit import traces
from headgate.kit.http import Call, Receive, Scope, Send, Stopping
from headgate.kit.problems import HeadgateError, NotFound, TooLarge
from headgate.relay.forward import Answer, Forwarder, Request
from headgate.relay.headers import (
    Headers,
    refuse_ambiguous,
    request_headers,
    target_of,
    units_of,
    user_of,
    wants_job,
    whole_number,
)
from headgate.relay.incoming import Attendance, Incoming
from headgate.relay.jobs import Jobs
from headgate.relay.model import Order, Upstream, UpstreamView, upstream_name
from headgate.relay.settings import RelaySettings
from headgate.relay.upstreams import Upstreams

PREFIX: Final = b"/relay/"
LONGEST_DEADLINE_MS: Final = 86_400_000

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


class Proxy:
    """A plain ASGI application; the gateway in front of it has checked the token."""

    def __init__(self, upstreams: Upstreams, forwarder: Forwarder, jobs: Jobs, settings: RelaySettings) -> None:
        self._upstreams = upstreams
        self._forwarder = forwarder
        self._jobs = jobs
        self._settings = settings
        self._loop = asyncio.get_running_loop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay one request."""
        call: Call = scope["headgate"]
        if call.stop.raised:
            raise Stopping(retry_after=1)
        headers: Headers = scope["headers"]
        name, path = _split(scope)
        view = await self._upstreams.get(name)
        refuse_ambiguous(headers)
        user = user_of(headers, view.policy)
        target = target_of(view.policy, path, scope["query_string"])
        units = units_of(headers)
        wait_ms = whole_number(
            headers, b"x-deadline-ms", round(view.policy.deadline_seconds * 1000), LONGEST_DEADLINE_MS
        )  # fmt: skip
        body = Incoming(receive, headers, self._settings.buffer_bytes)
        headers = [*_named(headers, call), (b"x-request-id", call.request_id.encode())]
        request = Request(scope["method"], target, headers, body, user, units)
        attendance = Attendance(call, body, self._settings.drain_seconds)
        # With the last word the client need not stay: it is not cancelled for leaving then.
        send = attendance.until_last(send)
        try:
            await self._serve(view, request, path, scope["query_string"], wait_ms, send, attendance)
        except HeadgateError as error:
            if not attendance.begun:
                raise
            # Half of an answer is out: the server breaks the connection, so that nobody takes it for a whole one.
            log.info("an answer broke off", upstream=name, code=error.code)
        finally:
            await attendance.end()

    async def _serve(
        self, view: UpstreamView, request: Request, path: bytes, query: bytes, wait_ms: int, send: Send,
        attendance: Attendance,
    ) -> None:  # fmt: skip
        try:
            if wants_job(request.headers):
                await self._accept(view, request, path, query, wait_ms, send)
            else:
                await self._relay(view, request, wait_ms, send)
        except asyncio.CancelledError:
            attendance.explain()
            raise

    async def _relay(self, view: UpstreamView, request: Request, wait_ms: int, send: Send) -> None:
        deadline = self._loop.time() + wait_ms / 1000
        with traces.span("relay", upstream=view.name):
            async with self._forwarder.forward(view, request, deadline=deadline) as answer:
                headers = [*answer.headers, *_told(view, request.user, answer)]
                await send({"type": "http.response.start", "status": answer.status, "headers": headers})
                whole = answer.whole
                if whole is None:
                    async for chunk in answer.chunks:
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": whole or b""})

    async def _accept(
        self, view: UpstreamView, request: Request, path: bytes, query: bytes, wait_ms: int, send: Send
    ) -> None:
        """Keep the request as a job and say where its answer will be."""
        assert isinstance(request.body, Incoming)
        body = await request.body.whole(self._settings.job_bytes)
        if body is None:
            raise TooLarge(f"The body of a job may have {self._settings.job_bytes} bytes.")
        # Only what the upstream may see is kept; its own headers and secrets are added when the job is sent.
        kept = request_headers(request.headers, _plain(view), {}, length=-1)
        order = Order(
            method=request.method,
            path=path.decode("latin-1"),
            query=query.decode("latin-1"),
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept if name != b"host"],
            body=body,
            user=request.user,
            units=request.units,
            wait_ms=wait_ms,
        )
        id = await self._jobs.submit(view.name, order)
        job = await self._jobs.get(id)
        content = _encode(job)
        headers = [
            (b"location", f"/relay/jobs/{id}".encode()),
            (b"preference-applied", b"respond-async"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
        ]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _split(scope: Scope) -> tuple[str, bytes]:
    """Take the upstream's name off the path; the rest stays as the client wrote it."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    name, slash, rest = raw.partition(b"?")[0].removeprefix(PREFIX).partition(b"/")
    if not name:
        raise NotFound("Say which upstream: /relay/{upstream}/{path}.")
    return upstream_name(unquote(name.decode("latin-1"))), slash + rest


def _named(headers: Headers, call: Call) -> Headers:
    """Leave out what we write ourselves: the id of the request, and the trace that it belongs to."""
    parent = traces.traceparent()
    struck = (b"x-request-id", b"traceparent") if parent else (b"x-request-id",)
    kept = [(name, value) for name, value in headers if name not in struck]
    return [*kept, (b"traceparent", parent.encode())] if parent else kept


def _plain(view: UpstreamView) -> Upstream:
    return msgspec.structs.replace(view.policy, headers={})


def _told(view: UpstreamView, user: str, answer: Answer) -> Headers:
    """Tell what waiting cost and what is left; an upstream that tells its own limits is not contradicted."""
    told = [
        (b"x-queue-position", b"%d" % answer.position),
        (b"x-queue-wait", b"%d" % round(answer.waited * 1000)),
    ]
    window = view.policy.window_of(user)
    if window is not None and not any(name == b"ratelimit" for name, _ in answer.headers):
        seconds = ceil(window.seconds or 0)
        told += [
            (b"ratelimit-policy", b'"relay";q=%d;w=%d' % (window.count or 0, seconds)),
            (b"ratelimit", b'"relay";r=%d;t=%d' % (answer.permit.room, seconds)),
        ]
    return told
