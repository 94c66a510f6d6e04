"""Locks in one store: what a holder and an onlooker can rely on."""

from __future__ import annotations

import asyncio

import pytest

from headgate.kit.problems import InvalidRequest, StoreUnavailable
from headgate.locks import (
    AlreadyHeld,
    Election,
    FenceOutdated,
    Held,
    Leader,
    LockHeld,
    LockLost,
    Locks,
    LockSettings,
    NotHolder,
)
from headgate.locks.jobs import sweep
from headgate.store import Store, StoreSettings, open_store
from tests.store.lock_world import LONG_TTL, another, are_waiting, is_free, is_held, metric
from tests.topology import FaultyProxy, Standalone, Topology, eventually


async def test_a_lock_is_held_by_one_and_given_back(locks: Locks) -> None:
    async with locks.lock("a", ttl=5) as held:
        assert (await locks.show("a")).held
        with pytest.raises(LockHeld):
            await locks.acquire(locks.lock("a", wait=0).request, taker=object())
        first = held.fence
    state = await locks.show("a")
    assert not state.held
    assert state.waiting == 0
    async with locks.lock("a", ttl=5) as held:
        assert held.fence > first


async def test_try_lock_gives_none_when_another_holds_it(locks: Locks) -> None:
    held = await locks.lock("a").try_lock()
    assert held is not None
    assert await locks.lock("a").try_lock(taker=object()) is None
    await held.release()
    again = await locks.lock("a").try_lock()
    assert again is not None
    await again.release()


async def test_taking_a_lock_twice_in_one_task_is_an_error_and_not_a_deadlock(locks: Locks) -> None:
    async with locks.lock("a"):
        with pytest.raises(AlreadyHeld):
            await locks.lock("a").acquire()
        async with locks.lock("b"):
            pass
    async with locks.lock("a"):
        pass


async def test_a_holding_outlives_the_task_that_took_it(locks: Locks) -> None:
    holdings = [await asyncio.create_task(locks.lock(f"a-{n}").acquire()) for n in range(50)]
    for n in range(50):  # tasks that come later may have the same address in memory
        with pytest.raises(LockHeld):
            await asyncio.create_task(locks.lock(f"a-{n}", wait=0).acquire())
    for held in holdings:
        await held.release()


async def test_only_the_holder_may_renew_and_release(locks: Locks) -> None:
    held = await locks.lock("a").acquire()
    with pytest.raises(NotHolder):
        await locks.release_as("default", "a", "somebody")
    with pytest.raises(NotHolder):
        await locks.renew_as("default", "a", "somebody")
    assert (await locks.show("a")).held
    await locks.release_as("default", "a", held.holder)
    with pytest.raises(NotHolder):
        await locks.release_as("default", "a", held.holder)
    with pytest.raises(NotHolder):
        await held.release()


async def test_the_same_holder_asking_again_gets_the_same_fence(locks: Locks) -> None:
    want = locks.lock("a", wait=0).request
    first = await locks.grant(want, "me")
    assert (await locks.grant(want, "me")).fence == first.fence
    with pytest.raises(LockHeld):
        await locks.grant(want, "you")


async def test_a_broken_lock_is_lost_at_the_next_renewal(locks: Locks) -> None:
    with pytest.raises(LockLost, match="taken away"):  # noqa: PT012 -- the block is what is tested
        async with locks.lock("a", ttl=5) as held:
            assert await locks.break_lock("a", by="operator", reason="stuck") == held.fence
            assert await locks.break_lock("a", by="operator") == 0
            await asyncio.sleep(30)


async def test_a_break_of_another_holding_changes_nothing(locks: Locks) -> None:
    async with locks.lock("a") as held:
        assert await locks.break_lock("a", by="operator", fence=held.fence - 1) == 0
        assert (await locks.show("a")).held


async def test_a_broken_lock_found_at_the_release_is_told_to_the_block(locks: Locks) -> None:
    with pytest.raises(LockLost):
        async with locks.lock("a", ttl=30):
            await locks.break_lock("a", by="operator")


async def test_an_exception_of_the_block_passes_and_the_lock_is_free(locks: Locks) -> None:
    with pytest.raises(KeyError):
        async with locks.lock("a"):
            raise KeyError("mine")
    assert not (await locks.show("a")).held


async def test_a_cancellation_from_outside_stays_a_cancellation(locks: Locks) -> None:
    entered = asyncio.Event()

    async def block() -> None:
        async with locks.lock("a"):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: is_free(locks))


