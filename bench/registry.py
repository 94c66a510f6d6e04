"""The registry against etcd and the seed's own way: heartbeats, registration, discovery, watching, removal, growth."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final

from bench import etcd, peers
from bench.etcd import Etcd
from bench.harness import Case, Contestant, Result, Server, bench_store, compare, cpu_seconds, running
from bench.load import Request
from bench.pushes import JSON, OURS, TOKEN, Change, Figures, gateway, post, pushes, speed
from bench.report import publish
from headgate.registry.model import InstanceBeat, Record
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper
from headgate.store import StoreSettings, open_store
from tests.topology import Standalone

SEED: Final = "the seed's way (ioredis)"
SIZE: Final = 1000


def record(number: int, group: str = "g") -> dict[str, object]:
    """Describe an instance of usual size."""
    return {
        "type": "game", "group": group, "instanceId": f"i{number}", "hostname": f"game-{number}.kr.example.com",
        "publicIp": "123.45.67.89", "privateIp": "10.0.0.5", "port": 7000, "systemInfo": {"cpu": 16, "memory": 32768},
        "performance": {"tps": 1200, "load": 0.8}, "metadata": {"version": "1.2.0", "zone": "kr-1a"},
    }  # fmt: skip


def contestants(store: Standalone) -> list[Contestant]:
    """Name who takes part."""
    found = [gateway(store, HEADGATE_REGISTRY_TTL_SECONDS="3600")]
    if (peer := etcd.contestant()) is not None:
        found.append(peer)
    if seed := peers.node("registry.js"):
        found.append(Contestant(SEED, seed, {"STORE_PORT": str(store.node.port)}, peers.NODE))
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
    return [each for case in cases for each in compare(case, servers, store, rounds=rounds, seconds=seconds)]


async def native(store: Standalone, servers: dict[str, Server], seconds: float) -> Figures:
    """Compare beside the store with etcd's own gRPC: one Python program, 64 calls at once."""
    figures: Figures = {}

    async with open_store(StoreSettings(url=store.url, deadline_ms=20_000)) as connected:
        registry = Registry(connected, RegistrySettings(ttl_seconds=3600))
        thing = registry.service("default", "game", "g")

        def beat(number: int) -> Callable[[], Awaitable[object]]:
            return lambda: registry.beat(thing, InstanceBeat(f"i{number}"))

        pid = store.node.pid
        figures |= await speed(
            "heartbeat, headgate beside the store", pid, [beat(number) for number in range(SIZE)], 64, seconds
        )

        async def discover() -> object:
            return (await registry.read_service(thing)).instances

        figures |= await speed("discover 1,000, headgate beside the store", pid, [discover], 8, seconds)
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

    pid = server.process.pid
    figures |= await speed("heartbeat, etcd over gRPC", pid, [keep_alive(number) for number in range(64)], 64, seconds)
    figures |= await speed("discover 1,000, etcd over gRPC", pid, [lambda: client.range("game/g/")], 8, seconds)
    for stream in streams:
        stream.cancel()
    await client.close()
    return figures


async def watch_latency(servers: dict[str, Server]) -> Figures:
    """Measure from the call that registers to each watcher's callback."""

    def ours(count: int) -> tuple[str, Change]:
        async def register(number: int) -> None:
            await asyncio.to_thread(post, servers[OURS], "/sd/v1/instances", record(number, f"watched{count}"))

        return f"/sd/v1/watch?type=game&group=watched{count}", register

    return await pushes("register", servers, ours, lambda number: json.dumps(record(number)))


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
    """Show what each call costs the store with more and more instances, in groups of a thousand."""
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
            words = f"with {size:,} instances"
            beats = [lambda each=each: registry.beat(each[0], InstanceBeat(each[1])) for each in names]
            figures |= await speed(f"heartbeat {words}", store.node.pid, beats, 256, seconds)
            again = [
                lambda n=n: registry.register(
                    "default", Record(type="grow", group=f"g{n // 1000}", instance_id=f"i{n}")
                )
                for n in range(0, size, max(1, size // 5000))
            ]
            figures |= await speed(f"register {words}", store.node.pid, again, 64, seconds)
            find = partial(registry.look, things[0])
            figures |= await speed(f"discover 1,000 {words}", store.node.pid, [find], 8, seconds)
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
