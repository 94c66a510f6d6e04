"""A lock that passes on inside one process: the release gives it to the next in line, whatever becomes of its answer."""

from __future__ import annotations

import asyncio

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.locks import Held, Locks, NotHolder
from headgate.store import StoreSettings, open_store
from tests.store.cancelling import inject
from tests.store.lock_world import (
    CALM,
    LONG_TTL,
    LONGER_THAN_THE_GRACE,
    another,
    are_waiting,
    asked,
    is_free,
    within,
)
from tests.topology import FaultyProxy, Standalone, Topology, eventually


async def stand_in_line(locks: Locks, place: int = 1, ttl: float = LONG_TTL) -> asyncio.Task[Held]:
    """Have one more wait, and see it in line."""
    waiting = asyncio.create_task(locks.lock("a", ttl=ttl).acquire())
    await eventually(lambda: are_waiting(locks, place))
    return waiting


async def test_the_heir_has_a_whole_lease_and_a_higher_fence_without_asking(locks: Locks) -> None:
    before = asked()
    first = await locks.lock("a", ttl=LONG_TTL).acquire()
    waiting = await stand_in_line(locks, ttl=20)
    await eventually(lambda: asked() == before + 3)  # the holder, the waiter, and its look once it listens
    await first.release()
    heir = await within(3, waiting)
    assert asked() == before + 3
    assert heir.fence > first.grant.fence
    assert 15 < heir.lease_ends - asyncio.get_running_loop().time() < 20
    state = await locks.show("a")
    assert (state.held, state.fence, state.waiting) == (True, heir.fence, 0)
    await heir.release()
    assert await is_free(locks)


async def test_those_of_another_process_keep_their_turn_and_hear_of_it(server: Topology, prefix: str) -> None:
    async with another(server, prefix, CALM) as locks, another(server, prefix, CALM) as other:
        first = await locks.lock("a", ttl=LONG_TTL).acquire()
        theirs = await stand_in_line(other)
        ours = await stand_in_line(locks, 2)
        last = await stand_in_line(other, 3)
        await first.release()
        held = await within(3, theirs)
        assert not ours.done()
        await held.release()
        held = await within(3, ours)
        before = asked()
        await asyncio.sleep(LONGER_THAN_THE_GRACE)  # nobody takes it for free
        assert asked() == before
        await held.release()
        await (await within(3, last)).release()


async def test_a_release_that_is_cancelled_at_any_await_still_hands_over(locks: Locks) -> None:
    heirs: list[asyncio.Task[Held]] = []

    async def work() -> None:
        held = await locks.lock("a", ttl=LONG_TTL).acquire()
        try:
            heirs.append(asyncio.create_task(locks.lock("a", ttl=LONG_TTL).acquire()))
            await eventually(lambda: are_waiting(locks, 1), every=0.005)
        finally:
            await held.release()

    async def check() -> None:
        for heir in heirs:
            await (await within(5, heir)).release()
        heirs.clear()
        await eventually(lambda: is_free(locks))

    assert await inject(work, check) >= 4


async def test_an_heir_that_is_cancelled_at_any_await_passes_it_on(locks: Locks) -> None:
    releases: set[asyncio.Task[None]] = set()

    async def release(held: Held) -> None:
        await asyncio.sleep(0.02)
        await held.release()

    async def work() -> None:
        held = await locks.lock("a", ttl=LONG_TTL).acquire(taker=object())
        task = asyncio.create_task(release(held))
        releases.add(task)
        task.add_done_callback(releases.discard)
        async with locks.lock("a", ttl=LONG_TTL):
            await asyncio.sleep(0)

    async def check() -> None:
        await asyncio.gather(*releases)
        async with await within(3, locks.lock("a", ttl=LONG_TTL).acquire()):
            pass
        await eventually(lambda: is_free(locks))

    assert await inject(work, check) >= 4


@pytest.mark.topology("standalone")
async def test_a_release_whose_answer_is_lost_tells_the_heir_all_the_same(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy, another(server, prefix) as near:
        settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)
        async with open_store(settings) as far, Locks(far) as locks:
            async with locks.lock("a"):
                pass  # from here on the server knows every script
            first = await locks.lock("a", ttl=LONG_TTL).acquire()
            waiting = await stand_in_line(locks)
            proxy.hold(replies_only=True)
            releasing = asyncio.create_task(first.release())
            await eventually(lambda: are_waiting(near, 0))
            proxy.lose_held()
            await releasing
            heir = await within(5, waiting)
            assert heir.fence == (await near.show("a")).fence > first.grant.fence
            await heir.release()


@pytest.mark.topology("standalone")
async def test_a_release_that_is_never_answered_has_the_heir_ask(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy, another(server, prefix) as near:
        settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)
        async with open_store(settings) as far, Locks(far) as locks:
            async with locks.lock("a"):
                pass  # from here on the server knows every script
            first = await locks.lock("a", ttl=LONG_TTL).acquire()
            waiting = await stand_in_line(locks)
            far.deadline_seconds = 1
            proxy.drop_replies()
            with pytest.raises(StoreUnavailable):
                await first.release()
            await eventually(lambda: are_waiting(near, 0))
            far.deadline_seconds = 10
            proxy.heal()
            heir = await within(10, waiting)
            assert heir.fence == (await near.show("a")).fence
            await heir.release()


async def test_a_release_in_anothers_name_that_is_cancelled_at_any_await_still_hands_over(locks: Locks) -> None:
    """As a gateway does it for those who ask over HTTP, and hang up."""
    heirs: list[asyncio.Task[Held]] = []

    async def work() -> None:
        try:
            await locks.release_as("default", "a", "me")
        except NotHolder:
            return

    async def check() -> None:
        if await are_waiting(locks, 1):
            await locks.release_as("default", "a", "me")
        for heir in heirs:
            await (await within(5, heir)).release()
        heirs.clear()
        await prepare()

    async def prepare() -> None:
        await locks.grant(locks.lock("a", ttl=LONG_TTL).request, "me")
        heirs.append(await stand_in_line(locks))

    await prepare()
    assert await inject(work, check) >= 1
    for heir in heirs:
        heir.cancel()
    await locks.withdraw(locks.lock("a").request, "me")
