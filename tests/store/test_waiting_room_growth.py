"""Status requests leave nothing behind: neither the process nor the store grows with their number."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Final

from headgate.store import Reply, Store
from headgate.waiting_room.model import EntryArguments
from tests.store.waiting_world import World

PEOPLE: Final = 64
QUESTIONS: Final = 50
GROWTH_KB: Final = 64  # a mere pointer kept of each question would be more


async def ask_much(world: World, users: list[str]) -> None:
    """Let everybody ask again and again, as different callers do at the same time."""

    async def ask(user: str) -> None:
        for _ in range(QUESTIONS):
            await world.room.status("default", "main", user)

    await asyncio.gather(*map(ask, users))


async def held_by_store(world: World) -> int:
    """Give how much the store holds of the queue, as the length of all that can be read of it."""
    key = world.thing.key
    replies = await asyncio.gather(
        *(world.store.read(world.thing, "HGETALL", key(name)) for name in ("meta", "users", "tickets")),
        *(world.store.read(world.thing, "XREVRANGE", key(name), "+", "-") for name in ("events", "history")),
        world.store.read(world.thing, "ZRANGE", key("waiting"), 0, -1),
    )
    return sum(map(size, replies))


def size(reply: Reply) -> int:
    """Count the bytes of a reply and of all that is in it."""
    if isinstance(reply, list):
        return sum(map(size, reply))
    return len(reply) if isinstance(reply, bytes) else 8


async def test_thousands_of_questions_leave_nothing_behind(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1)
    users = [
        (await world.room.entry("default", "main", EntryArguments(f"n{number}"))).user_id for number in range(PEOPLE)
    ]
    await world.live(2)
    waiting = users[1:]
    await ask_much(world, waiting)
    stored = await held_by_store(world)
    gc.collect()
    tracemalloc.start()
    try:
        await ask_much(world, waiting)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(3):
            await ask_much(world, waiting)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < GROWTH_KB * 1024
    assert await held_by_store(world) <= stored + 256, "only numbers in it may have become longer"
