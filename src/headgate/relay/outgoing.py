"""Connections to upstreams: HTTP/1.1, kept open and used again, written by h11 and nothing hidden.

Two facts decide about a permit, and general clients tell neither: whether any byte of a request left, and the moment the
first byte of its answer came.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import h11

from headgate.relay.headers import Headers
from headgate.relay.model import Upstream
from headgate.relay.problems import UpstreamFailed, UpstreamTimeout

CHUNK: Final = 65_536
HEAD_BYTES: Final = 65_536
IDLE_SECONDS: Final = 4.0

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Body = AsyncIterator[bytes]


class Connection:
    """One open connection; an exchange at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._loop = asyncio.get_running_loop()
        self.idle_since = 0.0
        self.first_byte: float | None = None
        self.status = 0
        self.headers: Headers = []

    async def ask(self, head: h11.Request, body: Body | None, *, begin: Callable[[], None], seconds: float) -> None:
        """Send a request and wait for the head of its answer. `begin` is called right before the first byte leaves."""
        self.first_byte = None
        data = self._http.send(head)
        if body is None:
            data = (data or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        begin()
        self._writer.write(data or b"")
        limit = self._loop.time() + seconds
        sending = asyncio.ensure_future(self._upload(body)) if body is not None else None
        try:
            async with asyncio.timeout_at(limit):
                await self._read_head(sending)
        except TimeoutError as error:
            raise UpstreamTimeout(f"No answer came within {seconds:g} s.", outcome="unknown") from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise self._failed(error) from error
        finally:
            if sending is not None and not sending.done():
                # It answered before it had read everything: this connection cannot be used for another request.
                sending.cancel()
                await asyncio.wait((sending,))

    async def chunks(self, seconds: float) -> AsyncIterator[bytes]:
        """Give the body as it comes; silence longer than `seconds` ends it."""
        try:
            while True:
                async with asyncio.timeout(seconds):
                    event = await self._event()
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    return
        except TimeoutError as error:
            raise UpstreamTimeout("The answer stopped half-way.", outcome="answered") from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise self._failed(error) from error

    @property
    def reusable(self) -> bool:
        """Tell whether another request may follow on this connection."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    @property
    def fresh(self) -> bool:
        """Tell whether it still looks open after its rest."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    def rest(self) -> None:
        """Make ready for the next request."""
        self._http.start_next_cycle()
        self.idle_since = self._loop.time()

    def close(self) -> None:
        """End it at once; what is not yet sent is not sent."""
        self._writer.transport.abort()

    async def _upload(self, body: Body) -> None:
        async for chunk in body:
            if chunk:
                self._writer.write(self._http.send(h11.Data(data=chunk)) or b"")
                await self._writer.drain()
        self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
        await self._writer.drain()

    async def _read_head(self, sending: asyncio.Future[None] | None) -> None:
        reading = asyncio.ensure_future(self._head())
        try:
            if sending is not None:
                await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
                trouble = sending.exception() if sending.done() and not reading.done() else None
                if trouble is not None and not isinstance(trouble, OSError):
                    raise trouble  # the client's side broke: our request cannot be completed
                # Where the upstream has stopped reading, perhaps it says why.
            await reading
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.wait((reading,))

    async def _head(self) -> None:
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                self.status = event.status_code
                self.headers = [(bytes(name), bytes(value)) for name, value in event.headers]
                return

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                if isinstance(event, h11.ConnectionClosed):
                    raise ConnectionResetError("it was closed before the answer was whole")
                return event  # type: ignore[return-value]
            data = await self._reader.read(CHUNK)
            if data and self.first_byte is None:
                self.first_byte = self._loop.time()
            self._http.receive_data(data)

    def _failed(self, error: Exception) -> UpstreamFailed:
        outcome = "unknown" if self.first_byte is None else "answered"
        return UpstreamFailed(f"The upstream failed: {str(error) or 'the connection was lost'}.", outcome=outcome)


class Pool:
    """Connections to one upstream, the one used last first."""

    def __init__(self, policy: Upstream, refused: Sequence[Network]) -> None:
        parts = urlsplit(policy.base_url)
        self.key = (policy.base_url, policy.verify_tls, policy.max_connections)
        self._host = parts.hostname or ""
        self._tls = _context(policy.verify_tls) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._refused = refused
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._room = asyncio.Semaphore(policy.max_connections)
        self._loop = asyncio.get_running_loop()

    async def take(self, seconds: float) -> Connection:
        """Give a connection; one that rested too long is not trusted."""
        await self._room.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if connection.fresh and self._loop.time() - connection.idle_since < IDLE_SECONDS:
                    return connection
                self._drop(connection)
            connection = await self._connect(seconds)
        except BaseException:
            self._room.release()
            raise
        self._open.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request if it can be, else end it."""
        self._room.release()
        if connection.reusable and connection.fresh:
            connection.rest()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def close(self) -> None:
        """End all that rest."""
        while self._idle:
            self._drop(self._idle.pop())

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)

    async def _connect(self, seconds: float) -> Connection:
        try:
            async with asyncio.timeout(seconds):
                address = await self._resolve()
                reader, writer = await asyncio.open_connection(
                    address, self._port, ssl=self._tls, server_hostname=self._host if self._tls else None, limit=CHUNK
                )
        except TimeoutError as error:
            raise UpstreamTimeout(f"No connection within {seconds:g} s.", outcome="unsent") from error
        except (OSError, ssl.SSLError) as error:
            raise UpstreamFailed(f"No connection: {error}.", outcome="unsent") from error
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Connection(reader, writer)

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