async def test_a_decorated_function_runs_one_at_a_time(locks: Locks) -> None:
    inside = most = 0

    @locks.lock("a", ttl=5)
    async def work(n: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return n

    assert await asyncio.gather(*(work(n) for n in range(5))) == [0, 1, 2, 3, 4]
    assert most == 1


async def test_a_lock_that_nobody_uses_is_forgotten_and_listed_no_more(store: Store) -> None:
    async with Locks(store, LockSettings(keep_seconds=60)) as locks:
        held = await locks.lock("a", ttl=5).acquire()
        assert [state.name for state in await locks.list()] == ["a"]
        await held.release()
        assert await locks.list() == []
        store.advance_clock(61_000)
        assert await sweep(locks) == 1
        assert await store.read(locks.thing("a"), "EXISTS", locks.thing("a").key("meta")) == 0
        assert await locks.index.list() == []


async def test_a_held_lock_is_not_forgotten(store: Store) -> None:
    async with Locks(store, LockSettings(keep_seconds=1)) as locks, locks.lock("a", ttl=30):
        store.advance_clock(5_000)
        assert await sweep(locks) == 0
        assert (await locks.show("a")).held


async def test_namespaces_do_not_see_each_other(locks: Locks) -> None:
    async with locks.lock("a"), locks.lock("a", namespace="other"):
        assert [state.name for state in await locks.list("other")] == ["a"]
        assert await locks.list("third") == []


@pytest.mark.parametrize("name", ["", "a b", "{a}", "a/b", "é", "x" * 129, "a\n"])
async def test_a_name_from_outside_is_checked(locks: Locks, name: str) -> None:
    with pytest.raises(InvalidRequest):
        locks.lock(name)


@pytest.mark.parametrize("ttl", [0, -1, 0.05, 3601, float("nan"), float("inf")])
def test_no_lock_is_without_an_end(ttl: float) -> None:
    from headgate.locks.model import LockRequest

    with pytest.raises(InvalidRequest):
        LockRequest("default", "a", ttl)


async def test_a_fenced_value_refuses_an_older_holder(locks: Locks) -> None:
    await locks.fenced_set("row", "new", 20)
    with pytest.raises(FenceOutdated):
        await locks.fenced_set("row", "old", 19)
    await locks.fenced_set("row", "again", 20)
    kept = await locks.fenced_get("row")
    assert kept is not None
    assert (kept.value, kept.fence) == ("again", 20)


async def test_an_election_has_one_leader_and_observers_see_every_change(
    server: Topology, prefix: str, locks: Locks
) -> None:
    seen: list[Leader | None] = []

    async def observe() -> None:
        async for leader in Election(locks, "boss").observe():
            seen.append(leader)  # noqa: PERF401 -- it is read while it grows

    async with another(server, prefix) as other:
        observer = asyncio.create_task(observe())
        await eventually(lambda: seen == [None])
        async with Election(other, "boss", ttl=3, candidate="ann").campaign() as ann:
            await eventually(lambda: len(seen) == 2)
            rival = asyncio.create_task(Election(locks, "boss", ttl=3, candidate="bob").campaign().acquire())
            await asyncio.sleep(3.2)
            assert not rival.done()
            assert seen[1:] == [Leader("ann", ann.fence)]
        bob = await rival
        await eventually(lambda: seen[-1] == Leader("bob", bob.fence))
        assert bob.fence > ann.grant.fence
        bob._timer.cancel()  # bob stops renewing, as a dead process does
        await eventually(lambda: seen[-1] is None, seconds=5)
        observer.cancel()


async def test_what_locks_do_is_counted(locks: Locks) -> None:
    before = {name: metric(name) for name in ("held", "waiting", "acquire_seconds_count", "hold_seconds_count")}
    lost, renewed = metric("lost_total"), metric("renewals_total")
    async with locks.lock("a", ttl=5):
        waiting = asyncio.create_task(locks.lock("a", ttl=1, renew=False).acquire())
        await eventually(lambda: are_waiting(locks, 1))
        assert metric("held") == before["held"] + 1
        assert metric("waiting") == before["waiting"] + 1
        await eventually(lambda: metric("renewals_total") > renewed)
    held = await waiting
    assert metric("waiting") == before["waiting"]
    await held.lost.wait()
    assert metric("lost_total") == lost + 1
    await eventually(lambda: is_free(locks))
    with pytest.raises(NotHolder):
        await held.release()
    assert metric("held") == before["held"]
    assert metric("acquire_seconds_count") == before["acquire_seconds_count"] + 2
    assert metric("hold_seconds_count") == before["hold_seconds_count"] + 2


async def test_closing_tells_the_holder_and_frees_the_lock(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix) as other:
        held: Held = await other.lock("a", ttl=LONG_TTL).acquire()
    assert held.lost.is_set()
    await eventually(lambda: is_free(locks))


@pytest.mark.topology("standalone")
async def test_a_lock_whose_answer_comes_after_closing_is_given_back(
    server: Standalone, prefix: str, locks: Locks
) -> None:
    async with FaultyProxy(server.node.port) as proxy:
        async with another(proxy, prefix) as far:
            await (await far.lock("a").acquire()).release()
            proxy.hold(replies_only=True)
            asking = asyncio.create_task(far.lock("a", ttl=LONG_TTL).acquire())
            await eventually(lambda: is_held(locks))
            await far.close()
            proxy.heal()
            with pytest.raises(StoreUnavailable):
                await asking
            await eventually(lambda: is_free(locks))


async def test_a_closed_client_takes_no_lock(locks: Locks, other: Locks) -> None:
    await other.close()
    with pytest.raises(StoreUnavailable):
        await other.lock("a").acquire()
    assert await is_free(locks)


@pytest.mark.topology("standalone")
async def test_a_list_that_is_away_delays_nobody_and_is_filled_later(server: Standalone, prefix: str) -> None:
    rights = ["on", ">s3cret", "+@all", "&*", f"~{prefix}:lock:*"]
    server.node.command("ACL", "SETUSER", "locker", *rights)
    try:
        url = server.url.replace("://", "://locker:s3cret@", 1)
        async with open_store(StoreSettings(url=url, prefix=prefix)) as store, Locks(store) as locks:
            for name in ("a", "b"):
                await locks.lock(name, wait=0).acquire()
            server.node.command("ACL", "SETUSER", "locker", "~*")
            await eventually(lambda: _listed(locks, ["a", "b"]))
    finally:
        server.node.command("ACL", "DELUSER", "locker")


async def _listed(locks: Locks, names: list[str]) -> bool:
    return [state.name for state in await locks.list()] == names
