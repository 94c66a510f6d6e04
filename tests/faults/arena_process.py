"""`headgate serve arena` as a process, to be stopped, killed and cut off from its store."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Self

import httpx2

from tests.topology import HOST, free_port, reaper, wait_until


class ArenaProcess:
    """An arena on free ports, on a store or (by an http address and a token) through a gateway."""

    def __init__(self, url: str, prefix: str = "", *, token: str = "", **settings: object) -> None:
        self.port, self.ops_port = free_port(), free_port()
        self.directory = reaper().directory("arena")
        self.url = f"ws://{HOST}:{self.port}/gameserver"
        where = "--url" if url.startswith("http") else "--store"
        self._command = [sys.executable, "-m", "headgate", "serve", "arena", where, url]
        self._command += ["--port", str(self.port), "--ops-port", str(self.ops_port)]
        self._environment = {"HEADGATE_TOKEN": token} if token else {"HEADGATE_STORE_PREFIX": prefix}
        self._environment |= {f"HEADGATE_ARENA_{name.upper()}": str(value) for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def get(self, path: str) -> httpx2.Response:
        """Ask the operations port."""
        return httpx2.get(f"http://{HOST}:{self.ops_port}{path}", timeout=10)

    def __enter__(self) -> Self:
        with (self.directory / "log").open("ab") as output:
            self._process = reaper().spawn(self._command, output, self._environment)
        try:
            wait_until(self._ready, 60, "the arena is ready")
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def _ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the arena ended while starting:\n{self.log[-3000:]}")
        try:
            return self.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False
