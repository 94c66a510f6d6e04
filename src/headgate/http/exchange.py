"""One request and its response.

An exchange offers what an ASGI server gives to an application: the scope, which is built when it is first asked for,
`receive`, and `send`, which is the exchange itself. Faster than ASGI are `respond`, which sends a whole response in one write,
`body`, which returns a body that has arrived without waiting, and `watch`, which settles a future on disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from headgate.http.request_head import RequestTarget
from headgate.http.routes import Message, Scope
from headgate.kit.problems import HeadgateError

if TYPE_CHECKING:
    from headgate.http.connection import ServerConnection

# Bytes of a body that are buffered for the application before reading is paused.
MOST_BUFFERED: Final = 65_536
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}
_DISCONNECT: Final[Message] = {"type": "http.disconnect"}
_BODILESS: Final = (204, 304)
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class StatusLines:
    """The status line and the Date header of responses, cached for one second."""

    def __init__(self) -> None:
        self._second = 0
        self._date = b""
        self.lines: dict[int, bytes] = {}
        self.tick()

    def tick(self) -> None:
        """Read the clock; drop the cached lines when a new second has begun."""
        second = int(time())
        if second != self._second:
            self._second = second
            self._date = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
            self.lines.clear()

    def with_date(self, status: int) -> bytes:
        """Return the status line and the Date header."""
        line = self.lines.get(status)
        if line is None:
            line = self.lines[status] = status_line(status) + self._date
        return line


def status_line(status: int) -> bytes:
    """Return the status line alone."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class Exchange:
    """One request: its scope, its body as it arrives, and its response as it is sent."""

    # Slots are faster than attributes that an instance finds in its class.
    __slots__ = (
        "_awaits_continue", "_body_error", "_body_left", "_body_taken", "_buffered", "_chunked", "_chunks", "_connection",
        "_receive_waiters", "_response_headers", "_scope", "_status", "_watchers", "complete", "disconnected", "finished",
        "http_1_0", "keep_alive", "query", "scheme", "started", "target", "task",
    )  # fmt: skip

    def __init__(self, connection: ServerConnection, target: RequestTarget, query: bytes) -> None:
        self.target = target
        self.query = query
        self.scheme = "http"
        self.http_1_0 = False
        self.keep_alive = True
        self.complete = False
        self.started = False
        self.finished = False
        self.disconnected = False
        self.task: asyncio.Task[None] | None = None
        self._connection = connection
        self._awaits_continue = False
        self._chunks: list[bytes] | None = None
        self._buffered = 0
        self._body_taken = False
        self._body_error: HeadgateError | None = None
        self._receive_waiters: set[asyncio.Future[None]] | None = None
        self._watchers: set[asyncio.Future[None]] | None = None
        self._status = 0
        self._response_headers: Sequence[tuple[bytes, bytes]] = ()
        self._chunked = False
        self._body_left: int | None = None
        self._scope: Scope | None = None

    # Called by the connection.

    def feed(self, chunk: bytes) -> bool:
        """Add a part of the body; tell whether the buffer is full."""
        if self.finished:
            return False
        if self._chunks is None:
            self._chunks = []
        self._chunks.append(chunk)
        self._buffered += len(chunk)
        self._wake()
        return self._buffered > MOST_BUFFERED

    def end_body(self) -> None:
        """Mark the body as complete."""
        self.complete = True
        if self._receive_waiters:
            self._wake()

    def fail_body(self, error: HeadgateError) -> None:
        """Raise this error in `receive`, because the rest of the body cannot be read."""
        self._body_error = error
        self.keep_alive = False
        self._wake()

    def disconnect(self) -> None:
        """Record that the client has disconnected, and wake all waiters."""
        self.disconnected = True
        self._wake()
        self._settle_watchers()

    def expect_continue(self) -> None:
        """Send `100 Continue` when the application first waits for the body."""
        self._awaits_continue = True

    # Called by the application.

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
        """The ASGI scope of the request."""
        if self._scope is None:
            target = self.target
            self._scope = {
                "type": "http",
                "asgi": _ASGI,
                "http_version": "1.0" if self.http_1_0 else "1.1",
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

    def watch(self, future: asyncio.Future[None]) -> None:
        """Settle this future when the client disconnects or the response is finished."""
        if self.disconnected or self.finished:
            if not future.done():
                future.set_result(None)
            return
        if self._watchers is None:
            self._watchers = set()
        self._watchers.add(future)
        future.add_done_callback(self._watchers.discard)

    def body(self) -> bytes | None:
        """Return the whole body if it has arrived, else None."""
        if not self.complete or self._body_taken or self._body_error is not None:
            return None
        self._body_taken = True
        return self._take_chunks() if self._chunks else b""

    async def receive(self) -> Message:
        """Return the next part of the body, or a disconnect message."""
        if not self._body_taken:
            while not self._chunks and not self.complete and not self.disconnected and self._body_error is None:
                if self._awaits_continue and not self.started:
                    self._awaits_continue = False
                    self._connection.write(CONTINUE)
                await self._wait_for_change()
            if self._body_error is not None:
                raise self._body_error
            if self._chunks or self.complete:
                self._body_taken = self.complete
                return {"type": "http.request", "body": self._take_chunks(), "more_body": not self.complete}
        while not self.disconnected and not self.finished:
            await self._wait_for_change()
        return _DISCONNECT

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a whole response; `headers` are its header lines with the length and the empty line."""
        self.started = True
        connection = self._connection
        first = connection.status_lines.lines.get(status) or connection.status_lines.with_date(status)
        if not self.complete or not self.keep_alive or self.http_1_0 or connection.listener.draining:
            first += self._connection_header()
        connection.write_later(b"".join((first, headers, body)))
        if self._chunks or self._receive_waiters or self._watchers:
            self._finish()
        else:
            self.finished = True
            connection.response_sent(self)

    async def __call__(self, message: Message) -> None:
        """Send a part of the response, as an ASGI `send`; wait while the client does not read."""
        if message["type"] == "http.response.start":
            if self._status:
                raise RuntimeError("the answer has begun already")
            self._status, self._response_headers = message["status"], message.get("headers", ())
            return
        if self.finished:
            if self.disconnected:
                return
            raise RuntimeError("the answer is complete already")
        if not self._status:
            raise RuntimeError("the answer has not begun")
        body, more = message.get("body", b""), message.get("more_body", False)
        parts = [] if self.started else [self._start_response(len(body), more)]
        self._append_body(parts, body)
        if not more and self._chunked:
            parts.append(b"0\r\n\r\n")
        if parts:
            self._connection.write(b"".join(parts))
        if not more:
            if self._body_left:
                self.abort()  # a body shorter than its Content-Length must not look complete
            else:
                self._finish()
        elif self._connection.write_paused:
            await self._connection.drain()

    def abort(self) -> None:
        """Reset the connection, so that the client does not take a partial response for a whole one."""
        self.finished = True
        self._connection.abort()

    def _start_response(self, size: int, more: bool) -> bytes:
        """Build the status line and headers, and choose how the end of the body is marked."""
        status, named = self._status, {name for name, _ in self._response_headers}
        self.started = True
        lines = [b"%b: %b\r\n" % (name, value) for name, value in self._response_headers]
        headers = b"".join(lines)
        if headers.count(b"\n") != len(lines) or headers.count(b"\r") != len(lines):
            raise ValueError("a header would be more than one line")
        bodiless = self._is_bodiless()
        if b"content-length" in named:
            if not bodiless:
                self._body_left = int(
                    next(value for name, value in self._response_headers if name == b"content-length")
                )
        elif bodiless:
            pass
        elif not more:
            headers += b"content-length: %d\r\n" % size
        elif self.http_1_0:
            self.keep_alive = False
        else:
            self._chunked = True
            headers += b"transfer-encoding: chunked\r\n"
        if bodiless:
            self._body_left = 0
        first = status_line(status) if b"date" in named else self._connection.status_lines.with_date(status)
        connection = b"" if b"connection" in named else self._connection_header()
        return first + connection + headers + b"\r\n"

    def _append_body(self, parts: list[bytes], body: bytes) -> None:
        if not body or (self._body_left == 0 and self._is_bodiless()):
            return
        if self._chunked:
            parts += (b"%x\r\n" % len(body), body, b"\r\n")
            return
        if self._body_left is not None:
            if len(body) > self._body_left:
                raise RuntimeError("the body is longer than was promised")
            self._body_left -= len(body)
        parts.append(body)

    def _is_bodiless(self) -> bool:
        return self._status in _BODILESS or self.target.method == "HEAD"

    def _connection_header(self) -> bytes:
        """Return a Connection header where the default of the client's HTTP version does not apply."""
        if not self.keep_alive or not self.complete or self._connection.listener.draining:
            self.keep_alive = False
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self.http_1_0 else b""

    def _finish(self) -> None:
        self.finished = True
        if self._chunks:
            self._chunks = None
        if self._receive_waiters:
            self._wake()
        if self._watchers:
            self._settle_watchers()
        self._connection.response_sent(self)

    def _take_chunks(self) -> bytes:
        chunks, self._chunks = self._chunks or (), None
        taken = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._buffered > MOST_BUFFERED:
            self._connection.resume_reading()
        self._buffered = 0
        return taken

    async def _wait_for_change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        if self._receive_waiters is None:
            self._receive_waiters = set()
        self._receive_waiters.add(future)
        try:
            await future
        finally:
            self._receive_waiters.discard(future)

    def _wake(self) -> None:
        for future in self._receive_waiters or ():
            if not future.done():
                future.set_result(None)

    def _settle_watchers(self) -> None:
        for future in tuple(self._watchers or ()):
            if not future.done():
                future.set_result(None)
