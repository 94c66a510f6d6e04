"""Shared by the benchmarks of registry and config: the servers, calls at a rate, and the time from a change to its watchers.

Watchers over HTTP are as thin as can be, the same for us and for etcd's JSON gateway: a socket each, and a search for the
mark of a change in what arrives. etcd over gRPC is watched through one channel, as its users do.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Final, cast

from bench import etcd
from bench.etcd import Etcd
from bench.harness import Contestant, Server, cpu_seconds, progress
from tests.topology import HOST, Standalone

OURS: Final = "headgate"
TOKEN: Final = "only for the benchmark that runs here"
JSON: Final = {"Content-Type": "application/json"}
WATCHERS: Final = (1, 100, 1000)
CHANGES: Final = 40
PAUSE_SECONDS: Final = 0.02
Figures = dict[str, float | str]
Change = Callable[[int], Awaitable[None]]


def gateway(store: Standalone, **environment: str) -> Contestant:
    """Name our gateway as a contestant."""
    common = {
        "HEADGATE_STORE": store.url, "HEADGATE_ADMIN_TOKEN": TOKEN, "HEADGATE_OPS_PORT": "0",
        "HEADGATE_LOG_LEVEL": "warning",
    }  # fmt: skip
    command = [sys.executable, "-m", "headgate", "serve", "gateway", "--port", "{port}"]
    return Contestant(OURS, command, {**common, **environment})


def post(server: Server, path: str, body: object) -> dict[str, object]:
    """Send one request by hand."""
    headers = {**JSON, "X-API-Token": TOKEN}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, object] = json.loads(answer.read())
        return found


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


async def speed(
    name: str, pid: int, calls: Sequence[Callable[[], Awaitable[object]]], at_once: int, seconds: float
) -> Figures:
    """Measure calls a second, and what each costs a server."""
    before = cpu_seconds(pid)
    per_second = await rate(calls, at_once, seconds)
    spent = (cpu_seconds(pid) - before) / (per_second * seconds) * 1e6
    progress(f"{name}: {per_second:,.0f}/s, {spent:.1f} µs")
    return {f"{name}, a second": per_second, f"{name}, CPU µs of the server each": spent}


class Watchers:
    """Clients that wait for changes, and when each of them saw one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.times: list[float] = []
        self.ready = asyncio.Semaphore(0)
        self._started = 0.0

    def saw(self, changes: int = 1) -> None:
        """Note that a watcher's callback has been called."""
        self.times += [perf_counter() - self._started] * changes

    async def measure(self, change: Change) -> list[float]:
        """Make changes one after the other, each when all watchers have seen the one before."""
        for _ in range(self.count):
            await self.ready.acquire()
        await asyncio.sleep(0.5)
        for number in range(CHANGES):
            seen = len(self.times)
            self._started = perf_counter()
            await change(number)
            end = monotonic() + 5
            while len(self.times) < seen + self.count and monotonic() < end:  # a count that all of them raise
                await asyncio.sleep(0.002)
            await asyncio.sleep(PAUSE_SECONDS)
        return self.times


class _Listener(asyncio.Protocol):
    """One watch over HTTP."""

    def __init__(self, watchers: Watchers, request: bytes, opened: bytes, changed: bytes) -> None:
        self._watchers, self._request, self._opened, self._changed = watchers, request, opened, changed
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._open and self._opened in data:
            self._open = True
            self._watchers.ready.release()
        elif changes := data.count(self._changed):
            self._watchers.saw(changes)


async def watch_ours(server: Server, path: str, count: int, change: Change) -> list[float]:
    """Watch us over Server-Sent Events."""
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nX-API-Token: {TOKEN}\r\n\r\n".encode()
    return await _watch_http(server, request, b"event: bookmark", b"event: put", count, change)


async def watch_etcd_http(server: Server, prefix: str, count: int, change: Change) -> list[float]:
    """Watch etcd through its JSON gateway, with the same clients as ours."""
    ask = {"create_request": {"key": etcd.text(prefix), "range_end": etcd.text(etcd.end_of(prefix))}}
    body = json.dumps(ask).encode()
    request = b"POST /v3/watch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    return await _watch_http(server, request, b'"created":true', b'"events":', count, change)


async def _watch_http(
    server: Server, request: bytes, opened: bytes, changed: bytes, count: int, change: Change
) -> list[float]:
    loop, watchers = asyncio.get_running_loop(), Watchers(count)
    transports = []
    try:
        for _ in range(count):
            transport, _ = await loop.create_connection(
                lambda: _Listener(watchers, request, opened, changed), HOST, server.port
            )
            transports.append(transport)
        return await watchers.measure(change)
    finally:
        for transport in transports:
            transport.abort()


async def watch_etcd(server: Server, prefix: str, count: int, change: Change) -> list[float]:
    """Watch etcd in its own gRPC, all over one connection."""
    watchers, client = Watchers(count), Etcd(server.port)

    async def follow() -> None:
        first = True
        async for _ in client.watch(prefix):
            if first:
                watchers.ready.release()
                first = False
            else:
                watchers.saw()

    tasks = [asyncio.ensure_future(follow()) for _ in range(count)]
    try:
        return await watchers.measure(change)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def pushes(
    verb: str, servers: Mapping[str, Server], ours: Callable[[int], tuple[str, Change]], value: Callable[[int], str]
) -> Figures:
    """Measure from the call that makes a change to each watcher's callback; `ours` gives our watch and our change."""
    figures: Figures = {}
    for count in WATCHERS:
        path, change = ours(count)
        taken = {OURS: await watch_ours(servers[OURS], path, count, change)}
        if (peer := servers.get(etcd.NAME)) is not None:
            prefix = f"watched{count}/"

            async def put(number: int, prefix: str = prefix, peer: Server = peer) -> None:
                body = {"key": etcd.text(f"{prefix}i{number}"), "value": etcd.text(value(number))}
                await asyncio.to_thread(post, peer, "/v3/kv/put", body)

            taken["etcd over gRPC"] = await watch_etcd(peer, prefix, count, put)
            taken["etcd over HTTP"] = await watch_etcd_http(peer, prefix, count, put)
        for name, times in taken.items():
            figures |= spread(f"{verb} to callback, {count:,} watchers, {name}", times)
    return figures


def spread(label: str, times: list[float]) -> Figures:
    """Give the middle and the far end of times."""
    times.sort()
    p50, p99 = (times[min(len(times) - 1, int(len(times) * share))] * 1000 for share in (0.5, 0.99))
    progress(f"{label}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    return {f"{label}, p50 ms": p50, f"{label}, p99 ms": p99}
