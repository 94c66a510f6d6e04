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


async def visited_when_due(world: World, seconds: int) -> None:
    """Let time pass with a worker that comes by when the queue is due, and nobody else."""
    passed = 0
    while passed < seconds * 1000:
        due_in = await world.room.promotion.visit(world.thing)
        assert due_in is not None
        world.wait(due_in)
        passed += due_in
    await world.tick()


async def test_a_tick_of_many_seconds_slows_no_rate_and_no_clock(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, tick_ms=20_000, rate_per_second=1, grace_seconds=1000, ticket_ttl_seconds=600)
    await enter_all(world, *(f"u{number}" for number in range(100)))
    await visited_when_due(world, 40)
    assert 58 <= len((await world.look()).holds) <= 62, "one a second, and what one tick may call at once"

    servers = World(store, "servers")
    await servers.configure(tick_ms=20_000)
    await servers.beat("s1", 1, sessions=[])
    await servers.enter("a")
    await visited_when_due(servers, 1)
    assert (await servers.look()).by_server == {"s1": 1}
    await visited_when_due(servers, 11)
    assert (await servers.look()).leases == set(), "a dead server is gone within its lease, however long a tick is"


async def test_what_was_admitted_by_hand_is_not_stored_up_for_those_who_come_later(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, rate_per_second=1, grace_seconds=1000)
    await enter_all(world, "a", "b")
    await world.operate("admit", 100)
    await world.tick()
    assert len((await world.look()).holds) == 2
    await world.live(10)
    await enter_all(world, *(f"u{number}" for number in range(50)))
    await world.tick()
    assert len((await world.look()).holds) == 3, "the rate holds for them"


async def test_a_reset_takes_back_what_was_admitted_by_hand(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=10, rate_per_second=1, grace_seconds=1000)
    await enter_all(world, *(f"u{number}" for number in range(20)))
    await world.operate("pause")
    await world.operate("admit", 15)
    await world.tick()
    assert len((await world.look()).holds) == 10
    await world.operate("reset")
    await enter_all(world, "a", "b")
    await world.live(3)
    assert (await world.look()).holds == set(), "it is paused, and nobody of these was admitted by hand"
