"""The system under test: a store of one topology and two of every process, each to be killed, paused and cut off."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Self
from urllib.request import urlopen

import anyio.to_thread

from headgate.waiting_room.signing import SigningKeys
from tests.topology import (
    HOST,
    Cluster,
    FakeClock,
    FaultyProxy,
    Sentinel,
    Standalone,
    Stopwatch,
    Topology,
    free_port,
    reaper,
)
from tests.topology.waiting import wait_until

SEATS = 5
ROLES = ("gateway", "worker", "relay", "arena")
EACH = 2


# What a careful operator sets: a primary that has lost its replicas takes no writes that would be lost with it.
_CAREFUL: dict[str, str | int] = {"min-replicas-to-write": 1, "min-replicas-max-lag": 2}


class EndedWhileStarting(AssertionError):
    """A process ended before it was ready."""


class Process:
    """One of our processes, by name (`relay-2`), on ports that it keeps when it is started again."""

    def __init__(self, name: str, store_url: str, environment: dict[str, str]) -> None:
        self.name, self.role = name, name.partition("-")[0]
        self.port, self.ops_port = free_port(), free_port()
        self.ended_at: list[float] = []
        self.environment = environment
        self._directory = reaper().directory(name)
        self._command = [sys.executable, "-m", "headgate", "serve", self.role, "--store", store_url]
        self._command += ["--ops-port", str(self.ops_port)]
        if self.role != "worker":
            self._command += ["--port", str(self.port)]
        if self.role == "arena":
            self._command += ["--capacity", str(SEATS)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def spawn(self) -> None:
        with (self._directory / "log").open("ab") as output:
            self._process = reaper().spawn(self._command, output, self.environment)

    def wait_ready(self, seconds: float = 60) -> None:
        wait_until(self._ready, seconds, f"{self.name} is ready")

    def start_again(self) -> None:
        """Start it as a supervisor does: one that ends because the store is away just then is started once more."""
        watch = Stopwatch()
        while True:
            self.spawn()
            try:
                return self.wait_ready(120)
            except EndedWhileStarting:
                if watch.seconds > 180:  # sentinels that were held up trust nothing for half a minute, perhaps twice
                    raise

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.ended_at.append(time.monotonic())

    def stop(self) -> int:
        """End it as an operator does, and give its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise EndedWhileStarting(f"{self.name} ended while starting:\n{self.log[-3000:]}")
        try:
            with urlopen(f"http://{HOST}:{self.ops_port}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class System:
    """Use it as `async with System("cluster") as system`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.token = secrets.token_urlsafe(24)
        self.prefix = f"t{secrets.token_hex(4)}"
        self.clock = FakeClock() if kind == "standalone" else None
        self.store: Topology = self._topology()
        self.processes: dict[str, Process] = {}
        self.proxies: dict[str, FaultyProxy] = {}
        self._keys = SigningKeys.generate()
        self._opened = AsyncExitStack()

    def _topology(self) -> Topology:
        match self.kind:
            case "cluster":
                return Cluster(options=_CAREFUL)
            case "sentinel":
                return Sentinel(options=_CAREFUL)
            case _:
                assert self.clock is not None
                return Standalone(environment=self.clock.environment)

    def of(self, role: str) -> list[Process]:
        return [process for process in self.processes.values() if process.role == role]

    async def store_url(self, name: str) -> str:
        """Give the address by which one client reaches the store: where the store is one server, through its own proxy."""
        if self.kind != "standalone":
            return self.store.url
        if name not in self.proxies:
            self.proxies[name] = await self._opened.enter_async_context(FaultyProxy(self.store.nodes[0].port))
        return self.proxies[name].url

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._opened.enter_context, self.store)
        environment = {
            "HEADGATE_ADMIN_TOKEN": self.token,
            "HEADGATE_STORE_PREFIX": self.prefix,
            "HEADGATE_SIGNING_KEYS": self._keys,
        }
        self._opened.callback(self._kill_all)  # also where not all of them could be started
        for role in ROLES:
            for number in range(1, EACH + 1):
                name = f"{role}-{number}"
                process = Process(name, await self.store_url(name), environment)
                self.processes[name] = process
                process.spawn()
        for process in self.processes.values():
            await anyio.to_thread.run_sync(process.wait_ready)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._kill_all()  # first, so that nobody connects to a proxy that closes
        await asyncio.sleep(0.1)
        await self._opened.aclose()

    async def stop_all(self) -> dict[str, int]:
        """Stop every process as an operator does; give the exit codes."""
        codes = await asyncio.gather(*(anyio.to_thread.run_sync(one.stop) for one in self.processes.values()))
        return dict(zip(self.processes, codes, strict=True))

    def _kill_all(self) -> None:
        for process in self.processes.values():
            if process.running:
                process.kill()
