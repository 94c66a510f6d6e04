"""What a feature says about its routes; the gateway does the rest.

A feature's `api.py` lists operations. Each is plain data (method, path, who may call it, which structs go in and out,
which problems may come back) and one coroutine function. Nothing in here serves anything: the gateway assembles the
operations, and the same data becomes routing, validation, limits, metrics and the OpenAPI document.
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
    """Who may call an operation; each role may do what the ones before it may."""

    PUBLIC = "public"
    READ = "read"
    SERVICE = "service"
    ADMIN = "admin"


class Caller(msgspec.Struct, frozen=True):
    """Who calls: the token's name and role, and the only namespace it may use (None: all)."""

    name: str
    role: Access
    namespace: str | None = None

    def may(self, access: Access) -> bool:
        """Say whether this caller's role is enough."""
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
    """The end of a gateway's life: raised once, it ends every wait and every stream."""

    __slots__ = ("_waiting", "raised")

    def __init__(self) -> None:
        self.raised = False
        self._waiting: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Raise it."""
        self.raised = True
        for future in self._waiting:
            _settle(future)

    def watch(self, future: asyncio.Future[None]) -> None:
        """Settle this future when the stop is raised."""
        if self.raised:
            _settle(future)
        else:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)


class ServerRequest(Protocol):
    """What a call is made of: the server's side of one request."""

    scheme: str

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers, by name in lower case."""

    @property
    def scope(self) -> Scope:
        """The request in ASGI's words."""

    async def receive(self) -> Message:
        """Give the next part of the body, or say that the client has left."""

    def watch(self, future: asyncio.Future[None], /) -> None:
        """Settle this future when nobody waits for the answer any more."""


class Call:
    """One request, as its handler sees it.

    `path` has the decoded parameters of the path; `query` and `body` are the structs that the operation declares; `client`
    is the client's address, seen through trusted proxies.
    """

    path: Mapping[str, str] = MappingProxyType({})
    query: Any = None
    body: Any = None
    caller = ANONYMOUS
    client = ""
    namespace = "default"
    _departure: asyncio.Future[None] | None = None

    def __init__(self, request: ServerRequest, request_id: str, stop: Stop) -> None:
        self.headers = request.headers
        self.request_id = request_id
        self.stop = stop
        self._request = request

    @property
    def scope(self) -> Scope:
        """The request in ASGI's words."""
        return self._request.scope

    @property
    def scheme(self) -> str:
        """The scheme of the connection, behind a proxy the proxy's."""
        return self._request.scheme

    @property
    def receive(self) -> Receive:
        """Reads the body in ASGI's way."""
        return self._request.receive

    def header(self, name: str) -> str | None:
        """Give the header of this name, the last one if it was sent twice, or None."""
        value = self.headers.get(name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    def spend(self, limit: str) -> None:
        """Count this request, with or without a token, against a further class of limits of its client's address.

        With a service's token, that is the address that the service forwards. Raises RateLimited.
        """

    async def attend(self, work: Coroutine[Any, Any, T]) -> T:
        """Await slow work and cancel it when the client leaves or the gateway stops."""
        task = asyncio.create_task(work)  # ended below; a `Tasks` for each slow request would cost more
        try:
            await asyncio.wait((task, self.departure()), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopping(retry_after=1) if self.stop.raised else ClientGone()
        finally:
            await cancel(task)

    def departure(self) -> asyncio.Future[None]:
        """Give a future that is done when nobody waits for the answer any more."""
        if self._departure is None:
            departure = self._departure = asyncio.get_running_loop().create_future()
            self.stop.watch(departure)
            self._request.watch(departure)
        return self._departure

    def close(self) -> None:
        """Let go of whoever still listens for the client's leaving; the gateway calls this when the answer is out."""
        if self._departure is not None:
            _settle(self._departure)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def header_value(text: str) -> bytes:
    """Write a header's value: what is no printable ASCII is percent-encoded, so every text makes one line."""
    plain = text.isascii() and text.isprintable()
    return (text if plain else quote(text, safe=_PRINTABLE, errors="replace")).encode("ascii")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with a status, headers or a content type of its own; bytes and text go out as they are."""

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on: it ends when the iterator ends, the client leaves or the gateway stops.

    Each chunk of an event stream is whole events, so that the gateway may put a comment between two of them to keep a
    quiet connection open.
    """

    chunks: AsyncIterator[bytes]
    content_type: str = EVENTS
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


# A coroutine function; or a plain one, which answers at once and whole, or gives a coroutine when it has to wait after all.
Handler = Callable[[Call], object]


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it takes, what it gives, who may call it and how it can fail.

    Path parameters are written `{name}`; a last one written `{name:path}` takes the rest with its slashes. `body` may be
    `bytes` for a body of any kind. `status` is that of a plain answer; without `answer` it is 204 in the document, and
    `other_statuses` are those that an `Answer` may have besides (201, 302, 304 and so on).
    `prompt` says that the handler answers at once or after a call of the store: it is run without a task of its own, at half
    the cost, and so it must not use `asyncio.timeout`, a `TaskGroup` or anything else that wants the current task.
    `limit` names a class of the gateway's limits, counted per client address and, where `user` tells whose request it is,
    per user as well. `content_type` and `headers` (request headers of its own, with what they mean) are for the document:
    a `Stream` or an `Answer` says its own type. So are `answers` (in place of the above, what each status means where there is
    no body of ours), `any_method` and `bearer=False`, for what a mount serves.
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
        """Give the operation's id: its name, or the handler's in camelCase."""
        first, *rest = (self.name or getattr(self.handler, "__name__", "call")).strip("_").split("_")
        return first + "".join(word.capitalize() for word in rest)


@dataclass(frozen=True, slots=True)
class Mount:
    """A plain ASGI application under a prefix, behind the same token check, limits and problems as the operations.

    It finds who calls in `scope["headgate"]`, a `Call` whose query and body are None. `bearer=False` leaves
    `Authorization` to the application: only X-API-Token is looked at. `routes` says for the document what it serves.
    """

    prefix: str
    app: Asgi
    access: Access
    _: KW_ONLY
    bearer: bool = True
    limit: str | None = None
    routes: tuple[Operation, ...] = ()


def mounted(_call: Call) -> None:
    """Stand in for the handler of a route that a mount serves."""
    raise NotImplementedError


def event(name: str, data: object, id: str | int | None = None) -> bytes:
    """Write one Server-Sent Event; anything but text and bytes goes out as JSON."""
    if isinstance(data, bytes):
        body = data
    elif isinstance(data, str):
        body = data.encode()
    else:
        body = _encode(data)
    head = f"event: {name}\n" if id is None else f"event: {name}\nid: {id}\n"
    return head.encode() + b"data: " + body.replace(b"\r", b"").replace(b"\n", b"\ndata: ") + b"\n\n"


_encode = msgspec.json.Encoder().encode
