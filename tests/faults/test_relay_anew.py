"""An upstream that is written anew after its history was lost: what was sent before still counts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from typing import cast

import anyio.to_thread
import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.kit.problems import StoreUnavailable
from headgate.relay.model import Outcome
from headgate.relay.upstreams import Upstreams
from tests.store.relay_world import Counting, Node, nodes, window
from tests.topology import Standalone, Topology, eventually

Fresh = Callable[..., Topology]
LIMIT, SECONDS = 4, 5.0


def strict(seed: int) -> Counting:
    return Counting(seed, 0.01, 0.1, limiter=SlidingLog(LIMIT, SECONDS, strict=True))


async def fill(relays: list[Node], upstream: Counting) -> None:
    """Use up a whole window."""
    await relays[0].upstreams.put("a", window(LIMIT, SECONDS))
    await asyncio.gather(*(relays[number % len(relays)].send("a", "u1", upstream) for number in range(LIMIT)))


async def lose(server: Standalone, how: str) -> None:
    if how == "flush":
        server.node.command("FLUSHALL")
        return
    server.node.kill()
    shutil.rmtree(server.node.directory / "appendonlydir")
    await anyio.to_thread.run_sync(server.node.start)


async def put_anew(admin: Node) -> None:
    """As an operator does who finds that it is gone; somebody who remembers it may be faster."""
    while True:
        try:
            await admin.upstreams.put("a", window(LIMIT, SECONDS))
            return
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def held_ms(node: Node) -> int:
    return (await node.upstreams.figures("a", "u1"))[0].held_ms


@pytest.mark.topology("standalone", "redis")
@pytest.mark.parametrize("how", ["flush", "empty restart"])
async def test_no_window_is_exceeded_by_relays_that_go_on(fresh_server: Fresh, prefix: str, how: str) -> None:
    server = cast("Standalone", fresh_server())
    async with nodes(server.url, prefix, 2) as relays, nodes(server.url, prefix, 1, new=False) as (admin,):
        upstream = strict(1)
        await fill(relays, upstream)
        await lose(server, how)
        await put_anew(admin)
        await asyncio.gather(*(relays[number % 2].send("a", "u1", upstream) for number in range(LIMIT)))
        assert upstream.refused == 0
        assert upstream.largest("u1", SECONDS) <= LIMIT


@pytest.mark.topology("standalone", "redis")
@pytest.mark.parametrize("how", ["flush", "empty restart"])
async def test_no_window_is_exceeded_by_relays_that_remember_nothing(
    fresh_server: Fresh, prefix: str, how: str
) -> None:
    """Everybody who knew what was sent is gone: the store is younger than the window, and not known to be new."""
    server = cast("Standalone", fresh_server())
    upstream = strict(2)
    async with nodes(server.url, prefix, 1) as relays:
        await fill(relays, upstream)
    await lose(server, how)
    async with nodes(server.url, prefix, 2, new=False) as relays:
        await put_anew(relays[0])
        await asyncio.gather(*(relays[number % 2].send("a", "u1", upstream) for number in range(LIMIT)))
    assert upstream.refused == 0
    assert upstream.largest("u1", SECONDS) <= LIMIT


@pytest.mark.topology("standalone", "redis")
async def test_a_request_in_flight_counts_after_a_flush_and_a_policy_written_anew(
    fresh_server: Fresh, prefix: str
) -> None:
    server = cast("Standalone", fresh_server())
    async with nodes(server.url, prefix, 1) as (relay,), nodes(server.url, prefix, 1, new=False) as (admin,):
        policy = window(LIMIT, 0.2, timeout_seconds=30.0)
        await relay.upstreams.put("a", policy)
        permit = await relay.permits.acquire("a", policy, "u1", deadline=asyncio.get_running_loop().time() + 5)
        permit.sending()
        server.node.command("FLUSHALL")
        await admin.upstreams.put("a", policy)
        loop = asyncio.get_running_loop()
        others = [await admin.permits.acquire("a", policy, "u1", deadline=loop.time() + 20) for _ in range(LIMIT - 1)]
        figures, _, _ = await admin.upstreams.figures("a", "u1")
        assert (figures.in_flight, figures.room) == (LIMIT, 0)
        for each in (permit, *others):
            each.settle(Outcome.ENDED)


async def test_the_first_upstream_of_a_store_that_nobody_knows_holds_for_a_window(
    server: Topology, prefix: str
) -> None:
    async with nodes(server.url, prefix, 1, new=False) as (relay,):
        await relay.upstreams.put("a", window(LIMIT, 600))
        assert 500_000 < await held_ms(relay) <= 600_000
        assert 500_000 < (await relay.upstreams.status("a")).held_ms <= 600_000
        relay.store.advance_clock(400_000)
        await relay.upstreams.put("b", window(LIMIT, 600))  # what is left of the window
        figures, _, _ = await relay.upstreams.figures("b", "u1")
        assert 100_000 < figures.held_ms <= 200_000
        relay.store.advance_clock(700_000)
        await relay.upstreams.put("c", window(LIMIT, 600))  # nothing was lost for longer than that
        figures, _, _ = await relay.upstreams.figures("c", "u1")
        assert (figures.held_ms, figures.room) == (0, LIMIT)


async def test_a_store_that_is_known_to_be_new_holds_nothing(server: Topology, prefix: str) -> None:
    async with nodes(server.url, prefix, 1) as (relay,):
        await relay.upstreams.put("a", window(LIMIT, 600))
        assert await held_ms(relay) == 0


async def test_a_store_is_known_to_be_new_only_until_it_may_have_lost_something(
    fresh_server: Fresh, prefix: str
) -> None:
    server = fresh_server()
    async with nodes(server.url, prefix, 1, deadline_ms=30_000) as (relay,):
        await server.fail_over(relay.upstreams.index.home.key("meta"))
        await relay.upstreams.put("a", window(LIMIT, 600))
        assert await held_ms(relay) > 500_000


async def test_an_upstream_whose_keys_are_lost_while_its_name_is_noted_holds(server: Topology, prefix: str) -> None:
    """As when one node of a cluster loses its data: the list of upstreams is on another."""
    async with nodes(server.url, prefix, 1) as (relay,), nodes(server.url, prefix, 1, new=False) as (admin,):
        await relay.upstreams.put("a", window(LIMIT, 600))
        thing = relay.upstreams.thing("a")
        for key in ("meta", "policy", "users"):
            await relay.store.write(thing, "DEL", thing.key(key), again=True)
        await admin.upstreams.put("a", window(LIMIT, 600))
        assert await held_ms(admin) > 500_000


async def test_a_relay_that_has_sent_says_so_when_its_upstream_is_made_anew(server: Topology, prefix: str) -> None:
    """Nothing else tells of the loss: neither the list of upstreams, nor the age of the store."""
    async with nodes(server.url, prefix, 1) as (relay,), nodes(server.url, prefix, 1, new=False) as (admin,):
        await relay.upstreams.put("a", window(LIMIT, 600))
        await relay.send("a", "u1", Counting(3, 0.0, 0.0))
        await relay.permits.settled(5)
        thing, home = relay.upstreams.thing("a"), relay.upstreams.index.home
        keys = ("meta", "policy", "users", "done/u1", "user/u1")
        await relay.store.write(thing, "DEL", *(thing.key(key) for key in keys), again=True)
        await relay.store.write(home, "DEL", home.key("names"), again=True)
        await admin.upstreams.put("a", window(LIMIT, 600))

        async def holds() -> bool:
            return await held_ms(admin) > 500_000

        await eventually(holds)


async def test_a_removed_upstream_that_comes_back_does_not_hold(server: Topology, prefix: str) -> None:
    async with nodes(server.url, prefix, 1) as (relay,):
        await relay.upstreams.put("a", window(LIMIT, 600))
        await relay.upstreams.remove("a")
        await Upstreams(relay.store).put("a", window(LIMIT, 600))
        assert await held_ms(relay) == 0
