"""One worker process, `python -m headgate.http.worker`, started by the gateway's parent process.

It inherits the listening socket and a control socket. It reads its orders from the control socket, and sends a report over it
once a second, which shows that its event loop runs and whether it is ready. A byte from the parent announces that the worker
will stop soon: it goes on serving and sends `Connection: close`. When the parent closes the control socket, or dies, the worker
stops: it ends streams and waits, finishes the requests in progress, then closes the application.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import msgspec
import uvloop

from headgate.http.client_addresses import AddressCount
from headgate.http.exchange import Exchange
from headgate.http.listener import Listener, RequestCoroutine, listen
from headgate.http.routes import Stop
from headgate.kit import logs
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError

REPORT_SECONDS: Final = 1.0
GC_THRESHOLD: Final = 50_000

log = get_logger()


class Application(Protocol):
    """The application that a worker serves."""

    stop: Stop

    def serve(self, exchange: Exchange) -> RequestCoroutine | None:
        """Answer a request at once, or return a coroutine that answers it."""

    def ready(self) -> Awaitable[str | None]:
        """Return why it is not ready, or None if it is."""

    def notice(self) -> str | None:
        """Return a warning for the operator that does not keep requests from being served, or None."""


Factory = Callable[[], AbstractAsyncContextManager[Application]]


class WorkerOrders(msgspec.Struct, frozen=True):
    """The configuration that the parent sends to a worker; pickled, because the factory is a function."""

    factory: Factory
    most_connections: int
    connections_per_address: int
    trusted_proxies: tuple[str, ...]
    quiet_seconds: float
    header_cache: bool = True


class WorkerReport(msgspec.Struct, frozen=True):
    """A message of a worker to its parent: why it is not ready, a notice for the operator, or why it could not start."""

    not_ready: str | None = None
    notice: str | None = None
    failure: dict[str, Any] | None = None


class Control:
    """The worker's end of the control socket."""

    def __init__(self, control_socket: socket.socket) -> None:
        self._socket = control_socket

    def read_orders(self) -> WorkerOrders:
        """Read the orders, which the parent sends first, after their length."""
        size = int.from_bytes(self._read_exactly(4), "big")
        path, pickled = pickle.loads(self._read_exactly(size))  # from our own parent, over a socket pair
        sys.path[:] = path  # before the orders are unpickled, which imports modules
        orders: WorkerOrders = pickle.loads(pickled)
        self._socket.setblocking(False)
        return orders

    def send(self, report: WorkerReport) -> None:
        """Send a report; if the parent is gone, `wait_closed` returns."""
        try:
            self._socket.send(msgspec.json.encode(report) + b"\n")
        except OSError as error:
            log.debug("parent not told", error=str(error))

    async def wait_closed(self, announced: Callable[[], None]) -> None:
        """Return when the parent closes its end; call `announced` when it announces that."""
        loop = asyncio.get_running_loop()
        while await loop.sock_recv(self._socket, 64):
            announced()

    def _read_exactly(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            chunk = self._socket.recv(size - len(read))
            if not chunk:
                raise EOFError("the parent closed the control socket before its orders were complete")
            read += chunk
        return bytes(read)


class WorkerStopping:
    """Decides when a worker stops after the announcement.

    Some supervisors send SIGTERM only to the parent, others to every process of a service. A worker that only got the signal
    stops after `quiet_seconds`. Once the parent has announced the stop, the worker waits for the parent.
    """

    def __init__(self, listener: Listener, stop: asyncio.Event, quiet_seconds: float) -> None:
        self._listener = listener
        self._stop = stop
        self._quiet_seconds = quiet_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._parent_decides = False

    def stop_after_delay(self) -> None:
        """Stop after `quiet_seconds`."""
        self._listener.start_draining()
        if self._timer is None and not self._parent_decides:
            self._timer = asyncio.get_running_loop().call_later(self._quiet_seconds, self._stop.set)

    def wait_for_parent(self) -> None:
        """Stop when the parent closes the control socket."""
        self._listener.start_draining()
        self._parent_decides = True
        if self._timer is not None:
            self._timer.cancel()


async def work(orders: WorkerOrders, control: Control, listener: int) -> None:
    """Serve until it is time to stop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, logs.switch_debug)
    async with orders.factory() as application:
        # Collections skip the objects that exist now, and are rare, because requests leave no reference cycles behind.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 100)
        addresses = AddressCount(orders.connections_per_address, orders.trusted_proxies)
        async with listen(
            application.serve,
            socket.socket(fileno=listener),
            orders.most_connections,
            addresses=addresses,
            header_cache=orders.header_cache,
        ) as server:
            stopping = WorkerStopping(server, stop, orders.quiet_seconds)
            loop.add_signal_handler(signal.SIGTERM, stopping.stop_after_delay)
            async with asyncio.TaskGroup() as group:
                reporting = group.create_task(_send_reports(application, control))
                parent = group.create_task(control.wait_closed(stopping.wait_for_parent))
                parent.add_done_callback(lambda _: stop.set())
                await stop.wait()
                reporting.cancel()
                parent.cancel()
            application.stop.set()


async def _send_reports(application: Application, control: Control) -> None:
    while True:
        control.send(WorkerReport(not_ready=await application.ready(), notice=application.notice()))
        await asyncio.sleep(REPORT_SECONDS)


def main() -> None:
    """Run one worker; its arguments are the file descriptors of the control socket and of the listening socket."""
    control = Control(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole process group; the parent decides when to stop
    code = 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(control.read_orders(), control, int(sys.argv[2])))
    except* HeadgateError as group:
        control.send(WorkerReport(failure=_failure(_first(group))))
        code = 1
    except* Exception as group:
        log.exception("worker failed")
        control.send(WorkerReport(failure=_failure(HeadgateError(repr(_first(group))))))
        code = 1
    sys.exit(code)


def _failure(error: HeadgateError) -> dict[str, Any]:
    """Return the problem with its full detail, which the parent shows to the operator."""
    return {**error.document(), "detail": error.detail}


def _first(group: BaseExceptionGroup[Any]) -> Any:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    main()
