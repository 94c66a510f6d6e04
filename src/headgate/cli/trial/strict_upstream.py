"""A strict upstream: an HTTP server that counts requests per user and refuses those over its limit.

It is the demo upstream of `headgate up`, and the upstream in `headgate relay prove`, the tests and the benchmark.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from headgate.cli.trial.strict_limits import ArrivalLimiter, SlidingLog, largest_window
from headgate.http.exchange import Exchange
from headgate.http.listener import listen
from headgate.http.responses import rendered
from headgate.http.routes import Answer
from headgate.http.server import listening

NOBODY: Final = b"nobody"
MOST_USERS: Final = 10_000


class Delays:
    """Random network delays: log-normal, with an occasional long tail."""

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
    """Counts each request after its network delay, and lets a limiter per user allow or refuse it."""

    def __init__(
        self,
        limiter: Callable[[], ArrivalLimiter] = lambda: SlidingLog(10, 60.0),
        delays: Delays | None = None,
        *,
        recording: bool = True,
    ) -> None:
        """Without `recording`, keep no arrivals or bodies and a bounded number of limiters, to run for ever."""
        self.delays = delays or Delays()
        self.arrivals: dict[str, list[float]] = {}
        self.bodies: list[bytes] = []
        self.refused = 0
        self.port = 0
        self._recording = recording
        self._limiter = limiter
        self._limiters: dict[str, ArrivalLimiter] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def url(self) -> str:
        """Give its base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def count(self) -> int:
        """Give the number of recorded arrivals."""
        return sum(len(moments) for moments in self.arrivals.values())

    def seen(self, count: int) -> bool:
        """Tell whether at least this many requests have arrived."""
        return self.count >= count

    def largest(self, seconds: float) -> int:
        """Give the most arrivals of one user in any window of this length."""
        return max((largest_window(moments, seconds) for moments in self.arrivals.values()), default=0)

    @asynccontextmanager
    async def open(self, port: int = 0) -> AsyncIterator[StrictUpstream]:
        """Listen on loopback; connections that are still open at the end are aborted."""
        with listening("127.0.0.1", port) as sock:
            self.port = sock.getsockname()[1]
            async with listen(self._serve, sock, stop_seconds=0):
                yield self

    async def _serve(self, exchange: Exchange) -> None:
        body, more = b"", True
        while more:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"] if self._recording else b""
            more = message["more_body"]
        await asyncio.sleep(self.delays.one())
        answer = self._arrive(exchange.headers.get(b"x-user-id", NOBODY).decode("latin-1"), body)
        await asyncio.sleep(self.delays.one())
        status, head, content = rendered(answer, 200)
        head += b"content-length: %d\r\n\r\n" % len(content)
        exchange.respond(status, head, b"" if exchange.target.method == "HEAD" else content)

    def _arrive(self, user: str, body: bytes) -> Answer:
        now = self._loop.time()
        if self._recording:
            self.arrivals.setdefault(user, []).append(now)
            self.bodies.append(body)
        if user not in self._limiters:
            if len(self._limiters) >= MOST_USERS and not self._recording:
                del self._limiters[next(iter(self._limiters))]
            self._limiters[user] = self._limiter()
        if self._limiters[user].arrive(now):
            return Answer(json.dumps({"user": user}))
        self.refused += 1
        headers = {"Retry-After": str(int(self._limiters[user].wait(now)) + 1)}
        return Answer(json.dumps({"error": "too many requests", "user": user}), 429, headers)
