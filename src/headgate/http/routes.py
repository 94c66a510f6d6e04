"""Routes as data: the operations that the `api.py` of each feature lists.

An operation has a method, a path, the role that may call it, the structs of request and answer, its problems, and a handler.
The gateway makes routing, validation, limits, metrics and the OpenAPI document from the same data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from headgate.kit.problems import HeadgateError
from headgate.kit.tasks import cancel

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

JSON = "application/json"
EVENTS = "text/event-stream"
_PRINTABLE: Final = "".join(map(chr, range(32, 127)))


class Access(StrEnum):
    """The role that an operation needs; each role includes the ones before it."""

    PUBLIC = "public"
    READ = "read"
    SERVICE = "service"
    ADMIN = "admin"


class Caller(msgspec.Struct, frozen=True):
    """The caller of a request: the token's name and role, and the only namespace that it may use (None: all)."""

    name: str
    role: Access
    namespace: str | None = None

    def may(self, access: Access) -> bool:
        """Tell whether this caller's role includes the needed one."""
        return _RANK[self.role] >= _RANK[access]


_RANK = {access: rank for rank, access in enumerate(Access)}
ANONYMOUS = Caller("anonymous", Access.PUBLIC)


class ClientGone(HeadgateError):
    """The client closed the connection before its answer was ready."""

    code, status = "client_gone", 499


class Stopping(HeadgateError):
    """This gateway is stopping; ask again and another one answers."""

    code, status = "stopping", 503


