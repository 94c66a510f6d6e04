"""Processes of ours that tests start as a user would."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self
from urllib.request import urlopen

import httpx2

from headgate.store import Index, StoreSettings, open_store
from tests.topology import HOST, free_port, reaper, wait_until

# For a gateway whose store is never away: as patient as the tests' own stores with a machine that is busy with others.
PATIENT = {"HEADGATE_STORE_DEADLINE_MS": "10000"}


def note_new_store(url: str, prefix: str) -> None:
    """Note that nothing was ever lost under this prefix, as `up` does for a store that it has made; once is enough."""

    async def note() -> None:
        async with open_store(StoreSettings(url=url, prefix=prefix)) as store:
            for part in ("upstream", "queue"):
                await Index(store, part).note_age(new=True)

    with ThreadPoolExecutor(1) as aside:  # a loop may run in this thread
        aside.submit(asyncio.run, note()).result()


class GatewayProcess:
    """`headgate serve gateway` on free ports, with a random admin token and a key prefix of its own."""

    def __init__(self, store_url: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._store_url = store_url
        self.port, self.ops_port = free_port(), free_port()
        self.token = secrets.token_urlsafe(24)
        self.prefix = f"t{secrets.token_hex(4)}"
        self.directory = reaper().directory("gateway")
        self._command = [sys.executable, "-m", "headgate", "serve", "gateway", "--store", store_url]
        self._command += ["--port", str(self.port), "--ops-port", str(self.ops_port), *arguments]
        self._environment = {"HEADGATE_ADMIN_TOKEN": self.token, "HEADGATE_STORE_PREFIX": self.prefix}
        self._environment["HEADGATE_GATEWAY_QUIET_SECONDS"] = "0"  # nobody is sent elsewhere when a test is over
        self._environment |= environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def ops_url(self) -> str:
        return f"http://{HOST}:{self.ops_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it and block until it says that it is ready."""
        with (self.directory / "log").open("ab") as output:
            self._process = reaper().spawn(self._command, output, self._environment)
        wait_until(self._ready, 60, "the gateway is ready")

    def stop(self, seconds: float = 15) -> int:
        """Ask it to stop as systemd would, and give its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.stopped(seconds)

    def stopped(self, seconds: float = 15) -> int:
        """Wait for its end and give its exit code; whoever does not end in time is killed."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def __enter__(self) -> Self:
        note_new_store(self._store_url, self.prefix)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self.stop()

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the gateway ended while starting:\n{self.log[-3000:]}")
        # Asked often while the process starts, so it must cost little: a new HTTP client would take the processor from it.
        try:
            with urlopen(f"{self.ops_url}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass(frozen=True)
class Gateway:
    """A running gateway and a client that may do everything."""

    process: GatewayProcess
    client: httpx2.AsyncClient

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def ops_url(self) -> str:
        return self.process.ops_url

    @property
    def token(self) -> str:
        return self.process.token
