"""The load: a fixed number of connections that each ask again as soon as they are answered.

`wrk` does it where it is installed, since it costs its core the least; else a small asyncio client of our own does, and the
report says so, because then the load may be slower than the server.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from bench.cores import pinned

WAIT_SECONDS: Final = 10
_SCRIPT: Final = Path(__file__).parent / "load.lua"


class Request(msgspec.Struct, frozen=True):
    """One request of the load; the load goes through its list again and again."""

    path: str
    method: str = "GET"
    body: str = ""
    headers: Mapping[str, str] = {}


class Load(msgspec.Struct, frozen=True):
    """The outcome of a load: how many answers in how long, and how long each took."""

    requests: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float


class _Order(msgspec.Struct, frozen=True):
    url: str
    requests: Sequence[Request]
    connections: int
    seconds: float


def generator() -> str:
    """Name what makes the load here."""
    return "wrk" if shutil.which("wrk") else "asyncio"


def drive(url: str, requests: Sequence[Request], *, connections: int, seconds: float, cores: set[int]) -> Load:
    """Load a server from a process of its own, on cores of its own."""
    order = _Order(url, requests, connections, seconds)
    with tempfile.TemporaryDirectory(prefix="headgate-load-") as folder:
        file = Path(folder) / "order.json"
        file.write_bytes(msgspec.json.encode(order))
        command = _wrk(order, Path(folder)) if generator() == "wrk" else [sys.executable, "-m", "bench.load", str(file)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 3 * WAIT_SECONDS, preexec_fn=pinned(cores)
        )
    if done.returncode:
        raise RuntimeError(f"the load on {url} failed: {done.stderr or done.stdout}")
    return msgspec.json.decode(done.stdout.rsplit("\n", 2)[-2], type=Load)


def _wrk(order: _Order, folder: Path) -> list[str]:
    """Write the requests as Lua, and give the command that sends them."""
    rows = ",\n".join(_row(request) for request in order.requests)
    script = folder / "load.lua"
    script.write_text(f"local rows = {{\n{rows}\n}}\n{_SCRIPT.read_text()}")
    options = ["-t1", f"-c{order.connections}", f"-d{order.seconds:.0f}s", f"--timeout={WAIT_SECONDS}s"]
    return ["wrk", *options, "-s", str(script), order.url]


def _row(request: Request) -> str:
    headers = ", ".join(f"[{json.dumps(name)}] = {json.dumps(value)}" for name, value in request.headers.items())
    body = json.dumps(request.body, ensure_ascii=False) if request.body else "nil"
    return f"{{{json.dumps(request.method)}, {json.dumps(request.path)}, {{{headers}}}, {body}}}"


class _Client(asyncio.Protocol):
    """One connection: it writes a request, reads one answer with a Content-Length, and begins again."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._bytes = bytearray()
        self._started = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        head = self._bytes.find(b"\r\n\r\n")
        if head < 0:
            return
        fields = bytes(self._bytes[:head]).lower()
        at = fields.find(b"\r\ncontent-length:")
        length = int(fields[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._bytes) < head + 4 + length:
            return
        self._run.answered(self._started, ok=fields[9:10] in b"23")
        self._bytes.clear()
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self._run.lost()

    def _ask(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(self._run.next())


class _Run:
    def __init__(self, order: _Order) -> None:
        host = urlsplit(order.url).netloc
        self._wire = [_encoded(request, host) for request in order.requests]
        self._at = 0
        self.times: list[float] = []
        self.errors = 0
        self.over = False

    def next(self) -> bytes:
        self._at = (self._at + 1) % len(self._wire)
        return self._wire[self._at]

    def answered(self, started: float, *, ok: bool) -> None:
        self.times.append(time.perf_counter() - started)
        self.errors += not ok

    def lost(self) -> None:
        self.errors += not self.over


def _encoded(request: Request, host: str) -> bytes:
    fields = {"Host": host, **request.headers}
    body = request.body.encode()
    if body:
        fields["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{request.method} {request.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def _load(order: _Order) -> Load:
    loop = asyncio.get_running_loop()
    run = _Run(order)
    address = urlsplit(order.url)
    started = time.perf_counter()
    opened = [
        await loop.create_connection(lambda: _Client(run), address.hostname or "", address.port or 80)
        for _ in range(order.connections)
    ]
    await asyncio.sleep(order.seconds)
    run.over = True
    seconds = time.perf_counter() - started
    for transport, _ in opened:
        transport.abort()
    times = sorted(run.times) or [0.0]
    return Load(
        requests=len(run.times),
        errors=run.errors,
        seconds=seconds,
        p50_ms=times[len(times) // 2] * 1000,
        p99_ms=times[len(times) * 99 // 100] * 1000,
    )


if __name__ == "__main__":
    taken = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=_Order)
    print(msgspec.json.encode(asyncio.run(_load(taken))).decode())
