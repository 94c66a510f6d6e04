"""Fences grow for ever: through failovers that lose writes, flushes, clocks that were put back, and all of these in a row."""

from __future__ import annotations

import time
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from headgate.locks import Locks
from headgate.locks.jobs import SWEEP
from headgate.locks.locks import ACQUIRE, RELEASE
from headgate.store import Store
from tests.store.beside import Run, store_beside
from tests.store.lock_world import another
from tests.topology import Replicated, Topology

MOST_FENCE = 2**53 - 1
HOUR_MS = 3_600_000


async def use(locks: Locks) -> int:
    """Take the lock and give it back, and tell its fence."""
    async with locks.lock("a", ttl=1, wait=30) as held:
        return held.fence


@pytest.mark.topology("standalone")
async def test_a_flush_soon_after_a_failover_that_lost_writes_does_not_put_fences_back(prefix: str) -> None:
    async with Replicated() as pair, another(pair.door, prefix) as locks:
        given = [await use(locks)]
        pair.partition()
        given += [await use(locks) for _ in range(3)]
        await pair.fail_over()
        given += [await use(locks) for _ in range(3)]
        pair.primary.command("FLUSHALL")
        given += [await use(locks) for _ in range(3)]
        assert given == sorted(set(given))


@pytest.mark.topology("standalone")
async def test_a_lock_that_never_reached_the_replica_does_not_put_fences_back(prefix: str) -> None:
    async with Replicated() as pair, another(pair.door, prefix) as locks:
        pair.partition()
        given = [await use(locks) for _ in range(3)]
        await pair.fail_over()
        assert await use(locks) > given[-1]


@pytest.mark.parametrize("behind_ms", [0, 5000, 50_000])
async def test_a_server_that_starts_empty_with_a_clock_behind_gives_higher_fences(
    store: Store, locks: Locks, behind_ms: int
) -> None:
    """The lock is more than a minute old, so its fences are those of the clock."""
    now_ms = round(time.time() * 1000)
    store.stop_clock(now_ms)
    await use(locks)
    store.stop_clock(now_ms + 61_000)
    before = await use(locks)
    await flush(store)
    store.stop_clock(now_ms + 61_000 - behind_ms)
    assert await use(locks) > before


async def test_a_lock_whose_clock_was_put_back_is_not_forgotten_too_early(store: Store, locks: Locks) -> None:
    now_ms = round(time.time() * 1000)
    store.stop_clock(now_ms)
    await use(locks)
    store.stop_clock(now_ms - HOUR_MS)
    before = await use(locks)
    store.stop_clock(now_ms - HOUR_MS + 100_000)
    left_ms = cast("int", await store.run(SWEEP, locks.thing("a"), 60_000))
    assert left_ms > HOUR_MS - 100_000
    assert await use(locks) > before
    store.stop_clock(now_ms + 100_000)
    assert await store.run(SWEEP, locks.thing("a"), 60_000) == 0
    assert await use(locks) > before


async def flush(store: Store) -> None:
    """Delete all of this store's keys, as FLUSHALL does."""
    for link in await store.route.primaries():
        for key in cast("list[bytes]", await link.send(("KEYS", f"{store.prefix}:*"), store.deadline())):
            await link.send(("DEL", key), store.deadline())


class FencesMachine(RuleBasedStateMachine):
    """One lock, whose server comes back with any earlier record or none, 2 s after the time before or later."""

    run: Run
    store: Store
    locks = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).locks += 1
        self.thing = self.store.thing("lock", "default", f"x{self.locks}")
        self.now_ms = round(time.time() * 1000)
        self.histories = 0
        self.given: list[int] = []
        self.kept: list[list[bytes]] = []
        self.take(1)

    @rule(count=st.integers(1, 20))
    def take(self, count: int) -> None:
        self.store.stop_clock(self.now_ms)
        for _ in range(count):
            fence = self.run(self.use())
            assert max(self.given, default=0) < fence <= MOST_FENCE
            assert fence <= (self.now_ms + 60_000 + 1000 * self.histories) * 1000 + len(self.given) + 1
            self.given.append(fence)
        self.kept.append(self.run(self.read()))

    @rule(ms=st.sampled_from([1, 700, 4000, 10_000, 59_000, 61_000, HOUR_MS]))
    def live(self, ms: int) -> None:
        self.now_ms += ms

    @rule(data=st.data())
    def fail_over(self, data: st.DataObject) -> None:
        """Fail over to a primary that has heard of any part; what it lost may have been written before and after other losses."""
        self.lose(data.draw(st.sampled_from(self.kept)))

    @rule()
    def flush(self) -> None:
        self.lose([])

    def lose(self, kept: list[bytes]) -> None:
        self.now_ms += 2000
        self.histories += 1
        self.run(self.replace(kept))
        self.take(1)

    async def replace(self, kept: list[bytes]) -> None:
        await self.store.write(self.thing, "DEL", self.thing.key("meta"))
        if kept:
            await self.store.write(self.thing, "HSET", self.thing.key("meta"), *kept)

    async def read(self) -> list[bytes]:
        return cast("list[bytes]", await self.store.read(self.thing, "HGETALL", self.thing.key("meta")))

    async def use(self) -> int:
        (await self.store.route.link(self.thing.slot)).replication_id = f"history-{self.histories}"
        args = ("ann", "process", 1000, 0, 500, 0, 0, "", 0, "-")
        given, fence, *_ = cast("list[bytes | int]", await self.store.run(ACQUIRE, self.thing, *args))
        assert given == 1
        (await self.store.route.link(self.thing.slot)).replication_id = f"history-{self.histories}"
        await self.store.run(RELEASE, self.thing, "ann", f"n{len(self.given)}", "process", 0, "-")
        return int(fence)


def test_no_order_of_losses_puts_a_fence_back(server: Topology, prefix: str) -> None:
    with store_beside(server.url, prefix) as (run, store):
        machine = type("Machine", (FencesMachine,), {"run": staticmethod(run), "store": store})
        options = settings(
            max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        )
        run_state_machine_as_test(machine, settings=options)
