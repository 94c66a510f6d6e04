"""A listening socket, the connections made to it, and the application that answers them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import structlog

from headgate.gateway.connection import Connection
from headgate.gateway.exchange import Exchange, Heads
from headgate.gateway.heads import KnownHeads
from headgate.kit.http import Receive, Scope

BACKLOG: Final = 4096
MOST_CONNECTIONS: Final = 20_000
SWEEP_SECONDS: Final = 1.0

log = structlog.get_logger()
Rest = Coroutine[Any, Any, None]
# Answers a request at once, or gives the work that is left to do, for which a task is made.
Serve = Callable[[Exchange], Rest | None]


class Listener:
    """Takes connections and answers their requests with an application."""

    def __init__(self, application: Serve, most_connections: int = MOST_CONNECTIONS) -> None:
        self._application = application
        self._most = most_connections
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._exchanges: set[Exchange] = set()
        self._unflushed: list[Connection] = []
        self._none_left = asyncio.Event()
        self._none_left.set()
        self.heads = Heads()
        self.known = KnownHeads()
        self.now = self._loop.time()
        self.stopping = False

    def arrived(self, connection: Connection) -> bool:
        """A connection was made; tell whether there is room for it."""
        self._connections.add(connection)
        self._none_left.clear()
        return len(self._connections) <= self._most

    def left(self, connection: Connection) -> None:
        """A connection was lost."""
        self._connections.discard(connection)
        if not self._connections:
            self._none_left.set()

    def serve(self, exchange: Exchange) -> None:
        """Answer a request, or start to."""
        try:
            rest = self._application(exchange)
        except Exception:  # the top of a request: the application has said what it could
            log.exception("request failed")
            exchange.abort()
            return
        if rest is not None:
            self._exchanges.add(exchange)
            exchange.task = self._loop.create_task(self._run(exchange, rest))

    def flush_later(self, connection: Connection) -> None:
        """Flush this connection at the end of this turn of the loop."""
        if not self._unflushed:
            self._loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        connections, self._unflushed = self._unflushed, []
        for connection in connections:
            connection.flush()

    def stop(self) -> None:
        """Let each connection end with the request that is under way; those without one end now."""
        self.stopping = True
        for connection in tuple(self._connections):
            connection.close_if_idle()

    async def finished(self, seconds: float | None = None) -> None:
        """Wait until all connections are closed and all handlers done; what takes longer is broken off."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none_left.wait()
        for connection in tuple(self._connections):
            connection.abort()
        tasks = [exchange.task for exchange in self._exchanges if exchange.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()

    async def sweep(self) -> None:
        """Keep the clock and end what has lasted too long, again and again."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.now = self._loop.time()
            self.heads.tick()
            for connection in tuple(self._connections):
                connection.sweep(self.now)

    async def _run(self, exchange: Exchange, rest: Rest) -> None:
        try:
            await rest
        except Exception:  # the top of a request: the application has said what it could
            log.exception("request failed")
        finally:
            self._exchanges.discard(exchange)
            if not exchange.finished and not exchange.gone:
                exchange.abort()


def asgi(application: Callable[[Scope, Receive, Exchange], Awaitable[None]]) -> Serve:
    """Serve a plain ASGI application."""

    async def serve(exchange: Exchange) -> None:
        await application(exchange.scope, exchange.receive, exchange)

    return serve


@asynccontextmanager
async def listen(
    application: Serve,
    listener: socket.socket,
    most_connections: int = MOST_CONNECTIONS,
    stop_seconds: float | None = None,
) -> AsyncIterator[Listener]:
    """Serve on an open socket; leaving the block lets what is under way finish, for so long if that is given."""
    house = Listener(application, most_connections)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(house), sock=listener, backlog=BACKLOG)
    sweeping = asyncio.ensure_future(house.sweep())
    try:
        yield house
    finally:
        server.close()
        house.stop()
        try:
            await house.finished(stop_seconds)
        finally:
            sweeping.cancel()
