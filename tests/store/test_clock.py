"""A thing's clock never goes back and never stops, and a step of the server's clock ends nobody's lease."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import NamedTuple

import anyio
import pytest

from headgate.store import Store, StoreSettings, Thing, open_store
from tests.store.scripts import look, take_number
from tests.topology import FakeClock, Standalone, Stopwatch, eventually

LEASE_MS = 10_000
HOUR_MS = 3_600_000


class Stepping(NamedTuple):
    """A store whose server's wall clock can be set."""

    clock: FakeClock
    server: Standalone
    store: Store
    thing: Thing


@pytest.fixture
async def stepping(anyio_backend: str, prefix: str) -> AsyncIterator[Stepping]:
    clock = FakeClock()
    with Standalone(environment=clock.environment) as server:
        async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)) as store:
            yield Stepping(clock, server, store, store.thing("t", "default", "x"))


def step_seen(store: Store, thing: Thing) -> int:
    """Give the step that our regular look at the server's state has found: when, negative if back, 0 for none."""
    link = store.route.ready(thing.slot)
    return (link.clock.step_ms or -link.clock.turned_ms) if link is not None else 0


def stood_still_ms(watch: Stopwatch) -> float:
    return watch.stood_still * 1000


@pytest.mark.topology("standalone")
async def test_a_step_forward_of_the_server_ends_no_lease(stepping: Stepping) -> None:
    clock, server, store, thing = stepping
    before = await take_number(store, thing, LEASE_MS)
    assert not before.holding
    clock.step(server.node, 60)
    after = await take_number(store, thing, LEASE_MS)
    assert after.holding
    assert after.now_ms - before.now_ms >= 60_000
    assert (await look(store, thing, LEASE_MS)).holding


@pytest.mark.topology("standalone")
async def test_a_step_that_we_saw_counts_for_things_visited_later(stepping: Stepping) -> None:
    clock, server, store, thing = stepping
    other = store.thing("t", "default", "y")
    await take_number(store, thing, LEASE_MS)
    await take_number(store, other, LEASE_MS)
    clock.step(server.node, 60)
    await eventually(lambda: step_seen(store, thing) > 0, 5)  # by now the new time is the expected one
    assert (await take_number(store, other, LEASE_MS)).holding


@pytest.mark.topology("standalone")
async def test_a_step_back_neither_turns_time_back_nor_stops_it(stepping: Stepping) -> None:
    clock, server, store, thing = stepping
    watch = Stopwatch()
    before = await take_number(store, thing, LEASE_MS)
    clock.step(server.node, -3600)
    after = await take_number(store, thing, LEASE_MS)
    assert before.now_ms <= after.now_ms < before.now_ms + 5000 + stood_still_ms(watch)
    assert after.number > before.number
    await anyio.sleep(0.3)
    later = await take_number(store, thing, LEASE_MS)
    assert later.now_ms >= after.now_ms + 290
    assert not later.holding


@pytest.mark.topology("standalone")
async def test_a_second_step_is_held_like_the_first(stepping: Stepping) -> None:
    """An hour too far, put right, and then another step: the first must not hide it."""
    clock, server, store, thing = stepping
    await take_number(store, thing, LEASE_MS)
    clock.step(server.node, 3600)
    assert (await take_number(store, thing, LEASE_MS)).holding
    clock.step(server.node, -3600)
    await take_number(store, thing, LEASE_MS)
    for seconds in range(2, 22, 2):  # visits close together: after a step back, longer gaps are held for a while
        store.advance_clock(seconds * 1000)
        last = await take_number(store, thing, LEASE_MS)
    assert not last.holding
    clock.step(server.node, 60)
    assert (await take_number(store, thing, LEASE_MS)).holding


@pytest.mark.topology("standalone")
async def test_a_small_step_soon_after_another_is_held_too(stepping: Stepping) -> None:
    clock, server, store, thing = stepping
    await take_number(store, thing, 1000)
    clock.step(server.node, 60)
    assert (await take_number(store, thing, 1000)).holding
    await eventually(lambda: step_seen(store, thing) > 0, 5)
    store.advance_clock(1500)
    assert not (await take_number(store, thing, 1000)).holding
    clock.step(server.node, 8)
    assert (await take_number(store, thing, 1000)).holding


@pytest.mark.topology("standalone")
async def test_a_clock_put_back_costs_two_holds_at_most(stepping: Stepping) -> None:
    clock, server, store, thing = stepping
    await take_number(store, thing, LEASE_MS)
    clock.step(server.node, -3600)
    await take_number(store, thing, LEASE_MS)
    await eventually(lambda: step_seen(store, thing) < 0, 5)
    held = []
    for visit in range(1, 5):
        store.advance_clock(visit * 3 * LEASE_MS)
        held.append((await take_number(store, thing, LEASE_MS)).holding)
    assert held == [True, True, False, False]


async def test_waiting_is_no_step(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    watch = Stopwatch()
    first = await take_number(store, thing, LEASE_MS)
    for ms in (1000, 60_000, HOUR_MS, 24 * HOUR_MS):
        store.advance_clock(ms)
        reading = await take_number(store, thing, LEASE_MS)
        assert not reading.holding
        assert 0 <= reading.now_ms - first.now_ms - ms < 5000 + stood_still_ms(watch)


@pytest.mark.topology("standalone")
async def test_a_hold_ends_after_one_lease(stepping: Stepping) -> None:
    clock, server, store, thing = stepping
    await take_number(store, thing, LEASE_MS)
    clock.step(server.node, 60)
    assert (await take_number(store, thing, LEASE_MS)).holding
    await eventually(lambda: step_seen(store, thing) > 0, 5)
    store.advance_clock(LEASE_MS + 1000)
    assert not (await take_number(store, thing, LEASE_MS)).holding


async def test_a_small_lead_is_no_step(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    await take_number(store, thing, LEASE_MS)
    store.step_clock(4000)
    assert not (await take_number(store, thing, LEASE_MS)).holding
    store.step_clock(6000)
    assert (await take_number(store, thing, LEASE_MS)).holding


async def test_time_and_numbers_only_grow_whatever_the_clock_does(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    readings = []
    for ms in (0, 500, -500, -HOUR_MS, HOUR_MS, 0, -24 * HOUR_MS, 1, 2):
        store.step_clock(ms)
        readings += await asyncio.gather(*(take_number(store, thing, LEASE_MS) for _ in range(20)))
    for earlier, later in itertools.pairwise(readings):
        assert later.number > earlier.number
        assert later.now_ms >= earlier.now_ms
    assert len({reading.epoch for reading in readings}) == 1
