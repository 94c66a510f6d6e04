"""The arena with thousands of sockets: CPU for each delivered message, against the broadcast of plain `websockets`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from bench import peers
from bench.cores import CORES
from bench.harness import Contestant, Server, bench_store, cpu_seconds, progress, running
from bench.report import publish
from bench.sockets import Audience
from headgate.store import StoreSettings, open_store
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.topology import Standalone

WORDS: Final = "Is anybody else stuck at the second gate, or is it only me?"
OURS: Final = "headgate arena"
PLAIN: Final = "websockets broadcast"


async def make_queue(store: Standalone) -> None:
    """Make the queue that the arena offers its seats to."""
    async with open_store(StoreSettings(url=store.url)) as opened:
        queues = WaitingRoom(opened).queues
        policy = PolicyChange(batch=10_000, tick_ms=100, ticket_ttl_seconds=600)
        await queues.configure(queues.thing("default", "main"), policy, who="bench")


async def tickets(store: Standalone, players: int) -> list[str]:
    """Bring so many players to the front, and give their tickets."""
    async with open_store(StoreSettings(url=store.url)) as opened:
        room = WaitingRoom(opened)
        thing = room.queues.thing("default", "main")
        entries = await asyncio.gather(
            *(room.entry("default", "main", EntryArguments(f"player {number}")) for number in range(players))
        )
        waiting, found = {entry.user_id for entry in entries}, []
        while waiting:
            await room.promotion.visit(thing)
            for status in await asyncio.gather(
                *(room.status("default", "main", user, trusted=True) for user in waiting)
            ):
                if status.ticket_id:
                    found.append(str(status.ticket_id))
                    waiting.remove(status.user_id)
        return found


async def measure(server: Server, urls: Sequence[str], rounds: int) -> dict[str, float]:
    """Fill a server and let one, then fifty at once, speak; gives CPU microseconds for each delivered message."""
    audience = Audience()
    await audience.connect(urls)
    await audience.settle()
    found = {}
    for speakers in (1, 50):
        delivered = await audience.listen(speakers, WORDS)
        before, delivered = cpu_seconds(server.process.pid), 0
        for _ in range(max(1, rounds // speakers)):
            delivered += await audience.listen(speakers, WORDS)
            await asyncio.sleep(0.3)  # talk that is spread out: nobody may be over the limit of messages a second
        found[f"{speakers} at once"] = (cpu_seconds(server.process.pid) - before) / delivered * 1e6
    found["MB"] = _megabytes(server)
    audience.close()
    return found


def _megabytes(server: Server) -> float:
    import psutil

    return psutil.Process(server.process.pid).memory_info().rss / 1e6


def compare_arena(players: int, rounds: int) -> Mapping[str, float | str]:
    """Run both servers and give the figures."""
    with bench_store() as store:
        arena = [sys.executable, "-m", "headgate", "serve", "arena", "--store", store.url, "--port", "{port}"]
        ours = {
            "HEADGATE_OPS_PORT": "0",
            "HEADGATE_ARENA_CAPACITY": str(players),
            "HEADGATE_ARENA_IDLE_SECONDS": "3600",
            "HEADGATE_ARENA_BACKLOG_BYTES": "10000000",
        }
        plain = peers.python("python", "broadcast.py")
        contestants = [Contestant(OURS, arena, ours), Contestant(PLAIN, plain, {}, peers.PYTHON)]
        figures: dict[str, float | str] = {}
        found = {}
        asyncio.run(make_queue(store))
        with running(contestants) as servers:
            os.sched_setaffinity(0, CORES.load)
            shown = asyncio.run(tickets(store, players))
            for name, server in servers.items():
                base = server.url.replace("http", "ws", 1)
                urls = (
                    [f"{base}/gameserver?ticketId={one}" for one in shown] if name == OURS else [f"{base}/"] * players
                )
                found[name] = asyncio.run(measure(server, urls, rounds))
                progress(f"{name}: {found[name]}")
        for key in found[OURS]:
            words = "memory with all inside, MB" if key == "MB" else f"CPU µs for each delivered message, {key}"
            ratio = found[OURS][key] / found[PLAIN][key]
            figures[f"arena, {players:,} sockets: {words}"] = (
                f"{found[OURS][key]:.2f} against {found[PLAIN][key]:.2f} of {PLAIN} ({ratio:.2f}×)"
            )
        return figures


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="./dev bench arena", description=__doc__)
    parser.add_argument("--players", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args(arguments)
    publish("arena", OURS, [], compare_arena(options.players, options.rounds))
