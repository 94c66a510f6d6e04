"""One dispatch for every request: route, caller, limits, query, body, handler, answer.

The hot routes go through it as well. So whatever can be worked out beforehand is worked out when the gateway is put
together, a whole answer leaves in one write, and a task is made only for a request that has to wait for something.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from time import perf_counter
from types import CoroutineType
from typing import Any

from structlog.contextvars import bind_contextvars, unbind_contextvars

from headgate.gateway.authentication import DEFAULT_NAMESPACE, Authentication, chosen_namespace, refuse_limited
from headgate.gateway.cors import CorsOrigins
from headgate.gateway.decoding import NAMESPACE, BodyReader, QueryReader
from headgate.gateway.limits import Buckets, RequestLimiter
from headgate.gateway.metrics import FLUSH_SECONDS, Tally
from headgate.gateway.routing import Resource, Router
from headgate.gateway.settings import GatewaySettings
from headgate.gateway.tracing import traced, traced_mount
from headgate.http.client_addresses import neighbourhood
from headgate.http.exchange import Exchange
from headgate.http.listener import Rest
from headgate.http.operations import Notice, Ready
from headgate.http.responses import Headers, StreamRunner, block, close_chunks, problem, rendered, stream_headers
from headgate.http.routes import (
    ANONYMOUS,
    Access,
    Answer,
    Call,
    ClientGone,
    Message,
    Mount,
    Operation,
    Stop,
    Stream,
)
from headgate.kit import logs, metrics, traces
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, MethodNotAllowed, NotFound
from headgate.store import PendingReply

UNMATCHED = "unmatched"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_WARN_SECONDS = 1.0
_NO_HEADERS: Headers = []

# Binding the request id to the log lines of its handlers costs a tenth this way.
_LOGGED_ID: ContextVar[str] = bind_contextvars(request_id="")["request_id"].var
unbind_contextvars("request_id")

log = get_logger()


class Unexpected(HeadgateError):
    """Something went wrong here; the log tells more under this request id."""

    code, status = "internal", 500


class PreparedRoute:
    """An operation with everything worked out that does not depend on the request."""

    __slots__ = (
        "access", "body", "handler", "limiter", "namespaced", "prompt", "query", "status", "tally", "title", "user", "users",
    )  # fmt: skip

    def __init__(self, operation: Operation, settings: GatewaySettings, limits: dict[str, RequestLimiter]) -> None:
        self.access = operation.access
        self.handler = operation.handler
        self.namespaced = operation.namespaced
        self.prompt = operation.prompt
        self.status = operation.status
        self.user = operation.user
        self.title = f"{operation.method} {operation.path}"
        self.tally = Tally(operation.id)
        self.limiter = limits[operation.limit] if operation.limit else None
        self.users = self.limiter.users if self.limiter is not None else None
        self.query = QueryReader(operation.query, namespaced=operation.namespaced)
        self.body: BodyReader | None = None
        if operation.body is not None:
            limit = operation.body_limit or settings.body_limit
            self.body = BodyReader(
                operation.body, limit=limit, seconds=settings.body_seconds, optional=operation.body_optional
            )


class UnroutedRequest:
    """Where a request has come to, for the log and the figures, before it has a route or instead of one."""

    __slots__ = ("status", "tally", "title")

    def __init__(self, title: str, tally: Tally) -> None:
        self.title = title
        self.tally = tally
        self.status = 204


class MountRoute(UnroutedRequest):
    """A mounted application and its figures."""

    __slots__ = ("mount", "prefix")

    def __init__(self, mount: Mount) -> None:
        super().__init__(mount.prefix, Tally(f"mount {mount.prefix}"))
        self.mount = mount
        self.prefix = mount.prefix.rstrip("/").encode()


class CachedRoute:
    """Where a request goes, and from whom it comes; found once for all requests of a connection that ask for the same.

    If nothing in the request tells who asks, and nobody has to, then its address is all there is to `know`; `addresses`
    counts the requests of each.
    """

    __slots__ = ("addresses", "client", "known", "namespace", "neighbourhood", "path", "route")

    def __init__(self, route: PreparedRoute, path: Mapping[str, str]) -> None:
        self.route = route
        self.path = path
        self.namespace = path.get(NAMESPACE)
        self.known = False
        self.client = self.neighbourhood = ""
        self.addresses: Buckets | None = None

    def know(self, client: str, *, ours: bool) -> None:
        """Keep the client's address, and whether it is a proxy of ours, which asks as often as it likes."""
        self.known = True
        self.client = client
        self.neighbourhood = neighbourhood(client)
        self.addresses = None if ours or self.route.limiter is None else self.route.limiter.addresses


