"""The waiting room: status and entry against peers, a tick at a million waiting, memory a waiter, a hundred thousand players."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench import peers
from bench.arena import compare_arena
from bench.harness import Case, Contestant, Result, bench_store, compare, cpu_seconds, progress, running
from bench.load import Request
from bench.report import publish
from headgate.store import StoreSettings, Thing, open_store
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.policy import PolicyChange, Seats
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.topology import Standalone

OURS: Final = "headgate"
TOKEN: Final = "only for the benchmark that runs here"
LINE: Final = 100_000
ASKED: Final = 5_000
STEPS: Final = 30
AT_ONCE: Final = 2_000
ARENAS: Final = 4
SEATS: Final = 3_000
# Counted as always, never reached: all the load comes from one address.
LIMITS: Final = json.dumps(
    {name: dict.fromkeys(("per_second", "burst", "user_per_second", "user_burst"), 1e9) for name in ("entry", "status")}
)


def ours(store: Standalone, process: str, *arguments: str, name: str = OURS) -> Contestant:
    """Name one of our processes as a contestant."""
    environment = {
        "HEADGATE_STORE": store.url,
        "HEADGATE_ADMIN_TOKEN": TOKEN,
        "HEADGATE_GATEWAY_LIMITS": LIMITS,
        "HEADGATE_OPS_PORT": "0",
        "HEADGATE_LOG_LEVEL": "warning",
    }
    return Contestant(name, [sys.executable, "-m", "headgate", "serve", process, *arguments], environment)


def contestants(store: Standalone) -> list[Contestant]:
    """Name who takes part."""
    environment = {"STORE_PORT": str(store.node.port)}
    taking_part = [ours(store, "gateway", "--port", "{port}")]
    fastify = peers.node("waiting_room.js")
    if fastify:
        taking_part.append(Contestant("fastify + ioredis", fastify, environment, peers.NODE))
    uvicorn = peers.python(
        "uvicorn", "waiting_room:app", "--port", "{port}", "--no-access-log", "--log-level", "warning"
    )
    return [*taking_part, Contestant("fastapi + redis-py", uvicorn, environment, peers.PYTHON)]


@asynccontextmanager
async def opened(store: Standalone, **policy: object) -> AsyncIterator[tuple[WaitingRoom, Thing]]:
    """Open the waiting room with a queue of this policy."""
    async with open_store(StoreSettings(url=store.url, deadline_ms=30_000)) as connected:
        room = WaitingRoom(connected)
        thing = room.queues.thing("default", "main")
        await room.queues.configure(thing, PolicyChange(**policy), who="bench")  # type: ignore[arg-type]
        yield room, thing


async def line_up(room: WaitingRoom, people: int) -> list[str]:
    """Let so many enter, and give their ids."""
    users: list[str] = []
    while len(users) < people:
        names = [f"player {number}" for number in range(len(users), min(len(users) + AT_ONCE, people))]
        entries = await asyncio.gather(*(room.entry("default", "main", EntryArguments(name)) for name in names))
        users += [entry.user_id for entry in entries]
        if len(users) % 100_000 == 0:
            progress(f"{len(users):,} in line")
    return users


async def _fill(store: Standalone) -> tuple[list[str], list[str]]:
    """Put the same number of people in both lines, in ours and in the seed's layout."""
    async with opened(store, seats=Seats.SERVERS) as (room, _):
        users = await line_up(room, LINE)
    theirs = [str(uuid.uuid4()) for _ in range(LINE)]
    pipe = store.node.admin.pipeline(transaction=False)
    for place, user in enumerate(theirs, 1):
        pipe.zadd("queue:waiting", {user: place})
        pipe.hset(f"queue:waiting:user:{user}", mapping={"userId": user, "nickname": f"player {place}", "ticketId": ""})
        if place % 1000 == 0:
            pipe.execute()  # type: ignore[no-untyped-call]
    return users, theirs


def race(rounds: int, seconds: float, connections: int) -> list[Result]:
    """Compare status and entry."""
    with bench_store() as store:
        users, theirs = asyncio.run(_fill(store))
        taking_part = contestants(store)
        asked = {
            one.name: [
                Request(f"/api/queue/status?userId={user}")
                for user in random.sample(users if one.name == OURS else theirs, ASKED)
            ]
            for one in taking_part
        }
        headers = {"Content-Type": "application/json"}
        enter = [
            Request("/api/queue/entry", "POST", json.dumps({"nickname": f"player {n}"}), headers) for n in range(500)
        ]
        with running(taking_part, "/api/queue/status?userId=nobody") as servers:
            results = compare(Case("status", asked, connections), servers, store, rounds=rounds, seconds=seconds)
            entering = Case("entry", {one.name: enter for one in taking_part}, connections)
            return results + compare(entering, servers, store, rounds=rounds, seconds=seconds)


