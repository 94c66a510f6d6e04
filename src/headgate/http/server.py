"""The parent process of a gateway or a relay: it opens the listening socket and the operations port, and runs N workers.

Because the parent owns the socket, a port in use is an error at the start, the backlog survives the death of a worker, and all
workers accept from one backlog.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from typing import Final, Protocol

from headgate.http.listener import BACKLOG
from headgate.http.operations import Notice, Ready, serve_operations
from headgate.http.worker import Factory, WorkerOrders
from headgate.http.worker_processes import WorkerPool
from headgate.kit import logs, metrics
from headgate.kit.life import Life
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError

SPARE_FILES: Final = 512
UNACKNOWLEDGED_MS: Final = 45_000

log = get_logger()
Probes = Callable[[Ready, Notice], AbstractAsyncContextManager[int]]
Started = Callable[[int, int], None]


class ServerSettings(Protocol):
    """The settings that a server needs; `GatewaySettings` has them."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def backpressure(self) -> int: ...
    @property
    def connections_per_address(self) -> int: ...
    @property
    def trusted_proxies(self) -> tuple[str, ...]: ...
    @property
    def quiet_seconds(self) -> float: ...
    @property
    def stop_seconds(self) -> float: ...
    @property
    def header_cache(self) -> bool: ...


class PortInUse(HeadgateError):
    """The port is in use; stop the other process or choose another port."""

    code = "port_in_use"


class AddressUnusable(HeadgateError):
    """This address cannot be listened on; choose another."""

    code = "address_unusable"


async def serve(
    factory: Factory,
    settings: ServerSettings,
    *,
    probes: Probes | None = None,
    life: Life | None = None,
    started: Started | None = None,
) -> None:
    """Serve until the process is told to stop; raise the reason if the workers cannot start.

    `factory` is a function of a module, or a `partial` of one: each worker calls it and enters the async context manager
    that it returns, which opens the application. `probes` opens the operations port. `started` is called with the port and
    the operations port as soon as both are open.
    """
    async with AsyncExitStack() as stack:
        if life is None:
            stop_seconds = settings.quiet_seconds + settings.stop_seconds + 1
            life = await stack.enter_async_context(Life(stop_seconds=stop_seconds))
        listener = stack.enter_context(listening(settings.host, settings.port))
        allow_connections(settings.backpressure)
        stack.enter_context(_shared_metrics())
        orders = WorkerOrders(
            factory=factory,
            most_connections=settings.backpressure,
            connections_per_address=settings.connections_per_address,
            trusted_proxies=settings.trusted_proxies,
            quiet_seconds=settings.quiet_seconds,
            header_cache=settings.header_cache,
        )
        pool = WorkerPool(settings.workers, pickle.dumps((sys.path, pickle.dumps(orders))), listener, life.quiet)
        metrics.collect(pool.figures)
        ops_port = await stack.enter_async_context((probes or partial(serve_operations, 0))(pool.ready, pool.notice))
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _switch_debug, pool)
        port = listener.getsockname()[1]
        if started is not None:
            started(port, ops_port)
        log.info("listening", host=settings.host, port=port, ops_port=ops_port, workers=settings.workers)
        await life.run(pool.run(quiet_seconds=settings.quiet_seconds, stop_seconds=settings.stop_seconds))
        log.info("stopped")


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Open the listening socket; raise PortInUse if another process listens on the port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise address_error(host, port, error) from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Connections inherit it; it ends those of clients that vanished and acknowledge nothing.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            raise address_error(host, port, error) from error
        listener.setblocking(False)
        yield listener


def allow_connections(number: int) -> None:
    """Raise the limit of open files for this many connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < number:
            log.warning("the limit of open files is low for so many connections", allowed=allowed, connections=number)


def address_error(host: str, port: int, error: OSError) -> HeadgateError:
    """Explain why the address cannot be listened on."""
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"Port {port} on {host} is in use; stop the other process or choose another with --port.")
    if error.errno == errno.EACCES:
        return AddressUnusable(f"Port {port} may not be opened by this user; choose one above 1023 with --port.")
    return AddressUnusable(f"{host} port {port} cannot be listened on: {error.strerror}; choose another address.")


@contextmanager
def _shared_metrics() -> Iterator[None]:
    directory = metrics.share()
    try:
        yield
    finally:
        os.environ.pop(metrics.DIRECTORY, None)
        shutil.rmtree(directory, ignore_errors=True)


def _switch_debug(pool: WorkerPool) -> None:
    logs.switch_debug()
    pool.signal(signal.SIGUSR1)
