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
from typing import Any, TypeVar

import msgspec

from headgate.kit.problems import HeadgateError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

JSON = "application/json"
EVENTS = "text/event-stream"


class Access(StrEnum):
    """Who may call an operation; each role may do what the ones before it may."""

    PUBLIC = "public"
    READ = "read"
    SERVICE = "service"
    ADMIN = "admin"


class Wire(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base of what travels over HTTP: frozen, camelCase on the wire, unknown fields refused."""


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


class Call:
    """One request, as its handler sees it."""

    __slots__ = (
        "_going", "body", "caller", "client", "namespace", "path", "query", "receive", "request_id", "scope", "stop",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        *,
        path: dict[str, str],
        query: Any,
        body: Any,
        caller: Caller,
        namespace: str,
        client: str,
        request_id: str,
        stop: asyncio.Event,
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.path = path
        self.query = query
        self.body = body
        self.caller = caller
        self.namespace = namespace
        self.client = client
        self.request_id = request_id
        self.stop = stop
        self._going: asyncio.Future[None] | None = None

    def header(self, name: str) -> str | None:
        """Give the first header of this name, or None."""
        wanted = name.lower().encode("latin-1")
        for key, value in self.scope["headers"]:
            if key == wanted:
                return str(value, "latin-1")
        return None

    async def disconnected(self) -> None:
        """Return when nobody waits for the answer any more: the client has left, or the gateway is stopping."""
        if self._going is None:
            self._going = asyncio.ensure_future(self._gone())
        await asyncio.shield(self._going)

    async def attend(self, work: Coroutine[Any, Any, T]) -> T:
        """Await slow work and cancel it when the client leaves or the gateway stops."""
        task = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.disconnected())
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopping(retry_after=1) if self.stop.is_set() else ClientGone()
        finally:
            await _cancelled(task, leaving)

    async def close(self) -> None:
        """Stop listening for the client's leaving; the gateway calls this after the handler."""
        if self._going is not None:
            await _cancelled(self._going)

    async def _gone(self) -> None:
        stopping = asyncio.ensure_future(self.stop.wait())
        leaving = asyncio.ensure_future(self._left())
        try:
            await asyncio.wait((stopping, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(stopping, leaving)

    async def _left(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


async def _cancelled(*futures: asyncio.Future[Any]) -> None:
    pending = [future for future in futures if not future.done()]
    for future in pending:
        future.cancel()
    if pending:
        await asyncio.wait(pending)


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


Handler = Callable[[Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it takes, what it gives, who may call it and how it can fail.

    Path parameters are written `{name}`; a last one written `{name:path}` takes the rest with its slashes. `body` may be
    `bytes` for a body of any kind. `status` is that of a plain answer; without `answer` it is 204 in the document.
    `limit` names a class of the gateway's limits, counted per client address and, where `user` tells whose request it is,
    per user as well. `content_type` is for the document: a `Stream` or an `Answer` says its own.
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
    content_type: str = JSON
    errors: tuple[type[HeadgateError], ...] = ()
    namespaced: bool = False
    limit: str | None = None
    user: Callable[[Call], str | None] | None = None
    description: str = ""
    name: str = ""
    documented: bool = True

    @property
    def id(self) -> str:
        """Give the operation's id: its name, or the handler's in camelCase."""
        first, *rest = (self.name or getattr(self.handler, "__name__", "call")).strip("_").split("_")
        return first + "".join(word.capitalize() for word in rest)


@dataclass(frozen=True, slots=True)
class Mount:
    """A plain ASGI application under a prefix, behind the same token check, limits and problems as the operations.

    It finds who calls in `scope["headgate"]`, a `Call` whose query and body are None. `bearer=False` leaves
    `Authorization` to the application: only X-API-Token is looked at.
    """

    prefix: str
    app: Asgi
    access: Access
    _: KW_ONLY
    bearer: bool = True
    limit: str | None = None


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
