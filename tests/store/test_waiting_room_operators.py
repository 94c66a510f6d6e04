"""Operators' actions on a queue: done once, recorded in the audit trail, and not undone by a loss of data."""

from __future__ import annotations

import asyncio

import pytest

from headgate.kit.problems import VersionConflict
from headgate.store import Store, StoreSettings, open_store
from headgate.waiting_room.queues import OPERATE
from tests.store.waiting_world import World, enter_all
from tests.topology import FaultyProxy, Standalone, Topology


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


async def test_an_audit_entry_says_what_was_and_what_is_as_objects(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1)
    for action in ("pause", "resume", "drain", "reset", "resume"):
        await world.operate(action)
    await world.room.queues.operate(world.thing, "admit", who="ann", number=3)
    records = (await world.room.queues.audit(world.thing)).records[::-1]

    def switches(paused: bool, draining: bool, generation: int) -> dict[str, object]:
        return {"paused": paused, "draining": draining, "generation": generation}

    assert [(record.action, record.old, record.new) for record in records[1:]] == [
        ("pause", switches(False, False, 1), switches(True, False, 1)),
        ("resume", switches(True, False, 1), switches(False, False, 1)),
        ("drain", switches(False, False, 1), switches(False, True, 1)),
        ("reset", switches(False, True, 1), switches(False, True, 2)),
        ("resume", switches(False, True, 2), switches(False, False, 2)),
        ("admit", switches(False, False, 2), {**switches(False, False, 2), "admit": 3}),
    ]
    assert (records[0].action, records[0].old, records[0].new["capacity"]) == ("configure", {}, 1)


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


@pytest.mark.topology("standalone")
async def test_a_deleted_queue_is_struck_from_the_list_also_when_a_worker_comes_by_just_before(
    server: Topology, store: Store, prefix: str
) -> None:
    """The operator is far away: between the notice that a queue changes and its end, a worker visits it."""
    assert isinstance(server, Standalone)
    world = World(store, real_time=True)
    await world.configure(capacity=1)
    promotion, index = world.room.promotion, world.room.queues.index
    await promotion.visit_due()
    async with FaultyProxy(server.node.port) as proxy, open_store(StoreSettings(url=proxy.url, prefix=prefix)) as far:
        operator = World(far, real_time=True)
        await operator.room.queues.view(operator.thing)
        proxy.delay(0.05)
        deleting = asyncio.ensure_future(operator.operate("delete"))
        while not deleting.done():
            await promotion.visit_due()
            await asyncio.sleep(0.005)
        await deleting
    await promotion.visit_due()
    assert list(await index.list()) == []


async def test_what_several_operators_change_at_once_is_all_kept(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1)
    await asyncio.gather(
        world.configure(batch=7),
        world.configure(tick_ms=500),
        world.configure(grace_seconds=33),
        world.operate("pause"),
    )
    view = await world.room.queues.view(world.thing)
    assert (view.capacity, view.batch, view.tick_ms, view.grace_seconds, view.paused) == (1, 7, 500, 33, True)
    assert view.version == 5


@pytest.mark.parametrize("action", ["pause", "resume", "drain", "admit", "reset", "delete"])
async def test_an_operator_who_insists_on_an_older_version_changes_nothing(store: Store, action: str) -> None:
    world = World(store)
    before = await world.configure(capacity=1)
    await world.configure(batch=7)
    with pytest.raises(VersionConflict):
        await world.room.queues.operate(world.thing, action, who="test", number=1, expected=before.version)
    view = await world.room.queues.view(world.thing)
    assert (view.version, view.generation, view.paused, view.draining) == (2, 1, False, False)
    await world.room.queues.operate(world.thing, action, who="test", number=1, expected=view.version)
