"""One request and its answer, on a connection of ours.

What an ASGI server hands to its application in three parts is here as well: the scope, made when somebody asks for it,
`receive`, and `send`, which is the exchange itself. Besides, a whole answer can go out in one write (`whole`), a body that
is here already can be had without waiting (`body`), and whoever wants to know that the client has left gives a future
(`watch`) instead of listening.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from headgate.http.request_head import RequestHead
from headgate.http.routes import Message, Scope
from headgate.kit.problems import HeadgateError

if TYPE_CHECKING:
    from headgate.http.connection import ServerConnection

# What of a body is read ahead of the application.
MOST_AHEAD: Final = 65_536
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}
_GONE: Final[Message] = {"type": "http.disconnect"}
_BODILESS: Final = (204, 304)
_FIRST_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class StatusLines:
    """The first lines of answers, which carry the date; made anew once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._date = b""
        self.made: dict[int, bytes] = {}
        self.tick()

    def tick(self) -> None:
        """Look at the clock."""
        second = int(time())
        if second != self._second:
            self._second = second
            self._date = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
            self.made.clear()

    def dated(self, status: int) -> bytes:
        """Give the status line and the date."""
        made = self.made.get(status)
        if made is None:
            made = self.made[status] = plain_line(status) + self._date
        return made


def plain_line(status: int) -> bytes:
    """Give the status line alone."""
    return _FIRST_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class RequestTarget:
    """What a request asks for, but for its query and its body; a connection that asks for the same again has the same target.

    `way` is the application's own: what it found out about a target, if nothing but the target and the connection decides it.
    """

    __slots__ = ("head", "headers", "method", "path", "way")

    def __init__(self, method: str, path: bytes, head: RequestHead) -> None:
        self.method = method
        self.path = path
        self.head = head
        self.headers = head.names
        self.way: Any = None


