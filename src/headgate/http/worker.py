"""One process that answers requests: `python -m headgate.http.worker`, started by the gateway's parent.

It gets the listening socket and a control socket. Over the control socket come its orders, and over it go its beats,
which say once a second that its loop turns and whether it is ready. A word from the parent says that it will stop soon: it goes
on serving, and its answers say `Connection: close`. When the control socket closes, the parent is gone or wants it to stop now:
streams and waits end first, then the server finishes what is under way, then the application closes.
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
from headgate.http.listener import Listener, Rest, listen
from headgate.http.routes import Stop
from headgate.kit import logs
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError

BEAT_SECONDS: Final = 1.0
GARBAGE: Final = 50_000

log = get_logger()


class Application(Protocol):
    """What a worker serves: an application that knows when to stop and whether it is ready."""

    stop: Stop

    def serve(self, exchange: Exchange) -> Rest | None:
        """Answer one request, or give what is left to do."""

    def ready(self) -> Awaitable[str | None]:
        """Say why not, or None if ready."""

    def notice(self) -> str | None:
        """Say what an operator should see to although requests are served, or None."""


Factory = Callable[[], AbstractAsyncContextManager[Application]]


class WorkerOrders(msgspec.Struct, frozen=True):
    """What a worker is told at its start; sent pickled, since the factory is a function."""

    factory: Factory
    most_connections: int
    connections_per_address: int
    trusted_proxies: tuple[str, ...]
    quiet_seconds: float


class WorkerReport(msgspec.Struct, frozen=True):
    """A message of a worker to its parent: that it is alive, why it is not ready, or what kept it from starting."""

    why_not: str | None = None
    notice: str | None = None
    failure: dict[str, Any] | None = None


class Control:
    """The worker's end of the control socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def orders(self) -> WorkerOrders:
        """Read what the parent sends first; its length comes before it."""
        size = int.from_bytes(self._exactly(4), "big")
        path, rest = pickle.loads(self._exactly(size))  # from our own parent, over a socket pair
        sys.path[:] = path  # before what follows is imported
        orders: WorkerOrders = pickle.loads(rest)
        self._line.setblocking(False)
        return orders

    def tell(self, beat: WorkerReport) -> None:
        """Tell the parent; it may be gone, and then the end of the control socket says so."""
        try:
            self._line.send(msgspec.json.encode(beat) + b"\n")
        except OSError as error:
            log.debug("parent not told", error=str(error))

    async def closed(self, announced: Callable[[], None]) -> None:
        """Return when the parent closes its end; call this function when it announces that."""
        loop = asyncio.get_running_loop()
        while await loop.sock_recv(self._line, 64):
            announced()

    def _exactly(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            chunk = self._line.recv(size - len(read))
            if not chunk:
                raise EOFError("the parent closed the control socket before its orders were complete")
            read += chunk
        return bytes(read)


class WorkerStopping:
    """The time between the word that a worker will stop and its stop.

    Some supervisors send SIGTERM to the parent only, some to every process of a service. A worker that was sent it alone goes
    by its own clock; as soon as the parent says something, it is the parent that ends it.
    """

    def __init__(self, listener: Listener, told: asyncio.Event, quiet_seconds: float) -> None:
        self._listener = listener
        self._told = told
        self._quiet_seconds = quiet_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._parent_leads = False

    def by_itself(self) -> None:
        """Stop when the time is over."""
        self._listener.be_quiet()
        if self._timer is None and not self._parent_leads:
            self._timer = asyncio.get_running_loop().call_later(self._quiet_seconds, self._told.set)

    def with_parent(self) -> None:
        """Stop when the parent says so."""
        self._listener.be_quiet()
        self._parent_leads = True
        if self._timer is not None:
            self._timer.cancel()


async def work(orders: WorkerOrders, control: Control, listener: int) -> None:
    """Serve until told to stop."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, logs.switch_debug)
    async with orders.factory() as application:
        # What is there now stays: a collection need not look at it again, and what requests leave behind has no cycles.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE, 20, 100)
        addresses = AddressCount(orders.connections_per_address, orders.trusted_proxies)
        open_socket = socket.socket(fileno=listener)
        async with listen(application.serve, open_socket, orders.most_connections, addresses=addresses) as house:
            leaving = WorkerStopping(house, told, orders.quiet_seconds)
            loop.add_signal_handler(signal.SIGTERM, leaving.by_itself)
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(_beat(application, control))
                hanging_up = group.create_task(control.closed(leaving.with_parent))
                hanging_up.add_done_callback(lambda _: told.set())
                await told.wait()
                beating.cancel()
                hanging_up.cancel()
            application.stop.set()


async def _beat(application: Application, control: Control) -> None:
    while True:
        control.tell(WorkerReport(why_not=await application.ready(), notice=application.notice()))
        await asyncio.sleep(BEAT_SECONDS)


def main() -> None:
    """Run one worker; its arguments are the numbers of the control and of the listening socket."""
    control = Control(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent says when to stop
    code = 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(control.orders(), control, int(sys.argv[2])))
    except* HeadgateError as group:
        control.tell(WorkerReport(failure=_failure(_first(group))))
        code = 1
    except* Exception as group:
        log.exception("worker failed")
        control.tell(WorkerReport(failure=_failure(HeadgateError(repr(_first(group))))))
        code = 1
    sys.exit(code)


def _failure(error: HeadgateError) -> dict[str, Any]:
    """Give a problem's document for the parent, which tells the operator all of it."""
    return {**error.document(), "detail": error.detail}


def _first(group: BaseExceptionGroup[Any]) -> Any:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    main()
