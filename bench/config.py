"""Config against etcd: reads, publishes, and the time from a publish to its listeners."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from time import monotonic, perf_counter
from typing import Final

from bench import etcd
from bench.etcd import Etcd
from bench.harness import Case, Contestant, Result, Server, bench_store, compare, running
from bench.load import Request
from bench.pushes import JSON, OURS, TOKEN, Change, Figures, gateway, post, pushes, speed, spread
from bench.report import publish
from headgate.config.config import Config
from headgate.config.model import Draft
from headgate.sdk import Changed, Headgate
from headgate.store import StoreSettings, open_store
from tests.topology import Standalone

KEYS: Final = 200
LISTENERS: Final = 10_000
CONTENT: Final = json.dumps({"players": 100, "motd": "welcome " * 20})


def contestants(store: Standalone) -> list[Contestant]:
    """Name who takes part."""
    peer = etcd.contestant()
    return [gateway(store), peer] if peer else [gateway(store)]


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
    return [each for case in cases for each in compare(case, servers, store, rounds=rounds, seconds=seconds)]


async def native(store: Standalone, servers: dict[str, Server], seconds: float) -> Figures:
    """Compare beside the store with etcd's own gRPC."""
    figures: Figures = {}

    async with open_store(StoreSettings(url=store.url, deadline_ms=20_000)) as connected:
        config, pid = Config(connected), store.node.pid

        async def put() -> object:
            return await config.publish("shop", [Draft("k1", CONTENT)], author="bench")

        reads = [lambda: config.get("shop", "k1")]
        figures |= await speed("read, headgate beside the store", pid, reads, 64, seconds)
        figures |= await speed("publish, headgate beside the store", pid, [put], 16, seconds)
    if etcd.NAME in servers:
        client, pid = Etcd(servers[etcd.NAME].port), servers[etcd.NAME].process.pid
        figures |= await speed("read, etcd over gRPC", pid, [lambda: client.range("shop/k1")], 64, seconds)
        figures |= await speed("publish, etcd over gRPC", pid, [lambda: client.put("shop/k1", CONTENT)], 16, seconds)
        await client.close()
    return figures


async def push(servers: dict[str, Server]) -> Figures:
    """Measure from the call that publishes to each watcher's callback."""

    def ours(count: int) -> tuple[str, Change]:
        async def publish_one(number: int) -> None:
            body = {"values": [{"key": f"k{number}", "content": CONTENT}]}
            await asyncio.to_thread(post, servers[OURS], f"/cfg/v1/watched{count}", body)

        return f"/cfg/v1/watched{count}/watch", publish_one

    return await pushes("publish", servers, ours, lambda number: CONTENT)


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
    return spread(f"publish to callback, {LISTENERS:,} listeners in one process", times)


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
