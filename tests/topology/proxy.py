"""A TCP proxy in front of one server that loses, delays, slices and cuts on command.

Each accepted connection is a `Link` with two pumps. The switches are read when bytes arrive, so they work at once on
open links and on new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import StrEnum

from tests.topology.node import HOST, login
from tests.topology.ports import free_port


class Fault(StrEnum):
    """What happens to the bytes of a link."""

    NONE = "none"
    DROP_REPLIES = "drop replies"  # requests arrive and run; the answers are swallowed
    DROP_REPLIES_AND_CUT = "drop replies and cut"  # the first answer is swallowed and the connection closed
    HOLD = "hold"  # nothing moves until the fault ends; then everything does
    BLACKHOLE = "blackhole"  # bytes vanish in both directions, connections stay open, new ones are accepted


class Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.replication = False
        self.lossy = False  # bytes of this link are gone: it can never carry a whole stream again

    def cut(self) -> None:
        """Reset both halves."""
        self.client.transport.abort()
        if self.server is not None:
            self.server.transport.abort()


class FaultyProxy:
    """Stands at `port`, forwards to `target`; a replication link may be broken apart from its clients' links."""

    def __init__(self, target: int, *, password: str = "") -> None:
        self.target = target
        self.port = free_port()
        self.delay_seconds = 0.0
        self.slice_bytes = 0
        self.links: set[Link] = set()
        self.accepted = 0
        self.requests_bytes = 0
        self._login = login(password)
        self._fault = Fault.NONE
        self._replication_only = False
        self._replies_only = False
        self._moving = asyncio.Event()
        self._moving.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"valkey://{self._login}{HOST}:{self.port}/0"

    def drop_replies(self, *, cut: bool = False) -> None:
        """Let requests run and swallow their replies; then keep the connection open, or cut it."""
        self._set(Fault.DROP_REPLIES_AND_CUT if cut else Fault.DROP_REPLIES)

    def hold(self, *, replies_only: bool = False) -> None:
        """Keep all bytes back until `heal`, or only what comes from the server."""
        self._set(Fault.HOLD)
        self._replies_only = replies_only

    def blackhole(self, *, replication_only: bool = False) -> None:
        """Swallow everything in both directions without a reset."""
        self._set(Fault.BLACKHOLE, replication_only)

    def delay(self, seconds: float) -> None:
        """Make each chunk late by so much in each direction."""
        self.delay_seconds = seconds

    def slice(self, size: int = 1) -> None:
        """Forward in pieces of so many bytes; 0: whole again."""
        self.slice_bytes = size

    def cut(self, matching: Callable[[Link], bool] = lambda link: True) -> int:
        """Reset the open links; say how many."""
        links = [link for link in self.links if matching(link)]
        for link in links:
            link.cut()
        return len(links)

    async def refuse(self) -> None:
        """Close the port and reset what is open: new connections are refused until `accept`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    async def accept(self) -> None:
        """Open the port again."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, HOST, self.port)

    def lose_held(self) -> None:
        """Cut the links with whatever was held back for them, and hold no more."""
        self.cut()
        self.heal()

    def heal(self) -> None:
        """End every fault; links that have lost bytes are cut, the others go on with what was held back."""
        self.delay_seconds, self.slice_bytes = 0.0, 0
        self._set(Fault.NONE)
        self.cut(lambda link: link.lossy)

    async def __aenter__(self) -> FaultyProxy:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.heal()
        await self.refuse()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _set(self, fault: Fault, replication_only: bool = False) -> None:
        self._fault, self._replication_only, self._replies_only = fault, replication_only, False
        if fault is Fault.HOLD:
            self._moving.clear()
        else:
            self._moving.set()

    def _fault_of(self, link: Link) -> Fault:
        return self._fault if link.replication or not self._replication_only else Fault.NONE

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        link = Link(writer)
        self.links.add(link)
        try:
            await self._pump(link, reader)
        except asyncio.CancelledError:
            pass  # the proxy closes; without this, asyncio's stream callback logs an error
        finally:
            link.cut()
            self.links.discard(link)
            self._tasks.discard(task)

    async def _pump(self, link: Link, reader: asyncio.StreamReader) -> None:
        if self._fault is Fault.BLACKHOLE and not self._replication_only:
            link.lossy = True
            while await _read(reader):
                pass
            return
        try:
            replies, link.server = await asyncio.open_connection(HOST, self.target)
        except OSError:
            return
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(self._forward_requests(link, link.server, reader))
            pumps.create_task(self._forward_replies(link, replies))

    async def _forward_requests(self, link: Link, server: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        while data := await _read(reader):
            link.replication = link.replication or b"PSYNC" in data
            self.requests_bytes += len(data)
            if not self._replies_only:
                await self._moving.wait()
            if self._fault_of(link) is Fault.BLACKHOLE:
                link.lossy = True
                continue
            await self._send(server, data)
        link.cut()

    async def _forward_replies(self, link: Link, reader: asyncio.StreamReader) -> None:
        while data := await _read(reader):
            await self._moving.wait()
            match self._fault_of(link):
                case Fault.DROP_REPLIES_AND_CUT:
                    break
                case Fault.DROP_REPLIES | Fault.BLACKHOLE:
                    link.lossy = True
                case _:
                    await self._send(link.client, data)
        link.cut()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        size = self.slice_bytes or len(data)
        with contextlib.suppress(OSError):
            for start in range(0, len(data), size):
                writer.write(data[start : start + size])
                await writer.drain()
                if self.slice_bytes:
                    await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Read what is there; a reset is an end like any other."""
    try:
        return await reader.read(65536)
    except OSError:
        return b""
