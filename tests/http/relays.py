"""Relay processes as users start them, and a raw client for what no proper client would send."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import psutil

from tests.processes import GatewayProcess
from tests.topology import HOST, reaper, wait_until


class RelayProcess(GatewayProcess):
    """`headgate serve relay` on free ports; those of one prefix work together."""

    def __init__(
        self, store_url: str, *arguments: str, prefix: str | None = None, environment: dict[str, str] | None = None
    ) -> None:
        super().__init__(store_url, environment=environment)
        self.prefix = prefix or self.prefix
        self._environment["HEADGATE_STORE_PREFIX"] = self.prefix
        self._command = [sys.executable, "-m", "headgate", "serve", "relay", "--store", store_url]
        self._command += ["--port", str(self.port), "--ops-port", str(self.ops_port), *arguments]

    def start(self) -> None:
        """Start it and block until it says that it is ready."""
        with (self.directory / "log").open("ab") as output:
            self._process = reaper().spawn(self._command, output, self._environment)
        wait_until(self._ready, 60, "the relay is ready")

    def family(self) -> list[int]:
        """Give the process ids of the relay and its workers."""
        try:
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the relay and its workers, at once."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, seconds: float = 15) -> int:
        """Wait for its end and give its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End it as a crash does."""
        self.signal_all(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()


async def raw(port: int, data: bytes, *, seconds: float = 5.0) -> bytes:
    """Send bytes and give what comes back until the other side closes or falls silent."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    received = b""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(seconds):
            while chunk := await reader.read(65536):
                received += chunk
                if b"\r\n\r\n" in received and b"0\r\n\r\n" in received[-7:] + b"":
                    break
                head, _, body = received.partition(b"\r\n\r\n")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if lengths and len(body) >= int(lengths[0].split(b":")[1]):
                    break
    writer.transport.abort()
    return received
