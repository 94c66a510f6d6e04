"""How many are called in a second: what the policy says, however late a worker comes by and however small a burst is."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from headgate.gate.traffic import derived_policy
from headgate.kit.problems import InvalidRequest
from headgate.store import Store
from headgate.waiting_room.policy import Auto, Policy, PolicyChange
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.store.waiting_world import World

SECONDS = 40


async def called_over_time(world: World, seconds: int) -> list[tuple[float, int]]:
    """Let a worker come by when the queue is due, and up to a tenth of a second later; gives when it called how many."""
    chance = random.Random(7)
    visits: list[tuple[float, int]] = []
    called = (await world.room.queues.view(world.thing)).figures.admitted_total
    while not visits or visits[-1][0] - visits[0][0] < seconds:
        due_in = await world.room.promotion.visit(world.thing)
        total = (await world.room.queues.view(world.thing)).figures.admitted_total
        now = await world.store.read(world.thing, "HGET", world.thing.key("meta"), "queue_time")
        visits.append((int(cast("bytes", now)) / 1000, total - called))
        called = total
        assert due_in is not None
        world.wait(due_in + chance.randint(0, 100))
    return visits


@pytest.mark.parametrize(
    ("rate", "burst", "tick_ms"),
    [(5, None, 300), (20, None, 1000), (2, 1, 1000), (30, 6, 1000), (30, 6, 100), (0.7, None, 1000), (150, None, 1000)],
)
async def test_people_come_in_at_the_rate(store: Store, rate: float, burst: float | None, tick_ms: int) -> None:
    world = World(store)
    await world.configure(
        capacity=100_000,
        rate_per_second=rate,
        burst=burst,
        tick_ms=tick_ms,
        grace_seconds=1000,
        ticket_ttl_seconds=1000,
    )
    for first in range(0, int(rate * SECONDS * 1.5) + 10, 500):
        await asyncio.gather(*(world.enter(f"u{number}") for number in range(first, first + 500)))
    visits = await called_over_time(world, SECONDS)
    at_once = burst or max(1, rate * tick_ms / 1000)
    called = sum(number for _, number in visits)
    assert called >= (SECONDS - 2) * rate * 0.98, "nobody is kept waiting for longer than the policy says"
    for first, (began, _) in enumerate(visits):
        window = 0
        for now, number in visits[first:]:
            window += number
            # A visit that is late brings what was due by then.
            assert window <= at_once + rate * (now - began + 0.25) + 1, (began, now)


async def test_after_a_pause_only_one_burst_is_called_at_once(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, rate_per_second=30, burst=6, grace_seconds=1000)
    await asyncio.gather(*(world.enter(f"u{number}") for number in range(200)))
    await called_over_time(world, 2)
    await world.operate("pause")
    await called_over_time(world, 20)
    await world.operate("resume")
    (_, called), *_ = await called_over_time(world, 1)
    assert called in (6, 7), "and at most the one that became due while they were called"


@pytest.mark.parametrize(("rate", "burst", "least"), [(50, 1, "5"), (1000, 99.5, "100"), (11, 1, "2")])
def test_a_burst_with_which_the_rate_cannot_be_reached_is_refused_with_one_that_can(
    rate: float, burst: float, least: str
) -> None:
    with pytest.raises(InvalidRequest) as told:
        PolicyChange(capacity=1, rate_per_second=rate, burst=burst).applied_to(None)
    assert f"at least {least}" in told.value.detail
    assert told.value.members["field"] == "burst"
    PolicyChange(capacity=1, rate_per_second=rate, burst=float(least)).applied_to(None)
    PolicyChange(capacity=1, rate_per_second=None, burst=burst).applied_to(None)


def test_a_batch_that_nobody_named_is_what_the_rate_needs() -> None:
    policy = PolicyChange(capacity=1, rate_per_second=500).applied_to(None)
    assert policy.batch == 500
    assert PolicyChange(tick_ms=500).applied_to(policy).batch == 250
    assert PolicyChange(rate_per_second=5).applied_to(policy).batch == 100
    assert PolicyChange(rate_per_second=None).applied_to(policy).batch == 100
    named = PolicyChange(batch=20).applied_to(policy)
    assert PolicyChange(rate_per_second=900).applied_to(named).batch == 20, "what an operator named stays"


def test_a_queue_that_switches_itself_on_lets_as_many_in_as_its_threshold_says() -> None:
    template = PolicyChange(auto=Auto(resource="product-*", threshold=5000, window_seconds=10)).applied_to(None)
    assert (template.rate_per_second, template.batch) == (500, 500)
    made = derived_policy(Policy(capacity=7, auto=template.auto)).applied_to(None)
    assert (made.rate_per_second, made.batch) == (500, 500)


async def measured(world: World) -> float:
    shown = (await world.room.queues.view(world.thing)).figures.rate_per_second
    board = (await WaitingRoom(world.store).board("default", world.queue)).rate_per_second
    assert board == pytest.approx(shown, abs=0.001)
    return shown


@pytest.fixture
async def busy(store: Store) -> World:
    """A line that has been called at two a second for a while."""
    world = World(store)
    await world.configure(capacity=1000, rate_per_second=2, burst=2)
    for number in range(120):
        await world.enter(f"u{number}")
    await world.live(18)
    assert await measured(world) == pytest.approx(2, abs=0.41)
    return world


async def test_the_measured_rate_is_0_at_once_while_the_line_is_paused(busy: World) -> None:
    await busy.operate("pause")
    assert await measured(busy) == 0
    await busy.live(10)
    await busy.operate("resume")
    assert await measured(busy) == 0, "nobody was called in the last seconds"
    await busy.live(6)
    assert await measured(busy) == pytest.approx(2, abs=0.41)


async def test_the_measured_rate_tells_of_the_last_seconds_and_of_nothing_before(busy: World) -> None:
    await busy.configure(rate_per_second=10, burst=10)
    await busy.live(5)
    assert await measured(busy) == pytest.approx(10, abs=1)
    busy.wait(3_000)
    assert 0 < await measured(busy) < 7, "nobody visits it, and yet the past goes by"
    busy.wait(3_000)
    assert await measured(busy) == 0


async def test_the_measured_rate_of_long_ticks_counts_a_whole_tick(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, tick_ms=20_000, batch=40)
    for number in range(300):
        await world.enter(f"u{number}")
    await world.live(65)
    for _ in range(4):
        await world.live(5)
        assert await measured(world) == pytest.approx(2, abs=0.01)
