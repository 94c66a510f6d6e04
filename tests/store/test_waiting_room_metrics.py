"""What the waiting room counts and measures, from one player's life and from those who did not come."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from prometheus_client import REGISTRY

from headgate.store import Store
from headgate.waiting_room.metrics import QueueNumbers
from headgate.waiting_room.queues import MOST_METERED
from tests.store.waiting_world import World
from tests.topology import Topology


async def test_one_players_wait_hold_and_estimate_are_measured(store: Store) -> None:
    queue = f"measured-{secrets.token_hex(4)}"  # histograms are this whole process's
    world = World(store, queue)

    def sample(name: str) -> float:
        return REGISTRY.get_sample_value(name, {"queue": queue}) or 0.0

    await world.configure(capacity=1000, rate_per_second=2, grace_seconds=1000)
    for number in range(30):
        await world.enter(f"u{number}")
    await world.live(6)  # a pace is known by now
    await world.enter("late")
    await world.live(15)
    told = {name: sample(f"headgate_queue_{name}_seconds_count") for name in ("wait", "eta_error", "hold", "tick")}
    assert (told["wait"], told["eta_error"], told["hold"]) == (31, 1, 0)
    assert told["tick"] >= 21
    assert sample("headgate_queue_eta_error_seconds_sum") < 5
    waited = sample("headgate_queue_wait_seconds_sum")
    assert 31 * 4 < waited < 31 * 16

    world.wait(3000)
    await world.redeem(await world.ticket("late"), "x1")
    assert sample("headgate_queue_hold_seconds_count") == 1
    assert 3 <= sample("headgate_queue_hold_seconds_sum") <= 10
    await world.redeem((await world.look()).people["late"].ticket, "x1")
    assert sample("headgate_queue_hold_seconds_count") == 1, "asking again is not entering again"


async def test_those_who_did_not_come_are_counted(store: Store) -> None:
    world = World(store, "counted")
    await world.configure(capacity=1, grace_seconds=2, keep_seconds=20, ticket_ttl_seconds=5)
    await world.enter("called")
    await world.tick()
    await world.ticket("called")  # seen, and then not used
    await world.enter("ghost")
    await world.enter("present")
    for _ in range(7):  # the ticket of the first runs out, the second is called while away
        await world.live(1)
        await world.state("present")
    numbers = QueueNumbers(world.room.queues.figures)
    await numbers.refresh()

    def shown() -> dict[str, float]:
        return {family.name: family.samples[0].value for family in numbers.collect() if family.samples}

    assert shown() | {"headgate_queue_live_waiting": 0} == {
        "headgate_queue_waiting": 0,
        "headgate_queue_live_waiting": 0,
        "headgate_queue_away": 1,
        "headgate_queue_holds": 1,
        "headgate_queue_sessions": 0,
        "headgate_queue_capacity": 1,
        "headgate_queue_entered_total": 3,
        "headgate_queue_admitted_total": 2,
        "headgate_queue_abandoned_total": 0,
        "ticket_issued_count": 2,
        "ticket_expired_count": 1,
    }
    await world.live(22)
    await numbers.refresh()
    assert (shown()["headgate_queue_abandoned_total"], shown()["headgate_queue_away"]) == (1, 0)
    assert shown()["headgate_queue_admitted_total"] == pytest.approx(2)


@pytest.mark.topology("standalone")
async def test_numbers_of_idle_queues_cost_one_look_each_and_those_beyond_the_bound_none(
    server: Topology, store: Store
) -> None:
    world = World(store, "busy")
    await world.configure(capacity=0)
    await world.enter("a")
    index = world.room.queues.index
    things = [store.thing("queue", "default", f"idle-{number:04}") for number in range(MOST_METERED + 100)]
    await asyncio.gather(*(index.put(thing) for thing in things), world.configure(batch=7))

    def looks() -> int:
        told = server.primaries()[0].info("commandstats")
        return sum(int(told.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "evalsha_ro"))

    await world.room.queues.figures()
    before = looks()
    figures = await world.room.queues.figures()
    assert looks() - before <= MOST_METERED + 1, "one for each, and one more where somebody waits"
    assert (list(figures), figures["busy"].waiting, figures["busy"].live) == (["busy"], 1, 1)