class Stop:
    """Set once when a gateway stops; it ends every wait and every stream."""

    __slots__ = ("_waiting", "raised")

    def __init__(self) -> None:
        self.raised = False
        self._waiting: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Settle all futures that watch it."""
        self.raised = True
        for future in self._waiting:
            _settle(future)

    def watch(self, future: asyncio.Future[None]) -> None:
        """Settle this future when the gateway stops."""
        if self.raised:
            _settle(future)
        else:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)


class ServerRequest(Protocol):
    """The server's side of a request, from which a call is made."""

    scheme: str

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers, by name in lower case."""

    @property
    def scope(self) -> Scope:
        """The ASGI scope of the request."""

    async def receive(self) -> Message:
        """Return the next part of the body, or a disconnect message."""

    def watch(self, future: asyncio.Future[None], /) -> None:
        """Settle this future when the client disconnects or the response is finished."""


class Call:
    """One request, as its handler gets it.

    `path` has the decoded parameters of the path; `query` and `body` are the structs that the operation declares; `client`
    is the client's address, seen through trusted proxies.
    """

    path: Mapping[str, str] = MappingProxyType({})
    query: Any = None
    body: Any = None
    caller = ANONYMOUS
    client = ""
    namespace = "default"
    _disconnected: asyncio.Future[None] | None = None

    def __init__(self, request: ServerRequest, request_id: str, stop: Stop) -> None:
        self.headers = request.headers
        self.request_id = request_id
        self.stop = stop
        self._request = request

    @property
    def scope(self) -> Scope:
        """The ASGI scope of the request."""
        return self._request.scope

    @property
    def scheme(self) -> str:
        """The scheme of the connection, behind a proxy the proxy's."""
        return self._request.scheme

    @property
    def receive(self) -> Receive:
        """The ASGI `receive` of the request."""
        return self._request.receive

    def header(self, name: str) -> str | None:
        """Give the header of this name, the last one if it was sent twice, or None."""
        value = self.headers.get(name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    def spend(self, limit: str) -> None:
        """Count this request, with or without a token, against another limit of its client's address; raises RateLimited.

        With a service's token, the address is the one that the service forwards.
        """

    async def until_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """Await slow work; cancel it when the client disconnects or the gateway stops."""
        task = asyncio.create_task(work)  # ended below; a `Tasks` for each slow request would cost more
        try:
            await asyncio.wait((task, self.disconnected()), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopping(retry_after=1) if self.stop.raised else ClientGone()
        finally:
            await cancel(task)

    def disconnected(self) -> asyncio.Future[None]:
        """Return a future that is done when the client disconnects, the response is finished or the gateway stops."""
        if self._disconnected is None:
            future = self._disconnected = asyncio.get_running_loop().create_future()
            self.stop.watch(future)
            self._request.watch(future)
        return self._disconnected

    def close(self) -> None:
        """Settle the future of `disconnected`; the gateway calls this after the response."""
        if self._disconnected is not None:
            _settle(self._disconnected)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def header_value(text: str) -> bytes:
    """Encode a header value; percent-encode a text that is not printable ASCII, so that it is always one line."""
    plain = text.isascii() and text.isprintable()
    return (text if plain else quote(text, safe=_PRINTABLE, errors="replace")).encode("ascii")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with its own status, headers or content type; bytes and text are sent unchanged."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Stream:
    """A streamed response; it ends when the iterator ends, the client disconnects or the gateway stops.

    Each chunk of an event stream holds whole events, because the gateway sends comments between chunks to keep an idle
    connection open.
    """

    chunks: AsyncIterator[bytes]
    content_type: str = EVENTS
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


# A coroutine function, or a plain function that returns the answer, or a coroutine if it has to wait.
Handler = Callable[[Call], object]


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: its request, its answer, the role that may call it, and its problems.

    Path parameters are written `{name}`; a last one written `{name:path}` matches the rest with its slashes. `body` may be
    `bytes` for a body of any type. `status` is that of a plain answer; without `answer` the document says 204.
    `other_statuses` are further ones that an `Answer` may have (201, 302, 304 and so on).
    `prompt` says that the handler waits for the store at most. It runs without a task, at half the cost, and so must not use
    `asyncio.timeout`, a `TaskGroup` or anything else that needs the current task.
    `limit` names a class of the gateway's limits, counted per client address and, where `user` returns one, per user.
    Only the OpenAPI document uses `content_type` (a `Stream` or an `Answer` has its own), `headers` (request headers and
    their meaning), `answers` (the meaning of each status, where the body is not ours), `any_method` and `bearer=False`.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    _: KW_ONLY
    access: Access
    tag: str
    query: type[msgspec.Struct] | None = None
    body: type[Any] | None = None
    body_optional: bool = False
    body_limit: int | None = None
    answer: type[Any] | None = None
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    content_type: str = JSON
    errors: tuple[type[HeadgateError], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    namespaced: bool = False
    limit: str | None = None
    user: Callable[[Call], str | None] | None = None
    description: str = ""
    name: str = ""
    documented: bool = True
    prompt: bool = False
    answers: Mapping[int, str] = field(default_factory=dict)
    any_method: bool = False
    bearer: bool = True

    @property
    def id(self) -> str:
        """The operation's id: its name, or the handler's, in camelCase."""
        first, *rest = (self.name or getattr(self.handler, "__name__", "call")).strip("_").split("_")
        return first + "".join(word.capitalize() for word in rest)


@dataclass(frozen=True, slots=True)
class Mount:
    """A plain ASGI application under a prefix, with the same authentication, limits and problems as the operations.

    `scope["headgate"]` is a `Call` without query and body. With `bearer=False`, `Authorization` is left to the application
    and only X-API-Token authenticates. `routes` describes the application in the OpenAPI document.
    """

    prefix: str
    app: Asgi
    access: Access
    _: KW_ONLY
    bearer: bool = True
    limit: str | None = None
    routes: tuple[Operation, ...] = ()


def mounted(_call: Call) -> None:
    """Placeholder handler of a route that a mount serves."""
    raise NotImplementedError


def event(name: str, data: object, id: str | int | None = None) -> bytes:
    """Encode one Server-Sent Event; data other than text and bytes is encoded as JSON."""
    if isinstance(data, bytes):
        body = data
    elif isinstance(data, str):
        body = data.encode()
    else:
        body = _encode(data)
    fields = f"event: {name}\n" if id is None else f"event: {name}\nid: {id}\n"
    return fields.encode() + b"data: " + body.replace(b"\r", b"").replace(b"\n", b"\ndata: ") + b"\n\n"


_encode = msgspec.json.Encoder().encode
