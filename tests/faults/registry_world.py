"""Workers and clients of the registry as processes of their own, to be killed and frozen."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.topology import free_port, reaper


class Process:
    """One process of ours."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._directory = reaper().directory(name)
        with (self._directory / "log").open("ab") as output:
            self._process = reaper().spawn([sys.executable, "-m", *command], output, environment)

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self._process.kill()
            self._process.wait()


@contextmanager
def worker(url: str, prefix: str) -> Iterator[Process]:
    command = ["headgate", "serve", "worker", "--store", url, "--ops-port", str(free_port())]
    process = Process("worker", command, {"HEADGATE_STORE_PREFIX": prefix})
    try:
        yield process
    finally:
        process.end()


@contextmanager
def registered_program(url: str, prefix: str, name: str, *, ttl: float, interval_ms: int) -> Iterator[Process]:
    process = Process("client", ["tests.faults.registry_client", url, prefix, name, str(ttl), str(interval_ms)])
    try:
        yield process
    finally:
        process.end()
