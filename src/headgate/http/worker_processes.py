"""The worker processes of a gateway, kept running and stopped together."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Final

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from headgate.http.worker import WorkerReport
from headgate.kit.children import signal_child
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, from_document

STALE_SECONDS: Final = 5.0
HUNG_SECONDS: Final = 30.0
START_SECONDS: Final = 120.0
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
STEADY_SECONDS: Final = 10.0

log = get_logger()
Failure = dict[str, object]


class WorkerFailed(HeadgateError):
    """A gateway worker ended while it was starting; its log says why."""

    code = "worker_failed"


class Worker:
    """One worker process, started again whenever it ends before its time."""

    def __init__(self, number: int, orders: bytes, listener: socket.socket) -> None:
        self.number = number
        self.restarts = 0
        self._orders = orders
        self._listener = listener
        self._process: asyncio.subprocess.Process | None = None
        self._control: asyncio.StreamWriter | None = None
        self._heard_at = 0.0
        self._why_not: str | None = "starting"
        self.notice: str | None = None
        self._started_once = False

    @property
    def alive(self) -> bool:
        """Tell whether its process runs."""
        return self._process is not None and self._process.returncode is None

    def why_not(self) -> str | None:
        """Say why this worker is not ready, or None."""
        if not self.alive:
            return "a worker is being started again" if self._started_once else "starting"
        if self._why_not is None and monotonic() - self._heard_at > STALE_SECONDS:
            return "a worker does not answer"
        return self._why_not

    async def keep(self, quiet: asyncio.Event) -> None:
        """Keep it running until `quiet`; a worker that cannot even start once ends everything with its reason."""
        pause = FIRST_PAUSE
        while not quiet.is_set():
            began = monotonic()
            failure = await self._run_once()
            if quiet.is_set():
                return
            if not self._started_once:
                raise from_document(failure, 500) if failure else WorkerFailed()
            self.restarts += 1
            log.warning("worker ended, starting it again", worker=self.number, reason=(failure or {}).get("detail"))
            pause = FIRST_PAUSE if monotonic() - began > STEADY_SECONDS else min(pause * 2, LONGEST_PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await quiet.wait()

    def announce_stop(self) -> None:
        """Tell the worker that it will stop soon, so that its answers say `Connection: close`."""
        if self._control is not None:
            with suppress(OSError):
                self._control.write(b".")

    def ask_to_stop(self) -> None:
        """Close our side of the control socket, which tells the worker to finish."""
        if self._control is not None:
            with suppress(OSError):
                self._control.write_eof()

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None:
            signal_child(self._process, number)

    async def _run_once(self) -> Failure | None:
        """Start the process and follow it to its end; give the problem that it died of, if it said one."""
        ours, theirs = socket.socketpair()
        self._why_not, self._heard_at = "starting", monotonic()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "headgate.http.worker",
                str(theirs.fileno()),
                str(self._listener.fileno()),
                pass_fds=(theirs.fileno(), self._listener.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
            )
        reader, self._control = await asyncio.open_connection(sock=ours)
        try:
            self._control.write(len(self._orders).to_bytes(4, "big") + self._orders)
            return await self._follow(reader)
        finally:
            self.signal(signal.SIGKILL)
            await self._process.wait()
            self._control.close()
            self._control = None

    async def _follow(self, reader: asyncio.StreamReader) -> Failure | None:
        """Read its beats until it closes its end or falls silent; on a busy machine the first one takes its time."""
        patience = START_SECONDS
        try:
            while True:
                async with asyncio.timeout(patience):
                    line = await reader.readline()
                patience = HUNG_SECONDS
                if not line:
                    return None
                beat = msgspec.json.decode(line, type=WorkerReport)
                if beat.failure is not None:
                    return beat.failure
                self._heard_at, self._why_not, self.notice = monotonic(), beat.why_not, beat.notice
                self._started_once = True
        except TimeoutError:
            log.error("worker hangs, ending it", worker=self.number)
            return None
        except OSError:
            return None


class WorkerPool:
    """All workers of this gateway."""

    def __init__(self, count: int, orders: bytes, listener: socket.socket, quiet: asyncio.Event) -> None:
        self._workers = [Worker(number, orders, listener) for number in range(1, count + 1)]
        self._listener = listener
        self._quiet = quiet

    async def run(self, *, quiet_seconds: float, stop_seconds: float) -> None:
        """Keep all workers running; once quiet, let them finish, and end those that do not in time."""
        try:
            async with asyncio.TaskGroup() as group:
                keeping = [group.create_task(worker.keep(self._quiet)) for worker in self._workers]
                await self._quiet.wait()
                for worker in self._workers:
                    worker.announce_stop()
                await asyncio.sleep(quiet_seconds)
                # From here on the workers alone hold the socket: whom the kernel lets in, one of them will have taken.
                self._listener.close()
                for worker in self._workers:
                    worker.ask_to_stop()
                _, late = await asyncio.wait(keeping, timeout=stop_seconds)
                if late:
                    log.warning("workers did not finish in time, ending them", workers=len(late))
                for task in late:
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # they all fail for the same reason

    async def ready(self) -> str | None:
        """Say why nobody should be sent here, or None: one worker that is ready is enough."""
        if self._quiet.is_set():
            return "stopping"
        reasons = [worker.why_not() for worker in self._workers]
        return None if None in reasons else reasons[0]

    def notice(self) -> str | None:
        """Say what a worker noticed that an operator should see to; None if there is nothing."""
        return next((worker.notice for worker in self._workers if worker.alive and worker.notice is not None), None)

    def signal(self, number: int) -> None:
        """Pass a signal on to every worker."""
        for worker in self._workers:
            worker.signal(number)

    def figures(self) -> Iterable[Metric]:
        """Give what only the parent knows."""
        alive = sum(worker.alive for worker in self._workers)
        restarts = sum(worker.restarts for worker in self._workers)
        yield GaugeMetricFamily("headgate_gateway_workers", "Worker processes that run.", value=alive)
        yield CounterMetricFamily(
            "headgate_gateway_restarts", "Worker processes started again after they ended.", value=restarts
        )
