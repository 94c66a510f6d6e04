"""The short way through the scripts, which a lock takes that nobody waits for: it skips no care that is due."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from headgate.locks import Locks, NotHolder
from headgate.store import Store
from tests.store.lock_world import is_free
from tests.topology import eventually

JUMP_US = 60_000_000


async def use(locks: Locks) -> int:
    """Take the lock and give it back, and tell its fence."""
    async with locks.lock("a") as held:
        return held.fence


async def meta(locks: Locks, field: str) -> int:
    thing = locks.thing("a")
    return int(cast("bytes", await locks.store.read(thing, "HGET", thing.key("meta"), field)))


async def write_meta(locks: Locks, *pairs: str | int) -> None:
    thing = locks.thing("a")
    await locks.store.write(thing, "HSET", thing.key("meta"), *pairs)


async def test_a_free_lock_whose_history_may_be_lost_gets_a_fence_far_ahead(locks: Locks) -> None:
    await use(locks)
    before = await use(locks)
    await write_meta(locks, "replid", "another-history", "was", "")
    after = await use(locks)
    assert after - before >= JUMP_US
    assert await use(locks) > after


async def test_a_fence_grows_by_count_where_the_clock_is_behind(locks: Locks) -> None:
    before = await use(locks)
    ahead = before + 10 * JUMP_US
    await write_meta(locks, "last", ahead)
    assert [await use(locks), await use(locks)] == [ahead + 1, ahead + 2]


async def test_a_clock_put_back_a_little_does_not_put_back_the_locks_time(store: Store, locks: Locks) -> None:
    held = await locks.lock("a").acquire()
    store.step_clock(-3000)
    await held.release()
    offset = await meta(locks, "offset")
    assert 0 < offset <= 3000  # less by as much as has passed meanwhile
    await use(locks)
    await use(locks)
    assert await meta(locks, "offset") == offset
    store.step_clock(0)


async def test_a_lease_that_has_ended_cannot_be_given_back(locks: Locks) -> None:
    await use(locks)
    grant = await locks.grant(locks.lock("a", ttl=0.2).want, "slow")
    await eventually(lambda: is_free(locks))
    with pytest.raises(NotHolder):
        await locks.release(grant)


async def test_a_broken_lock_with_a_delay_stays_closed_for_so_long(store: Store, locks: Locks) -> None:
    await use(locks)
    await locks.grant(locks.lock("a", ttl=10, delay=20).want, "gone")
    broken = asyncio.get_running_loop().time()
    assert await locks.break_lock("a", by="operator")
    assert await locks.lock("a").try_lock() is None
    store.advance_clock(19_000)
    async with locks.lock("a", wait=5):
        assert asyncio.get_running_loop().time() - broken >= 1


async def test_each_holder_has_its_own_terms(locks: Locks) -> None:
    await use(locks)
    for ttl, label, delay in ((5.0, "ann", 0.0), (7.0, "bob", 0.0), (7.0, "", 2.0)):
        async with locks.lock("a", ttl=ttl, label=label, delay=delay) as held:
            assert (await locks.show("a")).label == label
            assert await locks.renew_as("default", "a", held.holder) == (held.fence, ttl)
            assert await meta(locks, "delay") == delay * 1000
