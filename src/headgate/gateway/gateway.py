"""One dispatch for every request: route, caller, limits, query, body, handler, answer.

It is ASGI without request or response objects, because the hot routes go through it as well; whatever can be worked
out beforehand is worked out when the gateway is put together, and a whole answer leaves in one write.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from time import perf_counter

import structlog
from structlog.contextvars import bind_contextvars, unbind_contextvars

from headgate.gateway.answering import Headers, StreamRunner, block, close_chunks, problem, rendered, stream_headers
from headgate.gateway.door import Door, chosen_namespace, refuse_limited
from headgate.gateway.exchange import Exchange
from headgate.gateway.limits import Limiter
from headgate.gateway.metrics import FLUSH_SECONDS, Tally
from headgate.gateway.origins import Origins
from headgate.gateway.reading import NAMESPACE, BodyReader, QueryReader
from headgate.gateway.routing import Resource, Router
from headgate.gateway.settings import GatewaySettings
from headgate.kit import logs, traces
from headgate.kit.http import (
    Access,
    Answer,
    Call,
    ClientGone,
    Message,
    Mount,
    Operation,
    Receive,
    Scope,
    Stop,
    Stream,
)
from headgate.kit.operations import Ready
from headgate.kit.problems import HeadgateError, MethodNotAllowed, NotFound

UNMATCHED = "unmatched"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_WARN_SECONDS = 1.0
_NO_HEADERS: Headers = []

# Binding the request id to the log lines of its handlers costs a tenth this way.
_LOGGED_ID: ContextVar[str] = bind_contextvars(request_id="")["request_id"].var
unbind_contextvars("request_id")

log = structlog.get_logger()


class Unexpected(HeadgateError):
    """Something went wrong here; the log tells more under this request id."""

    code, status = "internal", 500


class Route:
    """An operation with everything worked out that does not depend on the request."""

    __slots__ = ("access", "body", "handler", "limiter", "namespaced", "query", "status", "tally", "title", "user")

    def __init__(self, operation: Operation, settings: GatewaySettings, limits: dict[str, Limiter]) -> None:
        self.access = operation.access
        self.handler = operation.handler
        self.namespaced = operation.namespaced
        self.status = operation.status
        self.user = operation.user
        self.title = f"{operation.method} {operation.path}"
        self.tally = Tally(operation.id)
        self.limiter = limits[operation.limit] if operation.limit else None
        self.query = QueryReader(operation.query, namespaced=operation.namespaced)
        self.body: BodyReader | None = None
        if operation.body is not None:
            limit = operation.body_limit or settings.body_limit
            self.body = BodyReader(
                operation.body, limit=limit, seconds=settings.body_seconds, optional=operation.body_optional
            )


class MountRoute:
    """A mounted application and its figures."""

    __slots__ = ("mount", "prefix", "tally")

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.prefix = mount.prefix.rstrip("/").encode()
        self.tally = Tally(f"mount {mount.prefix}")


class Gateway:
    """The ASGI application: all operations and mounts behind one door."""

    def __init__(
        self,
        operations: Sequence[Operation],
        mounts: Sequence[Mount] = (),
        *,
        settings: GatewaySettings,
        door: Door,
        ready: Ready,
    ) -> None:
        self.stop = Stop()
        self.ready = ready
        self._door = door
        self._origins = Origins(settings.origins)
        routes = [(each.method, each.path, Route(each, settings, door.limits)) for each in operations]
        self._router = Router(routes)
        self._mounts = [MountRoute(mount) for mount in mounts]
        self._unmatched = Tally(UNMATCHED)
        self._tallies = [self._unmatched, *(route.tally for _, _, route in routes), *(m.tally for m in self._mounts)]
        self._process = secrets.token_hex(6)
        self._numbers = count(1)
        self._warned: dict[str, float] = {}

    @property
    def limits(self) -> Mapping[str, Limiter]:
        """The classes of limits, which may be changed while the gateway runs."""
        return self._door.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Exchange) -> None:
        """Answer one request."""
        started = perf_counter()
        headers = send.headers
        call = Call(scope, receive, headers, self._request_id(headers.get(b"x-request-id")), self.stop, send.watch)
        _LOGGED_ID.set(call.request_id)
        method: str = scope["method"]
        tally, title, extra = self._unmatched, UNMATCHED, _NO_HEADERS
        try:
            try:
                path: bytes = scope["raw_path"]
                found = self._router.find(path)
                if found is None:
                    mounted = self._mounted(path)
                    tally, title = mounted.tally, mounted.mount.prefix
                    await self._run_mounted(mounted, call, send, started)
                    return
                resource, call.path = found
                route = resource.routes.get(method)
                if b"origin" in headers or b"traceparent" in headers:
                    extra = self._extra(resource, route, headers)
                if route is None:
                    result: object = _without_route(resource, method)
                    status = 204
                else:
                    tally, title, status = route.tally, route.title, route.status
                    result = await self._run(route, call, send)
                if isinstance(result, Stream):
                    tally.count(result.status, perf_counter() - started)
                    await self._stream(result, tally, call, send, extra)
                    return
                status, shared, body = rendered(result, status)
            except ClientGone as error:
                tally.count(error.status, perf_counter() - started)
                return
            except HeadgateError as error:
                status, shared, body = problem(error, call.request_id)
                if status >= 500:
                    self._warn(error, title)
            except Exception:  # the top of a request: whatever it was, the caller gets a problem and the log the reason
                log.exception("request failed", operation=title)
                status, shared, body = problem(Unexpected(), call.request_id)
            seconds = perf_counter() - started
            tally.count(status, seconds)
            if logs.debugging():
                _log(call, title, status, seconds)
            if extra:
                shared += block(extra)
            if status == 204 or status == 304:
                send.whole(status, b"%bx-request-id: %b\r\n\r\n" % (shared, call.request_id.encode()), b"")
            else:
                head = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
                    shared,
                    call.request_id.encode(),
                    len(body),
                )
                send.whole(status, head, b"" if method == "HEAD" else body)
        finally:
            call.close()

    async def keep_figures(self) -> None:
        """Add the figures of all operations to the shared ones, again and again."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Add the figures of all operations to the shared ones."""
        for tally in self._tallies:
            tally.flush()

    async def _run(self, route: Route, call: Call, exchange: Exchange) -> object:
        tally = route.tally
        tally.in_flight += 1
        try:
            parent = call.headers.get(b"traceparent")
            with traces.span(route.title, traceparent=None if parent is None else parent.decode("latin-1")):
                limiter = route.limiter
                call.caller, call.client = self._door.enter(call.scope, call.headers, route.access, limiter)
                call.query, namespace = route.query.read(call.scope["query_string"])
                if route.namespaced:
                    call.namespace = chosen_namespace(call.caller, call.path.get(NAMESPACE, namespace))
                elif call.caller.namespace is not None:
                    refuse_limited(call.caller, route.access)
                if route.body is not None:
                    call.body = await route.body.read(call.headers, exchange)
                if limiter is not None and route.user is not None:
                    user = route.user(call)
                    if user:
                        limiter.take_user(user)
                return await route.handler(call)
        finally:
            tally.in_flight -= 1

    async def _stream(self, stream: Stream, tally: Tally, call: Call, send: Exchange, extra: Headers) -> None:
        own = [*stream_headers(stream), *extra, (b"x-request-id", call.request_id.encode())]
        tally.streams += 1
        try:
            await send({"type": "http.response.start", "status": stream.status, "headers": own})
            if call.scope["method"] == "HEAD":
                await close_chunks(stream.chunks)
            else:
                await StreamRunner(stream, call, send).run()
            await send({"type": "http.response.body", "body": b""})
        except Exception:  # the answer has begun, so the only thing left to tell the client is its early end
            log.exception("stream failed", operation=tally.operation)
        finally:
            tally.streams -= 1

    def _mounted(self, path: bytes) -> MountRoute:
        for route in self._mounts:
            if path.startswith(route.prefix) and path[len(route.prefix) :][:1] in (b"", b"/"):
                return route
        raise NotFound

    async def _run_mounted(self, route: MountRoute, call: Call, send: Exchange, started: float) -> None:
        """Hand a request to a mounted application; what it raises before it answers becomes a problem."""
        mount, tally, status = route.mount, route.tally, 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [*message.get("headers", ()), (b"x-request-id", call.request_id.encode())]
                message = {**message, "headers": own}
            await send(message)
            if message.get("more_body"):
                await asyncio.sleep(0)  # as in a stream of ours: the server's send need not suspend

        tally.in_flight += 1
        try:
            limiter = self._door.limits[mount.limit] if mount.limit else None
            call.caller, call.client = self._door.enter(
                call.scope, call.headers, mount.access, limiter, bearer=mount.bearer
            )
            refuse_limited(call.caller, mount.access)
            call.scope["headgate"] = call
            await mount.app(call.scope, call.receive, watched)
        except Exception:
            if not status:
                raise
            log.exception("mounted application failed", mount=mount.prefix)
        finally:
            tally.in_flight -= 1
        tally.count(status, perf_counter() - started)

    def _request_id(self, given: bytes | None) -> str:
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
        return f"{self._process}{next(self._numbers):x}"

    def _extra(self, resource: Resource[Route], route: Route | None, headers: dict[bytes, bytes]) -> Headers:
        """Give the headers that only some answers have: for pages of other sites, and the caller's trace."""
        extra: Headers = []
        parent = headers.get(b"traceparent")
        trace = traces.trace_id(parent.decode("latin-1")) if parent is not None else None
        if parent is not None and trace is not None:
            bind_contextvars(trace_id=trace)
            extra.append((b"traceparent", parent))
        origin = headers.get(b"origin")
        if origin is not None:
            public = [name for name, each in resource.routes.items() if each.access is Access.PUBLIC]
            if route is None and public:
                extra += self._origins.preflight(origin, ", ".join(sorted(public)).encode())
            elif route is not None and route.access is Access.PUBLIC:
                extra += self._origins.headers(origin)
        return extra

    def _warn(self, error: HeadgateError, title: str) -> None:
        """Log an outage once a second, not once a request."""
        now = perf_counter()
        if now - self._warned.get(error.code, -_WARN_SECONDS) >= _WARN_SECONDS:
            self._warned[error.code] = now
            log.warning("request refused", operation=title, code=error.code, status=error.status, detail=error.detail)


def _without_route(resource: Resource[Route], method: str) -> Answer:
    if method == "OPTIONS":
        return Answer(status=204, headers={"allow": resource.allow})
    raise MethodNotAllowed(f"This address takes {resource.allow}.", allow=resource.allow)


def _log(call: Call, title: str, status: int, seconds: float) -> None:
    """Log a request by its route: a path or a query may hold a ticket."""
    log.debug(
        "request",
        operation=title,
        status=status,
        ms=round(seconds * 1000, 3),
        client=call.client,
        caller=call.caller.name,
    )
