"""The registry against etcd and the seed's own way: heartbeats, registration, discovery, watching, removal, growth."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Final

from bench import etcd, peers
from bench.etcd import Etcd
from bench.harness import Case, Contestant, Result, Server, bench_store, compare, cpu_seconds, progress, running
from bench.load import Request
from bench.report import publish
from headgate.registry.instances import Registry
from headgate.registry.model import Beat, Record
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper
from headgate.store import StoreSettings, open_store
from tests.topology import HOST, Standalone

OURS: Final = "headgate"
SEED: Final = "the seed's way (ioredis)"
TOKEN: Final = "only for the benchmark"
SIZE: Final = 1000
WATCHERS: Final = (1, 100, 1000)
CHANGES: Final = 40
JSON: Final = {"Content-Type": "application/json"}
Figures = dict[str, float | str]


def record(number: int, group: str = "g") -> dict[str, object]:
    """Describe an instance of usual size."""
    return {
        "type": "game", "group": group, "instanceId": f"i{number}", "hostname": f"game-{number}.kr.example.com",
        "publicIp": "123.45.67.89", "privateIp": "10.0.0.5", "port": 7000, "systemInfo": {"cpu": 16, "memory": 32768},
        "performance": {"tps": 1200, "load": 0.8}, "metadata": {"version": "1.2.0", "zone": "kr-1a"},
    }  # fmt: skip


def contestants(store: Standalone) -> list[Contestant]:
    """Name who takes part."""
    environment = {
        "HEADGATE_STORE": store.url, "HEADGATE_ADMIN_TOKEN": TOKEN, "HEADGATE_OPS_PORT": "0",
        "HEADGATE_LOG_LEVEL": "warning", "HEADGATE_REGISTRY_TTL_SECONDS": "3600",
    }  # fmt: skip
    ours = Contestant(OURS, [sys.executable, "-m", "headgate", "serve", "gateway", "--port", "{port}"], environment)
    found = [ours]
    if (peer := etcd.contestant()) is not None:
        found.append(peer)
    if seed := peers.node("registry.js"):
        found.append(Contestant(SEED, seed, {"STORE_PORT": str(store.node.port)}, peers.NODE))
    return found


def post(server: Server, path: str, body: object) -> dict[str, object]:
    """Send one request by hand."""
    headers = {**JSON, "X-API-Token": TOKEN}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, object] = json.loads(answer.read())
        return found


def race(store: Standalone, servers: dict[str, Server], rounds: int, seconds: float) -> list[Result]:
    """Compare what goes over HTTP: the same load on each."""
    ours = {**JSON, "X-API-Token": TOKEN}
    leases = []
    for number in range(SIZE):
        value = record(number)
        post(servers[OURS], "/sd/v1/instances", value)
        if SEED in servers:
            flat = {key: each if isinstance(each, str) else json.dumps(each) for key, each in value.items()}
            post(servers[SEED], "/sd/v1/instances", flat)
        if etcd.NAME in servers:
            lease = post(servers[etcd.NAME], "/v3/lease/grant", {"TTL": 3600})["ID"]
            leases.append(lease)
            body = {"key": etcd.text(f"game/g/i{number}"), "value": etcd.text(json.dumps(value)), "lease": lease}
            post(servers[etcd.NAME], "/v3/kv/put", body)
    place = {"type": "game", "group": "g"}

    def beat(number: int) -> Request:
        return Request(f"/sd/v1/instances/i{number}/heartbeat", "POST", json.dumps(place), ours)

    def keep_alive(number: int) -> Request:
        return Request("/v3/lease/keepalive", "POST", json.dumps({"ID": leases[number]}), JSON)

    def put(number: int) -> Request:
        body = {
            "key": etcd.text(f"game/g/i{number}"), "value": etcd.text(json.dumps(record(number))), "lease": leases[number],
        }  # fmt: skip
        return Request("/v3/kv/put", "POST", json.dumps(body), JSON)

    def many(first: int) -> Request:
        beats = [{"instanceId": f"i{number}", **place} for number in range(first, first + 100)]
        return Request("/sd/v1/heartbeats", "POST", json.dumps({"heartbeats": beats}), ours)

    numbers = range(SIZE)
    ends = {"key": etcd.text("game/g/"), "range_end": etcd.text(etcd.end_of("game/g/"))}
    cases = [
        Case("heartbeat (etcd: lease keep-alive), over HTTP", {
            OURS: [beat(number) for number in numbers],
            etcd.NAME: [keep_alive(number) for number in numbers] if leases else [],
            SEED: [Request(f"/sd/v1/instances/i{number}/heartbeat", "POST", "{}", JSON) for number in numbers],
        }),
        Case("100 heartbeats in one request", {OURS: [many(first) for first in range(0, SIZE, 100)]}, 8),
        Case("register (etcd: put with lease), over HTTP", {
            OURS: [Request("/sd/v1/instances", "POST", json.dumps(record(number)), ours) for number in numbers],
            etcd.NAME: [put(number) for number in numbers] if leases else [],
        }),
        Case(f"discover {SIZE:,} instances (etcd: prefix range), over HTTP", {
            OURS: [Request("/sd/v1/instances?type=game&group=g", "GET", "", ours)],
            etcd.NAME: [Request("/v3/kv/range", "POST", json.dumps(ends), JSON)],
            SEED: [Request("/sd/v1/instances?type=game&group=g")],
        }, 8),
    ]  # fmt: skip
    results = []
    for case in cases:
        results += compare(case, servers, store, rounds=rounds, seconds=seconds)
    return results


async def rate(calls: Sequence[Callable[[], Awaitable[object]]], at_once: int, seconds: float) -> float:
    """Make calls, so many at once, for so long; give how many a second."""
    end, done = monotonic() + seconds, 0

    async def work(number: int) -> None:
        nonlocal done
        while monotonic() < end:
            await calls[number % len(calls)]()
            number += at_once
            done += 1

    started = monotonic()
    await asyncio.gather(*(work(number) for number in range(at_once)))
    return done / (monotonic() - started)


async def native(store: Standalone, servers: dict[str, Server], seconds: float) -> Figures:
    """Compare beside the store with etcd's own gRPC: one Python program, 64 calls at once."""
    figures: Figures = {}

    async def race_one(
        name: str, pid: int, calls: Sequence[Callable[[], Awaitable[object]]], at_once: int = 64
    ) -> None:
        before = cpu_seconds(pid)
        per_second = await rate(calls, at_once, seconds)
        spent = (cpu_seconds(pid) - before) / (per_second * seconds) * 1e6
        figures[f"{name}, a second"] = per_second
        figures[f"{name}, CPU µs of the server each"] = spent
        progress(f"{name}: {per_second:,.0f}/s, {spent:.1f} µs")

    async with open_store(StoreSettings(url=store.url, deadline_ms=20_000)) as connected:
        registry = Registry(connected, RegistrySettings(ttl_seconds=3600))
        thing = registry.service("default", "game", "g")

        def beat(number: int) -> Callable[[], Awaitable[object]]:
            return lambda: registry.beat(thing, Beat(f"i{number}"))

        pid = store.node.pid
        await race_one("heartbeat, headgate beside the store", pid, [beat(number) for number in range(SIZE)])

        async def discover() -> object:
            return (await registry.look(thing)).instances

        await race_one("discover 1,000, headgate beside the store", pid, [discover], 8)
    if etcd.NAME not in servers:
        return figures
    server = servers[etcd.NAME]
    client = Etcd(server.port)
    streams = [client.keep_alive() for _ in range(64)]
    leases = [etcd.lease_id(await client.grant(3600)) for _ in range(64)]

    def keep_alive(number: int) -> Callable[[], Awaitable[object]]:
        async def call() -> object:
            await streams[number].write(leases[number])
            return await streams[number].read()

        return call

    await race_one("heartbeat, etcd over gRPC", server.process.pid, [keep_alive(number) for number in range(64)])
    await race_one("discover 1,000, etcd over gRPC", server.process.pid, [lambda: client.range("game/g/")], 8)
    for stream in streams:
        stream.cancel()
    await client.close()
    return figures


