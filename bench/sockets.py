"""Thousands of WebSocket clients in one process, which count what reaches them and do nothing else with it."""

from __future__ import annotations

import asyncio
import base64
import os
import resource
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from headgate.arena.protocol import Say, encoded

AT_ONCE: Final = 100
WAIT_SECONDS: Final = 60.0
_KEY: Final = base64.b64encode(os.urandom(16)).decode()


class Ear(asyncio.Protocol):
    """One client: frames are counted by their headers, as a server's frames are not masked."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._head = b""
        self._open = False
        self._skip = 0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._open:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.opened.set_exception(ConnectionRefusedError(head.decode()))
                return
            self._open, self._head = True, b""
            self.opened.set_result(None)
        self._count(data)

    def _count(self, data: bytes) -> None:
        data = self._head + data
        at = self._skip
        size = len(data)
        while at + 2 <= size:
            length, begin = data[at + 1], at + 2
            if length == 126:
                if at + 4 > size:
                    break
                length, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            if data[at] == 0x81:
                self._audience.heard += 1
            elif data[at] == 0x89 and self.transport is not None:  # a ping, which is short and comes whole
                self.transport.write(bytes((0x8A, 0x80 | length)) + b"\0\0\0\0" + data[begin : begin + length])
            at = begin + length
        self._head, self._skip = (data[at:], 0) if at <= size else (b"", at - size)


class Audience:
    """Many clients of one server."""

    def __init__(self) -> None:
        self.heard = 0
        self.ears: list[Ear] = []
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def connect(self, urls: Sequence[str]) -> None:
        """Open a connection to each address, a hundred at a time."""
        for start in range(0, len(urls), AT_ONCE):
            await asyncio.gather(*(self._connect(url) for url in urls[start : start + AT_ONCE]))

    async def _connect(self, url: str) -> None:
        parts = urlsplit(url)
        ear = Ear(self)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: ear, parts.hostname or "", parts.port or 80)
        assert ear.transport is not None
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        ear.transport.write(
            f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {_KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        await ear.opened
        self.ears.append(ear)

    async def settle(self) -> None:
        """Wait until nothing more arrives: everybody's joining is announced to everybody."""
        before = -1
        while before != self.heard:
            before = self.heard
            await asyncio.sleep(0.5)

    async def listen(self, speakers: int, text: str) -> int:
        """Let some speak at the same moment, wait until all others have heard all of it, and give how much that was."""
        wanted = self.heard + speakers * (len(self.ears) - 1)
        said = encoded(Say(text))
        frame = bytes((0x81, 0x80 | len(said))) + b"\0\0\0\0" + said
        for ear in self.ears[:speakers]:
            assert ear.transport is not None
            ear.transport.write(frame)
        async with asyncio.timeout(WAIT_SECONDS):
            while self.heard < wanted:  # counted by thousands of protocols, which should do nothing else
                await asyncio.sleep(0.001)
        return speakers * (len(self.ears) - 1)

    def close(self) -> None:
        """Hang up."""
        for ear in self.ears:
            assert ear.transport is not None
            ear.transport.abort()
