"""The gate: somebody inside and an idle resource against Fastify + ioredis, what it adds to nginx, a board behind a cache."""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import httpx2

from bench import peers, proxies
from bench.cores import CORES
from bench.harness import Case, Contestant, Result, Server, bench_store, compare, cpu_seconds, progress, running
from bench.load import Request, drive
from bench.report import publish
from tests.topology import HOST, Standalone, free_port, wait_until

OURS: Final = "headgate"
FASTIFY: Final = "fastify + ioredis"
TOKEN: Final = "only for the benchmark that runs here"
VISITORS: Final = 500
SECRET: Final = secrets.token_hex(32)
# Counted as always, never reached: all the load comes from one address.
LIMITS: Final = json.dumps({name: {"per_second": 1e9, "burst": 1e9} for name in ("gate", "status", "entry")})
HOUR: Final = 3600
READERS: Final = (1_000, 100_000)
READ_SECONDS: Final = 10


class Gateway:
    """Our contestant and where its metrics are."""

    def __init__(self, store: Standalone) -> None:
        self.ops_port = free_port()
        environment = {
            "HEADGATE_STORE": store.url,
            "HEADGATE_ADMIN_TOKEN": TOKEN,
            "HEADGATE_GATEWAY_LIMITS": LIMITS,
            "HEADGATE_OPS_PORT": str(self.ops_port),
            "HEADGATE_LOG_LEVEL": "warning",
        }
        command = [sys.executable, "-m", "headgate", "serve", "gateway", "--port", "{port}"]
        self.contestant = Contestant(OURS, command, environment)

    def answered(self, operation: str) -> float:
        """Give how many requests of an operation it has answered."""
        lines = httpx2.get(f"http://{HOST}:{self.ops_port}/metrics", timeout=10).text.splitlines()
        mine = [line for line in lines if line.startswith("headgate_http_requests_total{") and f'"{operation}"' in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in mine)


def let_in(url: str) -> list[str]:
    """Make a queue that guards /sale and one that is off for every product, let visitors in, and give their cookies."""
    with httpx2.Client(base_url=url, headers={"X-API-Token": TOKEN}, timeout=30) as admin:
        sale = {"paths": ["/sale/**"], "capacity": 100_000, "batch": 10_000, "sessionTtlSeconds": HOUR}
        auto = {"resource": "product-*", "threshold": 1_000_000_000, "windowSeconds": 10}
        for name, policy in (("sale", sale), ("products", {"paths": ["/product/*"], "auto": auto}), ("board", {})):
            admin.put(f"/api/admin/queues/{name}", json=policy).raise_for_status()

        def visit() -> str:
            """Stand in line as somebody new, and give the cookie with the pass."""
            admin.cookies.clear()
            while (answer := admin.get("/gate/nginx", headers={"X-Original-URI": "/sale/shoes"})).status_code == 401:
                time.sleep(0.05)
            return str(answer.headers.get("set-cookie", "")).partition(";")[0]

        wait_until(lambda: bool(visit()), 10, "the queue is on")
        return [visit() for _ in range(VISITORS)]


def their_cookie(number: int) -> str:
    """Sign a cookie as the peer does."""
    pass_ = {"id": f"visitor-{number}", "queue": "sale", "generation": 1, "expires": int(time.time()) + HOUR}
    payload = base64.urlsafe_b64encode(json.dumps(pass_).encode()).rstrip(b"=")
    mac = hmac.digest(SECRET.encode(), payload, hashlib.sha256)
    return f"headgate={payload.decode()}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def cases(cookies: Sequence[str], connections: int) -> list[Case]:
    """Name what is asked."""
    inside = {
        OURS: [Request("/gate/nginx", headers={"Cookie": one, "X-Original-URI": "/sale/shoes"}) for one in cookies],
        FASTIFY: [
            Request("/gate/inside", headers={"Cookie": their_cookie(number), "X-Original-URI": "/sale/shoes"})
            for number in range(VISITORS)
        ],
    }
    idle = {
        name: [Request(path, headers={"X-Original-URI": f"/product/{number}"}) for number in range(VISITORS)]
        for name, path in ((OURS, "/gate/nginx"), (FASTIFY, "/gate/idle"))
    }
    return [Case("inside: a pass is checked", inside, connections), Case("idle: a queue is off", idle, connections)]


