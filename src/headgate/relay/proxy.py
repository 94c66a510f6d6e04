"""The forwarding proxy: `ANY /relay/{upstream}/{path}`, streaming both ways.

Every request is accepted and waits here for its turn. A client that leaves gives its turn back; a relay that shuts down
finishes the requests it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from math import ceil
from typing import Final, cast
from urllib.parse import unquote

import msgspec

from headgate.http.client_response import Headers
from headgate.http.routes import Call, ClientGone, Message, Receive, Scope, Send, Stopping
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, NotFound, StoreUnavailable, TooLarge
from headgate.kit.tasks import cancel
from headgate.relay.forwarder import Forwarder, RelayAnswer, RelayRequest
from headgate.relay.headers import (
    refuse_ambiguous,
    request_headers,
    target_of,
    units_of,
    user_of,
    wants_job,
    whole_number,
    with_trace,
)
from headgate.relay.job_queue import JobQueue
from headgate.relay.model import JobState, Order, Upstream, upstream_name
from headgate.relay.request_body import RequestBody
from headgate.relay.settings import RelaySettings
from headgate.relay.upstreams import Upstreams
from headgate.relay.wire import JobView, UpstreamView

PREFIX: Final = b"/relay/"
LONGEST_DEADLINE_MS: Final = 86_400_000
QUEUE_HEADERS: Final = frozenset({b"x-queue-position", b"x-queue-wait"})  # an upstream that is a relay sends them too

log = get_logger()
_encode = msgspec.json.Encoder().encode


class Proxy:
    """An ASGI application that relays requests; the gateway in front of it has checked the token."""

    def __init__(self, upstreams: Upstreams, forwarder: Forwarder, jobs: JobQueue, settings: RelaySettings) -> None:
        self._upstreams = upstreams
        self._forwarder = forwarder
        self._jobs = jobs
        self._settings = settings
        self._loop = asyncio.get_running_loop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay one request."""
        call: Call = scope["headgate"]
        headers: Headers = scope["headers"]
        arrived = self._loop.time()
        name, path = _split(scope)
        refuse_ambiguous(headers)
        job, asked_ms = wants_job(headers), self._asked_ms(headers)
        limit = arrived + asked_ms / 1000 if asked_ms and not job else None
        view = await self._upstreams.get(name, deadline=limit)
        user = user_of(headers, view.policy)
        target = target_of(view.policy, path, scope["query_string"])
        units = units_of(headers)
        wait_ms = asked_ms or (self._settings.job_ms if job else round(view.policy.deadline_seconds * 1000))
        body = RequestBody(receive, headers, self._settings.buffer_bytes)
        headers = [*_named(headers, call), (b"x-request-id", call.request_id.encode())]
        request = RelayRequest(scope["method"], target, headers, body, user, units)
        watcher = DisconnectWatcher(call, body, self._settings.drain_seconds)
        # A client that leaves during the last write has got its answer, so the request is not cancelled then.
        send = watcher.until_last(send)
        try:
            if job:
                work = self._accept(view, request, path, scope["query_string"], wait_ms, send)
            else:
                work = self._relay(view, request, arrived + wait_ms / 1000, send)
            await _watched(work, watcher)
        except HeadgateError as error:
            if not watcher.begun:
                raise
            # Half of an answer is out: the server closes the connection, so that the client sees an incomplete answer.
            log.info("an answer broke off", upstream=name, code=error.code)
        finally:
            await watcher.end()

    def _asked_ms(self, headers: Headers) -> int:
        """Read how long the request may wait; 0 if it does not say, then the upstream's or the job's default applies."""
        most = self._settings.job_ms if wants_job(headers) else LONGEST_DEADLINE_MS
        return whole_number(headers, b"x-deadline-ms", 0, most)

    async def _relay(self, view: UpstreamView, request: RelayRequest, deadline: float, send: Send) -> None:
        async with self._forwarder.forward(view, request, deadline=deadline) as answer:
            headers = [header for header in answer.headers if header[0] not in QUEUE_HEADERS]
            headers += _queue_headers(view, request.user, answer)
            begins = await answer.begins()
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            whole = answer.whole
            if whole is None:
                if not begins:
                    await send({"type": "http.response.body", "body": b"", "more_body": True})
                async for chunk in answer.chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": whole or b""})

    async def _accept(
        self, view: UpstreamView, request: RelayRequest, path: bytes, query: bytes, wait_ms: int, send: Send
    ) -> None:
        """Store the request as a job and answer 202 with the job's address."""
        assert isinstance(request.body, RequestBody)
        body = await request.body.whole(self._settings.job_bytes)
        if body is None:
            raise TooLarge(f"The body of a job may have {self._settings.job_bytes} bytes.")
        # Only headers that the upstream may see are stored; the policy's headers and secrets are added when the job is sent.
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
        try:
            job = await self._jobs.get(id)
        except StoreUnavailable:  # the job is accepted; a client that got an error would submit it again
            job = JobView(id=id, state=JobState.WAITING, upstream=view.name)
        content = _encode(job)
        headers = [
            (b"location", f"/relay/jobs/{id}".encode()),
            (b"preference-applied", b"respond-async"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
        ]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": content})


class DisconnectWatcher:
    """Cancels the task of a request whose client has left, whose body is broken, or whose relay has no more time."""

    def __init__(self, call: Call, body: RequestBody, drain_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = cast("asyncio.Task[None]", asyncio.current_task())
        self._stop = call.stop
        self._body = body
        self._drain_seconds = drain_seconds
        self._reason: BaseException | None = None
        self._over = False
        self.begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._listening: asyncio.Task[None] | None = None
        call.disconnected().add_done_callback(self._departed)
        if body.length is None or body.length > 0:
            self._listen()

    def until_last(self, send: Send) -> Send:
        """Wrap `send` so that a client who leaves during the last write does not cancel the request."""

        def sending(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                self.begun = True
            elif not message.get("more_body", False):
                self._over = True
            return send(message)

        return sending

    def raise_reason(self) -> None:
        """Raise the reason if this watcher cancelled the task."""
        if self._reason is not None and self._task.uncancel() == 0:
            raise self._reason

    async def end(self) -> None:
        """Stop watching."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listening is not None:
            await cancel(self._listening)

    def _departed(self, _: asyncio.Future[None]) -> None:
        if self._over:
            return
        if not self._stop.raised:
            self._cancel(ClientGone())
            return
        self._timer = self._loop.call_later(self._drain_seconds, self._cancel, Stopping(retry_after=1))
        if self._listening is None:
            self._listen()

    def _listen(self) -> None:
        # `end` cancels it; a `Tasks` would wrap the body of each request in one more coroutine.
        self._listening = asyncio.create_task(self._body.listen())
        self._listening.add_done_callback(self._on_body_end)

    def _on_body_end(self, listening: asyncio.Task[None]) -> None:
        if not listening.cancelled():
            self._cancel(listening.exception() or ClientGone())

    def _cancel(self, reason: BaseException) -> None:
        if not self._over and self._reason is None:
            self._reason = reason
            self._task.cancel()


async def _watched(work: Awaitable[None], watcher: DisconnectWatcher) -> None:
    """Await work that the watcher may cancel, and raise its reason then."""
    try:
        await work
    except asyncio.CancelledError:
        watcher.raise_reason()
        raise


def _split(scope: Scope) -> tuple[str, bytes]:
    """Split the path into the upstream's name and the rest, which stays as the client wrote it."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    name, slash, rest = raw.partition(b"?")[0].removeprefix(PREFIX).partition(b"/")
    if not name:
        raise NotFound("Say which upstream: /relay/{upstream}/{path}.")
    return upstream_name(unquote(name.decode("latin-1"))), slash + rest


def _named(headers: Headers, call: Call) -> Headers:
    """Drop the headers that the relay writes itself: the request's id and its trace context."""
    return [(name, value) for name, value in with_trace(headers) if name != b"x-request-id"]


def _plain(view: UpstreamView) -> Upstream:
    return msgspec.structs.replace(view.policy, headers={})


def _queue_headers(view: UpstreamView, user: str, answer: RelayAnswer) -> Headers:
    """Write the position, the wait and the rate limit; an upstream's own rate-limit headers are kept instead."""
    headers = [
        (b"x-queue-position", b"%d" % answer.position),
        (b"x-queue-wait", b"%d" % round(answer.waited * 1000)),
    ]
    window = view.policy.window_of(user)
    if window is not None and not any(name == b"ratelimit" for name, _ in answer.headers):
        seconds = ceil(window.seconds or 0)
        headers += [
            (b"ratelimit-policy", b'"relay";q=%d;w=%d' % (window.count or 0, seconds)),
            (b"ratelimit", b'"relay";r=%d;t=%d' % (answer.permit.room, seconds)),
        ]
    return headers
