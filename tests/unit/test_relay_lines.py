"""Waiting in one process: when each waiter of a line asks the store again."""

from __future__ import annotations

import asyncio

from headgate.relay.waiters import UserLines

LONG_SECONDS = 600.0


async def test_a_time_that_was_on_its_way_when_the_policy_changed_is_not_waited_for() -> None:
    lines = UserLines()
    deadline = asyncio.get_running_loop().time() + LONG_SECONDS
    with lines.join("u1", "p.1.1") as first, lines.join("u1", "p.2.1") as second:
        first.asks()
        second.asks()
        lines.on_hint("policy 2")
        async with asyncio.timeout(10):  # what comes now was answered by the policy before
            await asyncio.gather(
                first.turn(1, LONG_SECONDS, exact=True, deadline=deadline),
                second.turn(2, LONG_SECONDS, exact=True, deadline=deadline),
            )


async def test_waiters_without_a_known_time_stay_asleep_when_the_policy_changes() -> None:
    """Their line may be long; the store calls them when their time is known."""
    lines = UserLines()
    deadline = asyncio.get_running_loop().time() + LONG_SECONDS
    with lines.join("u1", "p.1.1") as first, lines.join("u1", "p.2.1") as second, lines.join("u1", "p.3.1") as third:
        turns = [
            asyncio.ensure_future(first.turn(1, LONG_SECONDS, exact=True, deadline=deadline)),
            asyncio.ensure_future(second.turn(2, LONG_SECONDS, exact=True, deadline=deadline)),
            asyncio.ensure_future(third.turn(3, LONG_SECONDS, exact=False, deadline=deadline)),
        ]
        await asyncio.sleep(0)
        lines.on_hint("policy 2")
        async with asyncio.timeout(10):
            await asyncio.gather(*turns[:2])
        assert not third.timed
        lines.on_hint("turn p.3.1 0")
        async with asyncio.timeout(10):
            await turns[2]


async def test_a_version_that_a_hint_named_is_no_news() -> None:
    """Otherwise every waiter would ask twice for each change."""
    lines = UserLines()
    deadline = asyncio.get_running_loop().time() + LONG_SECONDS
    with lines.join("u1", "p.1.1") as waiter:
        lines.learn(b"1")
        lines.on_hint("policy 2")
        waiter.asks()
        lines.learn(b"2")
        turn = asyncio.ensure_future(waiter.turn(1, 0.1, exact=False, deadline=deadline))
        await asyncio.sleep(0.05)
        assert not turn.done()
        lines.learn(b"3")
        async with asyncio.timeout(10):
            await turn