class RequestContext(Call):
    """A request on its way through the gateway: what its handler sees, and what it takes to answer it."""

    work: CoroutineType[Any, Any, object]

    def __init__(
        self, exchange: Exchange, request_id: str, gateway: Gateway, at: UnroutedRequest | PreparedRoute
    ) -> None:
        # What Call's own does, without another call.
        self.headers = exchange.target.headers
        self.caller = ANONYMOUS
        self.namespace = DEFAULT_NAMESPACE
        self.request_id = request_id
        self.stop = gateway.stop
        self._request = self.exchange = exchange
        self._gateway = gateway
        self.at = at
        self.running = False
        self.extra = _NO_HEADERS
        self.started = perf_counter()

    def begin(self, at: UnroutedRequest | PreparedRoute) -> None:
        """Its handler is about to run."""
        self.at = at
        self.running = True
        at.tally.in_flight += 1

    def resume(self, _awaited: object) -> None:
        """Go on: what a prompt handler awaits is there."""
        _LOGGED_ID.set(self.request_id)  # whoever calls back has a context of their own
        self._gateway.step(self)

    def spend(self, limit: str) -> None:
        self._gateway.door.spend(self.exchange, self.caller, limit)

    def end(self) -> None:
        """The handler is done."""
        if self.running:
            self.running = False
            self.at.tally.in_flight -= 1