class Exchange:
    """One request: its scope, its body as it arrives, and its answer as it goes out."""

    # Slots: what is read of a class through its instances is slow to find.
    __slots__ = (
        "_ahead", "_answer_headers", "_broken", "_chunked", "_chunks", "_connection", "_expects", "_gone", "_left", "_scope",
        "_status", "_told", "_waiting", "_watchers", "complete", "finished", "keep_alive", "old", "query", "scheme", "started",
        "target", "task",
    )  # fmt: skip

    def __init__(self, connection: ServerConnection, target: RequestTarget, query: bytes) -> None:
        self.target = target
        self.query = query
        self.scheme = "http"
        self.old = False
        self.keep_alive = True
        self.complete = False
        self.started = False
        self.finished = False
        self.task: asyncio.Task[None] | None = None
        self._connection = connection
        self._expects = False
        self._chunks: list[bytes] | None = None
        self._ahead = 0
        self._told = False
        self._gone = False
        self._broken: HeadgateError | None = None
        self._waiting: set[asyncio.Future[None]] | None = None
        self._watchers: set[asyncio.Future[None]] | None = None
        self._status = 0
        self._answer_headers: Sequence[tuple[bytes, bytes]] = ()
        self._chunked = False
        self._left: int | None = None
        self._scope: Scope | None = None

    # The connection's side.

    def feed(self, chunk: bytes) -> bool:
        """Take a part of the body; tell whether there is enough of it for now."""
        if self.finished:
            return False
        if self._chunks is None:
            self._chunks = []
        self._chunks.append(chunk)
        self._ahead += len(chunk)
        self._wake()
        return self._ahead > MOST_AHEAD

    def end(self) -> None:
        """The body is complete."""
        self.complete = True
        if self._waiting:
            self._wake()

    def fail(self, error: HeadgateError) -> None:
        """The rest of the body cannot be read: whoever reads it gets this error."""
        self._broken = error
        self.keep_alive = False
        self._wake()

    def lose(self) -> None:
        """The client has left."""
        self._gone = True
        self._wake()
        self._settle()

    def expect(self) -> None:
        """The client waits for a word of ours before it sends the body."""
        self._expects = True

    # The application's side.

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers, by name in lower case."""
        return self.target.headers

    @property
    def client(self) -> tuple[str, int] | None:
        """The address at the other end of the connection."""
        return self._connection.client

    @property
    def scope(self) -> Scope:
        """The request in ASGI's words."""
        if self._scope is None:
            target = self.target
            self._scope = {
                "type": "http",
                "asgi": _ASGI,
                "http_version": "1.0" if self.old else "1.1",
                "method": target.method,
                "scheme": self.scheme,
                "path": unquote_to_bytes(target.path).decode(errors="replace"),
                "raw_path": target.path,
                "query_string": self.query,
                "root_path": "",
                "headers": list(target.head.pairs),
                "client": self._connection.client,
                "server": self._connection.server,
            }
        return self._scope

    @property
    def gone(self) -> bool:
        """Tell whether the client has left."""
        return self._gone

    def watch(self, future: asyncio.Future[None]) -> None:
        """Settle this future when nobody waits for the answer any more."""
        if self._gone or self.finished:
            if not future.done():
                future.set_result(None)
            return
        if self._watchers is None:
            self._watchers = set()
        self._watchers.add(future)
        future.add_done_callback(self._watchers.discard)

    def body(self) -> bytes | None:
        """Give the whole body if it is here, else None."""
        if not self.complete or self._told or self._broken is not None:
            return None
        self._told = True
        return self._taken() if self._chunks else b""

    async def receive(self) -> Message:
        """Give the next part of the body, or say that the client has left."""
        if not self._told:
            while not self._chunks and not self.complete and not self._gone and self._broken is None:
                if self._expects and not self.started:
                    self._expects = False
                    self._connection.write(CONTINUE)
                await self._change()
            if self._broken is not None:
                raise self._broken
            if self._chunks or self.complete:
                self._told = self.complete
                return {"type": "http.request", "body": self._taken(), "more_body": not self.complete}
        while not self._gone and not self.finished:
            await self._change()
        return _GONE

    def whole(self, status: int, head: bytes, body: bytes) -> None:
        """Send a whole answer; `head` is its header lines with the length and the empty line."""
        self.started = True
        connection = self._connection
        first = connection.heads.made.get(status) or connection.heads.dated(status)
        if not self.complete or not self.keep_alive or self.old or connection.house.quiet:
            first += self._persistence()
        connection.write_whole(b"".join((first, head, body)))
        if self._chunks or self._waiting or self._watchers:
            self._finish()
        else:
            self.finished = True
            connection.answered(self)

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer, in ASGI's words; wait while the client does not take it."""
        if message["type"] == "http.response.start":
            if self._status:
                raise RuntimeError("the answer has begun already")
            self._status, self._answer_headers = message["status"], message.get("headers", ())
            return
        if self.finished:
            if self._gone:
                return
            raise RuntimeError("the answer is complete already")
        if not self._status:
            raise RuntimeError("the answer has not begun")
        body, more = message.get("body", b""), message.get("more_body", False)
        parts = [] if self.started else [self._begin(len(body), more)]
        self._frame(parts, body)
        if not more and self._chunked:
            parts.append(b"0\r\n\r\n")
        if parts:
            self._connection.write(b"".join(parts))
        if not more:
            if self._left:
                self.abort()  # a shorter body than was promised must not look like a whole one
            else:
                self._finish()
        elif self._connection.full:
            await self._connection.drained()

    def abort(self) -> None:
        """Break the connection: what was sent is not an answer."""
        self.finished = True
        self._connection.abort()

    def _begin(self, size: int, more: bool) -> bytes:
        """Write the head and choose how the body's end is told."""
        status, named = self._status, {name for name, _ in self._answer_headers}
        self.started = True
        lines = [b"%b: %b\r\n" % (name, value) for name, value in self._answer_headers]
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("a header would be more than one line")
        bodiless = status in _BODILESS or self.target.method == "HEAD"
        if b"content-length" in named:
            if not bodiless:
                self._left = int(next(value for name, value in self._answer_headers if name == b"content-length"))
        elif bodiless:
            pass
        elif not more:
            head += b"content-length: %d\r\n" % size
        elif self.old:
            self.keep_alive = False
        else:
            self._chunked = True
            head += b"transfer-encoding: chunked\r\n"
        if bodiless:
            self._left = 0
        first = plain_line(status) if b"date" in named else self._connection.heads.dated(status)
        own = b"" if b"connection" in named else self._persistence()
        return first + own + head + b"\r\n"

    def _frame(self, parts: list[bytes], body: bytes) -> None:
        if not body or (self._left == 0 and self._bodiless()):
            return
        if self._chunked:
            parts += (b"%x\r\n" % len(body), body, b"\r\n")
            return
        if self._left is not None:
            if len(body) > self._left:
                raise RuntimeError("the body is longer than was promised")
            self._left -= len(body)
        parts.append(body)

    def _bodiless(self) -> bool:
        return self._status in _BODILESS or self.target.method == "HEAD"

    def _persistence(self) -> bytes:
        """Say whether the connection stays, where that is not what the client expects anyway."""
        if not self.keep_alive or not self.complete or self._connection.house.quiet:
            self.keep_alive = False
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self.old else b""

    def _finish(self) -> None:
        self.finished = True
        if self._chunks:
            self._chunks = None
        if self._waiting:
            self._wake()
        if self._watchers:
            self._settle()
        self._connection.answered(self)

    def _taken(self) -> bytes:
        chunks, self._chunks = self._chunks or (), None
        taken = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._ahead > MOST_AHEAD:
            self._connection.go_on_reading()
        self._ahead = 0
        return taken

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = set()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        for future in self._waiting or ():
            if not future.done():
                future.set_result(None)

    def _settle(self) -> None:
        for future in tuple(self._watchers or ()):
            if not future.done():
                future.set_result(None)
