"""A thing notices when the store's history may have lost its last writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.store import Store, StoreSettings, Thing, open_store
from tests.store.scripts import Reading, look, take_number
from tests.topology import Node, Replicated, Standalone, Topology, eventually

JUMP = 60_000_000


async def take_when_back(store: Store, thing: Thing, seconds: float = 15) -> Reading:
    """Take a number as soon as the store answers again."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        try:
            return await take_number(store, thing)
        except StoreUnavailable:
            if loop.time() > end:
                raise


async def test_nothing_is_lost_while_nothing_happens(store: Store, server: Topology) -> None:
    thing = store.thing("t", "default", "x")
    first = await take_number(store, thing)
    assert first.state == "new"
    for node in server.primaries():
        node.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    second = await take_when_back(store, thing)
    assert (second.state, second.epoch) == ("same", first.epoch)
    assert 0 < second.number - first.number < JUMP


async def test_a_crash_or_failover_makes_a_thing_uncertain_once(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)) as store:
        thing = store.thing("t", "default", "x")
        before = await take_number(store, thing)
        await server.fail_over(thing.key("meta"))
        await eventually(lambda: answers(store, thing), 15)
        seen = await look(store, thing)
        assert seen.state == "uncertain"
        assert seen.epoch != before.epoch
        after = await take_number(store, thing)
        assert after.state == "uncertain"
        assert after.epoch != before.epoch
        assert after.number >= before.number + JUMP
        later = await take_number(store, thing)
        assert (later.state, later.epoch) == ("same", after.epoch)
        assert later.number > after.number


async def test_a_reader_changes_nothing(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    assert (await look(store, thing)).state == "new"
    assert await store.read(thing, "EXISTS", thing.key("meta")) == 0


async def test_a_flushed_store_is_new(fresh_server: Callable[..., Topology], prefix: str) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)) as store:
        thing = store.thing("t", "default", "x")
        before = await take_number(store, thing)
        for node in server.primaries():
            node.command("FLUSHALL")
        after = await take_number(store, thing)
        assert after.state == "new"
        assert after.epoch != before.epoch
        assert after.number > before.number


async def test_all_processes_agree_on_the_new_epoch(fresh_server: Callable[..., Topology], prefix: str) -> None:
    server = fresh_server()
    settings = StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)
    async with open_store(settings) as one, open_store(settings) as two:
        thing = one.thing("t", "default", "x")
        before = await take_number(one, thing)
        await server.fail_over(thing.key("meta"))
        readings = [await take_when_back(store, thing) for _ in range(5) for store in (one, two)]
        assert [reading.state for reading in readings] == ["uncertain"] + ["same"] * 9
        assert len({reading.epoch for reading in readings} | {before.epoch}) == 2


@pytest.mark.topology("standalone")
async def test_a_new_identity_of_a_living_primary_is_one_change(prefix: str) -> None:
    """A primary may take a new replication id while connected; processes hear of it one after the other."""
    with Standalone(options={"enable-debug-command": "yes"}) as server:
        settings = StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)
        async with open_store(settings) as one:
            thing = one.thing("t", "default", "x")
            first = await take_number(one, thing)
            server.node.command("DEBUG", "CHANGE-REPL-ID")
            async with open_store(settings) as two:  # knows the new identity at once, `one` with its next look
                readings: list[Reading] = []

                async def both() -> bool:
                    readings.append(await take_number(two, thing))
                    readings.append(await take_number(one, thing))
                    return identity(one) == identity(two)

                await eventually(both, 5)
                readings.append(await take_number(one, thing))
        epochs = {reading.epoch for reading in readings} - {first.epoch}
        assert len(epochs) == 1
        assert readings[-1].number < first.number + 2 * JUMP


@pytest.mark.topology("standalone")
async def test_numbers_grow_through_failovers_that_lose_writes(prefix: str) -> None:
    """Three servers in a row, each promoted without the last writes of the one before."""
    async with (
        Replicated() as pair,
        open_store(StoreSettings(url=pair.url, prefix=prefix, deadline_ms=10_000)) as store,
    ):
        thing = store.thing("t", "default", "x")
        given = [(await take_number(store, thing)).number]
        for _ in range(2):
            await caught_up(pair.replica, thing, given[-1])
            pair.partition()
            given += [(await take_number(store, thing)).number for _ in range(200)]
            assert last_of(pair.replica, thing) < given[-1] == last_of(pair.primary, thing)
            await pair.fail_over()
            reading = await take_when_back(store, thing)
            assert reading.state == "uncertain"
            given.append(reading.number)
        assert given == sorted(set(given))
        assert given[-1] < 2**53


def identity(store: Store) -> str:
    link = store.route.ready(0)
    assert link is not None
    return link.replication_id


async def answers(store: Store, thing: Thing) -> bool:
    try:
        await look(store, thing)
    except StoreUnavailable:
        return False
    return True


async def caught_up(replica: Node, thing: Thing, number: int) -> None:
    await eventually(lambda: last_of(replica, thing) == number, 10)


def last_of(node: Node, thing: Thing) -> int:
    return int(node.command("HGET", thing.key("meta"), "last") or 0)
