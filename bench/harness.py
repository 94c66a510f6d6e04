"""Two or more servers, one load, one run: what each does with one core.

Contestants are started once, warmed up, and then measured in alternating rounds, so that whatever else the machine does hits
all of them. The figure to trust is the CPU time of the server's own processes per request: it does not depend on how fast the
load or the store is. Requests per second do, unless `busy` says that the server's core was full.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
import psutil

from bench.cores import CORES, pin, pinned
from bench.load import Load, Request, drive
from headgate.kit import logs
from headgate.kit.logs import Level, LogSettings
from tests.topology import HOST, Standalone, free_port, reaper, wait_until

ROOT: Final = Path(__file__).parent.parent
WARM_SECONDS: Final = 2.0


class Contestant(msgspec.Struct, frozen=True):
    """A server that can be started: `{port}` in its command is replaced by a free port."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = {}
    folder: Path = ROOT


class Case(msgspec.Struct, frozen=True):
    """The work of a benchmark: the requests of the load, the same for all contestants or (by name) each with its own."""

    name: str
    requests: Mapping[str, Sequence[Request]]
    connections: int = 64


class Round(msgspec.Struct, frozen=True):
    """One contestant's round."""

    per_second: float
    cpu_us: float
    store_cpu_us: float
    busy: float
    p50_ms: float
    p99_ms: float
    errors: int


class Result(msgspec.Struct, frozen=True):
    """A contestant's medians over all rounds of a case."""

    case: str
    contestant: str
    per_second: float
    cpu_us: float
    store_cpu_us: float
    busy: float
    p50_ms: float
    p99_ms: float
    errors: int
    rounds: list[Round]


class Server:
    """A running contestant, on the server's core."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._log = reaper().directory("bench") / "log"
        command = [part.replace("{port}", str(self.port)) for part in contestant.command]
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **contestant.environment, "PORT": str(self.port)},
                cwd=contestant.folder,
                preexec_fn=pinned(CORES.server),
            )

    def wait_ready(self, path: str) -> None:
        """Block until it answers."""

        def answers() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"{self.contestant.name} ended while starting:\n{self._log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(self.url + path, timeout=2) as answer:
                    return bool(answer.status < 400)
            except urllib.error.HTTPError as error:
                return error.code < 500
            except OSError:
                return False

        wait_until(answers, 120, f"{self.contestant.name} answers")

    def stop(self) -> None:
        """End it and everything it started."""
        children = _family(self.process.pid)[1:] if self.process.poll() is None else []
        self.process.terminate()
        try:
            self.process.wait(8)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for child in children:
            if child.is_running():
                child.kill()


@contextmanager
def running(contestants: Sequence[Contestant], path: str = "/") -> Iterator[dict[str, Server]]:
    """Start all contestants and wait until each answers at `path`."""
    with ExitStack() as stack:
        servers = {}
        for contestant in contestants:
            server = servers[contestant.name] = Server(contestant)
            stack.callback(server.stop)
        for server in servers.values():
            server.wait_ready(path)
        yield servers


@contextmanager
def bench_store() -> Iterator[Standalone]:
    """Start the store all contestants share, on its core; it keeps its data as in production."""
    logs.configure(LogSettings(level=Level.WARNING), "bench")
    with Standalone() as store:
        pin(store.node.pid, CORES.store)
        yield store


def compare(
    case: Case, servers: Mapping[str, Server], store: Standalone, *, rounds: int = 3, seconds: float = 5
) -> list[Result]:
    """Measure all servers in alternating rounds."""
    names = [name for name in servers if name in case.requests]
    for name in names:
        _measure(case, servers[name], store, WARM_SECONDS)
    taken: dict[str, list[Round]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            taken[name].append(_measure(case, servers[name], store, seconds))
            progress(f"{case.name}: round {number + 1} of {rounds}, {name}: {taken[name][-1].per_second:,.0f}/s")
    return [_result(case.name, name, taken[name]) for name in names]


def _measure(case: Case, server: Server, store: Standalone, seconds: float) -> Round:
    requests = case.requests[server.contestant.name]
    before, store_before, started = cpu_seconds(server.process.pid), cpu_seconds(store.node.pid), time.monotonic()
    load = drive(server.url, requests, connections=case.connections, seconds=seconds, cores=CORES.load)
    spent = cpu_seconds(server.process.pid) - before
    store_spent = cpu_seconds(store.node.pid) - store_before
    return _round(load, spent, store_spent, time.monotonic() - started)


def _round(load: Load, spent: float, store_spent: float, elapsed: float) -> Round:
    answered = max(load.requests, 1)
    return Round(
        per_second=load.requests / load.seconds,
        cpu_us=spent / answered * 1e6,
        store_cpu_us=store_spent / answered * 1e6,
        busy=min(spent / elapsed, 1.0),
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        errors=load.errors,
    )


def _result(case: str, name: str, rounds: list[Round]) -> Result:
    fields = ("per_second", "cpu_us", "store_cpu_us", "busy", "p50_ms", "p99_ms")
    middle = {field: statistics.median(getattr(one, field) for one in rounds) for field in fields}
    return Result(case=case, contestant=name, errors=sum(one.errors for one in rounds), rounds=rounds, **middle)


def cpu_seconds(pid: int) -> float:
    """Give the CPU time that a process and those it started have used."""
    total = 0.0
    for process in _family(pid):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def progress(words: str) -> None:
    """Say on stderr how far it is."""
    print(f"  {words}", file=sys.stderr, flush=True)
