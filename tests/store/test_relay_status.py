"""How it stands with an upstream: sums over all of its users, however many, at a cost that is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.relay.upstream_status import PAGE, SHOWN
from tests.store.relay_world import PATIENT_MS, Counting, Node, nodes, window
from tests.topology import Stopwatch, eventually


@pytest.fixture
async def one(anyio_backend: str, store_url: str, prefix: str) -> AsyncIterator[Node]:
    async with nodes(store_url, prefix, 1, deadline_ms=PATIENT_MS) as (node,):
        yield node


async def test_all_users_are_counted_not_only_the_first(one: Node) -> None:
    await one.upstreams.put("a", window(1, 60.0))
    upstream = Counting(21, 0.001, 0.0)
    count = 2 * PAGE + 50
    for start in range(0, count, 50):
        await asyncio.gather(*(one.send("a", f"u{number:04}", upstream) for number in range(start, start + 50)))
    await one.permits.settled(5)
    busy = f"u{count - 1:04}"
    waiting = [asyncio.ensure_future(one.send("a", busy, upstream, seconds=600)) for _ in range(3)]

    async def three_wait() -> bool:
        return (await one.upstreams.figures("a", busy))[0].waiting == 3

    await eventually(three_wait)
    watch = Stopwatch()
    statuses = await asyncio.gather(*(one.upstreams.status("a") for _ in range(5)))
    status = statuses[0]
    assert (status.users, status.waiting, status.in_flight, status.cooling) == (count, 3, 0, count)
    assert status.busiest[0].user == busy
    assert len(status.busiest) == SHOWN
    assert all(other is status for other in statuses), "those who ask at once share one count"
    again = await one.upstreams.status("a")
    stood_still = watch.stood_still > 0.1  # for longer, perhaps, than the count stands
    assert again is status or stood_still, "a long count stands for a while"

    async def counted_anew() -> bool:
        return (await one.upstreams.status("a")).waiting == 0

    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await eventually(counted_anew, 30)


async def test_a_few_users_are_counted_anew_for_everybody_who_asks(one: Node) -> None:
    await one.upstreams.put("a", window(2, 60.0))
    assert (await one.upstreams.status("a")).users == 0
    for count in (1, 2):
        await one.send("a", "u1", Counting(22, 0.001, 0.0))
        await one.permits.settled(5)
        status = await one.upstreams.status("a")
        assert (status.users, status.cooling) == (1, count)
