"""The fast path through the scripts, for a lock that nobody waits for: it is taken, and does what the slow one does."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from itertools import count
from typing import cast

import pytest

from headgate.kit.problems import HeadgateError
from headgate.locks import Locks, NotHolder
from headgate.locks.locks import ACQUIRE, RELEASE
from headgate.store import Store, Thing
from tests.store.lock_world import another, is_free, ran
from tests.topology import Topology, eventually

JUMP_US = 60_000_000
MOST_LOST = 1_000_000
ROUNDS = 200


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


async def test_a_free_lock_takes_the_fast_path(fresh_server: Callable[..., Topology], prefix: str) -> None:
    """Only the slow path asks who is in line (ZCARD to take it, ZRANGE to give it back)."""
    server = fresh_server()
    async with another(server, prefix) as locks:
        await use(locks)  # loads the scripts, and makes the lock
        before = {name: ran(server, name) for name in ("evalsha", "zcard", "zrange")}
        for _ in range(ROUNDS):
            await use(locks)
        assert {name: ran(server, name) - before[name] for name in before} == {
            "evalsha": 2 * ROUNDS,
            "zcard": 0,
            "zrange": 0,
        }
        async with locks.lock("a"):
            await write_meta(locks, "lined", "1")  # somebody may be in line
        await write_meta(locks, "lined", "1")
        await use(locks)
        assert (ran(server, "zcard") - before["zcard"], ran(server, "zrange") - before["zrange"]) == (1, 2)


class Pair:
    """Two locks that see the same calls at the same moments; the second may never take the fast path."""

    def __init__(self, store: Store, locks: Locks) -> None:
        fast = locks.thing("fast")
        # In the same slot, so that one node with one clock serves both.
        slow = next(found for n in count() if (found := locks.thing(f"slow-{n}")).slot == fast.slot)
        self.things = (fast, slow)
        self._store = store
        self._now_ms = round(time.time() * 1000)
        self._history = "first"

    async def disturb(self, dice: random.Random) -> None:
        """Let time pass, mostly a little, and now and then have something happen to the clock or the history."""
        self._now_ms += dice.choice((0, 1, 40, 700, 2500, 4999, 5001, 9000, 12_000))
        self._store.stop_clock(
            self._now_ms, stepped_ms=dice.choice((0, 0, 0, 0, 0, 0, 0, -1, -3000, -7000, 4000, 7000))
        )
        step, turned, history = dice.random() < 0.05, dice.random() < 0.05, dice.random() < 0.03
        seen = self._now_ms - dice.choice((0, 3000, 9999, 10_001))
        clock = (await self._store.route.link(self.things[0].slot)).clock
        clock.step_ms = seen if step else clock.step_ms
        clock.turned_ms = seen if turned else clock.turned_ms
        self._history = str(seen) if history else self._history

    async def call(self, thing: Thing, dice: random.Random) -> object:
        (await self._store.route.link(thing.slot)).replication_id = self._history  # a beat tells the link another
        holder = dice.choice(("ann", "bob"))
        ttl_ms, delay_ms, label = dice.choice((300, 6000)), dice.choice((0, 0, 800)), dice.choice(("", "who"))
        if dice.random() < 0.5:
            request = dice.choice(("-", "-", "r1"))
            return await self._store.run(
                ACQUIRE, thing, holder, "process", ttl_ms, delay_ms, 500, 0, 0, label, 0, request
            )
        nonce = f"n{dice.randrange(20)}"
        try:
            return await self._store.run(RELEASE, thing, holder, nonce, "process", 0, "-")
        except HeadgateError as refusal:
            return refusal.code

    async def kept(self, thing: Thing) -> dict[str, str]:
        """Give the fields of a lock in the store, without those that only tell the paths apart."""
        fields = cast("list[bytes]", await self._store.read(thing, "HGETALL", thing.key("meta")))
        found = dict(
            zip((name.decode() for name in fields[::2]), (each.decode() for each in fields[1::2]), strict=True)
        )
        return {name: each for name, each in found.items() if each and name not in {"lined", "request"}}


@pytest.mark.parametrize("seed", range(4))
async def test_both_paths_give_the_same_answers_and_keep_the_same(store: Store, locks: Locks, seed: int) -> None:
    pair = Pair(store, locks)
    fast, slow = pair.things
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        await pair.disturb(dice)
        await store.write(slow, "HSET", slow.key("meta"), "lined", "1")
        call = dice.random()
        answers = [await pair.call(thing, random.Random(call)) for thing in pair.things]
        assert answers[0] == answers[1]
        assert await pair.kept(fast) == await pair.kept(slow)


async def test_a_free_lock_whose_history_may_be_lost_gets_a_fence_far_ahead(locks: Locks) -> None:
    await use(locks)
    ahead = await use(locks)  # as those of a new lock are
    await write_meta(locks, "replid", "another-history", "was", "")
    more = await use(locks)
    assert MOST_LOST <= more - ahead < 2 * MOST_LOST + JUMP_US
    clock = await meta(locks, "raw") * 1000
    await write_meta(locks, "replid", "third-history", "was", "", "last", clock)
    after = await use(locks)
    assert after - clock >= JUMP_US
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
    grant = await locks.grant(locks.lock("a", ttl=0.2).request, "slow")
    await eventually(lambda: is_free(locks))
    with pytest.raises(NotHolder):
        await locks.release(grant)


async def test_a_broken_lock_with_a_delay_stays_closed_for_so_long(store: Store, locks: Locks) -> None:
    await use(locks)
    await locks.grant(locks.lock("a", ttl=10, delay=20).request, "gone")
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