async def watch_latency(servers: dict[str, Server]) -> Figures:
    """Measure from the call that registers to each watcher's callback."""
    figures: Figures = {}
    for count in WATCHERS:
        for name in (OURS, etcd.NAME):
            if name not in servers:
                continue
            times = await (_watch_ours if name == OURS else _watch_etcd)(servers[name], count)
            times.sort()
            label = f"register to callback, {count:,} watchers, {name}"
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
        query = f"type=game&group=watched{count}"
        writer.write(f"GET /sd/v1/watch?{query} HTTP/1.1\r\nHost: x\r\nX-API-Token: {TOKEN}\r\n\r\n".encode())
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
        await asyncio.to_thread(post, server, "/sd/v1/instances", record(number, f"watched{count}"))

    return await measure_changes(follow, change, ready, times, started, count)


async def _watch_etcd(server: Server, count: int) -> list[float]:
    times: list[float] = []
    started = [0.0]
    ready = asyncio.Semaphore(0)
    client = Etcd(server.port)

    async def follow() -> None:
        first = True
        async for _ in client.watch(f"watched{count}/"):
            if first:
                ready.release()
                first = False
            else:
                times.append(perf_counter() - started[0])

    async def change(number: int) -> None:
        body = {"key": etcd.text(f"watched{count}/i{number}"), "value": etcd.text(json.dumps(record(number)))}
        await asyncio.to_thread(post, server, "/v3/kv/put", body)

    try:
        return await measure_changes(follow, change, ready, times, started, count)
    finally:
        await client.close()


