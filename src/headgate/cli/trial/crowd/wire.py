"""The least HTTP and WebSocket that a player needs, because one process has to be thousands of them.

The SDK's client costs several hundred microseconds a call, which is nothing for one player and too much for ten thousand.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from collections import deque
from typing import Final
from urllib.parse import urlsplit

from headgate.kit.problems import HeadgateError

CONNECTIONS: Final = 64
ANSWER_SECONDS: Final = 15.0
_MOST_HEAD: Final = 65_536


class Unreachable(HeadgateError):
    """Nobody answers there."""

    code, status = "unreachable", 503


class CrowdClient:
    """A few connections to a gateway, shared by all players."""

    def __init__(self, url: str, token: str | None, connections: int = CONNECTIONS) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise Unreachable(
                f"The crowd speaks plain http only, and {url} is something else; name a gateway directly."
            )
        self._host, self._port = parts.hostname, parts.port or 80
        self._fixed = f"Host: {parts.netloc}\r\n" + (f"X-API-Token: {token}\r\n" if token else "")
        self._free: deque[_Line] = deque()
        self._limit = asyncio.Semaphore(connections)

    async def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request and give its status and body; a connection that was closed meanwhile is replaced."""
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        if body:
            more += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        request = f"{method} {path} HTTP/1.1\r\n{self._fixed}{more}\r\n".encode() + body
        async with self._limit:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._send(request)
            except (OSError, TimeoutError, EOFError) as error:
                raise Unreachable(
                    f"No answer from {self._host}:{self._port}: {str(error) or 'it is too slow'}."
                ) from error

    async def _send(self, request: bytes) -> tuple[int, bytes]:
        while self._free:
            line = self._free.pop()
            try:
                return await self._ask(line, request)
            except EOFError:  # it was closed while nobody used it; our requests may be repeated
                continue
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(_Line, self._host, self._port)
        return await self._ask(line, request)

    async def _ask(self, line: _Line, request: bytes) -> tuple[int, bytes]:
        try:
            answer = await line.ask(request)
        except BaseException:
            line.close()
            raise
        self._free.append(line)
        return answer

    def close(self) -> None:
        """Close all connections."""
        while self._free:
            self._free.pop().close()


class _Line(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self) -> None:
        self._bytes = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._bytes = b""
        if self._transport.is_closing():
            self._answer.set_exception(EOFError("closed"))
        else:
            self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0 or self._answer is None or self._answer.done():
            return
        head = self._bytes[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._bytes) >= end + 4 + length:
            self._answer.set_result((_status(head), self._bytes[end + 4 : end + 4 + length]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(EOFError("the connection was closed"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class CrowdSocket:
    """A WebSocket that listens to nothing it is told."""

    def __init__(self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        self._writer = writer
        # `leave` and `crash` end it; a `Tasks` for each of thousands of players would cost more.
        self._draining = asyncio.create_task(_ignore(reader))

    async def say(self, text: bytes) -> None:
        """Send a text message."""
        self._writer.write(_masked(0x81, text))

    @property
    def closed(self) -> bool:
        """Tell whether the other side has closed it."""
        return self._draining.done()

    def leave(self) -> None:
        """Close as a player does who has had enough."""
        self._writer.write(_masked(0x88, struct.pack("!H", 1000)))
        self._writer.close()
        self._draining.cancel()

    def crash(self) -> None:
        """Vanish without a word."""
        self._writer.transport.abort()
        self._draining.cancel()


def check_address(arena: str | None) -> None:
    """Refuse an arena that no player could reach from here; None is whichever a ticket names."""
    parts = urlsplit(arena or "ws://named.by.the.ticket")
    if parts.scheme != "ws" or not parts.hostname:
        raise Unreachable(
            f"The crowd enters by plain ws:// only, and {arena} is something else; name an arena directly."
        )


async def handshake(address: str, ticket: str) -> tuple[int, CrowdSocket | None]:
    """Try to enter an arena: 101 and a socket, or the status of the refusal."""
    check_address(address)
    parts = urlsplit(address)
    key = base64.b64encode(os.urandom(16)).decode()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=_MOST_HEAD)
            writer.write(
                f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {ticket}\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Unreachable(f"The arena at {parts.netloc} does not answer: {str(error) or 'it is too slow'}.") from error
    status = _status(head)
    if status != 101:
        writer.close()
        return status, None
    return status, CrowdSocket(writer, reader)


def _status(head: bytes) -> int:
    """Read the status of an answer; 0 if it is no HTTP."""
    return int(head[9:12]) if head[:5].lower() == b"http/" and head[9:12].isdigit() else 0


async def _ignore(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65_536):
            pass
    except OSError:
        return


def _masked(first: int, content: bytes) -> bytes:
    """Write a client's frame; a mask of zeros is a mask."""
    size = len(content)
    length = struct.pack("!B", 0x80 | size) if size < 126 else struct.pack("!BH", 0x80 | 126, size)
    return bytes((first,)) + length + b"\0\0\0\0" + content
