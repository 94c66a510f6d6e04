"""Limits of every kind, several at once, shared, weighted, by plan, and changed live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.cli.trial.strict_limits import TokenBucket, largest_window
from headgate.relay.model import Kind, Limit, Outcome, Per
from tests.store.relay_world import PATIENT_MS, Counting, Node, nodes, window
from tests.topology import Stopwatch, Topology, eventually


@pytest.fixture
async def three(server: Topology, prefix: str) -> AsyncIterator[list[Node]]:
    async with nodes(server.url, prefix, 3, deadline_ms=PATIENT_MS) as started:
        yield started


@pytest.fixture
async def one(server: Topology, prefix: str) -> AsyncIterator[Node]:
    async with nodes(server.url, prefix, 1, deadline_ms=PATIENT_MS) as started:
        yield started[0]


@pytest.mark.parametrize(
    "limit",
    [Limit(kind=Kind.BUCKET, burst=5, count=20, seconds=1.0), Limit(kind=Kind.PACED, every_ms=50)],
    ids=["bucket", "paced"],
)
async def test_bucket_and_pace_are_kept(three: list[Node], limit: Limit) -> None:
    await three[0].upstreams.put("a", window(1, 1, limits=(limit,)))
    upstream = Counting(3, 0.005, 0.05, limiter=TokenBucket(20, 1.0, burst=limit.burst or 1))
    await asyncio.gather(*(three[n % 3].send("a", "u1", upstream) for n in range(30)))
    assert upstream.refused == 0


async def test_several_limits_hold_at_once(three: list[Node]) -> None:
    limits = (Limit(count=3, seconds=0.3), Limit(count=8, seconds=1.5))
    await three[0].upstreams.put("a", window(1, 1, limits=limits))
    upstream = Counting(4, 0.005, 0.05)
    await asyncio.gather(*(three[n % 3].send("a", "u1", upstream) for n in range(20)))
    assert upstream.largest("u1", 0.3) <= 3
    assert upstream.largest("u1", 1.5) <= 8 <= upstream.fullest("u1", 1.5)


async def test_costs_are_counted(three: list[Node]) -> None:
    await three[0].upstreams.put("a", window(6, 0.4))
    upstream = Counting(14, 0.005, 0.0)

    costs = [1, 4, 2, 6, 3, 1, 5, 2]
    spent: list[tuple[float, int]] = []

    async def counted(number: int, units: int) -> None:
        spent.append((await three[number % 3].send("a", "u1", upstream, units=units), units))

    await asyncio.gather(*(counted(number, units) for number, units in enumerate(costs)))
    moments = [moment for moment, units in spent for _ in range(units)]
    assert largest_window(moments, 0.39) <= 6


async def test_shared_limit_goes_round_the_users(three: list[Node]) -> None:
    shared = (Limit(count=4, seconds=0.4, per=Per.UPSTREAM),)
    await three[0].upstreams.put("a", window(1, 1, limits=shared))
    upstream = Counting(15, 0.005, 0.0)
    finished: list[str] = []

    async def request(number: int, user: str) -> None:
        await three[number % 3].send("a", user, upstream)
        finished.append(user)

    flood = [asyncio.ensure_future(request(number, "flood")) for number in range(40)]

    async def flooded() -> bool:
        return (await three[0].upstreams.figures("a", "flood"))[0].waiting > 30

    await eventually(flooded)
    small = [asyncio.ensure_future(request(number, "small")) for number in range(4)]
    await asyncio.gather(*small)
    # Four turns of the small user come with about as many of the flooding one, not after its 40.
    assert finished.count("flood") < 20
    await asyncio.gather(*flood)
    every = [moment for moments in upstream.arrivals.values() for moment in moments]
    assert largest_window(every, 0.4) <= 4


async def test_concurrent_limit_lasts_to_the_end_of_the_answer(one: Node) -> None:
    await one.upstreams.put("a", window(1, 1, limits=(Limit(kind=Kind.CONCURRENT, count=2),)))
    view = await one.upstreams.get("a")
    loop = asyncio.get_running_loop()
    first, _second = [await one.permits.acquire("a", view.policy, "u1", deadline=loop.time() + 5) for _ in range(2)]
    third = asyncio.ensure_future(one.permits.acquire("a", view.policy, "u1", deadline=loop.time() + 5))
    first.sending()
    first.settle(Outcome.ANSWERED)
    await one.permits.settled(2)
    await asyncio.sleep(0.05)
    assert not third.done()
    first.settle(Outcome.ENDED)
    await eventually(third.done, 1)
    await third


async def test_limits_change_live(three: list[Node]) -> None:
    await three[0].upstreams.put("a", window(2, 0.5))
    upstream = Counting(16, 0.005, 0.0)
    tasks = [asyncio.ensure_future(three[n % 3].send("a", "u1", upstream)) for n in range(40)]
    await eventually(lambda: len(upstream.arrivals.get("u1", ())) >= 4)
    await three[1].upstreams.put("a", window(20, 0.5))
    watch = Stopwatch()
    await asyncio.gather(*tasks)
    assert watch.seconds < 3


async def test_plans_override_limits_of_a_user(one: Node) -> None:
    plans = {"big": (Limit(count=6, seconds=5.0),)}
    await one.upstreams.put("a", window(1, 5.0, plans=plans, user_plans={"rich": "big"}))
    assert (await one.upstreams.figures("a", "rich"))[0].room == 6
    assert (await one.upstreams.figures("a", "poor"))[0].room == 1