async def measure_changes(
    follow: Callable[[], Awaitable[None]],
    change: Callable[[int], Awaitable[None]],
    ready: asyncio.Semaphore,
    times: list[float],
    started: list[float],
    count: int,
) -> list[float]:
    tasks = [asyncio.ensure_future(follow()) for _ in range(count)]
    for _ in range(count):
        await ready.acquire()
    await asyncio.sleep(0.5)
    for number in range(CHANGES):
        seen = len(times)
        started[0] = perf_counter()
        await change(number)
        end = monotonic() + 5
        while len(times) < seen + count and monotonic() < end:  # a count that many tasks raise
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return times


async def removal(store: Standalone) -> Figures:
    """Measure from the end of a lease to its removal, and what a sweep costs by the size of the group."""
    figures: Figures = {}
    async with open_store(StoreSettings(url=store.url, prefix="sweep", deadline_ms=20_000)) as connected:
        registry = Registry(connected, RegistrySettings(protect_share=1.0))
        sweeper = Sweeper(registry)
        late: list[float] = []
        stop = asyncio.Event()

        async def sweep() -> None:
            while not stop.is_set():
                await sweeper.step()
                await asyncio.sleep(0.25)

        sweeping = asyncio.ensure_future(sweep())
        for number in range(10):
            thing = registry.service("default", "short", f"g{number}")
            made = await registry.register("default", Record(type="short", group=f"g{number}", ttl_seconds=1))
            due = monotonic() + 1
            async for notice in registry.feed.watch(thing, made.revision):
                if getattr(notice, "kind", "") == "removed":
                    late.append(monotonic() - due)
                    break
        stop.set()
        await sweeping
        figures["removal after the lease's end, median ms"] = statistics.median(late) * 1000
        figures["removal after the lease's end, worst ms"] = max(late) * 1000
        for size in (100, 1_000, 10_000):
            thing = registry.service("default", "many", f"g{size}")
            for first in range(0, size, 500):
                batch = [
                    Record(type="many", group=f"g{size}", ttl_seconds=60, instance_id=f"i{n}")
                    for n in range(first, min(first + 500, size))
                ]
                await asyncio.gather(*(registry.register("default", each) for each in batch))
            before = cpu_seconds(store.node.pid)
            for _ in range(50):
                await sweeper.sweep(thing)
            figures[f"a visit to {size:,} living instances, CPU µs of the store"] = (
                (cpu_seconds(store.node.pid) - before) / 50 * 1e6
            )
    return figures


async def growth(store: Standalone, most: int, seconds: float) -> Figures:
    """Show what a heartbeat costs the store with more and more instances, in groups of a thousand."""
    figures: Figures = {}
    async with open_store(StoreSettings(url=store.url, prefix="grow", deadline_ms=20_000)) as connected:
        registry = Registry(connected, RegistrySettings(ttl_seconds=3600))
        living = 0
        size = 1000
        while size <= most:
            while living < size:
                group = f"g{living // 1000}"
                batch = [Record(type="grow", group=group, instance_id=f"i{n}") for n in range(living, living + 500)]
                await asyncio.gather(*(registry.register("default", each) for each in batch))
                living += 500
            things = [registry.service("default", "grow", f"g{number}") for number in range(size // 1000)]
            names = [(things[n // 1000], f"i{n}") for n in range(0, size, max(1, size // 5000))]
            calls = [lambda each=each: registry.beat(each[0], Beat(each[1])) for each in names]
            before = cpu_seconds(store.node.pid)
            per_second = await rate(calls, 256, seconds)
            figures[f"heartbeats a second with {size:,} instances"] = per_second
            figures[f"CPU µs of the store each, {size:,} instances"] = (
                (cpu_seconds(store.node.pid) - before) / (per_second * seconds) * 1e6
            )
            progress(f"{size:,} instances: {per_second:,.0f} heartbeats a second")
            size *= 10
    return figures


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="./dev bench registry", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each round")
    parser.add_argument("--most", type=int, default=100_000, help="instances in the last step of growth")
    options = parser.parse_args(arguments)
    figures: Figures = {}
    with bench_store() as store:
        with running(contestants(store), "/health") as servers:
            results = race(store, servers, options.rounds, options.seconds)
            figures |= asyncio.run(native(store, servers, options.seconds))
            figures |= asyncio.run(watch_latency(servers))
        figures |= asyncio.run(removal(store))
        with suppress(KeyboardInterrupt):
            figures |= asyncio.run(growth(store, options.most, options.seconds))
    publish("registry", OURS, results, figures)
