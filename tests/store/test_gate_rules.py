"""The rules that gates keep in memory: idle queues cost nothing, and a change is seen although its hint was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.gate.gate import Gate
from headgate.store import Store
from headgate.waiting_room.policy import Auto, PolicyChange
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.store.test_waiting_room_metrics import script_calls
from tests.topology import Topology

IDLE = 300


@pytest.fixture
async def gate(store: Store) -> AsyncIterator[Gate]:
    """A gate that hears no hint: it has to find out by itself."""
    room = WaitingRoom(store)
    made = Gate(store, room)
    made.rules._on_hint = lambda thing, hint: None  # type: ignore[method-assign]
    yield made
    made.rules.close()
    room.queues.close()


@pytest.fixture
async def operator(store: Store) -> AsyncIterator[Gate]:
    """Somebody else who changes queues."""
    room = WaitingRoom(store)
    made = Gate(store, room)
    yield made
    made.rules.close()
    room.queues.close()


async def configure(operator: Gate, name: str, **policy: object) -> None:
    queues = operator._room.queues
    await queues.configure(queues.thing("default", name), PolicyChange(**policy), who="test")  # type: ignore[arg-type]


@pytest.mark.topology("standalone")
async def test_looking_after_idle_queues_costs_as_much_as_after_none(
    server: Topology, gate: Gate, operator: Gate
) -> None:
    await asyncio.gather(*(configure(operator, f"idle-{number}", capacity=1) for number in range(IDLE)))
    auto = Auto(resource="product-*", threshold=10, window_seconds=10)
    await asyncio.gather(*(configure(operator, f"template-{number}", auto=auto) for number in range(10)))
    await gate.rules.refresh()
    await gate.traffic.cool()
    assert len(gate.rules._guards) == IDLE + 10
    before = script_calls(server)
    for _ in range(10):
        await gate.rules.refresh()
        await gate.traffic.cool()
    assert script_calls(server) - before == 40, "two a look, whatever the number of queues"


async def test_a_change_is_seen_by_a_gate_that_missed_the_hint(store: Store, gate: Gate, operator: Gate) -> None:
    thing = store.thing("queue", "default", "sale")
    rules = gate.rules
    await rules.refresh()
    await configure(operator, "sale", capacity=1, paths=["/sale"])
    await rules.refresh()
    guard = rules.guard(thing)
    assert guard is not None
    assert guard.policy.capacity == 1
    await configure(operator, "sale", capacity=2)
    await operator.revoke(thing, "u1", who="test")
    await rules.refresh()
    assert guard is not rules.guard(thing)
    guard = rules.guard(thing)
    assert guard is not None
    assert (guard.policy.capacity, list(guard.revoked)) == (2, ["u1"])
    await operator._room.queues.operate(thing, "reset", who="test")
    await rules.refresh()
    guard = rules.guard(thing)
    assert guard is not None
    assert guard.generation == 2
    await operator._room.queues.operate(thing, "delete", who="test")
    await rules.refresh()
    assert rules.guard(thing) is None


async def test_a_queue_that_switches_itself_on_is_seen_by_a_gate_that_missed_the_hint(
    store: Store, gate: Gate, operator: Gate
) -> None:
    await configure(operator, "busy", auto=Auto(resource="shop", threshold=1, window_seconds=1, cooldown_seconds=0))
    for each in (gate, operator):
        await each.rules.refresh()
    match = operator.rules.match("default", "shop", "", b"")
    assert match is not None
    assert match.counted is not None
    for _ in range(5):
        operator.traffic.count(match.counted)
    await operator.traffic.flush()
    await gate.rules.refresh()
    seen = gate.rules.match("default", "shop", "", b"")
    assert seen is not None
    assert seen.active
    store.advance_clock(60_000)
    await operator.traffic.cool()
    await gate.rules.refresh()
    seen = gate.rules.match("default", "shop", "", b"")
    assert seen is not None
    assert not seen.active


@pytest.mark.topology("standalone")
async def test_everything_is_read_again_when_the_store_may_have_lost_changes(
    server: Topology, store: Store, gate: Gate, operator: Gate
) -> None:
    await asyncio.gather(*(configure(operator, f"queue-{number}", capacity=1) for number in range(20)))
    things = [store.thing("queue", "default", f"queue-{number}") for number in range(20)]
    await gate.rules.refresh()
    for thing in things:
        await gate._room.queues.view(thing)  # it remembers them
    server.primaries()[0].admin.flushall()
    await gate.rules.refresh()
    assert all(gate.rules.guard(thing) is not None for thing in things)
    assert len(await gate._room.queues.index.list("default")) == 20, "and lost ones are written back"
    before = script_calls(server)
    for _ in range(5):
        await gate.rules.refresh()
    # The history that began with the loss is noticed once more when it is written down.
    assert script_calls(server) - before <= 2 * 5 + 20


@pytest.mark.topology("standalone")
async def test_queues_that_come_and_go_leave_nothing_behind_in_memory(store: Store, gate: Gate) -> None:
    queues = gate._room.queues
    for number in range(50):
        thing = queues.thing("default", f"product-{number}")
        await configure(gate, thing.name, capacity=1)
        await gate.rules.refresh()
        await queues.operate(thing, "delete", who="test")
        await gate.rules.refresh()
    assert (len(gate.rules._guards), len(gate.rules._subscriptions), len(queues._subscriptions)) == (0, 0, 0)
    assert store.hints._listeners == {}
