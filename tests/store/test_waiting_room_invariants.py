"""The look at a queue's invariants: a healthy queue has no contradiction in any state, and each kind is found."""

from __future__ import annotations

import pytest

from headgate.store import Store
from headgate.waiting_room.invariants import MOST_FOUND, inspect
from headgate.waiting_room.model import Reason
from tests.store.waiting_world import World


async def people(store: Store) -> World:
    """A queue with somebody in nearly every state, on two servers."""
    world = World(store)
    await world.configure()
    await world.beat("s1", 3, sessions=[])
    await world.beat("s2", 2, sessions=[])
    for number in range(9):
        await world.enter(f"u{number}")
    await world.live(1)
    await world.redeem(await world.ticket("u0"), "session-0")
    await world.redeem(await world.ticket("u1"), "session-1")
    await world.redeem(await world.ticket("u2"), "session-2")
    await world.room.end("default", "main", "session-1", reason=Reason.DROPPED)
    await world.room.end("default", "main", "session-2", reason=Reason.LEFT)
    await world.room.leave("default", "main", "u8", trusted=True)
    return world


async def test_a_healthy_queue_has_no_contradiction(store: Store) -> None:
    world = await people(store)
    found = await inspect(store, world.thing)
    assert found.contradictions == []
    assert found.complete
    assert found.members > 20
    await world.operate("reset")
    assert (await inspect(store, world.thing)).contradictions == [], "what a reset leaves to be cleared is none"
    await world.live(2)
    assert (await inspect(store, world.thing)).contradictions == []


@pytest.mark.parametrize(
    ("command", "key", "words", "said"),
    [
        ("ZREM", "waiting", ("u7",), "user u7 (state W) is missing in waiting"),
        ("ZADD", "waiting", (1, "u7"), "user u7 has two places"),
        ("ZADD", "waiting", (1, "ghost"), "user ghost in waiting has no such record"),
        ("ZREM", "kept", ("u1",), "user u1 (state K) is missing in kept"),
        ("ZREM", "finished", ("u8",), "user u8 (state L) is missing in finished"),
        ("HDEL", "sessions", ("session-0",), "user u0 is inside without a session"),
        ("HSET", "sessions", ("lost", "1:s1:"), "session lost has no seat"),
        ("ZADD", "seats", (0, "s1:h:nobody"), "seat s1:h:nobody is taken by nobody"),
        ("ZADD", "seats", (0, "s1:s:nobody"), "sessions, holds and kept seats are 4, seats taken are 5"),
        ("HSET", "tickets", ("stray", "1:nobody"), "a ticket belongs to nobody"),
        ("ZADD", "holds", (1, "stray"), "a held seat belongs to nobody who was called"),
        ("DEL", "tickets", (), "user u3 was called without a ticket"),
        ("DEL", "holds", (), "user u3 has a ticket that holds no seat"),
    ],
)
async def test_each_contradiction_is_found(
    store: Store, command: str, key: str, words: tuple[str | int, ...], said: str
) -> None:
    world = await people(store)
    await store.write(world.thing, command, world.thing.key(key), *words)
    assert said in (await inspect(store, world.thing)).contradictions


async def test_a_long_queue_is_looked_at_in_steps_and_up_to_a_limit(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=0)
    ghosts = [word for number in range(3000) for word in (number, f"ghost-{number}")]
    await store.write(world.thing, "ZADD", world.thing.key("waiting"), *ghosts)
    found = await inspect(store, world.thing)
    assert (len(found.contradictions), found.complete) == (MOST_FOUND, False)
    few = await inspect(store, world.thing, most_members=100)
    assert not few.complete
    assert few.members < 3000
