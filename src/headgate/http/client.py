"""An HTTP/1.1 client with pools of connections that are kept open and reused.

It reports two facts that general clients hide and the relay needs: whether any byte of a request was sent, and the
moment the first byte of its response came.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from typing import Final, cast
from urllib.parse import urlsplit

from headgate.http.client_response import BadResponse, ClientResponse, Headers
from headgate.kit.tasks import cancel

BUFFER: Final = 262_144
IDLE_SECONDS: Final = 4.0

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Body = AsyncIterator[bytes]
_TOKEN: Final = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_NAMES = re.compile(rb"%b(?:,%b)*" % (_TOKEN, _TOKEN))
_LINE = re.compile(rb"%b [!-~]+" % _TOKEN)


class RequestFailed(Exception):
    """A request got no complete response; `outcome` is `unsent`, `unknown` (sent, not answered) or `answered`."""

    def __init__(self, message: str, outcome: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class RequestTimeout(RequestFailed):
    """A request got no complete response in time."""


class PoolExhausted(Exception):
    """No connection of the pool became free in time."""


def write_head(method: str, target: bytes, headers: Headers) -> bytes:
    """Write a request's head; raises RequestFailed if it contains characters that could change how it is parsed."""
    line = b"%b %b" % (method.encode("latin-1"), target)
    names = b",".join([name for name, _ in headers])
    head = b"%b HTTP/1.1\r\n%b\r\n\r\n" % (line, b"\r\n".join([b"%b: %b" % header for header in headers]))
    lines = len(headers) + 2
    if (
        not _LINE.fullmatch(line)
        or not _NAMES.fullmatch(names)
        or names.count(b",") != len(headers) - 1
        or head.count(b"\r") != lines
        or head.count(b"\n") != lines
        or b"\0" in head
    ):
        raise RequestFailed("The request cannot be written: its head has signs that it may not have.", "unsent")
    return head


