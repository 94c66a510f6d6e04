"""A primary dies or freezes under load: another takes over, and so do we, without a restart."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import pytest

from headgate.store import StoreSettings, Thing, open_store
from headgate.store.client.address import Endpoint
from tests.faults.load import PATIENT_MS, SLACK_SECONDS, Load, Outcome, run_for
from tests.store.scripts import take_number
from tests.topology import Cluster, Node, Sentinel, Topology

DEADLINE = 2.0
RESUME_SECONDS = 15.0

pytestmark = pytest.mark.quiet
both = pytest.mark.topology("sentinel", "cluster")


def spread(prefix: str, count: int = 6) -> list[Thing]:
    """Things in different slots; on a cluster each primary has some."""
    return [Thing(prefix, "t", "default", f"x{n}") for n in range(count)]


def calls(node: Node, command: str) -> int:
    """How often a server has run a command."""
    return int(node.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


@both
async def test_a_killed_primary_is_followed_by_another(fresh_server: Callable[..., Topology], prefix: str) -> None:
    server = fresh_server()
    things = spread(prefix)
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        numbers = [(await take_number(store, things[0])).number]
        async with Load(store, things) as load:
            await anyio.sleep(0.3)
            server.primary_of(things[0].key("meta")).kill()
            assert await load.resumed(time.monotonic(), RESUME_SECONDS) < RESUME_SECONDS
            await anyio.sleep(0.3)
        assert load.slowest() < DEADLINE + SLACK_SECONDS
        await load.check(kept=False)
        numbers.append((await take_number(store, things[0])).number)
        assert numbers == sorted(set(numbers))


@both
async def test_a_frozen_primary_is_left_behind(fresh_server: Callable[..., Topology], prefix: str) -> None:
    """Its sockets stay open and say nothing; when it wakes up, nobody of ours goes back to it."""
    server = fresh_server()
    things = spread(prefix)
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        async with Load(store, things) as load:
            old = server.primary_of(things[0].key("meta"))
            old.pause()
            paused = time.monotonic()
            assert await load.resumed(paused, RESUME_SECONDS) < RESUME_SECONDS
            old.resume()
            await run_for(0.5)  # it still does what it was sent before it froze
            woken, scripts = time.monotonic(), calls(old, "evalsha")
            await anyio.sleep(1.5)
            assert calls(old, "evalsha") == scripts
        assert load.outcomes(since=woken) == {Outcome.OK: sum(call.began >= woken for call in load.history)}
        assert load.slowest() < DEADLINE + SLACK_SECONDS
        await load.check(kept=False)


@pytest.mark.topology("cluster")
async def test_a_planned_switch_is_seen_by_nobody(fresh_server: Callable[..., Cluster], prefix: str) -> None:
    server = fresh_server()
    things = spread(prefix)
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store:
        async with Load(store, things) as load:
            await server.switch_over(things[0].key("meta"))
            await load.resumed(time.monotonic(), 5)
            await anyio.sleep(0.3)
        assert load.outcomes() == {Outcome.OK: len(load.history)}
        assert load.slowest() < DEADLINE
        await load.check(kept=True)


@pytest.mark.topology("sentinel")
async def test_sentinels_may_be_away_as_long_as_the_primary_is_there(
    fresh_server: Callable[..., Sentinel], prefix: str
) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store:
        async with Load(store, spread(prefix)) as load:
            for sentinel in server.sentinels[:2]:
                sentinel.kill()
            server.sentinels[2].pause()
            await anyio.sleep(2.5)
            server.sentinels[2].resume()
        assert load.outcomes() == {Outcome.OK: len(load.history)}
        assert load.slowest() < DEADLINE


@pytest.mark.topology("sentinel")
async def test_one_answering_sentinel_is_enough_to_find_the_primary(
    fresh_server: Callable[..., Sentinel], prefix: str
) -> None:
    server = fresh_server()
    primary = server.primary()
    server.sentinels[0].kill()
    server.sentinels[1].pause()
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        async with Load(store, spread(prefix)) as load:
            primary.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await load.resumed(time.monotonic(), 3)
        await load.check(kept=True)
        assert load.slowest() < 1


@pytest.mark.topology("cluster")
async def test_a_replica_that_dies_is_missed_by_nobody(fresh_server: Callable[..., Cluster], prefix: str) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store:
        async with Load(store, spread(prefix)) as load:
            for primary in server.primaries():
                server.replica_of(primary).kill()
            await anyio.sleep(3)
        assert load.outcomes() == {Outcome.OK: len(load.history)}
        assert load.slowest() < DEADLINE
        await load.check(kept=True)


@pytest.mark.topology("sentinel")
async def test_a_primary_without_replicas_is_left_for_the_one_that_the_sentinels_name(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    """A server that comes back after a failover takes itself for the primary, and refuses writes for want of replicas."""
    server = fresh_server()
    assert isinstance(server, Sentinel)
    primary = server.primary()
    stale = next(node for node in server.servers if node is not primary)
    thing = Thing(prefix, "t", "default", "x")
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        await take_number(store, thing)
        stale.command("CONFIG", "SET", "min-replicas-to-write", 1)
        stale.command("REPLICAOF", "NO", "ONE")
        # As if the sentinels had named it when this client asked: it is connected, and has no reason to ask again.
        endpoint = Endpoint("127.0.0.1", stale.port)
        await store.route.node(endpoint)
        store.route._primary = endpoint  # type: ignore[attr-defined]
        await take_number(store, thing)
        assert store.route.owner(0) == Endpoint("127.0.0.1", primary.port)
