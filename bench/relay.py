"""The relay: refusals and pace against other limiters on one strict upstream, and the cost of an uncontended request."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from bench import peers
from bench.cores import CORES, pinned
from bench.harness import ROOT, Case, Contestant, Result, bench_store, compare, progress, running
from bench.load import Request
from bench.relay_chart import draw
from bench.report import publish
from headgate.cli.trial.strict_limits import SlidingLog
from headgate.cli.trial.strict_upstream import Delays, StrictUpstream
from headgate.relay.model import Limit, Upstream
from headgate.relay.upstreams import Upstreams
from headgate.sdk import Headgate
from headgate.store import StoreSettings, open_store
from tests.topology import HOST, Standalone, free_port, reaper, wait_until

OURS: Final = "headgate"
TOKEN: Final = "only for the benchmark that runs here"
COUNT, SECONDS, REQUESTS, PROCESSES = 10, 2.0, 100, 3
DELAYS: Final = {"seconds": 0.015, "tail": 0.4, "tail_share": 0.03}
USERS: Final = 500
SENDER: Final = ROOT / "bench" / "contestants" / "python" / "limiters.py"


class Race(msgspec.Struct, frozen=True):
    """The arrivals that the strict upstream saw of one contestant, over all runs."""

    contestant: str
    refused: int
    requests: int
    largest_window: int
    utilisation: float
    store_calls: float
    arrivals: list[float]


def senders(store: Standalone, upstream: int) -> dict[str, Callable[[int], list[str]]]:
    """Give for each contestant the command of one process with so many requests."""
    port, limit = str(store.node.port), [str(COUNT), str(SECONDS)]

    def python(kind: str) -> Callable[[int], list[str]]:
        program = [sys.executable] if kind == OURS else peers.python("python")
        return lambda share: [*program, str(SENDER), kind, port, str(upstream), str(share), *limit]

    found = {
        OURS: python(OURS),
        "PyrateLimiter": python("pyrate"),
        "throttled-py": python("throttled"),
        "aiolimiter (one process)": python("aiolimiter"),
        "the seed's lock and poll": python("seed"),
    }
    bottleneck = peers.node("bottleneck.js")
    if bottleneck:
        found["Bottleneck"] = lambda share: [*bottleneck, port, str(upstream), str(share), *limit]
    return found


async def race(store: Standalone, rounds: int) -> list[Race]:
    """Let each contestant do the same work against the same upstream, in turn."""
    taken: dict[str, list[Race]] = {}
    for number in range(rounds):
        for name in senders(store, 0):
            store.node.command("FLUSHALL")
            async with StrictUpstream(
                lambda: SlidingLog(COUNT, SECONDS), Delays(**DELAYS, seed=number + 1)
            ).open() as upstream:  # fmt: skip
                if name == OURS:
                    await _put(store, Upstream(
                        base_url=upstream.url, limits=(Limit(count=COUNT, seconds=SECONDS),), deadline_seconds=600.0
                    ))  # fmt: skip
                command = senders(store, upstream.port)[name]
                one = await _run(name, command, upstream, store)
            taken.setdefault(name, []).append(one)
            progress(f"round {number + 1} of {rounds}, {name}: {one.refused} refused, largest {one.largest_window}")
    return [_sum(runs) for runs in taken.values()]


async def _run(name: str, command: Callable[[int], list[str]], upstream: StrictUpstream, store: Standalone) -> Race:
    processes = 1 if "one process" in name else PROCESSES
    shares = [REQUESTS // processes + (number < REQUESTS % processes) for number in range(processes)]
    async with _Monitor(store) as monitor:
        running = [
            await asyncio.create_subprocess_exec(
                *command(share), stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
            )
            for share in shares
        ]
        for process in running:
            _, errors = await asyncio.wait_for(process.communicate(), 300)
            if process.returncode:
                raise SystemExit(f"bench: {name} failed: {errors.decode()[-2000:]}")
    arrivals = sorted(moment for moments in upstream.arrivals.values() for moment in moments)
    took = arrivals[-1] - arrivals[0]
    ideal = (REQUESTS - 1) // COUNT * SECONDS
    return Race(
        name,
        upstream.refused,
        len(arrivals),
        upstream.largest(SECONDS),
        ideal / took,
        monitor.calls / len(arrivals),
        [moment - arrivals[0] for moment in arrivals],
    )


def _sum(runs: list[Race]) -> Race:
    count = len(runs)
    return Race(
        runs[0].contestant,
        sum(run.refused for run in runs),
        sum(run.requests for run in runs),
        max(run.largest_window for run in runs),
        sum(run.utilisation for run in runs) / count,
        sum(run.store_calls for run in runs) / count,
        runs[0].arrivals,
    )


class _Monitor:
    """Counts the calls that clients make, by the server's own account; what scripts do inside is not counted."""

    def __init__(self, store: Standalone) -> None:
        self.calls = 0
        self._store = store
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _Monitor:
        reader, self._writer = await asyncio.open_connection(HOST, self._store.node.port)
        self._writer.write(b"MONITOR\r\n")
        await reader.readline()
        self._task = asyncio.ensure_future(self._count(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait((self._task,))
        self._writer.close()

    async def _count(self, reader: asyncio.StreamReader) -> None:
        background = (
            b'"ping"',
            b'"info"',
            b'"time"',
            b'"client"',
            b'"hello"',
            b'"subscribe"',
            b'"script"',
            b'"select"',
        )
        while line := await reader.readline():
            lowered = line.lower()
            self.calls += b" lua]" not in lowered and not any(word in lowered for word in background)


async def _put(store: Standalone, policy: Upstream) -> None:
    async with open_store(StoreSettings(url=store.url)) as opened:
        await Upstreams(opened).note_new_store()  # as `up` does; a store that nobody knows holds for a window first
    async with Headgate(store.url) as headgate:
        await headgate.relay.put_upstream("bench", policy)


@contextmanager
def origin() -> Iterator[int]:
    """Run an upstream that costs next to nothing: nginx with a fixed answer, on the load's core."""
    with nginx("return 200 ok;", CORES.load) as port:
        yield port


@contextmanager
def nginx(directive: str, cores: set[int]) -> Iterator[int]:
    """Run nginx with one worker and one location."""
    port, folder = free_port(), reaper().directory("nginx")
    config = folder / "nginx.conf"
    config.write_text(_nginx(directive, str(port), folder))
    process = subprocess.Popen(
        [_nginx_program(), "-c", str(config), "-e", str(folder / "error.log")], preexec_fn=pinned(cores)
    )
    try:
        wait_until(lambda: _listens(port), 10, "nginx listens")
        yield port
    finally:
        process.terminate()
        process.wait()


def _nginx(directive: str, port: str, folder: Path) -> str:
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000; {temporary}
  UPSTREAM
  server {{ listen 127.0.0.1:{port}; location / {{ {directive} }} }}
}}""".replace("UPSTREAM", "")


def _nginx_program() -> str:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "nginx"


def _listens(port: int) -> bool:
    import socket

    with suppress(OSError), socket.create_connection((HOST, port), 1):
        return True
    return False


def uncontended(store: Standalone, rounds: int, seconds: float) -> list[Result]:
    """Measure what a request costs that need not wait: ours, nginx's proxy_pass, and the seed's relay."""
    with origin() as port:
        wide = Upstream(base_url=f"http://{HOST}:{port}", limits=(Limit(count=10_000, seconds=1),))
        asyncio.run(_put(store, wide))
        folder = reaper().directory("proxy")
        config = folder / "nginx.conf"
        config.write_text(
            _nginx("proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection '';", "PORT", folder)
            .replace("server {", f"upstream origin {{ server {HOST}:{port}; keepalive 64; }}\n  server {{", 1)
        )  # fmt: skip
        script = f"sed 's/127.0.0.1:PORT/127.0.0.1:'$PORT'/' {config} > {config}.run && exec {_nginx_program()} -c {config}.run -e {folder}/e"
        environment = {"HEADGATE_STORE": store.url, "HEADGATE_ADMIN_TOKEN": TOKEN, "HEADGATE_LOG_LEVEL": "warning",
                       "HEADGATE_OPS_PORT": "0"}  # fmt: skip
        taking_part = [
            Contestant(OURS, [sys.executable, "-m", "headgate", "serve", "relay", "--port", "{port}"], environment),
            Contestant("nginx proxy_pass", ["sh", "-c", script]),
            Contestant(
                "the seed's relay", peers.python("uvicorn", "seed_relay:app", "--port", "{port}", "--log-level", "warning"),
                {"UPSTREAM_PORT": str(port), "STORE_PORT": str(store.node.port)}, peers.PYTHON,
            ),
        ]  # fmt: skip
        headers = {"X-API-Token": TOKEN}
        requests = [Request("/relay/bench/x", headers={**headers, "X-User-Id": f"u{n}"}) for n in range(USERS)]
        case = Case("an uncontended request", {one.name: requests for one in taking_part}, connections=16)
        with running(taking_part, "/livez") as servers:
            return compare(case, servers, store, rounds=rounds, seconds=seconds)


def table(races: Sequence[Race]) -> list[str]:
    """Write the race as rows of a table in Markdown."""
    rows = [
        f"| contestant | refused | largest window (limit {COUNT}) | pace | store calls a request |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {one.contestant} | {one.refused} of {one.requests} | {one.largest_window} | {one.utilisation:.0%} | "
        f"{one.store_calls:.1f} |"
        for one in races
    ]
    return rows


def main(arguments: list[str]) -> None:
    """Run the race, then the cost."""
    parser = argparse.ArgumentParser(prog="./dev bench relay")
    parser.add_argument("--rounds", type=int, default=2, help="how often the cost of a request is measured")
    parser.add_argument("--races", type=int, default=2, help="how often each contestant runs the race")
    parser.add_argument("--seconds", type=float, default=4)
    chosen = parser.parse_args(arguments)
    with bench_store() as store:
        results = uncontended(store, chosen.rounds, chosen.seconds)
        races = asyncio.run(race(store, chosen.races))
    print("\n".join(table(races)))
    chart = ROOT / "docs" / "relay-arrivals.svg"
    chart.write_text(draw([(one.contestant, one.arrivals) for one in races], COUNT, SECONDS))
    print(f"chart written to {chart.relative_to(ROOT)}")
    figures: dict[str, float | str] = {
        f"{one.contestant}: refused, largest window, pace, store calls a request": (
            f"{one.refused} of {one.requests}, {one.largest_window}, {one.utilisation:.2f}, {one.store_calls:.1f}"
        )
        for one in races
    }
    publish("relay", OURS, results, figures)