class ClientConnection(asyncio.Protocol):
    """One open connection, with one request at a time; error messages call the other side `peer`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str = "server") -> None:
        self._loop = loop
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._response: ClientResponse | None = None
        self._error: Exception | None = None
        self._closed = False
        self._sent = True
        self._paused = False
        self._unparsed = b""
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self.idle_since = 0.0

    # Requests and responses

    async def request(
        self, method: str, head: bytes, body: Body | None = None, *, length: int | None = None,
        begin: Callable[[], None] | None = None, seconds: float,
    ) -> ClientResponse:  # fmt: skip
        """Send a request and wait for the head of its response; `begin` is called right before the first byte."""
        transport = self._transport
        if transport is None or self._closed:
            raise RequestFailed("The connection was closed before anything was sent.", "unsent")
        if begin is not None:
            begin()
        response = self._response = ClientResponse(method)
        limit = self._loop.time() + seconds
        transport.write(head)
        self._sent = body is None
        # Ended below; a `Tasks` for each request would cost more.
        sending = asyncio.create_task(self._upload(body, length)) if body is not None else None
        try:
            while not response.ready:
                if self._error is not None or self._closed:
                    raise self._failed(self._error)
                if sending is not None and sending.done():
                    error = sending.exception()
                    sending = None
                    if error is not None and not isinstance(error, OSError):
                        raise error  # the body could not be read, so the request cannot be completed
                    # After an OSError the server has stopped reading, and its response may say why.
                    continue
                if not await self._wait(limit):
                    raise RequestTimeout(f"No answer came within {seconds:g} s.", "unknown")
        finally:
            if sending is not None:
                # The response came before the whole body was sent: the connection cannot be reused.
                await cancel(sending)
        return response

    async def chunks(self, seconds: float) -> AsyncIterator[bytes]:
        """Give the body as it arrives; raises RequestTimeout when nothing comes for `seconds`."""
        response = self._response
        assert response is not None
        while True:
            while response.chunks:
                chunk = response.take()
                if self._paused:
                    self._resume_reading()
                yield chunk
            if response.complete:
                return
            if self._error is not None or self._closed:
                raise self._failed(self._error)
            if not await self._wait(self._loop.time() + seconds):
                raise RequestTimeout("The answer stopped half-way.", "answered")

    async def body_begins(self, seconds: float) -> bool:
        """Wait for the first bytes of the body or its end; False if neither came within `seconds`."""
        response = self._response
        assert response is not None
        limit = self._loop.time() + seconds
        while not response.chunks and not response.complete:
            if self._error is not None or self._closed:
                raise self._failed(self._error)
            if not await self._wait(limit):
                return False
        return True

    @property
    def first_byte(self) -> float | None:
        """Give the moment when the response began, or None before that."""
        return None if self._response is None else self._response.first_byte

    @property
    def reusable(self) -> bool:
        """Tell whether another request may follow on this connection."""
        response = self._response
        return response is not None and response.complete and response.keep_alive and self._sent and not self._closed

    @property
    def open(self) -> bool:
        """Tell whether it is still open, as far as we know."""
        return not self._closed

    def become_idle(self) -> None:
        """Prepare for the next request."""
        self._response = None
        self.idle_since = self._loop.time()
        if self._paused:
            self._resume_reading()

    def close(self) -> None:
        """Close at once, without sending data that is still buffered."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _upload(self, body: Body, length: int | None) -> None:
        """Send a body, in chunks if its length is unknown."""
        transport = cast("asyncio.Transport", self._transport)
        left = length or 0
        try:
            async for chunk in body:
                if not chunk:
                    continue
                left -= len(chunk)
                if length is not None and left < 0:
                    raise RequestFailed("The body is longer than it was said to be.", "unknown")
                transport.write(chunk if length is not None else b"%x\r\n%b\r\n" % (len(chunk), chunk))
                if self._drained is not None:
                    await self._drained
                if self._closed:
                    raise ConnectionResetError
            if length is None:
                transport.write(b"0\r\n\r\n")
            elif left:
                raise RequestFailed("The body is shorter than it was said to be.", "unknown")
            self._sent = True
        finally:
            self._wake()

    def _resume_reading(self) -> None:
        self._paused = False
        if self._unparsed:
            self._loop.call_soon(self._parse_rest)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        """Parse one step of the data; the rest is kept for the next turn of the loop, and reading pauses until then."""
        response, transport = self._response, cast("asyncio.Transport", self._transport)
        if response is None:
            self.close()  # the server sent bytes without a request
            return
        try:
            self._unparsed = data[response.feed(data, self._loop.time()) :]
        except BadResponse as error:
            self._error = error
            self.close()
        if not self._closed and (self._unparsed or response.buffered > BUFFER):
            self._paused = response.buffered > BUFFER
            transport.pause_reading()
            if not self._paused:
                self._loop.call_soon(self._parse_rest)
        self._wake()

    def _parse_rest(self) -> None:
        if self._closed or self._paused:
            return
        data, self._unparsed = self._unparsed, b""
        if data:
            self._parse(data)
        if not self._unparsed and not self._paused:
            self._resume_reading()

    async def _wait(self, limit: float) -> bool:
        """Wait for the next event of this connection; False if none came before `limit`."""
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_at(limit, _expire, waiter)
        try:
            await waiter
        except TimeoutError:
            return False
        finally:
            self._waiter = None
            timer.cancel()
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _failed(self, error: Exception | None) -> RequestFailed:
        reason = str(error or "") or "the connection was lost before the answer was whole"
        outcome = "unknown" if self.first_byte is None else "answered"
        return RequestFailed(f"The {self._peer} failed: {reason}.", outcome)

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed += data
        else:
            self._parse(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        response = self._response
        try:
            while response is not None and self._unparsed and not self._closed:
                self._unparsed = self._unparsed[response.feed(self._unparsed, self._loop.time()) :]
        except BadResponse as bad:
            self._error = bad
        self._closed = True
        if response is None or not response.end():
            self._error = self._error or error
        self.resume_writing()
        self._wake()

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class Pool:
    """Connections to one server; the most recently used one is reused first."""

    def __init__(
        self, base_url: str, *, verify_tls: bool = True, max_connections: int, refused: Sequence[Network] = (),
        peer: str = "server",
    ) -> None:  # fmt: skip
        parts = urlsplit(base_url)
        self.key = (base_url, verify_tls, max_connections)
        self._peer = peer
        self._host = parts.hostname or ""
        self._tls = _context(verify_tls) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._refused = refused
        self._idle: deque[ClientConnection] = deque()
        self._slots = asyncio.Semaphore(max_connections)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def fetch(self, method: str, request: bytes, seconds: float) -> tuple[int, bytes]:
        """Send a repeatable request, and give the status and body of the response.

        If the server closed a reused connection without a response, the request is sent again on another one.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._fetch(method, request, seconds)
        except TimeoutError as error:
            raise RequestTimeout(f"No answer came within {seconds:g} s.", "unknown") from error

    async def _fetch(self, method: str, request: bytes, seconds: float) -> tuple[int, bytes]:
        while True:
            connection = await self.acquire(seconds)
            reused = connection.idle_since > 0
            try:
                response = await connection.request(method, request, seconds=seconds)
                body = b"".join([chunk async for chunk in connection.chunks(seconds)])
            except RequestFailed as error:
                if not reused or error.outcome == "answered" or isinstance(error, RequestTimeout):
                    raise
            else:
                return response.status, body
            finally:
                self.release(connection)

    async def acquire(self, seconds: float) -> ClientConnection:
        """Give an idle connection or open one; raises PoolExhausted if all stay in use for `seconds`."""
        if self._slots.locked():
            try:
                async with asyncio.timeout(seconds):
                    await self._slots.acquire()
            except TimeoutError:
                raise PoolExhausted from None
        else:
            await self._slots.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if connection.open and self._loop.time() - connection.idle_since < IDLE_SECONDS:
                    return connection
                connection.close()
            return await self._connect(seconds)
        except BaseException:
            self._slots.release()
            raise

    def release(self, connection: ClientConnection) -> None:
        """Keep a connection for the next request if it is reusable, else close it."""
        self._slots.release()
        if connection.reusable and not self._closed:
            connection.become_idle()
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close all idle connections now, and the others when they are released."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _connect(self, seconds: float) -> ClientConnection:
        try:
            async with asyncio.timeout(seconds):
                address = await self._resolve()
                _, connection = await self._loop.create_connection(
                    lambda: ClientConnection(self._loop, self._peer), address, self._port, ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )  # fmt: skip
        except TimeoutError as error:
            raise RequestTimeout(f"No connection within {seconds:g} s.", "unsent") from error
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be encoded, or that TLS does not take
            raise RequestFailed(f"No connection: {error}.", "unsent") from error
        return connection

    async def _resolve(self) -> str:
        """Resolve the host to the checked address to connect to, so that the name cannot change in between."""
        found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        address = str(found[0][4][0])
        plain = ipaddress.ip_address(address.split("%")[0])
        if isinstance(plain, ipaddress.IPv6Address) and plain.ipv4_mapped is not None:
            plain = plain.ipv4_mapped
        if any(plain.version == network.version and plain in network for network in self._refused):
            raise RequestFailed(f"The {self._peer}'s name leads to an address that is refused.", "unsent")
        return address


@cache
def _context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
