"""Leases: renewed, ended by the store's clock, and a holder who is told the truth."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from headgate.kit.problems import StoreUnavailable
from headgate.locks import (
    LockHeld,
    LockLost,
    Locks,
    NotHolder,
)
from headgate.store import Store, StoreSettings, open_store
from tests.store.lock_world import another, is_free, is_held
from tests.topology import FaultyProxy, Standalone, Stopwatch, Topology, eventually

standalone_only = pytest.mark.topology("standalone")


async def test_a_held_lock_is_renewed_beyond_its_ttl(locks: Locks) -> None:
    async with locks.lock("a", ttl=4) as held:  # long enough for a machine that stands still for two seconds
        await asyncio.sleep(4.5)
        assert held.fence
        assert (await locks.show("a")).held


async def test_a_lock_without_renewal_ends_and_says_so(locks: Locks) -> None:
    with pytest.raises(LockLost):
        async with locks.lock("a", ttl=0.3, renew=False):
            await asyncio.sleep(5)
    await eventually(lambda: is_free(locks))


async def test_a_holder_that_blocked_past_its_lease_is_told_before_it_uses_the_fence(locks: Locks) -> None:
    reached = False
    with pytest.raises(LockLost):  # noqa: PT012 -- the block is what is tested
        async with locks.lock("a", ttl=0.4) as held:
            time.sleep(0.6)
            await locks.fenced_set("row", "late", held.fence)
            reached = True
    assert not reached
    assert await locks.fenced_get("row") is None


def test_a_blocked_loop_of_another_kind_is_told_too(server: Topology, prefix: str) -> None:
    """uvloop looks at the clock only between two callbacks."""

    async def work() -> None:
        async with another(server, prefix) as locks, locks.lock("a", ttl=0.4) as held:
            time.sleep(0.6)
            assert held.fence == 0, "it was not told"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(LockLost):
        runner.run(work())


async def test_a_block_that_ends_after_its_lease_is_told_so(locks: Locks) -> None:
    with pytest.raises(LockLost):
        async with locks.lock("a", ttl=0.3):
            time.sleep(0.5)


async def test_a_dead_holder_is_succeeded_when_its_lease_ends(server: Topology, prefix: str, locks: Locks) -> None:
    watch = Stopwatch()
    dead = await locks.grant(locks.lock("a", ttl=1).request, "dead")
    async with another(server, prefix) as other:
        async with other.lock("a", ttl=5) as held:
            assert time.monotonic() - dead.sent >= 1
            assert watch.seconds < 1.5  # within 100 ms where the machine is not busy: tests/faults
            assert held.fence > dead.fence
    with pytest.raises(NotHolder):
        await locks.release(dead)


async def test_a_delay_keeps_the_lock_closed_after_a_lost_holder_only(locks: Locks) -> None:
    watch = Stopwatch()
    dead = await locks.grant(locks.lock("a", ttl=0.3, delay=0.5).request, "dead")
    async with locks.lock("a", delay=0.5):
        assert time.monotonic() - dead.sent >= 0.8
        assert watch.seconds < 1.1
    watch = Stopwatch()
    async with locks.lock("a"):
        assert watch.seconds < 0.3


async def test_a_stepped_clock_ends_no_lease_early(store: Store, locks: Locks) -> None:
    async with locks.lock("a", ttl=20) as held:
        store.step_clock(3_600_000)
        with pytest.raises(LockHeld):
            await locks.acquire(locks.lock("a", wait=0).request, taker=object())
        await locks.renew_as("default", "a", held.holder)
        store.step_clock(-3_600_000)
        with pytest.raises(LockHeld):
            await locks.acquire(locks.lock("a", wait=0).request, taker=object())


async def test_a_lease_ends_by_the_stores_clock(store: Store, locks: Locks) -> None:
    await locks.grant(locks.lock("a", ttl=100).request, "gone")
    store.advance_clock(95_000)
    assert (await locks.show("a")).held
    store.advance_clock(100_500)
    assert not (await locks.show("a")).held
    held = await locks.lock("a", wait=0).acquire()
    await held.release()


@standalone_only
async def test_fences_grow_across_restarts_and_lost_keys(fresh_server: Callable[..., Standalone], prefix: str) -> None:
    server = fresh_server()
    fences: list[int] = []
    for fault in ("flush", "restart", "restart", "none"):
        async with another(server, prefix) as locks, locks.lock("a") as held:
            fences.append(held.fence)
        if fault == "flush":
            server.node.command("FLUSHALL")
        elif fault == "restart":
            await server.node.restart()
    assert sorted(set(fences)) == fences


@standalone_only
async def test_a_partitioned_holder_is_told_before_its_lease_ends(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy:
        settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)
        async with open_store(settings) as far, Locks(far) as locks, another(server, prefix) as near:
            told = 0.0
            with pytest.raises(LockLost, match="not renewed"):  # noqa: PT012 -- the block is what is tested
                async with locks.lock("a", ttl=2):
                    proxy.blackhole()
                    try:
                        await asyncio.sleep(30)
                    finally:
                        told = time.monotonic()
            async with near.lock("a", ttl=2):
                assert told < time.monotonic()
            proxy.heal()


@standalone_only
async def test_a_lost_reply_gives_no_second_holding(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy:
        settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)
        async with open_store(settings) as far, Locks(far) as locks, another(server, prefix) as near:
            async with locks.lock("a"):
                pass
            proxy.hold(replies_only=True)
            asking = asyncio.create_task(locks.lock("a", ttl=30).acquire())
            await eventually(lambda: is_held(near))
            first = (await near.show("a")).fence
            proxy.lose_held()
            held = await asking
            assert held.fence == first
            proxy.hold(replies_only=True)
            releasing = asyncio.create_task(held.release())
            await eventually(lambda: is_free(near))
            async with near.lock("a", ttl=30):
                proxy.lose_held()
                await releasing  # it was given back, however often that was said


@standalone_only
async def test_an_acquisition_that_cannot_be_answered_is_given_back(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy:
        settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)
        async with open_store(settings) as far, Locks(far) as locks, another(server, prefix) as near:
            async with locks.lock("a"):
                pass
            far.deadline_seconds = 1
            proxy.drop_replies()
            with pytest.raises(StoreUnavailable):
                await locks.lock("a", ttl=30).acquire()
            proxy.heal()
            await eventually(lambda: is_free(near))


@standalone_only
async def test_an_answer_that_comes_after_the_lease_opens_no_block(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy:
        settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)
        async with open_store(settings) as far, Locks(far) as locks:
            async with locks.lock("a"):
                pass
            proxy.delay(0.5)
            entered = False
            with pytest.raises(LockLost):
                async with locks.lock("a", ttl=0.3):
                    entered = True
            assert not entered
            proxy.heal()


async def test_a_lock_may_be_given_back_and_taken_again_inside_its_block(locks: Locks) -> None:
    lock = locks.lock("a", ttl=5)
    async with lock as first:
        await first.release()
        assert await is_free(locks)
        async with lock as second:
            assert second.fence > first.grant.fence
        with pytest.raises(NotHolder):
            first.check()
    assert await is_free(locks)


async def test_a_lock_that_was_lost_may_be_taken_again_inside_its_block(locks: Locks) -> None:
    lock = locks.lock("a", ttl=3)
    taken_again = False
    with pytest.raises(LockLost):  # noqa: PT012 -- the block is what is tested
        async with lock as first:
            time.sleep(3.1)
            with pytest.raises(LockLost):
                first.check()
            async with lock as second:
                taken_again = second.fence > first.grant.fence
    assert taken_again
    await eventually(lambda: is_free(locks))
