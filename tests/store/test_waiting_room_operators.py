"""What operators do to a queue: carried out once, kept in the trail, and not undone by a loss of data."""

from __future__ import annotations

from headgate.store import Store
from headgate.waiting_room.queues import OPERATE
from tests.store.waiting_world import World, enter_all


async def test_a_request_sent_again_is_carried_out_once_whatever_others_did_meanwhile(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, rate_per_second=0, grace_seconds=1000)
    await enter_all(world, *(f"u{number}" for number in range(20)))

    async def send(action: str, request: str) -> None:
        await store.run(OPERATE, world.thing, action, "test", "", request, 3, 1000)

    await send("admit", "one-request")
    for number in range(5):
        await send("drain", f"of-others-{number}")
    await send("admit", "one-request")
    await world.live(2)
    assert len((await world.look()).holds) == 3
    records = (await world.room.queues.audit(world.thing)).records
    assert [record.action for record in records].count("admit") == 1


async def test_the_trail_of_a_queue_that_was_deleted_and_made_again_is_kept(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1)
    await world.operate("delete")
    audit = world.thing.key("audit")
    assert 0 < await store.read(world.thing, "PTTL", audit) <= 86_400_000  # type: ignore[operator]
    await world.configure(capacity=2)
    assert await store.read(world.thing, "PTTL", audit) == -1
    records = (await world.room.queues.audit(world.thing)).records
    assert [record.action for record in records] == ["configure", "delete", "configure"]
