"""The sample gateway as a process of its own, as `headgate serve gateway` would run it."""

from __future__ import annotations

import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

import httpx2
import msgspec
import psutil

from headgate.gateway.settings import GatewaySettings, RateLimit
from headgate.store import StoreSettings
from tests.topology import HOST, reaper, wait_until

# So slow that no machine is slow enough to be allowed more than the burst.
TIGHT = RateLimit(per_second=0.05, burst=3, user_per_second=0.02, user_burst=2)


class SampleProcess:
    """A gateway with the routes of `tests.http.sample`; settings are those of the gateway."""

    def __init__(
        self, store_url: str, *, prefix: str = "", deadline_ms: int = 10_000, level: str = "debug", **settings: Any
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self.prefix = prefix or f"t{secrets.token_hex(4)}"
        self.directory = reaper().directory("sample")
        self.port = self.ops_port = 0
        self._level = level
        self._store = StoreSettings(url=store_url, prefix=self.prefix, deadline_ms=deadline_ms)
        self._settings = GatewaySettings(
            **{"port": 0, "quiet_seconds": 0, "admin_token": self.token, "limits": {"tight": TIGHT}, **settings}
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def ops_url(self) -> str:
        return f"http://{HOST}:{self.ops_port}"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def workers(self) -> list[psutil.Process]:
        """Give the processes that answer requests."""
        return [child for child in psutil.Process(self.process.pid).children() if child.status() != "zombie"]

    def client(self, **options: Any) -> httpx2.Client:
        """Make a client without a token."""
        return httpx2.Client(base_url=self.url, **{"timeout": 20, **options})

    def admin(self) -> httpx2.Client:
        """Make a client with the admin token."""
        return self.client(headers={"X-API-Token": self.token})

    def store_settings(self, url: str = "") -> StoreSettings:
        """Give the way to its store, or to the same keys by another URL."""
        return msgspec.structs.replace(self._store, url=url) if url else self._store

    def figures(self) -> dict[str, float]:
        """Read the metrics at the operations port; on a machine that stood still for five seconds, it hangs up once."""
        try:
            answer = httpx2.get(f"{self.ops_url}/metrics", timeout=10)
        except httpx2.RemoteProtocolError:
            answer = httpx2.get(f"{self.ops_url}/metrics", timeout=10)
        lines = answer.text.splitlines()
        parts = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in parts}

    def ready(self) -> bool:
        """Ask the probe."""
        try:
            return httpx2.get(f"{self.ops_url}/readyz", timeout=2).status_code == 200
        except httpx2.TransportError:
            return False

    def connect(self) -> socket.socket:
        """Open a bare connection."""
        return socket.create_connection((HOST, self.port), timeout=10)

    def exchange(self, request: bytes) -> bytes:
        """Send bytes as they are, and give what comes back until the connection closes."""
        with self.connect() as connection:
            connection.sendall(request)
            answer = b""
            while chunk := connection.recv(65_536):
                answer += chunk
            return answer

    def spawn(self) -> None:
        """Start the process and return at once."""
        words = [msgspec.json.encode(each).decode() for each in (self._store, self._settings)]
        with (self.directory / "log").open("wb") as output:
            self._process = reaper().spawn([sys.executable, "-m", "tests.http.sample", *words, self._level], output)

    def start(self) -> None:
        """Start it and block until it is ready."""
        self.spawn()
        wait_until(self._listening, 20, "the sample listens")
        wait_until(lambda: self.ended() or self.ready(), 20, "the sample is ready")
        assert not self.ended(), self.log[-3000:]

    def ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self, seconds: float = 15) -> int:
        """Ask it to stop and give its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended():
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _listening(self) -> bool:
        found = re.search(r"^(\d+) (\d+)$", self.log, re.MULTILINE)
        if found:
            self.port, self.ops_port = int(found[1]), int(found[2])
        return bool(found) or self.ended()


SampleStarter = Callable[..., SampleProcess]
