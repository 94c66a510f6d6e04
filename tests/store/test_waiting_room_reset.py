"""A reset of a very long line: everybody is told, seats come free, and the store is never busy with it for long."""

from __future__ import annotations

import asyncio
import statistics
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from headgate.store import Store
from headgate.waiting_room.model import Reason
from headgate.waiting_room.problems import NotInLine, QueueReset
from tests.store.waiting_world import World
from tests.topology import Stopwatch, Topology

WAITING = 200_000
INSIDE = 60_000
SHORT = 5_000
FREED_AT_ONCE = 500
CHUNK = 5_000
MOST_CPU_MS = 25


async def fill(world: World, waiting: int, inside: int) -> None:
    """Write a long line and a full house as the scripts would, only faster."""
    store, thing = world.store, world.thing

    async def put(command: str, key: str, *pairs: str | bytes | int) -> None:
        await store.write(thing, command, thing.key(key), *pairs, again=True)

    for first in range(0, waiting, CHUNK):
        numbers = range(first, first + CHUNK)
        record = [struct.pack("<cBdIIIBBB", b"W", 0, 1000 + n, 0, 0, 0, 0, 0, 0) + b"player" for n in numbers]
        await put("ZADD", "waiting", *(part for n in numbers for part in (1000 + n, f"w{n}")))
        await put(
            "HSET", "users", *(part for n, packed in zip(numbers, record, strict=True) for part in (f"w{n}", packed))
        )
    for first in range(0, inside, CHUNK):
        numbers = range(first, first + CHUNK)
        await put("ZADD", "seats", *(part for n in numbers for part in (0, f":s:i{n}")))
        await put("HSET", "sessions", *(part for n in numbers for part in (f"i{n}", f"{n}::")))
        await put("ZADD", "stays", *(part for n in numbers for part in (10**12, f"i{n}")))


class Meter:
    """How much CPU time the main threads of the primaries spend on something; replicas follow when they do.

    A server that forks to rewrite its file pays for that in whatever it does meanwhile, and one whose machine stands still
    is charged for the standstill: such a reading says nothing.
    """

    def __init__(self, server: Topology) -> None:
        self._nodes = list(server.primaries())

    def _read(self) -> float:
        return sum(int(Path(f"/proc/{node.pid}/schedstat").read_text().split()[0]) for node in self._nodes) / 1e6

    def _forks(self) -> tuple[int, bool]:
        told = [cast("dict[str, Any]", node.admin.info("all")) for node in self._nodes]
        saving = any(each["aof_rewrite_in_progress"] or each["rdb_bgsave_in_progress"] for each in told)
        return sum(each["total_forks"] for each in told), saving

    async def ms(self, work: Callable[[], Awaitable[object]]) -> float | None:
        """Do something and give the milliseconds it cost the store; None if that cannot be told."""
        forks, before, watch = self._forks(), self._read(), Stopwatch()
        await work()
        spent, stood_still = self._read() - before, watch.stood_still > 0.005
        return spent if self._forks() == forks and not forks[1] and not stood_still else None


@pytest.mark.alone
async def test_a_reset_of_a_long_line_blocks_the_store_for_no_more_than_a_moment(
    server: Topology, store: Store
) -> None:
    meter = Meter(server)
    short = await cleared(World(store, "short"), SHORT, SHORT, meter)
    world = World(store)
    long = await cleared(world, WAITING, INSIDE, meter)
    # What a step costs does not depend on how long the line was. How much that is depends on the machine; and where the
    # server has the C library's allocator, one call pays for putting together all that was freed behind its back.
    assert statistics.median(long) < 3 * statistics.median(short)
    assert max(long) < 4 * MOST_CPU_MS


async def cleared(world: World, waiting: int, inside: int, meter: Meter) -> list[float]:
    """Reset a line, see it cleared away, and give what each step of that cost the store."""
    await world.configure(capacity=inside)
    await fill(world, waiting, inside)
    reset = await meter.ms(lambda: world.operate("reset"))
    assert reset is None or reset < MOST_CPU_MS
    with pytest.raises((QueueReset, NotInLine)) as told:
        await world.room.status("default", world.thing.name, "w7")
    assert isinstance(told.value, QueueReset)
    assert await world.enter("early") == "WAITING"

    costs: list[float] = []
    for _ in range(inside // FREED_AT_ONCE + 1):
        cost = await meter.ms(lambda: world.room.promotion.step(world.thing))
        costs += [cost] if cost is not None else []
        look = await world.room.queues.view(world.thing)
        assert look.holds + look.sessions <= inside
    assert (await world.look()).contradictions() == []
    assert await world.state("early") == "PROMOTED"
    assert (await world.room.queues.view(world.thing)).sessions == 0
    assert costs, "nothing could be told of any step"
    return costs


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


async def test_a_session_of_before_a_reset_is_in_nobodys_way(store: Store) -> None:
    """A gate's session has its visitor's name, and the visitor may be back before the old one is cleared away."""
    world = World(store)
    await world.configure(capacity=700, batch=1000)
    users = [f"u{number:03}" for number in range(700)]
    await asyncio.gather(*(world.enter(user) for user in users))
    await world.tick()
    await asyncio.gather(*[world.redeem(await world.ticket(user), user) for user in users])
    await world.operate("reset")
    await world.enter(users[-1])
    await world.room.promotion.step(world.thing)
    assert users[-1] in (await world.look()).sessions, "not cleared away yet"
    await world.redeem(await world.ticket(users[-1]), users[-1])
    await world.tick()
    look = await world.look()
    assert (list(look.sessions), look.contradictions()) == ([users[-1]], [])


async def test_a_seat_kept_before_a_reset_is_freed_though_its_owner_has_another_by_now(store: Store) -> None:
    world = World(store)
    await world.configure(batch=1000)
    users = [f"u{number:03}" for number in range(700)]
    await world.beat("s1", 700, sessions=[])
    await asyncio.gather(*(world.enter(user) for user in users))
    await world.tick()
    await asyncio.gather(*[world.redeem(await world.ticket(user), f"x{user}", "s1") for user in users])
    await asyncio.gather(*(world.room.end("default", "main", f"x{user}", "s1", Reason.DROPPED) for user in users))
    await world.operate("reset")
    await world.room.remove_server("default", "main", "s1", drain=True)
    await world.beat("s2", 1, sessions=[])
    back = users[-1]
    await world.enter(back)
    await world.room.promotion.step(world.thing)
    await world.redeem(await world.ticket(back), "again", "s2")
    await world.room.end("default", "main", "again", "s2", Reason.DROPPED)
    assert len((await world.look()).seats) > 1, "not cleared away yet"
    await world.tick()
    look = await world.look()
    assert (look.seats, look.contradictions()) == ([f"s2:k:{back}"], [])
