"""Faults of the store that a relay must survive: lose everything, lose a little, step its clock, go away. Nothing is ever refused."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from typing import cast

import anyio.to_thread
import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.kit.problems import HeadgateError, StoreUnavailable
from headgate.relay.job_queue import JobQueue
from headgate.relay.jobs import RelaySweep
from headgate.relay.model import Kind, Limit, Outcome
from headgate.relay.problems import UpstreamUnknown
from headgate.relay.settings import RelaySettings
from tests.store.relay_world import Counting, Node, nodes, window
from tests.topology import FakeClock, FaultyProxy, Standalone, Stopwatch, Topology, eventually
from tests.topology.kind import synced
from tests.topology.node import Node as Server

Fresh = Callable[..., Topology]
LIMIT, SECONDS = 5, 2.0
LOST_SECONDS = 1.5  # the least hold after a loss
LONG = 8.0  # longer than any failover: what was lost would be sent again too early


async def flood(relays: list[Node], upstream: Counting, count: int) -> list[asyncio.Future[float]]:
    """Begin so many requests of one user, spread over the relays."""
    return [
        asyncio.ensure_future(relays[number % len(relays)].send("a", "u1", upstream, seconds=60))
        for number in range(count)
    ]


async def served(upstream: Counting, tasks: list[asyncio.Future[float]], seconds: float = SECONDS) -> None:
    """All were answered, and no window ever held more than the limit."""
    await asyncio.gather(*tasks)
    assert upstream.refused == 0
    assert upstream.largest("u1", seconds) <= LIMIT


async def all_cool(relay: Node) -> bool:
    """A whole window is used up, and nobody but the store knows it."""
    try:
        return (await relay.upstreams.figures("a", "u1"))[0].cooling == LIMIT
    except StoreUnavailable:
        return False


def strict(seed: int, seconds: float = SECONDS) -> Counting:
    return Counting(seed, 0.02, 0.3, limiter=SlidingLog(LIMIT, seconds, strict=True))


@pytest.mark.topology("standalone", "redis")
async def test_flush_while_a_window_is_full(fresh_server: Fresh, prefix: str) -> None:
    server = fresh_server()
    async with nodes(server.url, prefix, 3) as relays:
        await relays[0].upstreams.put("a", window(LIMIT, SECONDS))
        upstream = strict(1)
        tasks = await flood(relays, upstream, 25)
        for arrivals in (3, 8):
            await eventually(partial(upstream.seen, arrivals))
            server.primaries()[0].command("FLUSHALL")
        await served(upstream, tasks)


async def in_flight(relay: Node, count: int) -> bool:
    try:
        return (await relay.upstreams.figures("a", "u1"))[0].in_flight == count
    except StoreUnavailable:
        return False


@pytest.mark.topology("standalone", "redis")
async def test_a_permit_about_to_be_used_outlives_a_flush(fresh_server: Fresh, prefix: str) -> None:
    server = fresh_server()
    async with nodes(server.url, prefix, 2) as (relay, other):
        await relay.upstreams.put("a", window(LIMIT, SECONDS, timeout_seconds=20.0))
        loop = asyncio.get_running_loop()
        view = await relay.upstreams.get("a")
        permits = [await relay.permits.acquire("a", view.policy, "u1", deadline=loop.time() + 5) for _ in range(2)]
        permits[1].sending()
        for _ in range(2):
            server.primaries()[0].command("FLUSHALL")
            await eventually(partial(in_flight, other, 2))
        permits[0].give_back()
        await eventually(partial(in_flight, other, 1))
        permits[1].settle(Outcome.ENDED)
        await eventually(partial(in_flight, other, 0))


@pytest.mark.topology("standalone", "redis")
async def test_answers_that_still_stream_outlive_a_flush(fresh_server: Fresh, prefix: str) -> None:
    """Two at once are allowed and two are streaming: the store forgets it, and still nobody else is let through."""
    server = fresh_server()
    async with nodes(server.url, prefix, 2) as (relay, other):
        both = (Limit(kind=Kind.CONCURRENT, count=2),)
        await relay.upstreams.put("a", window(LIMIT, SECONDS, limits=both, timeout_seconds=20.0))
        loop = asyncio.get_running_loop()
        view = await other.upstreams.get("a")
        permits = [await relay.permits.acquire("a", view.policy, "u1", deadline=loop.time() + 5) for _ in range(2)]
        for permit in permits:
            permit.sending()
        told = permits[0].settle(Outcome.ANSWERED)
        assert told is not None
        await told
        permits[1].settle(Outcome.ANSWERED)  # the store hears it only after the flush
        server.primaries()[0].command("FLUSHALL")
        third = asyncio.ensure_future(other.permits.acquire("a", view.policy, "u1", deadline=loop.time() + 20))
        done, _ = await asyncio.wait((third,), timeout=LOST_SECONDS + 1.0)
        assert not done
        permits[0].settle(Outcome.ENDED)
        (await third).give_back()
        permits[1].settle(Outcome.ENDED)


@pytest.mark.topology("standalone", "redis")
async def test_a_policy_comes_back_with_a_version_of_its_own_and_a_removed_one_stays_away(
    fresh_server: Fresh, prefix: str
) -> None:
    server = fresh_server()
    async with nodes(server.url, prefix, 2) as (relay, other):
        for _ in range(3):
            version = (await relay.upstreams.put("a", window(LIMIT, SECONDS))).version
        await other.upstreams.get("a")
        server.primaries()[0].command("FLUSHALL")
        assert (await relay.upstreams.get("a", fresh=True)).version == version + 1
        assert (await other.upstreams.get("a", fresh=True)).version == version + 1
        await relay.upstreams.remove("a")
        sweep = RelaySweep(relay.store, relay.upstreams, JobQueue(relay.store, relay.upstreams, RelaySettings()))
        assert await sweep.visit("a")
        with pytest.raises(UpstreamUnknown):
            await other.upstreams.get("a", fresh=True)
        assert (await other.upstreams.put("a", window(LIMIT, SECONDS), expected="*")).version > version + 1


@pytest.mark.topology("standalone", "redis")
async def test_restart_without_its_data(fresh_server: Fresh, prefix: str) -> None:
    server = cast("Standalone", fresh_server())
    async with nodes(server.url, prefix, 3) as relays:
        await relays[0].upstreams.put("a", window(LIMIT, LONG))
        upstream = strict(2, LONG)
        tasks = await flood(relays, upstream, 10)
        await eventually(partial(all_cool, relays[0]))
        server.node.kill()
        shutil.rmtree(server.node.directory / "appendonlydir")
        await anyio.to_thread.run_sync(server.node.start)
        await served(upstream, tasks, LONG)


async def test_failover_or_restart_under_load(fresh_server: Fresh, prefix: str) -> None:
    server = fresh_server()
    async with nodes(server.url, prefix, 3) as relays:
        await relays[0].upstreams.put("a", window(LIMIT, SECONDS))
        upstream = strict(3)
        tasks = await flood(relays, upstream, 20)
        await eventually(lambda: len(upstream.arrivals.get("u1", ())) >= 7)
        await server.fail_over(relays[0].upstreams.thing("a").key("meta"))
        await served(upstream, tasks)


@pytest.mark.topology("standalone")
async def test_failover_to_a_replica_that_missed_the_last_writes(prefix: str) -> None:
    primary = Server("primary")
    await anyio.to_thread.run_sync(primary.start)
    replica: Server | None = None
    try:
        async with FaultyProxy(primary.port) as between, FaultyProxy(primary.port) as front:
            replica = Server("replica", {"replicaof": f"127.0.0.1 {between.port}"})
            await anyio.to_thread.run_sync(replica.start)
            await eventually(partial(synced, replica, primary), 15)
            async with nodes(front.url, prefix, 3) as relays:
                await relays[0].upstreams.put("a", window(LIMIT, LONG))
                await eventually(partial(synced, replica, primary), 15)
                between.blackhole()  # from here on, the replica knows nothing of what is granted
                upstream = strict(4, LONG)
                tasks = await flood(relays, upstream, 10)
                await eventually(partial(all_cool, relays[0]))
                primary.kill()
                replica.command("REPLICAOF", "NO", "ONE")
                front.target = replica.port
                front.cut()
                await served(upstream, tasks, LONG)
    finally:
        primary.stop()
        if replica is not None:
            replica.stop()


@pytest.mark.parametrize("hours", [1, -1])
async def test_clock_that_steps_by_an_hour(server: Topology, prefix: str, hours: int) -> None:
    async with nodes(server.url, prefix, 3) as relays:
        await relays[0].upstreams.put("a", window(LIMIT, SECONDS))
        upstream = strict(5)
        tasks = await flood(relays, upstream, 20)
        await eventually(lambda: len(upstream.arrivals.get("u1", ())) >= 7)
        for relay in relays:
            relay.store.step_clock(hours * 3_600_000)
        watch = Stopwatch()
        await served(upstream, tasks)
        # 13 requests are three more windows; a step may cost one.
        assert watch.seconds < 4 * (SECONDS + 0.3) + 3


@pytest.mark.topology("standalone")
async def test_clock_that_is_put_back_and_right_again(prefix: str) -> None:
    """A relay that did not look meanwhile finds the time that it expects, and yet the window has not passed."""
    clock = FakeClock()
    with Standalone(environment=clock.environment) as server:
        async with nodes(server.url, prefix, 3) as relays:
            await relays[0].upstreams.put("a", window(LIMIT, SECONDS))
            upstream = strict(8)
            for _ in range(3):
                await asyncio.gather(*await flood(relays, upstream, LIMIT))
                clock.step(server.node, -3600)
                await relays[0].send("a", "u2", strict(9))  # by now the store has seen this time
                clock.step(server.node, 3600)
                await served(upstream, await flood(relays, upstream, LIMIT))


@pytest.mark.topology("standalone", "redis")
async def test_store_that_is_away_lets_nothing_through(server: Topology, prefix: str) -> None:
    async with FaultyProxy(server.primaries()[0].port) as proxy, nodes(proxy.url, prefix, 1) as (relay,):
        await relay.upstreams.put("a", window(LIMIT, SECONDS))
        upstream = strict(6)
        await relay.send("a", "u1", upstream)
        await proxy.refuse()
        watch = Stopwatch()
        late = await asyncio.gather(
            *(relay.send("a", "u1", upstream, seconds=2.0) for _ in range(10)), return_exceptions=True
        )
        assert all(isinstance(error, StoreUnavailable) for error in late)
        assert watch.wall > 1.0
        assert watch.seconds < 5
        assert len(upstream.arrivals["u1"]) == 1
        waiting = asyncio.ensure_future(relay.send("a", "u1", upstream, seconds=20))
        await proxy.accept()
        await waiting
        assert upstream.refused == 0


@pytest.mark.topology("standalone", "redis")
async def test_lost_replies_neither_leak_nor_double_permits(server: Topology, prefix: str) -> None:
    """Each script runs and its answer is lost, again and again: afterwards the full limit is there, and no more."""
    async with FaultyProxy(server.primaries()[0].port) as proxy, nodes(proxy.url, prefix, 1) as (relay,):
        await relay.upstreams.put("a", window(LIMIT, SECONDS))
        upstream = strict(7)
        tasks = await flood([relay], upstream, 15)
        for _ in range(6):
            await asyncio.sleep(0.3)
            proxy.drop_replies(cut=True)
            await asyncio.sleep(0.05)
            proxy.heal()
        await served(upstream, tasks)

        async def whole() -> bool:
            try:
                return (await relay.upstreams.figures("a", "u1"))[0].room == LIMIT
            except HeadgateError:
                return False

        await eventually(whole, 10)
