"""Connections to upstreams: HTTP/1.1, kept open and used again, with nothing hidden.

Two facts decide about a permit, and general clients tell neither: whether any byte of a request left, and the moment the
first byte of its answer came.
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

from headgate.http.client_response import BadAnswer, ClientResponse, Headers
from headgate.http.problems import UpstreamFailed, UpstreamTimeout
from headgate.kit.tasks import cancel

BUFFER: Final = 262_144
IDLE_SECONDS: Final = 4.0

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Body = AsyncIterator[bytes]
_TOKEN: Final = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_NAMES = re.compile(rb"%b(?:,%b)*" % (_TOKEN, _TOKEN))
_LINE = re.compile(rb"%b [!-~]+" % _TOKEN)


def write_head(method: str, target: bytes, headers: Headers) -> bytes:
    """Write a request's head; raises UpstreamFailed if it could be read in two ways."""
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
        raise UpstreamFailed(
            "The request cannot be written: its head has signs that it may not have.", outcome="unsent"
        )
    return head


class PoolExhausted(Exception):
    """All connections that the pool may have stayed in use."""


class ClientConnection(asyncio.Protocol):
    """One open connection; an exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._response: ClientResponse | None = None
        self._error: Exception | None = None
        self._closed = False
        self._sent = True
        self._held_back = False
        self._unparsed = b""
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self.idle_since = 0.0

    # The exchange

    async def ask(
        self, method: str, head: bytes, body: Body | None, *, length: int | None, begin: Callable[[], None], seconds: float
    ) -> ClientResponse:  # fmt: skip
        """Send a request and wait for the head of its answer. `begin` is called right before the first byte leaves."""
        transport = self._transport
        if transport is None or self._closed:
            raise UpstreamFailed("The connection was closed before anything was sent.", outcome="unsent")
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
                    trouble = sending.exception()
                    sending = None
                    if trouble is not None and not isinstance(trouble, OSError):
                        raise trouble  # the client's side broke: our request cannot be completed
                    # Where the upstream has stopped reading, perhaps it says why.
                    continue
                if not await self._wait(limit):
                    raise UpstreamTimeout(f"No answer came within {seconds:g} s.", outcome="unknown")
        finally:
            if sending is not None:
                # It answered before it had read everything: this connection cannot be used for another request.
                await cancel(sending)
        return response

    async def chunks(self, seconds: float) -> AsyncIterator[bytes]:
        """Give the body as it comes; silence longer than `seconds` ends it."""
        response = self._response
        assert response is not None
        while True:
            while response.chunks:
                chunk = response.take()
                if self._held_back:
                    self._read_on()
                yield chunk
            if response.complete:
                return
            if self._error is not None or self._closed:
                raise self._failed(self._error)
            if not await self._wait(self._loop.time() + seconds):
                raise UpstreamTimeout("The answer stopped half-way.", outcome="answered")

    async def body_begins(self, seconds: float) -> bool:
        """Wait until some of the body is here, or its end; False if neither came for so long."""
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
        """Give the moment when the answer began, None if it has not."""
        return None if self._response is None else self._response.first_byte

    @property
    def reusable(self) -> bool:
        """Tell whether another request may follow on this connection."""
        response = self._response
        return response is not None and response.complete and response.keep and self._sent and not self._closed

    @property
    def open(self) -> bool:
        """Tell whether it still looks open after its rest."""
        return not self._closed

    def rest(self) -> None:
        """Make ready for the next request."""
        self._response = None
        self.idle_since = self._loop.time()
        if self._held_back:
            self._read_on()

    def close(self) -> None:
        """End it at once; what is not yet sent is not sent."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _upload(self, body: Body, length: int | None) -> None:
        """Send a body: in chunks if nobody knows its length, else exactly so much."""
        transport = cast("asyncio.Transport", self._transport)
        left = length or 0
        try:
            async for chunk in body:
                if not chunk:
                    continue
                left -= len(chunk)
                if length is not None and left < 0:
                    raise UpstreamFailed("The body is longer than it was said to be.", outcome="unknown")
                transport.write(chunk if length is not None else b"%x\r\n%b\r\n" % (len(chunk), chunk))
                if self._drained is not None:
                    await self._drained
                if self._closed:
                    raise ConnectionResetError
            if length is None:
                transport.write(b"0\r\n\r\n")
            elif left:
                raise UpstreamFailed("The body is shorter than it was said to be.", outcome="unknown")
            self._sent = True
        finally:
            self._wake()

    def _read_on(self) -> None:
        self._held_back = False
        if self._unparsed:
            self._loop.call_soon(self._parse_on)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        """Parse as much as one turn of the loop may cost; the rest is kept, and nothing more is read meanwhile."""
        response, transport = self._response, cast("asyncio.Transport", self._transport)
        if response is None:
            self.close()  # words that nobody asked for
            return
        try:
            self._unparsed = data[response.feed(data, self._loop.time()) :]
        except BadAnswer as error:
            self._error = error
            self.close()
        if not self._closed and (self._unparsed or response.buffered > BUFFER):
            self._held_back = response.buffered > BUFFER
            transport.pause_reading()
            if not self._held_back:
                self._loop.call_soon(self._parse_on)
        self._wake()

    def _parse_on(self) -> None:
        if self._closed or self._held_back:
            return
        data, self._unparsed = self._unparsed, b""
        if data:
            self._parse(data)
        if not self._unparsed and not self._held_back:
            self._read_on()

    async def _wait(self, limit: float) -> bool:
        """Sleep until anything happened; False if nothing did until then."""
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

    def _failed(self, error: Exception | None) -> UpstreamFailed:
        answered = self.first_byte is not None
        words = str(error or "") or "the connection was lost before the answer was whole"
        return UpstreamFailed(f"The upstream failed: {words}.", outcome="answered" if answered else "unknown")

    # What the transport calls

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
        except BadAnswer as bad:
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
    """Connections to one upstream, the one used last first."""

    def __init__(self, base_url: str, *, verify_tls: bool, most: int, refused: Sequence[Network] = ()) -> None:
        parts = urlsplit(base_url)
        self.key = (base_url, verify_tls, most)
        self._host = parts.hostname or ""
        self._tls = _context(verify_tls) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._refused = refused
        self._idle: deque[ClientConnection] = deque()
        self._room = asyncio.Semaphore(most)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def take(self, seconds: float) -> ClientConnection:
        """Give a connection; one that rested too long is not trusted. Raises PoolExhausted if all stay in use for so long."""
        if self._room.locked():
            try:
                async with asyncio.timeout(seconds):
                    await self._room.acquire()
            except TimeoutError:
                raise PoolExhausted from None
        else:
            await self._room.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if connection.open and self._loop.time() - connection.idle_since < IDLE_SECONDS:
                    return connection
                connection.close()
            return await self._connect(seconds)
        except BaseException:
            self._room.release()
            raise

    def give_back(self, connection: ClientConnection) -> None:
        """Keep a connection for the next request if it can be, else end it."""
        self._room.release()
        if connection.reusable and not self._closed:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """End all that rest, and from now on each that is given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _connect(self, seconds: float) -> ClientConnection:
        try:
            async with asyncio.timeout(seconds):
                address = await self._resolve()
                _, connection = await self._loop.create_connection(
                    lambda: ClientConnection(self._loop), address, self._port, ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )  # fmt: skip
        except TimeoutError as error:
            raise UpstreamTimeout(f"No connection within {seconds:g} s.", outcome="unsent") from error
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be encoded, or that TLS does not take
            raise UpstreamFailed(f"No connection: {error}.", outcome="unsent") from error
        return connection

    async def _resolve(self) -> str:
        """Find the address, check it, and connect to that very one: a name cannot change in between."""
        found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        address = str(found[0][4][0])
        plain = ipaddress.ip_address(address.split("%")[0])
        if isinstance(plain, ipaddress.IPv6Address) and plain.ipv4_mapped is not None:
            plain = plain.ipv4_mapped
        if any(plain.version == network.version and plain in network for network in self._refused):
            raise UpstreamFailed("The upstream's name leads to an address that is refused.", outcome="unsent")
        return address


@cache
def _context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
