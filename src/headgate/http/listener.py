"""A listening socket, its connections, and the application that answers their requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from headgate.http.client_addresses import AddressCount
from headgate.http.connection import ServerConnection
from headgate.http.exchange import Exchange, StatusLines
from headgate.http.header_cache import HeaderCache
from headgate.http.problems import AddressTooBusy, TooManyConnections
from headgate.http.routes import Receive, Scope
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.kit.tasks import Tasks, cancel

BACKLOG: Final = 4096
MOST_CONNECTIONS: Final = 20_000
TIMER_SECONDS: Final = 1.0
# While stopping, how long a new connection may take to send its first request.
FIRST_REQUEST_SECONDS: Final = 1.0

log = get_logger()
RequestCoroutine = Coroutine[Any, Any, None]
# Answers a request at once, or returns a coroutine that answers it, which is then run in a task.
ServeRequest = Callable[[Exchange], RequestCoroutine | None]


class Listener:
    """Accepts connections and passes their requests to an application."""

    def __init__(
        self,
        application: ServeRequest,
        most_connections: int = MOST_CONNECTIONS,
        addresses: AddressCount | None = None,
        *,
        header_cache: bool = True,
    ) -> None:
        self._application = application
        self._most = most_connections
        self._addresses = AddressCount(most_connections) if addresses is None else addresses
        self._loop = asyncio.get_running_loop()
        self._connections: set[ServerConnection] = set()
        self._refused: set[ServerConnection] = set()
        self._exchanges: set[Exchange] = set()
        self._unflushed: list[ServerConnection] = []
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self.status_lines = StatusLines()
        self.header_cache = HeaderCache() if header_cache else None
        self.now = self._loop.time()
        self.draining = False
        self.stopping = False

    def add(self, connection: ServerConnection) -> HeadgateError | None:
        """Add a new connection; return the reason if it must be refused, else None."""
        self._connections.add(connection)
        self._all_closed.clear()
        if len(self._connections) > self._most:
            refusal: HeadgateError = TooManyConnections(retry_after=1)
        elif not self._addresses.add(connection.client):
            refusal = AddressTooBusy(retry_after=1)
        else:
            return None
        self._refused.add(connection)
        return refusal

    def remove(self, connection: ServerConnection) -> None:
        """Remove a lost connection."""
        self._connections.discard(connection)
        if connection in self._refused:
            self._refused.discard(connection)  # a refused connection was not counted
        else:
            self._addresses.remove(connection.client)
        if not self._connections:
            self._all_closed.set()

    def serve(self, exchange: Exchange) -> None:
        """Answer a request at once, or start a task that answers it."""
        try:
            coroutine = self._application(exchange)
        except Exception:  # the top of a request: the application has already tried to answer
            log.exception("request failed")
            exchange.abort()
            return
        if coroutine is not None:
            self._exchanges.add(exchange)
            # `wait_closed` ends it; a `Tasks` would wrap each request in one more coroutine.
            exchange.task = self._loop.create_task(self._run(exchange, coroutine))

    def flush_later(self, connection: ServerConnection) -> None:
        """Flush this connection at the end of this iteration of the event loop."""
        if not self._unflushed:
            self._loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def parse_later(self, connection: ServerConnection) -> None:
        """Let this connection parse more in the next iteration of the event loop."""
        self._loop.call_soon(connection.parse_more)

    def _flush(self) -> None:
        connections, self._unflushed = self._unflushed, []
        for connection in connections:
            connection.flush()

    def start_draining(self) -> None:
        """Go on serving, but send `Connection: close` with every response and close the connection after it."""
        self.draining = True

    def stop(self) -> None:
        """Close idle connections now, and the others after their current or first request."""
        self.draining = self.stopping = True
        self._close_idle(awaits_request=True)
        self._loop.call_later(FIRST_REQUEST_SECONDS, self._close_idle)

    def _close_idle(self, *, awaits_request: bool = False) -> None:
        for connection in tuple(self._connections):
            connection.close_if_idle(awaits_request=awaits_request)

    async def wait_closed(self, seconds: float | None = None) -> None:
        """Wait until all connections are closed and all requests are answered; abort those that take longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._all_closed.wait()
        for connection in tuple(self._connections):
            connection.abort()
        tasks = [exchange.task for exchange in self._exchanges if exchange.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            await cancel(*late)

    async def run_timer(self) -> None:
        """Update the clock and check the timeouts of all connections, once a second."""
        while True:
            await asyncio.sleep(TIMER_SECONDS)
            self.now = self._loop.time()
            self.status_lines.tick()
            for connection in tuple(self._connections):
                connection.check_timeouts(self.now)

    async def _run(self, exchange: Exchange, coroutine: RequestCoroutine) -> None:
        try:
            await coroutine
        except Exception:  # the top of a request: the application has already tried to answer
            log.exception("request failed")
        finally:
            self._exchanges.discard(exchange)
            if not exchange.finished and not exchange.disconnected:
                exchange.abort()


def asgi(application: Callable[[Scope, Receive, Exchange], Awaitable[None]]) -> ServeRequest:
    """Adapt a plain ASGI application."""

    async def serve(exchange: Exchange) -> None:
        await application(exchange.scope, exchange.receive, exchange)

    return serve


@asynccontextmanager
async def listen(
    application: ServeRequest,
    listening_socket: socket.socket,
    most_connections: int = MOST_CONNECTIONS,
    stop_seconds: float | None = None,
    addresses: AddressCount | None = None,
    *,
    header_cache: bool = True,
) -> AsyncIterator[Listener]:
    """Serve on an open socket; leaving the block waits for requests in progress, at most `stop_seconds` if given."""
    loop = asyncio.get_running_loop()
    listener = Listener(application, most_connections, addresses, header_cache=header_cache)
    server = await loop.create_server(lambda: ServerConnection(listener), sock=listening_socket, backlog=BACKLOG)
    tasks = Tasks()
    tasks.start(listener.run_timer())
    try:
        yield listener
    finally:
        # Closing the socket would reset the connections that the kernel has accepted and we have not.
        accepted = _accept_all(listening_socket)
        server.close()
        listener.start_draining()
        try:
            for each in accepted:
                await loop.connect_accepted_socket(lambda: ServerConnection(listener), each)
            await asyncio.sleep(0)  # read requests that have arrived before their connections count as idle
            listener.stop()
            await listener.wait_closed(stop_seconds)
        finally:
            await tasks.close()


def _accept_all(listening_socket: socket.socket) -> list[socket.socket]:
    """Accept all connections in the socket's backlog."""
    accepted: list[socket.socket] = []
    with suppress(OSError):  # the backlog is empty, or the owner has closed the socket
        while len(accepted) < BACKLOG:
            accepted.append(listening_socket.accept()[0])
    for each in accepted:
        each.setblocking(False)
    return accepted
