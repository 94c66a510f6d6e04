"""Relay processes as users start them, and a raw client for what no proper client would send."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import httpx2
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


def client_of(relay: RelayProcess) -> httpx2.AsyncClient:
    """Make a client with the relay's token, and as many connections as a test likes."""
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(base_url=relay.url, headers={"X-API-Token": relay.token}, limits=limits, timeout=30)


async def raw(port: int, data: bytes, *, until: int = 1, seconds: float = 15.0) -> bytes:
    """Send bytes and give what comes back: so many answers and whatever else the other side sends before it closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    received = b""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(seconds):
            while chunk := await reader.read(65536):
                received += chunk
                if received.count(b"HTTP/1.1 ") >= until and b"connection: close" not in received.lower():
                    async with asyncio.timeout(0.2):  # it stays open: whatever else it has to say comes soon
                        while chunk := await reader.read(65536):
                            received += chunk
                    break
    writer.transport.abort()
    return received


async def put(client: httpx2.AsyncClient, name: str, url: str, *limits: dict[str, object], **more: object) -> None:
    """Write an upstream with short times, so that tests end."""
    body = {
        "baseUrl": url,
        "limits": list(limits) or [{"count": 5, "seconds": 1}],
        "timeoutSeconds": 5,
        "deliverySeconds": 0.2,
        "forwardUser": True,
    } | more
    response = await client.put(f"/api/admin/upstreams/{name}", json=body)
    assert response.status_code == 200, response.text