async def _tick(room: WaitingRoom, thing: Thing, store: Standalone) -> float:
    """Let ticks call a hundred people each, and give how long the script took in the store, in ms.

    The fastest tenth tells: whatever else the machine did can only have made the others slower.
    """
    took: list[float] = []
    while len(took) < STEPS:
        before = _script_us(store)
        _, _, called = await room.promotion.step(thing)
        if called:
            took.append((_script_us(store) - before) / 1000)
        await asyncio.sleep(0.1)
    return statistics.quantiles(took, n=10)[0]


def _script_us(store: Standalone) -> int:
    return int(store.node.info("commandstats")["cmdstat_evalsha"]["usec"])


async def _size(store: Standalone, people: int) -> Mapping[str, float | str]:
    """Measure a tick with few and with many in line, and the memory of many."""
    figures: dict[str, float | str] = {}
    ticks: list[float] = []
    policy = {"seats": Seats.FIXED, "capacity": 10_000_000, "batch": 100, "tick_ms": 100, "grace_seconds": 86_400}
    async with opened(store, **policy) as (room, thing):
        entered = 0
        for waiting in (10_000, people):
            before = int(store.node.info("memory")["used_memory"])
            entering = waiting + STEPS * 100 - entered
            await line_up(room, entering)
            entered += entering - STEPS * 100
            memory = (int(store.node.info("memory")["used_memory"]) - before) / entering
            ticks.append(await _tick(room, thing, store))
            progress(f"a tick at {waiting:,}: {ticks[-1]:.2f} ms; {memory:.0f} bytes a waiter")
            figures[f"a tick that calls 100 with {waiting:,} waiting, ms in the store"] = ticks[-1]
            figures[f"store memory a waiter, {waiting:,} waiting, bytes"] = memory
    figures[f"a tick with {people:,} waiting to one with 10,000"] = ticks[1] / ticks[0]
    return figures


def size(people: int) -> Mapping[str, float | str]:
    """Measure what a long line costs."""
    with bench_store() as store:
        return asyncio.run(_size(store, people))


async def _prepare(store: Standalone) -> None:
    async with opened(store, batch=2000, tick_ms=500):
        pass


def crowd(players: int, report: Path | None = None) -> Mapping[str, float | str]:
    """Send simulated players through one gateway and one worker into a few arenas; their report may be kept."""
    with bench_store() as store, tempfile.TemporaryDirectory(prefix="headgate-crowd-") as folder:
        asyncio.run(_prepare(store))
        gateway = ours(store, "gateway", "--port", "{port}")
        seats = ("--capacity", str(SEATS // ARENAS))
        arenas = [ours(store, "arena", "--port", "{port}", *seats, name=f"arena {n}") for n in range(ARENAS)]
        worker = subprocess.Popen(
            ours(store, "worker").command,
            env={**os.environ, **ours(store, "worker").environment},
            stdin=subprocess.DEVNULL,
        )
        try:
            with running([gateway]) as gateways, running(arenas):
                command = [
                    sys.executable,
                    "-m",
                    "headgate",
                    "load",
                    "--players",
                    str(players),
                    "--json",
                    "--stay",
                    "0.5",
                ]
                command += ["--over", str(max(10, players // 1500)), "--curve", "opening", "--limit", "1500"]
                command += ["--url", gateways[OURS].url, "--report", str(report or Path(folder) / "crowd.html")]
                environment = {**os.environ, "HEADGATE_TOKEN": TOKEN}
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=1800)
                cpu = cpu_seconds(gateways[OURS].process.pid)
        finally:
            worker.terminate()
            worker.wait(10)
    figures = json.loads(done.stdout)
    within, width = figures["eta_within_range"], figures["eta_range_p50"]
    told = "none told" if within is None else f"{within:.0%}, half of the ranges at most {width} waits wide"
    return {
        f"{players:,} players through one gateway, one worker, {ARENAS} arenas": (
            f"{figures['entered']:,} entered, {figures['abandoned']:,} wandered off, {figures['lost']:,} lost, "
            f"promises broken: {sum(figures['broken'].values())}, in {figures['seconds']:,.0f} s; wait p50 {figures['wait_p50']} s, "
            f"p99 {figures['wait_p99']} s, within the first range told: {told}; answers p50 {figures['answer_p50_ms']:,.0f} ms; "
            f"{figures['requests']:,} requests, gateway CPU {cpu:,.0f} s; told: {figures['refusals'] or 'nothing'}"
        )
    }


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="./dev bench waiting-room", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each round")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="in the long line")
    parser.add_argument("--players", type=int, default=100_000, help="in the simulated crowd")
    parser.add_argument("--report", type=Path, help="keep the crowd's report in this file")
    parser.add_argument("--sockets", type=int, default=5_000, help="in the arena")
    parser.add_argument("--only", choices=["race", "size", "crowd", "arena"], help="one part of it")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    figures: dict[str, float | str] = {}
    if options.only in (None, "race"):
        results = race(options.rounds, options.seconds, options.connections)
    if options.only in (None, "size"):
        figures |= size(options.waiting)
    if options.only in (None, "crowd"):
        figures |= crowd(options.players, options.report)
    if options.only in (None, "arena"):
        figures |= compare_arena(options.sockets, 50)
    publish("waiting-room", OURS, results, figures)
