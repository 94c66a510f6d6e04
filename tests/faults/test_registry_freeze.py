"""A store that froze and was not restarted: every instance has one lease after the return, with or without workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.registry.model import InstanceBeat, Record
from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper
from headgate.sdk import Headgate
from headgate.store import StoreSettings, open_store
from headgate.store.watch.feed import FeedChange
from tests.faults.load import PATIENT_MS
from tests.topology import Stopwatch, Topology, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.quiet]
NS = "default"
ALL = ["a", "b", "c"]
LEASE = 4
Start = Callable[..., Topology]


@asynccontextmanager
async def registries(server: Topology, count: int) -> AsyncIterator[list[Registry]]:
    """Open clients that do not know of each other."""
    async with AsyncExitStack() as stack:
        settings = StoreSettings(url=server.url, prefix="t", deadline_ms=PATIENT_MS)
        yield [Registry(await stack.enter_async_context(open_store(settings))) for _ in range(count)]


@asynccontextmanager
async def sweeping(registry: Registry) -> AsyncIterator[None]:
    """Do the part of a worker that concerns the registry."""

    async def sweep() -> None:
        while True:
            with suppress(StoreUnavailable):
                await Sweeper(registry).step()
            await asyncio.sleep(0.25)

    task = asyncio.ensure_future(sweep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def register(registry: Registry, ttl_seconds: float = LEASE) -> None:
    for name in ALL:
        record = Record(type="game", group="g", instance_id=name, hostname="h", ttl_seconds=ttl_seconds)
        await registry.register(NS, record)


async def beat(registry: Registry, name: str) -> None:
    await registry.heartbeat(NS, "game", "g", InstanceBeat(name))


async def names(registry: Registry) -> list[str]:
    return sorted(each.instance_id for each in (await registry.discover(NS, "game", "g")).instances)


async def freeze(server: Topology, seconds: float) -> Stopwatch:
    for node in server.nodes:
        node.pause()
    await asyncio.sleep(seconds)
    for node in server.nodes:
        node.resume()
    return Stopwatch()


async def only_the_living_stay(registry: Registry, back: Stopwatch, lease: float = LEASE) -> None:
    """`a` beats, the others are dead: they stay for one lease after the return, and no longer."""
    while back.wall < lease - 0.5:
        await beat(registry, "a")
        assert await names(registry) == ALL, f"{back.wall:.1f} s after the return"
        await asyncio.sleep(0.1)

    async def gone() -> bool:
        await beat(registry, "a")
        return await names(registry) == ["a"]

    await eventually(gone, 5)
    assert back.seconds < lease + 2


@pytest.mark.parametrize("first", ["reader", "heartbeat", "heartbeat elsewhere", "watcher"])
async def test_without_any_worker_a_freeze_leaves_everybody_one_lease(fresh_server: Start, first: str) -> None:
    server = fresh_server()
    async with registries(server, 2) as (registry, other):
        thing = registry.service(NS, "game", "g")
        await register(registry)
        assert await names(other) == ALL
        back = await freeze(server, LEASE + 2)
        match first:
            case "reader":
                assert await names(registry) == ALL
            case "heartbeat":
                await beat(registry, "a")
                assert await names(registry) == ALL
            case "heartbeat elsewhere":
                await beat(other, "a")
                assert await names(registry) == ALL
            case _:
                snapshot = await anext(registry.feed.watch(thing))
                assert sorted(each.instance_id for each in snapshot.items) == ALL  # type: ignore[union-attr]
        await only_the_living_stay(registry, back)


@pytest.mark.topology("standalone")
async def test_a_client_that_is_idle_knows_of_the_freeze(fresh_server: Start) -> None:
    server = fresh_server()
    async with registries(server, 1) as (registry,):
        await register(registry, 20)
        await freeze(server, 12)
        await asyncio.sleep(12)  # whoever has not beaten until now is late by the old deadline only
        assert await names(registry) == ALL


@pytest.mark.topology("standalone")
async def test_a_short_freeze_with_a_worker_takes_nobody_out_whose_lease_is_short(fresh_server: Start) -> None:
    server = fresh_server()
    async with registries(server, 2) as (registry, worker):
        thing = registry.service(NS, "game", "g")
        removed: list[str] = []

        async def watch() -> None:
            notices = registry.feed.watch(thing)
            while True:
                notice = await anext(notices)
                if isinstance(notice, FeedChange) and notice.kind == "removed":
                    removed.append(notice.member)

        await register(registry, 3)
        watching = asyncio.ensure_future(watch())
        async with sweeping(worker):

            async def visited() -> bool:
                return await registry.store.read(thing, "HEXISTS", thing.key("meta"), "visited") == 1

            await eventually(visited)
            for name in ALL:
                await beat(registry, name)
            back = await freeze(server, 4)
            await only_the_living_stay(registry, back, 3)
            await eventually(lambda: sorted(removed) == ["b", "c"])
        watching.cancel()
        await asyncio.wait([watching])


@pytest.mark.topology("standalone")
async def test_a_sweep_that_was_on_its_way_in_a_freeze_takes_nobody_out(fresh_server: Start) -> None:
    server = fresh_server()
    async with registries(server, 1) as (registry,):
        thing = registry.service(NS, "game", "g")
        await register(registry, 2)
        sweeper = Sweeper(registry)
        await sweeper.sweep(thing)
        server.primaries()[0].pause()
        sweep = asyncio.ensure_future(sweeper.sweep(thing))
        await asyncio.sleep(2.5)
        server.primaries()[0].resume()
        await asyncio.wait([sweep])
        assert await names(registry) == ALL


def take_writes(server: Topology, taken: bool) -> None:
    """Let primaries refuse writes for want of replicas, as after a failover; reads and pings are answered."""
    for node in server.primaries():
        node.command("CONFIG", "SET", "min-replicas-to-write", 0 if taken else 3)


async def test_a_store_that_answers_and_refuses_writes_leaves_everybody_one_lease(fresh_server: Start) -> None:
    server = fresh_server()
    async with registries(server, 2) as (registry, worker):
        thing = registry.service(NS, "game", "g")
        await register(registry)
        await Sweeper(worker).sweep(thing)
        await freeze(server, LEASE + 2)
        await beat(registry, "a")  # notices the return, and no worker has visited when the second outage begins
        take_writes(server, False)
        refusing = Stopwatch()
        while refusing.wall < LEASE + 3:
            attempts = (beat(registry, "a"), Sweeper(worker).sweep(thing), names(registry))
            *refused, read = await asyncio.gather(*attempts, return_exceptions=True)
            assert all(isinstance(each, StoreUnavailable) for each in refused)
            assert read == ALL or isinstance(read, StoreUnavailable), f"{refusing.wall:.1f} s after the first refusal"
        take_writes(server, True)
        back = Stopwatch()
        assert (await Sweeper(worker).sweep(thing)).removed == []
        assert await names(registry) == ALL
        await beat(registry, "a")
        while back.wall < LEASE - 2:
            assert (await Sweeper(worker).sweep(thing)).removed == []
            assert await names(registry) == ALL, f"{back.wall:.1f} s after writes are taken"
            await asyncio.sleep(0.1)
        await eventually(lambda: only_a(registry), 2 * LEASE)


async def only_a(registry: Registry) -> bool:
    await beat(registry, "a")
    return await names(registry) == ["a"]


@pytest.mark.topology("standalone")
async def test_a_store_that_was_frozen_and_then_refuses_writes_was_away_once(fresh_server: Start) -> None:
    server = fresh_server()
    async with registries(server, 1) as (registry,):
        await register(registry, 3)
        take_writes(server, False)
        for node in server.nodes:
            node.pause()
        await asyncio.sleep(4)
        for node in server.nodes:
            node.resume()
        refusing = Stopwatch()
        while refusing.wall < 2:
            with pytest.raises(StoreUnavailable):
                await beat(registry, "a")
        take_writes(server, True)
        await beat(registry, "a")
        assert await names(registry) == ALL


@pytest.mark.parametrize("mode", ["same watch", "new watch"])
@pytest.mark.topology("standalone")
async def test_a_watcher_drops_nobody_while_the_store_takes_no_writes(
    fresh_server: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """After a loss of data, whoever lives registers again; where that is refused, nobody is missing yet."""
    monkeypatch.setattr("headgate.store.watch.follower.BOOKMARK_SECONDS", 0.2)
    server = fresh_server()
    lease = 2
    async with registries(server, 1) as (registry,), Headgate(server.url, prefix="t", snapshot_dir=tmp_path) as hg:
        seen: list[str] = []
        await hg.registry.subscribe(
            "game/g", lambda change: seen.append(f"{change.kind} {change.instance.instance_id}")
        )
        await register(registry, lease)
        await eventually(lambda: len(seen) == 3)
        if mode == "same watch":
            # The service is not empty after the loss, so that the store gives a position to go on from.
            for node in server.nodes:
                node.command("FLUSHALL")
            record = Record(type="game", group="g", instance_id="c", hostname="h", ttl_seconds=60)
            await registry.register(NS, record)
            await asyncio.sleep(0.5)
            take_writes(server, False)
        else:
            for node in server.nodes:
                node.command("FLUSHALL")
            take_writes(server, False)
        await asyncio.sleep(2 * lease)
        for node in server.nodes:
            if mode == "new watch":
                node.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(1)
        assert not [each for each in seen if each.startswith("removed")]
        take_writes(server, True)
        for _ in range(2 * lease):
            for name in ("a", "c"):
                record = Record(type="game", group="g", instance_id=name, hostname="h", ttl_seconds=60)
                await registry.register(NS, record)
            await asyncio.sleep(0.5)
        await eventually(lambda: "removed b" in seen, 3 * lease)
        assert not {"removed a", "removed c"} & set(seen)
