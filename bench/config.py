"""Config against etcd: reads, publishes, and the time from a publish to its listeners."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from time import monotonic, perf_counter
from typing import Final

from bench import etcd
from bench.etcd import Etcd
from bench.harness import Case, Contestant, Result, Server, bench_store, compare, cpu_seconds, progress, running
from bench.load import Request
from bench.registry import JSON, OURS, TOKEN, Figures, measure_changes, post, rate
from bench.report import publish
from headgate.config.model import Draft
from headgate.config.values import Config
from headgate.sdk import Headgate
from headgate.sdk.config import Changed
from headgate.store import StoreSettings, open_store
from tests.topology import HOST, Standalone

KEYS: Final = 200
WATCHERS: Final = (1, 100, 1000)
LISTENERS: Final = 10_000
CONTENT: Final = json.dumps({"players": 100, "motd": "welcome " * 20})


def contestants(store: Standalone) -> list[Contestant]:
    """Name who takes part."""
    environment = {
        "HEADGATE_STORE": store.url, "HEADGATE_ADMIN_TOKEN": TOKEN, "HEADGATE_OPS_PORT": "0",
        "HEADGATE_LOG_LEVEL": "warning",
    }  # fmt: skip
    ours = Contestant(OURS, [sys.executable, "-m", "headgate", "serve", "gateway", "--port", "{port}"], environment)
    peer = etcd.contestant()
    return [ours, peer] if peer else [ours]


def race(store: Standalone, servers: dict[str, Server], rounds: int, seconds: float) -> list[Result]:
    """Compare reads and publishes over HTTP: the same load on each."""
    ours = {**JSON, "X-API-Token": TOKEN}
    for number in range(KEYS):
        post(
            servers[OURS],
            "/cfg/v1/shop",
            {"values": [{"key": f"k{number}", "content": CONTENT, "contentType": "json"}]},
        )
        if etcd.NAME in servers:
            post(servers[etcd.NAME], "/v3/kv/put", {"key": etcd.text(f"shop/k{number}"), "value": etcd.text(CONTENT)})
    keys = range(KEYS)
    body = json.dumps({"content": CONTENT, "contentType": "json"})
    cases = [
        Case("read a value", {
            OURS: [Request(f"/cfg/v1/shop/k{n}", "GET", "", ours) for n in keys],
            etcd.NAME: [Request("/v3/kv/range", "POST", json.dumps({"key": etcd.text(f"shop/k{n}")}), JSON) for n in keys],
        }),
        Case("publish a value", {
            OURS: [Request(f"/cfg/v1/shop/k{n}", "PUT", body, ours) for n in keys],
            etcd.NAME: [
                Request("/v3/kv/put", "POST", json.dumps({"key": etcd.text(f"shop/k{n}"), "value": etcd.text(CONTENT)}), JSON)
                for n in keys
            ],
        }),
    ]  # fmt: skip
    results = []
    for case in cases:
        results += compare(case, servers, store, rounds=rounds, seconds=seconds)
    return results


async def native(store: Standalone, servers: dict[str, Server], seconds: float) -> Figures:
    """Compare beside the store with etcd's own gRPC."""
    figures: Figures = {}

    async def measure(name: str, pid: int, per_second: float, before: float) -> None:
        figures[f"{name}, a second"] = per_second
        figures[f"{name}, CPU µs of the server each"] = (cpu_seconds(pid) - before) / (per_second * seconds) * 1e6
        progress(f"{name}: {per_second:,.0f}/s")

    async with open_store(StoreSettings(url=store.url, deadline_ms=20_000)) as connected:
        config = Config(connected)
        pid = store.node.pid
        before = cpu_seconds(pid)
        await measure(
            "read, headgate beside the store", pid, await rate([lambda: config.get("shop", "k1")], 64, seconds), before
        )
        before = cpu_seconds(pid)

        async def put() -> object:
            return await config.publish("shop", [Draft("k1", CONTENT)], author="bench")

        await measure("publish, headgate beside the store", pid, await rate([put], 16, seconds), before)
    if etcd.NAME in servers:
        client = Etcd(servers[etcd.NAME].port)
        pid = servers[etcd.NAME].process.pid
        before = cpu_seconds(pid)
        await measure("read, etcd over gRPC", pid, await rate([lambda: client.range("shop/k1")], 64, seconds), before)
        before = cpu_seconds(pid)
        await measure(
            "publish, etcd over gRPC", pid, await rate([lambda: client.put("shop/k1", CONTENT)], 16, seconds), before
        )
        await client.close()
    return figures


