"""The HTTP and WebSocket client of simulated players, small enough for ten thousand of them in one process.

The SDK's client costs several hundred microseconds a call, too much for a crowd.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from typing import Final
from urllib.parse import urlsplit

from headgate.http.client import Pool, RequestFailed, write_head
from headgate.http.client_response import Headers
from headgate.kit.problems import HeadgateError

CONNECTIONS: Final = 64
RESPONSE_SECONDS: Final = 15.0
MAX_HEAD_BYTES: Final = 65_536


class Unreachable(HeadgateError):
    """There is no answer from this address."""

    code, status = "unreachable", 503


class CrowdClient:
    """A pool of connections to a gateway, shared by all players."""

    def __init__(self, url: str, token: str | None, connections: int = CONNECTIONS) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise Unreachable(
                f"The crowd speaks plain http only, and {url} is something else; name a gateway directly."
            )
        self._address = f"{parts.hostname}:{parts.port or 80}"
        self._headers: Headers = [(b"host", parts.netloc.encode())]
        if token:
            self._headers.append((b"x-api-token", token.encode()))
        self._pool = Pool(url, max_connections=connections, peer="gateway")
        # Players wait here for a connection, however long it takes; the pool itself would give up.
        self._limit = asyncio.Semaphore(connections)

    async def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request, and give the status and body of its response."""
        lines = self._headers + [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        if body:
            lines += ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
        try:
            request = write_head(method, path.encode(), lines) + body
            async with self._limit:
                return await self._pool.fetch(method, request, RESPONSE_SECONDS)
        except RequestFailed as error:
            raise Unreachable(f"No answer from {self._address}: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class CrowdSocket:
    """A WebSocket that ignores all messages it receives."""

    def __init__(self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        self._writer = writer
        # `leave` and `crash` end it; one process has ten thousand of these.
        self._reading = asyncio.create_task(_ignore(reader))

    def send(self, text: bytes) -> None:
        """Send a text message."""
        self._writer.write(_masked(0x81, text))

    @property
    def closed(self) -> bool:
        """Tell whether the other side has closed it."""
        return self._reading.done()

    def leave(self) -> None:
        """Close with the close frame of a player who leaves."""
        self._writer.write(_masked(0x88, struct.pack("!H", 1000)))
        self._writer.close()
        self._reading.cancel()

    def crash(self) -> None:
        """Abort the connection, as a crash does."""
        self._writer.transport.abort()
        self._reading.cancel()


def check_address(arena: str | None) -> None:
    """Raise Unreachable for an arena address that this client cannot use; None means the one that a ticket names."""
    parts = urlsplit(arena or "ws://named.by.the.ticket")
    if parts.scheme != "ws" or not parts.hostname:
        raise Unreachable(
            f"The crowd enters by plain ws:// only, and {arena} is something else; name an arena directly."
        )


async def handshake(address: str, ticket: str) -> tuple[int, CrowdSocket | None]:
    """Open a WebSocket to an arena: gives 101 and a socket, or the status of the refusal."""
    check_address(address)
    parts = urlsplit(address)
    headers = [
        (b"host", parts.netloc.encode()), (b"upgrade", b"websocket"), (b"connection", b"upgrade"),
        (b"sec-websocket-key", base64.b64encode(os.urandom(16))), (b"sec-websocket-version", b"13"),
        (b"authorization", f"Bearer {ticket}".encode()),
    ]  # fmt: skip
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=MAX_HEAD_BYTES)
            writer.write(write_head("GET", (parts.path or "/").encode(), headers))
            head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, TimeoutError, RequestFailed, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Unreachable(f"The arena at {parts.netloc} does not answer: {str(error) or 'it is too slow'}.") from error
    status = int(head[9:12]) if head[:5].lower() == b"http/" and head[9:12].isdigit() else 0
    if status != 101:
        writer.close()
        return status, None
    return status, CrowdSocket(writer, reader)


async def _ignore(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65_536):
            pass
    except OSError:
        return


def _masked(first: int, content: bytes) -> bytes:
    """Write a masked frame; a mask of zeros saves the masking."""
    size = len(content)
    length = struct.pack("!B", 0x80 | size) if size < 126 else struct.pack("!BH", 0x80 | 126, size)
    return bytes((first,)) + length + b"\0\0\0\0" + content
