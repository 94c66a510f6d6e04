"""A reset of a very long line: everybody is told, seats come free, and the store is never busy with it for long."""

from __future__ import annotations

import asyncio
import statistics
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headgate.store import Store
from headgate.waiting_room.problems import NotInLine, QueueReset
from tests.store.waiting_world import World
from tests.topology import Topology

WAITING = 200_000
INSIDE = 60_000
CHUNK = 5_000
MOST_CPU_MS = 25


async def fill(world: World) -> None:
    """Write a long line and a full house as the scripts would, only faster."""
    store, thing = world.store, world.thing

    async def put(command: str, key: str, *pairs: str | bytes | int) -> None:
        await store.write(thing, command, thing.key(key), *pairs, again=True)

    for first in range(0, WAITING, CHUNK):
        numbers = range(first, first + CHUNK)
        record = [struct.pack("<cBdIIIBBB", b"W", 0, 1000 + n, 0, 0, 0, 0, 0, 0) + b"player" for n in numbers]
        await put("ZADD", "waiting", *(part for n in numbers for part in (1000 + n, f"w{n}")))
        await put(
            "HSET", "users", *(part for n, packed in zip(numbers, record, strict=True) for part in (f"w{n}", packed))
        )
    for first in range(0, INSIDE, CHUNK):
        numbers = range(first, first + CHUNK)
        await put("ZADD", "seats", *(part for n in numbers for part in (0, f":s:i{n}")))
        await put("HSET", "sessions", *(part for n in numbers for part in (f"i{n}", f"{n}::")))
        await put("ZADD", "stays", *(part for n in numbers for part in (10**12, f"i{n}")))


class Stopwatch:
    """How much CPU time the store's main threads spend, which other load on the machine does not change."""

    def __init__(self, server: Topology) -> None:
        self._files = [Path(f"/proc/{node.pid}/schedstat") for node in server.nodes]

    def _read(self) -> float:
        return sum(int(file.read_text().split()[0]) for file in self._files) / 1e6

    async def ms(self, work: Callable[[], Awaitable[object]]) -> float:
        """Do something and give the milliseconds it cost the store."""
        before = self._read()
        await work()
        return self._read() - before


@pytest.mark.alone
async def test_a_reset_of_a_long_line_blocks_the_store_for_no_more_than_a_moment(
    server: Topology, store: Store
) -> None:
    world = World(store)
    await world.configure(capacity=INSIDE)
    await fill(world)
    watch = Stopwatch(server)
    assert await watch.ms(lambda: world.operate("reset")) < MOST_CPU_MS
    with pytest.raises((QueueReset, NotInLine)) as told:
        await world.room.status("default", "main", "w7")
    assert isinstance(told.value, QueueReset)
    assert await world.enter("early") == "WAITING"

    costs = []
    for _ in range(INSIDE // 500 + 1):
        costs.append(await watch.ms(lambda: world.room.promotion.step(world.thing)))
        look = await world.room.queues.view(world.thing)
        assert look.holds + look.sessions <= INSIDE
    # The store also does other work of its own in that time, such as forking to rewrite its file.
    assert statistics.median(costs) < MOST_CPU_MS / 5
    assert max(costs) < 4 * MOST_CPU_MS
    assert (await world.look()).contradictions() == []
    assert await world.state("early") == "PROMOTED"
    assert (await world.room.queues.view(world.thing)).sessions == 0


async def test_a_reset_that_is_still_being_cleared_away_spares_those_who_came_after(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=700)
    users = [f"u{number}" for number in range(700)]
    await asyncio.gather(*(world.enter(user) for user in users))
    await world.live(8)
    assert (await world.room.queues.view(world.thing)).holds == 700
    await world.operate("reset")
    for user in ("a", "b"):
        await world.enter(user)
    await world.room.promotion.step(world.thing)  # frees five hundred seats, and calls both
    await world.redeem(await world.ticket("a"), "x1")
    await world.tick()
    look = await world.look()
    assert look.contradictions() == []
    assert sorted(seat.split(":")[1] for seat in look.seats) == ["h", "s"]
