"""When people are called: only to a seat, in the queue's own time, and by hand only those who stand there."""

from __future__ import annotations

from headgate.store import Store
from tests.store.waiting_world import World, enter_all


async def test_nobody_is_away_before_there_is_a_seat_to_call_them_to(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1, grace_seconds=2, keep_seconds=3)
    await enter_all(world, "inside", "absent", "present")
    await world.tick()
    await world.redeem(await world.ticket("inside"), "x1")
    for _ in range(20):
        await world.live(1)
        await world.state("present")
    look = await world.look()
    assert look.people["absent"].state == "W", "the house is full, so nobody was called"
    assert (await world.room.queues.view(world.thing)).serving == look.people["inside"].place
    await world.room.end("default", "main", "x1")
    await world.live(1)
    look = await world.look()
    assert (look.people["absent"].state, look.people["present"].state) == ("Y", "P")
