"""Connections of ours that tests hold at both ends: a transport that keeps what is written, and a server that echoes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from headgate.http.client_addresses import AddressCount
from headgate.http.connection import ServerConnection
from headgate.http.exchange import Exchange
from headgate.http.listener import Listener, asgi, listen
from headgate.http.routes import Receive, Scope
from headgate.http.server import listening
from tests.topology import HOST

Application = Callable[[Scope, Receive, Exchange], Any]
GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """The other end of a connection that is fed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Does nothing: a test that feeds it by hand stops by itself."""

    def resume_reading(self) -> None:
        """Nothing was stopped."""


async def parsed_all(connection: ServerConnection) -> None:
    """Wait until a connection that is fed by hand has parsed what it may: of much at once, a part in each turn of the loop."""
    while connection._unparsed:
        await asyncio.sleep(0)


class Served:
    """A listener with an application of the test's own."""

    def __init__(self, listener: Listener, port: int) -> None:
        self.listener = listener
        self.port = port

    async def connect(self, address: str = HOST) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port, local_addr=(address, 0))

    async def exchange(self, *parts: bytes) -> bytes:
        """Send bytes, in parts that arrive apart, and give all that comes back until the connection closes."""
        reader, writer = await self.connect()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


async def flood(port: int, head: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send a head and then the same piece for ever; give how much was taken until something was said, and what was said."""
    reader, writer = await asyncio.open_connection(HOST, port)
    sent = 0
    heard = asyncio.ensure_future(reader.read(4096))
    try:
        writer.write(head)
        async with asyncio.timeout(20):
            while not heard.done():
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
                await asyncio.wait((heard,), timeout=0.002)
            return sent, await heard
    except ConnectionError:
        return sent, b""
    finally:
        heard.cancel()
        writer.transport.abort()


@asynccontextmanager
async def served(
    application: Application, most_connections: int = 100, addresses: AddressCount | None = None
) -> AsyncIterator[Served]:
    with listening(HOST, 0) as socket:
        port = socket.getsockname()[1]
        async with listen(asgi(application), socket, most_connections, 2, addresses) as listener:
            yield Served(listener, port)


async def echo(scope: Scope, receive: Receive, send: Exchange) -> None:
    """Answer with what was asked, as JSON."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    told = {"method": scope["method"], "path": scope["path"], "query": scope["query_string"].decode()}
    told |= {"raw": scope["raw_path"].decode(), "body": body.decode(), "version": scope["http_version"]}
    told["headers"] = [[name.decode(), value.decode()] for name, value in scope["headers"]]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(told).encode()})


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        status, headers, _ = parsed(head)
        return status, headers, await reader.readexactly(int(headers.get("content-length", "0")))
