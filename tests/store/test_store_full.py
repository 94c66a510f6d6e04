"""A store that is out of memory: whoever is in line, inside or a holder goes on and leaves, and nothing new is taken."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from headgate.config.config import Config
from headgate.config.model import Draft
from headgate.config.problems import UnknownKey
from headgate.config.settings import ConfigSettings
from headgate.gate.gate import Gate, GateRequest
from headgate.gate.gate import VerdictReason as Why
from headgate.kit.problems import StoreFull
from headgate.locks import Locks
from headgate.registry.model import InstanceBeat, OverrideChange, Record
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper
from headgate.relay.model import Outcome
from headgate.store import Store
from headgate.store.scripts.contracts import operations
from headgate.waiting_room.model import EntryArguments, Reason
from headgate.waiting_room.problems import QueueUnknown
from tests.store.full import full
from tests.store.relay_world import nodes, window
from tests.store.stopped_clock import StoppedClock
from tests.store.test_waiting_room_loss import lose_everything
from tests.store.waiting_world import World, enter_all
from tests.topology import Topology, eventually

NS = "default"

# The only scripts that a full store does not run: each of them keeps something that was not there before.
GROWING = {
    "config/publish",
    "gateway/token_create",
    "gateway/token_restore",
    "locks/acquire",
    "locks/fence_admit",
    "locks/fenced_set",
    "registry/locate_put",
    "registry/register",
    "relay/acquire",
    "relay/job_put",
    "waiting_room/entry",
    "waiting_room/traffic",
}


def test_every_script_that_only_grows_the_store_is_named_here_and_no_other_is_refused() -> None:
    refused = {
        f"{path.parent.parent.name}/{path.stem}"
        for path in operations()
        if path.read_text().splitlines()[0] not in ("#!lua flags=allow-oom", "#!lua flags=no-writes")
    }
    assert refused == GROWING


async def test_people_go_on_and_leave_and_nobody_new_comes(server: Topology, store: Store) -> None:
    world = World(store)
    await world.configure(seats="servers", ticket_ttl_seconds=5, reentry_seconds=60)
    await world.beat("s1", 3, sessions=[])
    await enter_all(world, "inside", "dropped", "late", "called", "leaving", "waiting")
    await world.live(1)
    await world.redeem(await world.ticket("inside"), "x1", "s1")
    seq = await world.redeem(await world.ticket("dropped"), "x2", "s1")
    await world.ticket("late")
    with full(server):
        with pytest.raises(StoreFull):
            await world.enter("new")
        assert await world.enter("waiting") == "WAITING", "who is in line already keeps the place"
        await world.room.leave(NS, "main", "leaving", trusted=True)
        await world.room.end(NS, "main", "x2", "s1", Reason.DROPPED)
        assert await world.enter("dropped") == "PROMOTED", "the seat was kept"
        await world.redeem(await world.ticket("dropped"), "x3", "s1")
        await world.beat("s1", 3, sessions=["x1", "x3"], as_of=seq)
        await world.room.end(NS, "main", "x1", "s1")
        with pytest.raises(StoreFull):
            await world.enter("inside")  # it is over, so this is a new place
        await world.live(1)
        seq = await world.redeem(await world.ticket("called"), "x4", "s1")
        await world.beat("s1", 3, sessions=["x3", "x4"], as_of=seq)
        for _ in range(6):
            await world.live(1)
            await world.beat("s1", 3)
        assert await world.state("late") == "EXPIRED"
        assert await world.state("waiting") == "PROMOTED"
        await world.room.remove_server(NS, "main", "s1", drain=True)
        await world.room.remove_server(NS, "main", "s1")
        look = await world.look()
        assert (look.seats, look.contradictions()) == ([], [])
        assert look.line == ["waiting"]
    assert await world.enter("new") == "WAITING"


async def test_operators_have_all_their_levers(server: Topology, store: Store) -> None:
    world = World(store)
    await world.configure(capacity=0)
    await enter_all(world, "a", "b")
    with full(server):
        for action in ("pause", "resume", "drain", "resume"):
            await world.operate(action)
        await world.configure(capacity=1)
        await world.operate("admit", 1)
        await world.tick()
        assert await world.state("a") == "PROMOTED"
        await world.operate("reset")
        await world.tick()
        await world.operate("delete")
        with pytest.raises(QueueUnknown):
            await world.state("a")
        await world.room.promotion.visit_due()
        assert await world.room.queues.list(NS) == []


async def test_who_passed_the_gate_goes_on_and_who_waits_there_is_let_in(server: Topology, store: Store) -> None:
    world = World(store, "sale")
    gate = Gate(store, world.room)

    async def ask(user: str) -> Why:
        return (await gate.check(GateRequest(NS, resource="sale", user_id=user))).reason

    await world.configure(capacity=1, session_ttl_seconds=30)
    await gate.rules.refresh()
    assert await ask("first") is Why.ADMITTED
    assert await ask("second") is Why.WAITING
    with full(server):
        with pytest.raises(StoreFull):
            await ask("new")
        world.wait(20_000)
        await gate.rules.refresh()
        assert await ask("first") is Why.INSIDE
        assert await ask("second") is Why.WAITING
        await gate.revoke(world.thing, "first", who="test")
        await world.live(2)
        assert await ask("second") is Why.ADMITTED


async def test_instances_stay_and_leave_and_none_is_added(server: Topology, store: Store) -> None:
    clock = StoppedClock(store)
    registry = Registry(store, RegistrySettings(ttl_seconds=10))
    sweeper = Sweeper(registry)
    thing = registry.service(NS, "game", "kr-1")

    def record(id_: str) -> Record:
        return Record(type="game", group="kr-1", instance_id=id_)

    for id_ in ("alive", "whole", "dead", "gone"):
        await registry.register(NS, record(id_))
    with full(server):
        with pytest.raises(StoreFull):
            await registry.register(NS, record("new"))
        for seconds in range(2, 14, 2):
            clock.set(seconds * 1000)
            await registry.heartbeat(NS, "game", "kr-1", InstanceBeat("alive"))
            await registry.renew(NS, record("whole"))
            await sweeper.sweep(thing)
        with pytest.raises(StoreFull):
            await registry.renew(NS, record("new"))
        await registry.override(NS, "game", "kr-1", "alive", OverrideChange(drain=True))
        await registry.remove(NS, "game", "kr-1", "gone")
        listing = await registry.discover(NS, "game", "kr-1")
        assert sorted(each.instance_id for each in listing.instances) == ["alive", "whole"]


async def test_permits_come_back_and_none_is_given(server: Topology, prefix: str) -> None:
    async with nodes(server.url, prefix, 1) as (node,):
        policy = window(1, 0.2)
        await node.upstreams.put("a", policy)
        loop = asyncio.get_running_loop()

        async def ask(seconds: float) -> None:
            permit = await node.permits.acquire("a", policy, "u1", deadline=loop.time() + seconds)
            permit.settle(Outcome.ENDED)
            await node.permits.settled(5)

        permit = await node.permits.acquire("a", policy, "u1", deadline=loop.time() + 5)
        permit.sending()
        with full(server):
            permit.settle(Outcome.ENDED)
            await node.permits.settled(5)
            assert (await node.upstreams.figures("a", "u1"))[0].in_flight == 0
            began = loop.time()
            with pytest.raises(StoreFull):
                await ask(60)
            assert loop.time() - began < 5, "it is told at once"
        await ask(5)


async def test_requests_in_line_get_their_permits_and_new_ones_are_refused(server: Topology, prefix: str) -> None:
    async with nodes(server.url, prefix, 1) as (node,), asyncio.TaskGroup() as tasks:
        policy = window(1, 0.5)
        await node.upstreams.put("a", policy)
        loop = asyncio.get_running_loop()
        served = []

        async def ask(number: int) -> None:
            permit = await node.permits.acquire("a", policy, "u1", deadline=loop.time() + 30)
            served.append(number)
            permit.sending()
            permit.settle(Outcome.ENDED)

        async def waiting(count: int) -> bool:
            return (await node.upstreams.figures("a", "u1"))[0].waiting == count

        first = await node.permits.acquire("a", policy, "u1", deadline=loop.time() + 30)
        first.sending()
        in_line = []
        for number in range(3):
            in_line.append(tasks.create_task(ask(number)))
            await eventually(partial(waiting, number + 1), 10)
        with full(server):
            with pytest.raises(StoreFull):
                await ask(3)
            first.settle(Outcome.ENDED)
            await asyncio.wait_for(asyncio.gather(*in_line), 20)
        assert served == [0, 1, 2]


async def test_locks_are_kept_and_given_back_and_none_is_taken(server: Topology, locks: Locks) -> None:
    async with AsyncExitStack() as holding:
        held = await holding.enter_async_context(locks.lock("a", ttl=3))
        with full(server):
            began = held.lost_at
            await eventually(lambda: held.lost_at > began, 10, "the lease is renewed")
            with pytest.raises(StoreFull):
                await locks.lock("b", ttl=3).__aenter__()
            await holding.aclose()
            assert not (await locks.show("a")).held


async def test_no_value_is_published_and_any_can_be_deleted(server: Topology, store: Store) -> None:
    config = Config(store, ConfigSettings())
    await config.publish(NS, [Draft("a", "1")], author="test")
    with full(server):
        with pytest.raises(StoreFull):
            await config.publish(NS, [Draft("a", "2")], author="test")
        assert (await config.get(NS, "a")).content == "1"
        made = await config.publish(NS, [Draft("a", None, expected=1)], author="test")
        assert made["a"].version == 2
        with pytest.raises(UnknownKey):
            await config.get(NS, "a")
        with pytest.raises(StoreFull) as refused:
            await config.publish(NS, [Draft("a", "2"), Draft("b", None)], author="test")
        assert "in line" not in refused.value.detail


async def test_a_queue_that_a_full_store_has_lost_is_written_back(server: Topology, store: Store) -> None:
    world = World(store)
    await world.configure(capacity=0)
    entry = await world.room.entry(NS, "main", EntryArguments("a", user_id="a", trusted=True))
    with full(server):
        await lose_everything(world)
        with pytest.raises(StoreFull):
            await world.enter("new")
        back = await world.room.entry(NS, "main", EntryArguments("a", user_id="a", place_token=entry.place_token))
        assert back.place == entry.place
