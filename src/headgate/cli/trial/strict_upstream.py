"""A strict upstream: an HTTP server that counts arrivals per user, refuses what is too much, and remembers everything.

It is the demo upstream of `headgate up` and the other side of `headgate relay prove`, of the tests and of the benchmark.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import h11

from headgate.cli.trial.strict_limits import ArrivalLimiter, SlidingLog, largest_window

CHUNK: Final = 65_536
NOBODY: Final = "nobody"
MOST_USERS: Final = 10_000


class Delays:
    """Random ways through the network: log-normal, and now and then a long tail."""

    def __init__(self, seconds: float = 0.0, *, tail: float = 0.0, tail_share: float = 0.03, seed: int = 1) -> None:
        self.seconds, self.tail, self.tail_share = seconds, tail, tail_share
        self._random = random.Random(seed)

    def one(self) -> float:
        """Give the next delay."""
        if not self.seconds:
            return 0.0
        slow = self.tail * self._random.random() if self._random.random() < self.tail_share else 0.0
        return self.seconds * self._random.lognormvariate(0, 0.5) + slow


class StrictUpstream:
    """Counts each request when it has travelled; a limiter per user decides."""

    def __init__(
        self,
        limiter: Callable[[], ArrivalLimiter] = lambda: SlidingLog(10, 60.0),
        delays: Delays | None = None,
        *,
        recording: bool = True,
    ) -> None:
        """Without `recording` it only decides, for a bounded number of users: it may then run for ever."""
        self.delays = delays or Delays()
        self.arrivals: dict[str, list[float]] = {}
        self.bodies: list[bytes] = []
        self.refused = 0
        self.port = 0
        self._recording = recording
        self._limiter = limiter
        self._limiters: dict[str, ArrivalLimiter] = {}
        self._loop = asyncio.get_running_loop()
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Give its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def count(self) -> int:
        """Give the number of all arrivals."""
        return sum(len(moments) for moments in self.arrivals.values())

    def seen(self, count: int) -> bool:
        """Tell whether so many have arrived."""
        return self.count >= count

    def largest(self, seconds: float) -> int:
        """Give the most arrivals of one user in any window of this length."""
        return max((largest_window(moments, seconds) for moments in self.arrivals.values()), default=0)

    @asynccontextmanager
    async def open(self, port: int = 0) -> AsyncIterator[StrictUpstream]:
        """Listen on loopback."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in tuple(self._connections):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        http = h11.Connection(h11.SERVER)
        try:
            with suppress(OSError, h11.RemoteProtocolError, asyncio.CancelledError):  # cancelled: the server closes
                while await self._answer(http, reader, writer):
                    http.start_next_cycle()
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request: h11.Request | None = None
        body = b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(CHUNK))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data) if self._recording else b""
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        assert request is not None
        named = {bytes(name): bytes(value).decode("latin-1") for name, value in request.headers}
        await asyncio.sleep(self.delays.one())
        status, headers, answer = self._arrive(named.get(b"x-user-id", NOBODY), body)
        await asyncio.sleep(self.delays.one())
        content = json.dumps(answer).encode()
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
        writer.write(http.send(h11.Response(status_code=status, headers=headers)) or b"")
        if request.method != b"HEAD":
            writer.write(http.send(h11.Data(data=content)) or b"")
        writer.write(http.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        return http.our_state is h11.DONE and http.their_state is h11.DONE

    def _arrive(self, user: str, body: bytes) -> tuple[int, list[tuple[str, str]], dict[str, object]]:
        now = self._loop.time()
        if self._recording:
            self.arrivals.setdefault(user, []).append(now)
            self.bodies.append(body)
        if user not in self._limiters:
            if len(self._limiters) >= MOST_USERS and not self._recording:
                del self._limiters[next(iter(self._limiters))]
            self._limiters[user] = self._limiter()
        if self._limiters[user].arrive(now):
            return 200, [], {"user": user}
        self.refused += 1
        wait = self._limiters[user].wait(now)
        return 429, [("Retry-After", str(int(wait) + 1))], {"error": "too many requests", "user": user}
