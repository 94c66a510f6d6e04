"""The dispatch of every request: route, caller, limits, query, body, handler, response.

Hot routes pass through it too. So everything that can be computed when the gateway is assembled is computed then, a whole
response is sent in one write, and a task is created only for a request that has to wait.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from itertools import count
from time import perf_counter
from types import CoroutineType

from headgate.gateway.authentication import Authentication, chosen_namespace, refuse_limited
from headgate.gateway.cors import CorsOrigins
from headgate.gateway.limits import RequestLimiter
from headgate.gateway.metrics import FLUSH_SECONDS, Tally
from headgate.gateway.prepared_routes import CachedRoute, MountRoute, PreparedRoute, UnroutedRequest
from headgate.gateway.request_context import RequestContext
from headgate.gateway.routing import Resource, Router
from headgate.gateway.settings import GatewaySettings
from headgate.gateway.tracing import traced, traced_mount
from headgate.http.exchange import Exchange
from headgate.http.listener import RequestCoroutine
from headgate.http.operations import Notice, Ready
from headgate.http.responses import Headers, StreamRunner, close_chunks, header_lines, problem, rendered, stream_headers
from headgate.http.routes import Access, Answer, ClientGone, Message, Mount, Operation, Stop, Stream
from headgate.kit import logs, metrics, traces
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, MethodNotAllowed, NotFound

UNMATCHED = "unmatched"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_WARN_SECONDS = 1.0

log = get_logger()


class Unexpected(HeadgateError):
    """Something went wrong here; the log tells more under this request id."""

    code, status = "internal", 500


class Gateway:
    """The application: all operations and mounts, with authentication, limits and metrics."""

    def __init__(
        self,
        operations: Sequence[Operation],
        mounts: Sequence[Mount] = (),
        *,
        settings: GatewaySettings,
        authentication: Authentication,
        ready: Ready,
        notice: Notice = lambda: None,
    ) -> None:
        self.stop = Stop()
        self.ready = ready
        self.notice = notice
        self.authentication = authentication
        self._origins = CorsOrigins(settings.origins)
        routes = [(each.method, each.path, PreparedRoute(each, settings, authentication.limits)) for each in operations]
        self._router = Router(routes)
        self._mounts = [MountRoute(mount) for mount in mounts]
        self._unmatched = UnroutedRequest(UNMATCHED, Tally(UNMATCHED))
        self._tallies = [
            self._unmatched.tally,
            *(route.tally for _, _, route in routes),
            *(m.tally for m in self._mounts),
        ]
        self._process = secrets.token_hex(6)
        self._numbers = count(1)
        self._warned: dict[str, float] = {}

    @property
    def limits(self) -> Mapping[str, RequestLimiter]:
        """The classes of limits by name, which may be changed while the gateway runs."""
        return self.authentication.limits

    def serve(self, exchange: Exchange) -> RequestCoroutine | None:
        """Answer a request at once, or return a coroutine that waits for its body, its handler or its stream."""
        target = exchange.target
        given = None if target.head.anonymous else target.headers.get(b"x-request-id")
        request_id = f"{self._process}{next(self._numbers):x}" if given is None else self._request_id(given)
        context = RequestContext(exchange, request_id, self, self._unmatched)
        logs.request_id.set(request_id)
        try:
            cached: CachedRoute | None = target.route
            if cached is None:
                found = self._router.find(target.path)
                if found is None:
                    mounted = self._mounted(target.path)
                    return traced_mount(context, target.method, mounted.title, self._run_mounted(mounted, context))
                resource, path = found
                cached = self._resolve(resource, path, context)
                if cached is None:
                    self.reply(context, _without_route(resource, target.method))
                    return None
            route = cached.route
            context.begin(route)
            # A traced request binds its trace id to its log lines, for which it needs a task with its own context.
            if b"traceparent" in target.headers or traces.on() or not (exchange.complete or route.body is None):
                return self._finish(context, self._run_traced(cached, context))
            self._authenticate(cached, context)
            if route.body is not None:
                context.body = route.body.read(exchange)
            result = self._handle(route, context)
            if not isinstance(result, CoroutineType):
                self.reply(context, result)
            elif route.prompt:
                context.work = result
                context.step()
            else:
                return self._finish(context, result)
        except Exception as error:  # noqa: BLE001 -- the top of a request: every error becomes a problem document
            self.fail(context, error)
        return None

    async def flush_metrics(self) -> None:
        """Add the numbers of all operations to the shared metrics, every half second."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Add the numbers of all operations to the shared metrics."""
        for tally in self._tallies:
            tally.flush()
        metrics.share_named()

    async def _run_traced(self, cached: CachedRoute, context: RequestContext) -> object:
        """Process a request that is traced, or whose body has not arrived yet."""
        return await traced(context, cached.route.title, cached.route.status, self._run(cached, context))

    async def _run(self, cached: CachedRoute, context: RequestContext) -> object:
        route = cached.route
        self._authenticate(cached, context)
        if route.body is not None:
            context.body = await route.body.read_later(context.exchange)
        result = self._handle(route, context)
        return await result if isinstance(result, CoroutineType) else result

    def _resolve(
        self, resource: Resource[PreparedRoute], path: dict[str, str], context: RequestContext
    ) -> CachedRoute | None:
        """Find the route for the request's method, and cache it in the target if possible; None if there is none."""
        target = context.exchange.target
        route = resource.routes.get(target.method)
        if not target.head.anonymous and not target.headers.keys().isdisjoint((b"traceparent", b"origin")):
            context.extra_headers = self._extra_headers(resource, route, target.headers)
        if route is None:
            return None
        cached = CachedRoute(route, path)
        if target.head.anonymous and route.access is Access.PUBLIC:
            client, is_proxy = self.authentication.client(context.exchange)
            cached.cache_client(client, is_proxy=is_proxy)
            target.route = cached
        return cached

    def _authenticate(self, cached: CachedRoute, context: RequestContext) -> None:
        """Find the caller, count the request against its limit, and read the query and the namespace."""
        route = cached.route
        context.path = cached.path
        if cached.anonymous:
            context.client = cached.client
            if cached.limits is not None:
                cached.limits.take(cached.network)
        else:
            context.caller, context.client = self.authentication.authenticate(
                context.exchange, route.access, route.limiter
            )
        context.query, namespace = route.query.read(context.exchange.query)
        if route.namespaced:
            if cached.namespace is not None:
                namespace = cached.namespace
            if namespace is not None or not cached.anonymous:
                context.namespace = chosen_namespace(context.caller, namespace)
        elif context.caller.namespace is not None:
            refuse_limited(context.caller, route.access)

    def _handle(self, route: PreparedRoute, context: RequestContext) -> object:
        if route.users is not None and route.user is not None:
            user = route.user(context)
            if user:
                route.users.take(user)
        return route.handler(context)

    async def _finish(self, context: RequestContext, work: Awaitable[object]) -> None:
        """Wait for the handler, then send its response or its stream."""
        try:
            result = await work
            if isinstance(result, Stream):
                await self._stream(result, context)
            else:
                self.reply(context, result)
        except Exception as error:  # noqa: BLE001 -- the top of a request: every error becomes a problem document
            self.fail(context, error)
        finally:
            context.end()
            context.close()

    def reply(self, context: RequestContext, result: object) -> None:
        """Send what a handler returned, other than a stream."""
        status, headers, body = rendered(result, context.route.status)
        self._respond(context, status, headers, body)

    def _respond(self, context: RequestContext, status: int, headers: bytes, body: bytes) -> None:
        tally = context.route.tally
        if context.running:
            context.running = False
            tally.in_flight -= 1
        seconds = perf_counter() - context.started
        tally.count(status, seconds)
        if logs.debugging():
            _log(context, status, seconds)
        if context.extra_headers:
            headers += header_lines(context.extra_headers)
        request_id = context.request_id.encode()
        if status == 204 or status == 304:
            context.exchange.respond(status, b"%bx-request-id: %b\r\n\r\n" % (headers, request_id), b"")
        else:
            headers = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (headers, request_id, len(body))
            context.exchange.respond(status, headers, b"" if context.exchange.target.method == "HEAD" else body)

    def fail(self, context: RequestContext, error: Exception) -> None:
        """Send the problem of an error; an error that is no HeadgateError is a defect of ours and is logged."""
        if isinstance(error, ClientGone):
            context.end()
            context.route.tally.count(error.status, perf_counter() - context.started)
            return
        if not isinstance(error, HeadgateError):
            log.error("request failed", operation=context.route.title, exc_info=error)
            error = Unexpected()
        elif error.status >= 500:
            self._warn(error, context.route.title)
        self._respond(context, *problem(error, context.request_id))
        # Breaks the reference cycle through the traceback.
        error.__traceback__ = None

    async def _stream(self, stream: Stream, context: RequestContext) -> None:
        context.end()
        tally, send = context.route.tally, context.exchange
        tally.count(stream.status, perf_counter() - context.started)
        tally.streams += 1
        try:
            headers = [*stream_headers(stream), *context.extra_headers, (b"x-request-id", context.request_id.encode())]
            await send({"type": "http.response.start", "status": stream.status, "headers": headers})
            if send.target.method == "HEAD":
                await close_chunks(stream.chunks)
            else:
                await StreamRunner(stream, context, send).run()
            await send({"type": "http.response.body", "body": b""})
        except Exception:  # the response has begun, so the client can only be shown that it ends early
            log.exception("stream failed", operation=tally.operation)
        finally:
            tally.streams -= 1

    def _mounted(self, path: bytes) -> MountRoute:
        for route in self._mounts:
            if path.startswith(route.prefix) and path[len(route.prefix) :][:1] in (b"", b"/"):
                return route
        raise NotFound

    async def _run_mounted(self, route: MountRoute, context: RequestContext) -> int:
        """Run a mounted application and return the status; an error before its response becomes a problem document."""
        mount, status = route.mount, 0
        context.begin(route)

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", context.request_id.encode())]
                message = {**message, "headers": headers}
            await context.exchange(message)
            if message.get("more_body"):
                await asyncio.sleep(0)  # as in StreamRunner: sending does not always suspend

        try:
            limiter = self.authentication.limits[mount.limit] if mount.limit else None
            context.caller, context.client = self.authentication.authenticate(
                context.exchange, mount.access, limiter, bearer=mount.bearer
            )
            refuse_limited(context.caller, mount.access)
            context.scope["headgate"] = context
            await mount.app(context.scope, context.receive, send)
        except Exception as error:
            if not status:
                self.fail(context, error)
                return error.status if isinstance(error, HeadgateError) else 500
            log.exception("mounted application failed", mount=mount.prefix)
        finally:
            context.scope.pop("headgate", None)  # breaks the reference cycle between scope and call
            context.end()
            context.close()
        context.route.tally.count(status, perf_counter() - context.started)
        return status

    def _request_id(self, given: bytes) -> str:
        """Return the client's own id if it is safe in a header and a log line, else a new one."""
        return given.decode() if _REQUEST_ID.fullmatch(given) else f"{self._process}{next(self._numbers):x}"

    def _extra_headers(
        self, resource: Resource[PreparedRoute], route: PreparedRoute | None, headers: dict[bytes, bytes]
    ) -> Headers:
        """Return the CORS headers and the caller's traceparent, which only some responses carry."""
        extra: Headers = []
        parent = headers.get(b"traceparent")
        if parent is not None and traces.trace_id(parent.decode("latin-1")) is not None:
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
        """Log a refusal at most once a second for each problem code."""
        now = perf_counter()
        if now - self._warned.get(error.code, -_WARN_SECONDS) >= _WARN_SECONDS:
            self._warned[error.code] = now
            log.warning("request refused", operation=title, code=error.code, status=error.status, detail=error.detail)


def _without_route(resource: Resource[PreparedRoute], method: str) -> Answer:
    if method == "OPTIONS":
        return Answer(status=204, headers={"allow": resource.allow})
    raise MethodNotAllowed(f"This address takes {resource.allow}.", allow=resource.allow)


def _log(context: RequestContext, status: int, seconds: float) -> None:
    """Log a request by its route; its path or query may hold a ticket."""
    log.debug(
        "request",
        operation=context.route.title,
        status=status,
        ms=round(seconds * 1000, 3),
        client=context.client,
        caller=context.caller.name,
    )