class Gateway:
    """The application: all operations and mounts behind one door."""

    def __init__(
        self,
        operations: Sequence[Operation],
        mounts: Sequence[Mount] = (),
        *,
        settings: GatewaySettings,
        door: Authentication,
        ready: Ready,
        notice: Notice = lambda: None,
    ) -> None:
        self.stop = Stop()
        self.ready = ready
        self.notice = notice
        self.door = door
        self._origins = CorsOrigins(settings.origins)
        routes = [(each.method, each.path, PreparedRoute(each, settings, door.limits)) for each in operations]
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
        """The classes of limits, which may be changed while the gateway runs."""
        return self.door.limits

    def serve(self, exchange: Exchange) -> Rest | None:
        """Answer one request, or give what is left to do: to wait for its body, its handler or its stream."""
        target = exchange.target
        given = None if target.head.plain else target.headers.get(b"x-request-id")
        request_id = f"{self._process}{next(self._numbers):x}" if given is None else self._request_id(given)
        turn = RequestContext(exchange, request_id, self, self._unmatched)
        _LOGGED_ID.set(request_id)
        try:
            way: CachedRoute | None = target.way
            if way is None:
                found = self._router.find(target.path)
                if found is None:
                    mounted = self._mounted(target.path)
                    return traced_mount(turn, target.method, mounted.title, self._run_mounted(mounted, turn))
                resource, path = found
                way = self._way(resource, path, turn)
                if way is None:
                    self._reply(turn, _without_route(resource, target.method))
                    return None
            route = way.route
            turn.begin(route)
            # A traced request has log lines of its own, and so a context of its own.
            if b"traceparent" in target.headers or traces.on() or not (exchange.complete or route.body is None):
                return self._finish(turn, self._run(way, turn))
            self._enter(way, turn)
            if route.body is not None:
                turn.body = route.body.read(exchange)
            result = self._handle(route, turn)
            if not isinstance(result, CoroutineType):
                self._reply(turn, result)
            elif route.prompt:
                turn.work = result
                self.step(turn)
            else:
                return self._finish(turn, result)
        except Exception as error:  # noqa: BLE001 -- the top of a request: whatever it was, the caller gets a problem
            self._fail(turn, error)
        return None

    def step(self, turn: RequestContext) -> None:
        """Go on with a prompt handler as far as it comes, and once more when what it awaits is there."""
        try:
            awaited = turn.work.send(None)
        except StopIteration as done:
            try:
                self._reply(turn, done.value)
            except Exception as error:  # noqa: BLE001 -- as below: an answer that cannot be written is a defect of ours
                self._fail(turn, error)
        except Exception as error:  # noqa: BLE001 -- the top of a request: whatever it was, the caller gets a problem
            self._fail(turn, error)
        except asyncio.CancelledError:  # what it awaited was, since this process is about to end
            turn.end()
            turn.exchange.abort()
        else:
            if awaited is None:
                asyncio.get_running_loop().call_soon(turn.resume, awaited)
                return
            awaited._asyncio_future_blocking = False  # how a task says that it has taken the future
            if isinstance(awaited, PendingReply):
                awaited.callback = turn.resume
            else:
                awaited.add_done_callback(turn.resume)

    async def keep_figures(self) -> None:
        """Add the figures of all operations to the shared ones, again and again."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Add the figures of all operations to the shared ones."""
        for tally in self._tallies:
            tally.flush()
        metrics.share_named()

    async def _run(self, way: CachedRoute, turn: RequestContext) -> object:
        """Go through with a request that is traced, or whose body is still on its way."""
        return await traced(turn, way.route.title, way.route.status, self._run_all(way, turn))

    async def _run_all(self, way: CachedRoute, turn: RequestContext) -> object:
        route = way.route
        self._enter(way, turn)
        if route.body is not None:
            turn.body = await route.body.read_later(turn.exchange)
        result = self._handle(route, turn)
        return await result if isinstance(result, CoroutineType) else result

    def _way(self, resource: Resource[PreparedRoute], path: dict[str, str], turn: RequestContext) -> CachedRoute | None:
        """Find where a request goes, None if nowhere with this method; keep what the next of its kind need not find again."""
        target = turn.exchange.target
        route = resource.routes.get(target.method)
        if not target.head.plain and not target.headers.keys().isdisjoint((b"traceparent", b"origin")):
            turn.extra = self._extra(resource, route, target.headers)
        if route is None:
            return None
        way = CachedRoute(route, path)
        if target.head.plain and route.access is Access.PUBLIC:
            client, ours = self.door.client(turn.exchange)
            way.know(client, ours=ours)
            target.way = way
        return way

    def _enter(self, way: CachedRoute, turn: RequestContext) -> None:
        """Find out who calls, and read the query."""
        route = way.route
        turn.path = way.path
        if way.known:
            turn.client = way.client
            if way.addresses is not None:
                way.addresses.take(way.neighbourhood)
        else:
            turn.caller, turn.client = self.door.enter(turn.exchange, route.access, route.limiter)
        turn.query, wanted = route.query.read(turn.exchange.query)
        if route.namespaced:
            if way.namespace is not None:
                wanted = way.namespace
            if wanted is not None or not way.known:
                turn.namespace = chosen_namespace(turn.caller, wanted)
        elif turn.caller.namespace is not None:
            refuse_limited(turn.caller, route.access)

    def _handle(self, route: PreparedRoute, turn: RequestContext) -> object:
        if route.users is not None and route.user is not None:
            user = route.user(turn)
            if user:
                route.users.take(user)
        return route.handler(turn)

    async def _finish(self, turn: RequestContext, work: Awaitable[object]) -> None:
        """Answer once the handler is done."""
        try:
            result = await work
            if isinstance(result, Stream):
                await self._stream(result, turn)
            else:
                self._reply(turn, result)
        except Exception as error:  # noqa: BLE001 -- the top of a request: whatever it was, the caller gets a problem
            self._fail(turn, error)
        finally:
            turn.end()
            turn.close()

    def _reply(self, turn: RequestContext, result: object) -> None:
        status, shared, body = rendered(result, turn.at.status)
        self._answer(turn, status, shared, body)

    def _answer(self, turn: RequestContext, status: int, shared: bytes, body: bytes) -> None:
        """Send a whole answer."""
        tally = turn.at.tally
        if turn.running:
            turn.running = False
            tally.in_flight -= 1
        seconds = perf_counter() - turn.started
        tally.count(status, seconds)
        if logs.debugging():
            _log(turn, status, seconds)
        if turn.extra:
            shared += block(turn.extra)
        request_id = turn.request_id.encode()
        if status == 204 or status == 304:
            turn.exchange.whole(status, b"%bx-request-id: %b\r\n\r\n" % (shared, request_id), b"")
        else:
            head = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (shared, request_id, len(body))
            turn.exchange.whole(status, head, b"" if turn.exchange.target.method == "HEAD" else body)

    def _fail(self, turn: RequestContext, error: Exception) -> None:
        """Say what went wrong: to the caller if it is a refusal, to the log if it is a defect of ours."""
        if isinstance(error, ClientGone):
            turn.end()
            turn.at.tally.count(error.status, perf_counter() - turn.started)
            return
        if not isinstance(error, HeadgateError):
            log.error("request failed", operation=turn.at.title, exc_info=error)
            error = Unexpected()
        elif error.status >= 500:
            self._warn(error, turn.at.title)
        self._answer(turn, *problem(error, turn.request_id))
        # Its frames hold the error: with each refusal that would be a circle, left to the garbage collector.
        error.__traceback__ = None

    async def _stream(self, stream: Stream, turn: RequestContext) -> None:
        turn.end()
        tally, send = turn.at.tally, turn.exchange
        tally.count(stream.status, perf_counter() - turn.started)
        tally.streams += 1
        try:
            own = [*stream_headers(stream), *turn.extra, (b"x-request-id", turn.request_id.encode())]
            await send({"type": "http.response.start", "status": stream.status, "headers": own})
            if send.target.method == "HEAD":
                await close_chunks(stream.chunks)
            else:
                await StreamRunner(stream, turn, send).run()
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

    async def _run_mounted(self, route: MountRoute, turn: RequestContext) -> int:
        """Hand a request to a mounted application and give the status; what it raises before it answers is a problem."""
        mount, status = route.mount, 0
        turn.begin(route)

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [*message.get("headers", ()), (b"x-request-id", turn.request_id.encode())]
                message = {**message, "headers": own}
            await turn.exchange(message)
            if message.get("more_body"):
                await asyncio.sleep(0)  # as in a stream of ours: the server's send need not suspend

        try:
            limiter = self.door.limits[mount.limit] if mount.limit else None
            turn.caller, turn.client = self.door.enter(turn.exchange, mount.access, limiter, bearer=mount.bearer)
            refuse_limited(turn.caller, mount.access)
            turn.scope["headgate"] = turn
            await mount.app(turn.scope, turn.receive, watched)
        except Exception as error:
            if not status:
                self._fail(turn, error)
                return error.status if isinstance(error, HeadgateError) else 500
            log.exception("mounted application failed", mount=mount.prefix)
        finally:
            turn.scope.pop("headgate", None)  # the two hold each other
            turn.end()
            turn.close()
        turn.at.tally.count(status, perf_counter() - turn.started)
        return status

    def _request_id(self, given: bytes) -> str:
        """Take the client's own id if it can stand in a header and a log line."""
        return given.decode() if _REQUEST_ID.fullmatch(given) else f"{self._process}{next(self._numbers):x}"

    def _extra(
        self, resource: Resource[PreparedRoute], route: PreparedRoute | None, headers: dict[bytes, bytes]
    ) -> Headers:
        """Give the headers that only some answers have: for pages of other sites, and the caller's trace."""
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
        """Log an outage once a second, not once a request."""
        now = perf_counter()
        if now - self._warned.get(error.code, -_WARN_SECONDS) >= _WARN_SECONDS:
            self._warned[error.code] = now
            log.warning("request refused", operation=title, code=error.code, status=error.status, detail=error.detail)


def _without_route(resource: Resource[PreparedRoute], method: str) -> Answer:
    if method == "OPTIONS":
        return Answer(status=204, headers={"allow": resource.allow})
    raise MethodNotAllowed(f"This address takes {resource.allow}.", allow=resource.allow)


def _log(turn: RequestContext, status: int, seconds: float) -> None:
    """Log a request by its route: a path or a query may hold a ticket."""
    log.debug(
        "request",
        operation=turn.at.title,
        status=status,
        ms=round(seconds * 1000, 3),
        client=turn.client,
        caller=turn.caller.name,
    )
