"""Starts the worker processes of a gateway or a relay, restarts those that end, and stops them together."""

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
    """One worker process, restarted whenever it ends by itself."""

    def __init__(self, number: int, orders: bytes, listener: socket.socket) -> None:
        self.number = number
        self.restarts = 0
        self._orders = orders
        self._listener = listener
        self._process: asyncio.subprocess.Process | None = None
        self._control: asyncio.StreamWriter | None = None
        self._reported_at = 0.0
        self._not_ready: str | None = "starting"
        self.notice: str | None = None
        self._started_once = False

    @property
    def alive(self) -> bool:
        """True while its process runs."""
        return self._process is not None and self._process.returncode is None

    def not_ready(self) -> str | None:
        """Return why this worker is not ready, or None if it is."""
        if not self.alive:
            return "a worker is being started again" if self._started_once else "starting"
        if self._not_ready is None and monotonic() - self._reported_at > STALE_SECONDS:
            return "a worker does not answer"
        return self._not_ready

    async def keep_running(self, quiet: asyncio.Event) -> None:
        """Restart it until `quiet` is set; raise the reason if it could not start even once."""
        pause = FIRST_PAUSE
        while not quiet.is_set():
            started = monotonic()
            failure = await self._run_once()
            if quiet.is_set():
                return
            if not self._started_once:
                raise from_document(failure, 500) if failure else WorkerFailed()
            self.restarts += 1
            log.warning("worker ended, starting it again", worker=self.number, reason=(failure or {}).get("detail"))
            pause = FIRST_PAUSE if monotonic() - started > STEADY_SECONDS else min(pause * 2, LONGEST_PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await quiet.wait()

    def announce_stop(self) -> None:
        """Announce the stop to the worker, so that its responses carry `Connection: close`."""
        if self._control is not None:
            with suppress(OSError):
                self._control.write(b".")

    def ask_to_stop(self) -> None:
        """Close our side of the control socket, on which the worker stops."""
        if self._control is not None:
            with suppress(OSError):
                self._control.write_eof()

    def signal(self, number: int) -> None:
        """Send a signal to its process, if it runs."""
        if self._process is not None:
            signal_child(self._process, number)

    async def _run_once(self) -> Failure | None:
        """Start the process and wait for its end; return the problem that it reported, if any."""
        ours, theirs = socket.socketpair()
        self._not_ready, self._reported_at = "starting", monotonic()
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
            return await self._read_reports(reader)
        finally:
            self.signal(signal.SIGKILL)
            await self._process.wait()
            self._control.close()
            self._control = None

    async def _read_reports(self, reader: asyncio.StreamReader) -> Failure | None:
        """Read reports until the worker closes its end or stops reporting; the first may take long on a busy machine."""
        timeout = START_SECONDS
        try:
            while True:
                async with asyncio.timeout(timeout):
                    line = await reader.readline()
                timeout = HUNG_SECONDS
                if not line:
                    return None
                report = msgspec.json.decode(line, type=WorkerReport)
                if report.failure is not None:
                    return report.failure
                self._reported_at, self._not_ready, self.notice = monotonic(), report.not_ready, report.notice
                self._started_once = True
        except TimeoutError:
            log.error("worker hangs, ending it", worker=self.number)
            return None
        except OSError:
            return None


class WorkerPool:
    """All worker processes of a gateway."""

    def __init__(self, count: int, orders: bytes, listener: socket.socket, quiet: asyncio.Event) -> None:
        self._workers = [Worker(number, orders, listener) for number in range(1, count + 1)]
        self._listener = listener
        self._quiet = quiet

    async def run(self, *, quiet_seconds: float, stop_seconds: float) -> None:
        """Keep all workers running until `quiet` is set; then let them finish, and kill those that take too long."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(worker.keep_running(self._quiet)) for worker in self._workers]
                await self._quiet.wait()
                for worker in self._workers:
                    worker.announce_stop()
                await asyncio.sleep(quiet_seconds)
                # Now only workers hold the socket, and they accept every connection in its backlog before they close it.
                self._listener.close()
                for worker in self._workers:
                    worker.ask_to_stop()
                _, late = await asyncio.wait(tasks, timeout=stop_seconds)
                if late:
                    log.warning("workers did not finish in time, ending them", workers=len(late))
                for task in late:
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # they all fail for the same reason

    async def ready(self) -> str | None:
        """Return why no requests should be sent here, or None if at least one worker is ready."""
        if self._quiet.is_set():
            return "stopping"
        reasons = [worker.not_ready() for worker in self._workers]
        return None if None in reasons else reasons[0]

    def notice(self) -> str | None:
        """Return the notice of a worker for the operator, or None."""
        return next((worker.notice for worker in self._workers if worker.alive and worker.notice is not None), None)

    def signal(self, number: int) -> None:
        """Send a signal to every worker."""
        for worker in self._workers:
            worker.signal(number)

    def figures(self) -> Iterable[Metric]:
        """Yield the metrics that only the parent knows."""
        alive = sum(worker.alive for worker in self._workers)
        restarts = sum(worker.restarts for worker in self._workers)
        yield GaugeMetricFamily("headgate_gateway_workers", "Worker processes that run.", value=alive)
        yield CounterMetricFamily(
            "headgate_gateway_restarts", "Worker processes started again after they ended.", value=restarts
        )
