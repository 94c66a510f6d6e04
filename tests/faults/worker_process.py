"""`headgate serve worker` as a process, to be paused, killed and started beside another."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Self

import httpx2

from tests.topology import HOST, free_port, reaper, wait_until


class WorkerProcess:
    """A worker on a free operations port."""

    def __init__(self, store_url: str, prefix: str) -> None:
        self.ops_port = free_port()
        self.directory = reaper().directory("worker")
        self._command = [sys.executable, "-m", "headgate", "serve", "worker", "--store", store_url]
        self._command += ["--ops-port", str(self.ops_port)]
        self._environment = {"HEADGATE_STORE_PREFIX": prefix}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def get(self, path: str) -> httpx2.Response:
        """Ask the operations port."""
        return httpx2.get(f"http://{HOST}:{self.ops_port}{path}", timeout=10)

    def signal(self, number: signal.Signals) -> None:
        """Pause, continue, stop or kill it."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float = 15) -> int:
        """Wait for its end and give its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def __enter__(self) -> Self:
        with (self.directory / "log").open("ab") as output:
            self._process = reaper().spawn(self._command, output, self._environment)
        wait_until(self._ready, 30, "the worker is ready")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the worker ended while starting:\n{self.log[-3000:]}")
        try:
            return self.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False