def added(
    nginx: proxies.Nginx, gateway: Server, cookies: Sequence[str], rounds: int, seconds: float
) -> dict[str, float]:
    """Measure what the gate adds to nginx: the CPU time of nginx and gateway together, for each page."""
    asked = [Request("/sale/shoes", headers={"Cookie": cookie}) for cookie in cookies]

    def measured(url: str) -> float:
        before = cpu_seconds(nginx.pid) + cpu_seconds(gateway.process.pid)
        load = drive(url, asked, connections=32, seconds=seconds, cores=CORES.load)
        if load.errors:
            raise RuntimeError(f"{load.errors} errors behind nginx")
        return (cpu_seconds(nginx.pid) + cpu_seconds(gateway.process.pid) - before) / load.requests * 1e6

    taken: dict[str, list[float]] = {nginx.plain: [], nginx.gated: []}
    for number in range(rounds):
        for url, figures in taken.items():
            figures.append(measured(url))
        progress(f"behind nginx: round {number + 1} of {rounds}")
    plain, gated = (statistics.median(figures) for figures in taken.values())
    return {
        "nginx before a site, CPU µs a page": plain,
        "nginx before a site with the gate, nginx and gateway, CPU µs a page": gated,
        "the gate adds, CPU µs a page": gated - plain,
    }


async def read_slowly(url: str, readers: int) -> int:
    """Let so many readers look at the board once each, evenly over the time."""
    async with httpx2.AsyncClient(timeout=30) as client:

        async def look(number: int) -> None:
            await asyncio.sleep(READ_SECONDS * number / readers)
            (await client.get(url)).raise_for_status()

        await asyncio.gather(*(look(number) for number in range(readers)))
    return readers


def read_at_once(url: str, readers: int) -> int:
    """Let at least so many readers look as fast as they can."""
    read = 0
    while read < readers:
        base, _, path = url.partition("/api/")
        load = drive(base, [Request(f"/api/{path}")], connections=64, seconds=READ_SECONDS, cores=CORES.load)
        if load.errors:
            raise RuntimeError(f"{load.errors} readers saw an error")
        read += load.requests
    return read


def boards(nginx: proxies.Nginx, gateway: Gateway) -> dict[str, str]:
    """Count what reaches the gateway when few and when many look at a board behind nginx's cache."""
    url = f"{nginx.gated}/api/queue/board?queue=board"
    few, many = READERS
    figures = {}
    reading: tuple[tuple[int, Callable[[], int]], ...] = (
        (few, lambda: asyncio.run(read_slowly(url, few))),
        (many, lambda: read_at_once(url, many)),
    )
    for wanted, read in reading:
        before, started = gateway.answered("board"), time.monotonic()
        readers = read()
        elapsed = time.monotonic() - started
        time.sleep(1)  # figures are added up every half second
        origin = gateway.answered("board") - before
        progress(f"board: {readers:,} readers in {elapsed:.1f} s, {origin:.0f} asked the gateway")
        figures[f"{wanted:,} read a board behind nginx's cache"] = (
            f"{readers:,} reads, {readers / elapsed:,.0f}/s; {origin:.0f} reached the gateway, {origin / elapsed:.2f}/s"
        )
    return figures


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="./dev bench gate", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--only", choices=["race", "nginx"], help="one part of it")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    figures: dict[str, float | str] = {}
    with bench_store() as store, ExitStack() as stack:
        gateway = Gateway(store)
        taking_part = [gateway.contestant]
        fastify = peers.node("gate.js") if options.only != "nginx" else None
        if fastify:
            environment = {"STORE_PORT": str(store.node.port), "COOKIE_SECRET": SECRET}
            taking_part.append(Contestant(FASTIFY, fastify, environment, peers.NODE))
        servers: Mapping[str, Server] = stack.enter_context(running(taking_part))
        cookies = let_in(servers[OURS].url)
        if options.only != "nginx":
            for case in cases(cookies, options.connections):
                results += compare(case, servers, store, rounds=options.rounds, seconds=options.seconds)
        if options.only != "race" and proxies.program():
            site_port = stack.enter_context(proxies.site())
            nginx = stack.enter_context(proxies.proxy(servers[OURS].port, site_port))
            figures |= added(nginx, servers[OURS], cookies, options.rounds, options.seconds)
            figures |= boards(nginx, gateway)
    publish("gate", OURS, results, figures)
