"""A listening socket, the connections made to it, and the application that answers them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from headgate.http.client_addresses import AddressCount
from headgate.http.connection import ServerConnection
from headgate.http.exchange import Exchange, StatusLines
from headgate.http.problems import AddressTooBusy, TooManyConnections
from headgate.http.request_head import HeaderCache
from headgate.http.routes import Receive, Scope
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.kit.tasks import Tasks

BACKLOG: Final = 4096
MOST_CONNECTIONS: Final = 20_000
SWEEP_SECONDS: Final = 1.0
# When stopping, how long a connection that was just made may take to send its request.
FIRST_REQUEST_SECONDS: Final = 1.0

log = get_logger()
Rest = Coroutine[Any, Any, None]
# Answers a request at once, or gives the work that is left to do, for which a task is made.
Serve = Callable[[Exchange], Rest | None]


class Listener:
    """Takes connections and answers their requests with an application."""

    def __init__(
        self, application: Serve, most_connections: int = MOST_CONNECTIONS, addresses: AddressCount | None = None
    ) -> None:
        self._application = application
        self._most = most_connections
        self._addresses = AddressCount(most_connections) if addresses is None else addresses
        self._loop = asyncio.get_running_loop()
        self._connections: set[ServerConnection] = set()
        self._refused: set[ServerConnection] = set()
        self._exchanges: set[Exchange] = set()
        self._unflushed: list[ServerConnection] = []
        self._none_left = asyncio.Event()
        self._none_left.set()
        self.heads = StatusLines()
        self.known = HeaderCache()
        self.now = self._loop.time()
        self.quiet = False
        self.stopping = False

    def arrived(self, connection: ServerConnection) -> HeadgateError | None:
        """A connection was made; say why there is no room for it, or None if there is."""
        self._connections.add(connection)
        self._none_left.clear()
        if len(self._connections) > self._most:
            refusal: HeadgateError = TooManyConnections(retry_after=1)
        elif not self._addresses.add(connection.client):
            refusal = AddressTooBusy(retry_after=1)
        else:
            return None
        self._refused.add(connection)
        return refusal

    def left(self, connection: ServerConnection) -> None:
        """A connection was lost."""
        self._connections.discard(connection)
        if connection in self._refused:
            self._refused.discard(connection)  # it was not counted
        else:
            self._addresses.remove(connection.client)
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
            # `finished` ends it; a `Tasks` would wrap each request in one more coroutine.
            exchange.task = self._loop.create_task(self._run(exchange, rest))

    def flush_later(self, connection: ServerConnection) -> None:
        """Flush this connection at the end of this turn of the loop."""
        if not self._unflushed:
            self._loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def parse_later(self, connection: ServerConnection) -> None:
        """Let this connection parse more in the next turn of the loop."""
        self._loop.call_soon(connection.parse_on)

    def _flush(self) -> None:
        connections, self._unflushed = self._unflushed, []
        for connection in connections:
            connection.flush()

    def be_quiet(self) -> None:
        """Go on serving, and let each connection end with its next answer, which says so: `Connection: close`."""
        self.quiet = True

    def stop(self) -> None:
        """Let each connection end with the request that is under way, or that it was made for; idle ones end now."""
        self.quiet = self.stopping = True
        self._close_idle(awaits_request=True)
        self._loop.call_later(FIRST_REQUEST_SECONDS, self._close_idle)

    def _close_idle(self, *, awaits_request: bool = False) -> None:
        for connection in tuple(self._connections):
            connection.close_if_idle(awaits_request=awaits_request)

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
    addresses: AddressCount | None = None,
) -> AsyncIterator[Listener]:
    """Serve on an open socket; leaving the block lets what is under way finish, for so long if that is given."""
    loop = asyncio.get_running_loop()
    house = Listener(application, most_connections, addresses)
    server = await loop.create_server(lambda: ServerConnection(house), sock=listener, backlog=BACKLOG)
    tasks = Tasks()
    tasks.start(house.sweep())
    try:
        yield house
    finally:
        # The kernel has let in some whom nobody took yet. Closing the socket would break their connections.
        accepted = _accept_all(listener)
        server.close()
        house.be_quiet()
        try:
            for each in accepted:
                await loop.connect_accepted_socket(lambda: ServerConnection(house), each)
            await asyncio.sleep(0)  # read what has come already before anybody is taken for idle
            house.stop()
            await house.finished(stop_seconds)
        finally:
            await tasks.close()


def _accept_all(listener: socket.socket) -> list[socket.socket]:
    """Take the connections that wait to be accepted."""
    accepted: list[socket.socket] = []
    with suppress(OSError):  # none is left, or the socket was closed by whoever owns it
        while len(accepted) < BACKLOG:
            accepted.append(listener.accept()[0])
    for each in accepted:
        each.setblocking(False)
    return accepted