async def push(servers: dict[str, Server]) -> Figures:
    """Measure from the call that publishes to each watcher's callback."""
    figures: Figures = {}
    for count in WATCHERS:
        for name in servers:
            times = await (_watch_ours if name == OURS else _watch_etcd)(servers[name], count)
            times.sort()
            label = f"publish to callback, {count:,} watchers, {name}"
            figures[f"{label}, p50 ms"] = times[len(times) // 2] * 1000
            figures[f"{label}, p99 ms"] = times[min(len(times) - 1, int(len(times) * 0.99))] * 1000
            progress(f"{label}: p50 {times[len(times) // 2] * 1000:.1f} ms")
    return figures


async def _watch_ours(server: Server, count: int) -> list[float]:
    times: list[float] = []
    started = [0.0]
    ready = asyncio.Semaphore(0)

    async def follow() -> None:
        reader, writer = await asyncio.open_connection(HOST, server.port, limit=1 << 20)
        head = f"GET /cfg/v1/watched{count}/watch HTTP/1.1\r\nHost: x\r\nX-API-Token: {TOKEN}\r\n\r\n"
        writer.write(head.encode())
        try:
            while True:
                line = await reader.readline()
                if line.startswith(b"event: put"):
                    times.append(perf_counter() - started[0])
                elif line.startswith(b"event: bookmark"):
                    ready.release()
        finally:
            writer.close()

    async def change(number: int) -> None:
        body = {"values": [{"key": f"k{number}", "content": CONTENT}]}
        await asyncio.to_thread(post, server, f"/cfg/v1/watched{count}", body)

    return await measure_changes(follow, change, ready, times, started, count)


async def _watch_etcd(server: Server, count: int) -> list[float]:
    times: list[float] = []
    started = [0.0]
    ready = asyncio.Semaphore(0)
    client = Etcd(server.port)

    async def follow() -> None:
        first = True
        async for _ in client.watch(f"cfg{count}/"):
            if first:
                ready.release()
                first = False
            else:
                times.append(perf_counter() - started[0])

    async def change(number: int) -> None:
        body = {"key": etcd.text(f"cfg{count}/k{number}"), "value": etcd.text(CONTENT)}
        await asyncio.to_thread(post, server, "/v3/kv/put", body)

    try:
        return await measure_changes(follow, change, ready, times, started, count)
    finally:
        await client.close()


async def listeners(store: Standalone) -> Figures:
    """Measure from a publish to the callbacks of many listeners in one process, which share one reader."""
    times: list[float] = []
    started = 0.0

    async def hear(changed: Changed) -> None:
        times.append(perf_counter() - started)

    async with Headgate(store.url, prefix="many") as hg:
        await hg.config.set("shop", "k", "0")
        live = await hg.config.live("shop", "k", str)
        for _ in range(LISTENERS):
            live.listen(hear)
        end = monotonic() + 30
        while len(times) < LISTENERS and monotonic() < end:
            await asyncio.sleep(0.01)
        times.clear()
        for number in range(5):
            seen = len(times)
            started = perf_counter()
            await hg.config.set("shop", "k", str(number + 1))
            end = monotonic() + 30
            while len(times) < seen + LISTENERS and monotonic() < end:
                await asyncio.sleep(0.01)
    times.sort()
    return {
        f"publish to callback, {LISTENERS:,} listeners in one process, p50 ms": times[len(times) // 2] * 1000,
        f"publish to callback, {LISTENERS:,} listeners in one process, p99 ms": times[int(len(times) * 0.99)] * 1000,
    }


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="./dev bench config", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each round")
    options = parser.parse_args(arguments)
    figures: Figures = {}
    with bench_store() as store:
        with running(contestants(store), "/health") as servers:
            results = race(store, servers, options.rounds, options.seconds)
            figures |= asyncio.run(native(store, servers, options.seconds))
            figures |= asyncio.run(push(servers))
        figures |= asyncio.run(listeners(store))
    publish("config", OURS, results, figures)
