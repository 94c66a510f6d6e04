"""`hg.lock` beside the store and through a gateway: one suite for both, and for threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from secrets import token_hex

import pytest

from headgate.locks import Held, Leader
from headgate.sdk import AlreadyHeld, FenceOutdated, Headgate, HeadgateSync, LockHeld, LockLost, NotHolder
from tests.processes import Gateway, GatewayProcess
from tests.topology import Stopwatch, Topology, eventually, wait_until


@pytest.fixture
def name() -> str:
    return f"lock-{token_hex(4)}"


@pytest.fixture(params=["store", "http"])
async def hg(request: pytest.FixtureRequest, server: Topology, gateway: Gateway) -> AsyncIterator[Headgate]:
    if request.param == "store":
        client = Headgate(server.url, prefix=gateway.process.prefix)
    else:
        client = Headgate(gateway.url, token=gateway.token)
    async with client:
        yield client


@pytest.fixture(params=["store", "http"])
def sync(request: pytest.FixtureRequest, server: Topology, gateway_process: GatewayProcess) -> Iterator[HeadgateSync]:
    if request.param == "store":
        client = HeadgateSync(server.url, prefix=gateway_process.prefix)
    else:
        client = HeadgateSync(gateway_process.url, token=gateway_process.token)
    with client:
        yield client


async def test_one_holds_and_the_next_waits(hg: Headgate, name: str) -> None:
    served: list[int] = []

    async def work(n: int) -> int:
        async with hg.lock(name, ttl=5) as held:
            served.append(n)
            await asyncio.sleep(0.02)
            assert served[-1] == n
            return held.fence

    fences = await asyncio.gather(*(work(n) for n in range(5)))
    assert len(served) == len(set(fences)) == 5


async def test_a_held_lock_is_renewed(hg: Headgate, name: str) -> None:
    async with hg.lock(name, ttl=5) as held:
        await asyncio.sleep(5.5)
        assert held.fence
        assert (await hg.locks.show(name)).held
    assert not (await hg.locks.show(name)).held


async def test_errors_are_the_same_in_both_modes(hg: Headgate, name: str) -> None:
    async with hg.lock(name, ttl=5) as held:
        with pytest.raises(AlreadyHeld):
            await hg.lock(name).acquire()
        with pytest.raises(LockHeld):
            await hg.lock(name, wait=0).acquire(taker=object())
        with pytest.raises(LockHeld):
            await hg.lock(name, wait=0.2).acquire(taker=object())
        assert await hg.lock(name).try_lock(taker=object()) is None
    with pytest.raises(NotHolder):
        await held.release()


async def test_a_broken_lock_cancels_the_block(hg: Headgate, name: str) -> None:
    async def work() -> None:
        async with hg.lock(name, ttl=3):
            await hg.locks.break_lock(name, by="test", reason="to see")
            await asyncio.sleep(10)

    watch = Stopwatch()
    with pytest.raises(LockLost):
        await work()
    assert watch.seconds < 2
    assert [event.reason for event in await hg.locks.history(name)] == ["to see"]


async def test_a_cancelled_waiter_leaves_nothing_behind(hg: Headgate, name: str) -> None:
    held = await hg.lock(name, ttl=30).acquire()
    waiting = asyncio.create_task(hg.lock(name, ttl=30).acquire())
    await eventually(lambda: _waiting(hg, name, 1))
    waiting.cancel()
    await asyncio.wait({waiting})
    await eventually(lambda: _waiting(hg, name, 0))
    await held.release()
    again = await hg.lock(name, ttl=30, wait=2).acquire()
    await again.release()


async def test_a_wait_longer_than_the_ttl_ends_in_a_whole_lease(hg: Headgate, name: str) -> None:
    held = await hg.lock(name, ttl=30).acquire()
    waiting = asyncio.create_task(hg.lock(name, ttl=5).acquire())
    await eventually(lambda: _waiting(hg, name, 1))
    await asyncio.sleep(5.2)
    await held.release()
    got: Held = await waiting
    assert got.fence > held.grant.fence
    await asyncio.sleep(5.2)
    assert got.fence  # it was renewed meanwhile
    await got.release()


async def test_elections_in_both_modes(hg: Headgate, name: str) -> None:
    seen: list[Leader | None] = []

    async def observe() -> None:
        async for leader in hg.election(name).observe():
            seen.append(leader)  # noqa: PERF401 -- it is read while it grows

    observer = asyncio.create_task(observe())
    await eventually(lambda: seen == [None])
    async with hg.election(name, ttl=5, candidate="ann").campaign() as term:
        await eventually(lambda: seen == [None, Leader("ann", term.grant.fence)])
        assert await hg.election(name).leader() == Leader("ann", term.fence)
    await eventually(lambda: seen[-1] is None)
    observer.cancel()
    await asyncio.wait({observer})


async def test_the_guard_refuses_an_older_holder(hg: Headgate, name: str) -> None:
    async with hg.lock(name) as first:
        old = first.fence
    async with hg.lock(name) as second:
        await hg.fenced_set(name, "new", second.fence)
    with pytest.raises(FenceOutdated):
        await hg.fenced_set(name, "old", old)
    kept = await hg.fenced_get(name)
    assert kept is not None
    assert kept.value == "new"
    assert await hg.fenced_get(f"{name}-none") is None


async def test_both_modes_stand_in_one_line(server: Topology, gateway: Gateway, name: str) -> None:
    async with (
        Headgate(server.url, prefix=gateway.process.prefix) as near,
        Headgate(gateway.url, token=gateway.token) as far,
    ):
        served: list[str] = []

        async def work(client: Headgate, who: str) -> None:
            async with client.lock(name, ttl=5):
                served.append(who)

        async with asyncio.TaskGroup() as group:
            async with near.lock(name, ttl=5):
                group.create_task(work(far, "far"))
                await eventually(lambda: _waiting(near, name, 1))
                group.create_task(work(near, "near"))
                await eventually(lambda: _waiting(near, name, 2))
        assert served == ["far", "near"]


def test_threads_take_turns(sync: HeadgateSync, name: str) -> None:
    inside = most = total = 0

    def work() -> None:
        nonlocal inside, most, total
        for _ in range(5):
            with sync.lock(name, ttl=5) as held:
                assert held.fence
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1
                total += 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, total) == (1, 30)


def test_a_thread_may_not_take_a_lock_twice(sync: HeadgateSync, name: str) -> None:
    with sync.lock(name):
        with pytest.raises(AlreadyHeld):
            sync.lock(name).acquire()
        found: list[object] = []
        other = threading.Thread(target=lambda: found.append(sync.lock(name).try_lock()))
        other.start()
        other.join()
        assert found == [None]


def test_a_thread_that_lost_its_lock_is_told(sync: HeadgateSync, name: str) -> None:
    with pytest.raises(LockLost):  # noqa: PT012 -- the block is what is tested
        with sync.lock(name, ttl=1) as held:
            sync.locks.break_lock(name, by="test")
            wait_until(lambda: held.lost, 5, "it is told")
            sync.fenced_set(name, "late", held.fence)
    assert sync.fenced_get(name) is None


def test_a_decorated_function_and_an_election_for_threads(sync: HeadgateSync, name: str) -> None:
    @sync.lock(name, ttl=5)
    def double(n: int) -> int:
        return 2 * n

    assert double(21) == 42
    election = sync.election(name, ttl=5)
    assert election.leader() is None
    with election.campaign("ann") as term:
        leader = election.leader()
        assert leader == Leader("ann", term.fence)
        observed = election.observe()
        assert next(observed) == leader
        observed.close()  # type: ignore[attr-defined]


async def _waiting(hg: Headgate, name: str, count: int) -> bool:
    return (await hg.locks.show(name)).waiting == count
