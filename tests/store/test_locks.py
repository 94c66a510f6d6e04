"""Locks in one store: what a holder, a waiter and an onlooker can rely on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import uvloop
from prometheus_client import REGISTRY

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
from headgate.locks.sweep import sweep
from headgate.store import Store, StoreSettings, open_store
from headgate.store.metrics import SCRIPT_SECONDS
from tests.topology import FaultyProxy, Standalone, Topology, eventually

standalone_only = pytest.mark.topology("standalone")


@pytest.fixture
async def locks(store: Store) -> AsyncIterator[Locks]:
    async with Locks(store) as made:
        yield made


@asynccontextmanager
async def another(server: Topology, prefix: str) -> AsyncIterator[Locks]:
    """Locks on a connection of their own, as another process has them."""
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store, Locks(store) as made:
        yield made


async def test_a_lock_is_held_by_one_and_given_back(locks: Locks) -> None:
    async with locks.lock("a", ttl=5) as held:
        assert (await locks.show("a")).held
        with pytest.raises(LockHeld):
            await locks.acquire(locks.lock("a", wait=0).want, taker=object())
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


async def test_a_wait_that_is_too_short_leaves_nothing_behind(locks: Locks) -> None:
    async with locks.lock("a"):
        began = time.monotonic()
        with pytest.raises(LockHeld):
            await locks.acquire(locks.lock("a", wait=0.2).want, taker=object())
        assert 0.2 <= time.monotonic() - began < 1
        assert (await locks.show("a")).waiting == 0


async def test_waiters_are_served_in_the_order_they_came(server: Topology, prefix: str, locks: Locks) -> None:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(another(server, prefix)) for _ in range(3)]
        served: list[int] = []

        async def wait(n: int) -> None:
            async with others[n % 3].lock("a", ttl=10):
                served.append(n)

        async with asyncio.TaskGroup() as group:
            async with locks.lock("a", ttl=10):
                for n in range(12):
                    group.create_task(wait(n))
                    await eventually(lambda n=n: _waiting(locks, n + 1))  # type: ignore[misc]
        assert served == list(range(12))


async def test_a_counter_under_the_lock_is_exact(server: Topology, prefix: str) -> None:
    counter = 0

    async def work(locks: Locks) -> None:
        nonlocal counter
        for _ in range(20):
            async with locks.lock("counter", ttl=10):
                seen = counter
                await asyncio.sleep(0)
                counter = seen + 1

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(another(server, prefix)) for _ in range(4)]
        await asyncio.gather(*(work(clients[n % 4]) for n in range(40)))
    assert counter == 800


async def test_a_held_lock_is_renewed_beyond_its_ttl(locks: Locks) -> None:
    async with locks.lock("a", ttl=0.5) as held:
        await asyncio.sleep(1.2)
        assert held.fence
        assert (await locks.show("a")).held


async def test_a_lock_without_renewal_ends_and_says_so(locks: Locks) -> None:
    with pytest.raises(LockLost):
        async with locks.lock("a", ttl=0.3, renew=False):
            await asyncio.sleep(5)
    await eventually(lambda: _free(locks))


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
    want = locks.lock("a", wait=0).want
    first = await locks.grant(want, "me")
    assert (await locks.grant(want, "me")).fence == first.fence
    with pytest.raises(LockHeld):
        await locks.grant(want, "you")


async def test_a_broken_lock_is_lost_at_the_next_renewal(locks: Locks) -> None:
    with pytest.raises(LockLost, match="taken away"):  # noqa: PT012 -- the block is what is tested
        async with locks.lock("a", ttl=1) as held:
            assert await locks.break_lock("a", by="operator", reason="stuck") == held.fence
            assert await locks.break_lock("a", by="operator") == 0
            await asyncio.sleep(5)


async def test_a_break_of_another_holding_changes_nothing(locks: Locks) -> None:
    async with locks.lock("a") as held:
        assert await locks.break_lock("a", by="operator", fence=held.fence - 1) == 0
        assert (await locks.show("a")).held


async def test_a_broken_lock_found_at_the_release_is_told_to_the_block(locks: Locks) -> None:
    with pytest.raises(LockLost):
        async with locks.lock("a", ttl=30):
            await locks.break_lock("a", by="operator")


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
    await eventually(lambda: _free(locks))


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


async def test_a_dead_holder_is_succeeded_when_its_lease_ends(server: Topology, prefix: str, locks: Locks) -> None:
    dead = await locks.grant(locks.lock("a", ttl=1).want, "dead")
    async with another(server, prefix) as other:
        async with other.lock("a", ttl=5) as held:
            took = time.monotonic() - dead.sent
            assert 1 <= took < 1.1
            assert held.fence > dead.fence
    with pytest.raises(NotHolder):
        await locks.release(dead)


async def test_a_delay_keeps_the_lock_closed_after_a_lost_holder_only(locks: Locks) -> None:
    dead = await locks.grant(locks.lock("a", ttl=0.3, delay=0.5).want, "dead")
    async with locks.lock("a", delay=0.5):
        assert 0.8 <= time.monotonic() - dead.sent < 1.1
    began = time.monotonic()
    async with locks.lock("a"):
        assert time.monotonic() - began < 0.3


async def test_dead_waiters_at_the_head_cost_less_than_a_second(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix) as first, another(server, prefix) as second:
        held = await locks.lock("a", ttl=30).acquire()
        want = first.lock("a", ttl=30).want
        for n in range(5):  # five of a killed process: in line, and silent
            await first._ask(first.thing("a"), want, f"dead-{n}", join=True)
        waiting = asyncio.create_task(second.lock("a", ttl=30).acquire())
        await eventually(lambda: _waiting(locks, 6))
        began = time.monotonic()
        await held.release()
        await (await waiting).release()
        assert 0.45 < time.monotonic() - began < 1
        assert (await locks.show("a")).waiting == 0


async def test_one_release_wakes_one_of_many_and_waiting_sends_nothing(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(another(server, prefix))
        others = [await stack.enter_async_context(another(server, prefix)) for _ in range(10)]
        async with holder.lock("a"):
            pass  # from here on the server knows every script
        async with holder.lock("a", ttl=60):
            tasks = [asyncio.create_task(other.lock("a", ttl=60).acquire()) for other in others for _ in range(20)]
            await eventually(lambda: _waiting(holder, 200))
            await eventually(lambda: _quiet(server))
            before = _scripts(server)
            await asyncio.sleep(1.2)
            assert _scripts(server) == before
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.8)  # longer than the grace of the runner-up
        assert _scripts(server) - before == 2  # one release, one acquisition
        assert sum(task.done() for task in tasks) == 1
        for task in waiting:
            task.cancel()
        await (await done.pop()).release()


async def test_those_who_wait_hear_of_renewals_and_do_not_ask(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix) as other:
        async with locks.lock("a", ttl=0.6):
            waiting = asyncio.create_task(other.lock("a", ttl=30).acquire())
            await eventually(lambda: _waiting(locks, 1))
            await asyncio.sleep(0.1)
            before = _asked()
            await asyncio.sleep(2)
            assert _asked() == before
        await (await waiting).release()


async def test_a_waiter_is_told_when_the_client_closes(server: Topology, prefix: str, locks: Locks) -> None:
    async with locks.lock("a", ttl=30):
        async with another(server, prefix) as other:
            waiting = asyncio.create_task(other.lock("a", ttl=30).acquire())
            await eventually(lambda: _waiting(locks, 1))
        with pytest.raises(StoreUnavailable):
            await waiting
        assert (await locks.show("a")).waiting == 0


async def test_a_release_between_the_try_and_the_subscription_is_not_missed(
    server: Topology, prefix: str, locks: Locks
) -> None:
    async with another(server, prefix) as other:
        for _ in range(20):
            held = await locks.lock("a", ttl=30).acquire()
            waiting = asyncio.create_task(other.lock("a", ttl=30).acquire())
            await eventually(lambda: _waiting(locks, 1), every=0)
            await held.release()
            began = time.monotonic()
            await (await waiting).release()
            assert time.monotonic() - began < 0.5


async def test_a_lost_wake_up_is_made_good_by_the_next_one_who_comes(
    server: Topology, prefix: str, locks: Locks
) -> None:
    async with another(server, prefix) as other, another(server, prefix) as third:
        held = await locks.lock("a", ttl=30).acquire()
        waiting = asyncio.create_task(other.lock("a", ttl=30).acquire())
        await eventually(lambda: _waiting(locks, 1))
        await asyncio.sleep(0.05)
        deaf = other.store.hints._listeners.copy()
        other.store.hints._listeners.clear()
        await held.release()
        await asyncio.sleep(0.7)  # longer than the grace: its call is void
        assert not waiting.done()
        other.store.hints._listeners.update(deaf)
        # A newcomer does not take what another was called for without hearing it: it has it called again.
        assert await third.lock("a").try_lock() is None
        await (await asyncio.wait_for(waiting, 1)).release()


async def test_a_waiter_that_was_passed_over_keeps_its_place(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix) as slow, another(server, prefix) as quick:
        served: list[str] = []

        async def wait(who: Locks, name: str) -> None:
            async with who.lock("a", ttl=30):
                served.append(name)
                await asyncio.sleep(0.2)

        held = await locks.lock("a", ttl=30).acquire()
        async with asyncio.TaskGroup() as group:
            group.create_task(wait(slow, "slow"))
            await eventually(lambda: _waiting(locks, 1))
            group.create_task(wait(quick, "first"))
            await eventually(lambda: _waiting(locks, 2))
            group.create_task(wait(quick, "second"))
            await eventually(lambda: _waiting(locks, 3))
            listeners = slow.store.hints._listeners.copy()
            slow.store.hints._listeners.clear()
            await held.release()
            await eventually(lambda: served == ["first"])
            # It was asleep when it was called. What it hears next tells it that it was passed over.
            slow.store.hints._listeners.update(listeners)
            slow.store.hints._tell(slow.thing("a").key("events").encode(), None)
        assert served == ["first", "slow", "second"]


async def test_a_stepped_clock_ends_no_lease_early(store: Store, locks: Locks) -> None:
    async with locks.lock("a", ttl=20) as held:
        store.step_clock(3_600_000)
        with pytest.raises(LockHeld):
            await locks.acquire(locks.lock("a", wait=0).want, taker=object())
        await locks.renew_as("default", "a", held.holder)
        store.step_clock(-3_600_000)
        with pytest.raises(LockHeld):
            await locks.acquire(locks.lock("a", wait=0).want, taker=object())


async def test_a_lease_ends_by_the_stores_clock(store: Store, locks: Locks) -> None:
    await locks.grant(locks.lock("a", ttl=20).want, "gone")
    store.advance_clock(19_000)
    assert (await locks.show("a")).held
    store.advance_clock(20_500)
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
        settings = StoreSettings(url=proxy.url, prefix=prefix)
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
        settings = StoreSettings(url=proxy.url, prefix=prefix)
        async with open_store(settings) as far, Locks(far) as locks, another(server, prefix) as near:
            async with locks.lock("a"):
                pass
            proxy.drop_replies(cut=True)
            asking = asyncio.create_task(locks.lock("a", ttl=30).acquire())
            await eventually(lambda: _is_held(near))
            first = (await near.show("a")).fence
            proxy.heal()
            held = await asking
            assert held.fence == first
            proxy.drop_replies(cut=True)
            releasing = asyncio.create_task(held.release())
            await eventually(lambda: _free(near))
            async with near.lock("a", ttl=30):
                proxy.heal()
                await releasing  # it was given back, however often that was said


@standalone_only
async def test_an_acquisition_that_cannot_be_answered_is_given_back(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy:
        settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=300)
        async with open_store(settings) as far, Locks(far) as locks, another(server, prefix) as near:
            async with locks.lock("a"):
                pass
            proxy.drop_replies()
            with pytest.raises(StoreUnavailable):
                await locks.lock("a", ttl=30).acquire()
            proxy.heal()
            await eventually(lambda: _free(near))


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
    from headgate.locks.model import Want

    with pytest.raises(InvalidRequest):
        Want("default", "a", ttl)


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
        async with Election(other, "boss", ttl=1, candidate="ann").campaign() as ann:
            await eventually(lambda: len(seen) == 2)
            rival = asyncio.create_task(Election(locks, "boss", ttl=1, candidate="bob").campaign().acquire())
            await asyncio.sleep(1.2)
            assert not rival.done()
            assert seen[1:] == [Leader("ann", ann.fence)]
        bob = await rival
        await eventually(lambda: seen[-1] == Leader("bob", bob.fence))
        assert bob.fence > ann.grant.fence
        bob._timer.cancel()  # bob stops renewing, as a dead process does
        await eventually(lambda: seen[-1] is None, seconds=3)
        observer.cancel()


async def test_what_locks_do_is_counted(locks: Locks) -> None:
    before = {name: _metric(name) for name in ("held", "waiting", "acquire_seconds_count", "hold_seconds_count")}
    lost, renewed = _metric("lost_total"), _metric("renewals_total")
    async with locks.lock("a", ttl=0.6):
        waiting = asyncio.create_task(locks.lock("a", ttl=0.6, renew=False).acquire())
        await eventually(lambda: _waiting(locks, 1))
        assert _metric("held") == before["held"] + 1
        assert _metric("waiting") == before["waiting"] + 1
        await eventually(lambda: _metric("renewals_total") > renewed)
    held = await waiting
    assert _metric("waiting") == before["waiting"]
    await held.lost.wait()
    assert _metric("lost_total") == lost + 1
    await eventually(lambda: _free(locks))
    with pytest.raises(NotHolder):
        await held.release()
    assert _metric("held") == before["held"]
    assert _metric("acquire_seconds_count") == before["acquire_seconds_count"] + 2
    assert _metric("hold_seconds_count") == before["hold_seconds_count"] + 2


async def test_closing_tells_the_holder_and_frees_the_lock(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix) as other:
        held: Held = await other.lock("a", ttl=30).acquire()
    assert held.lost.is_set()
    assert not (await locks.show("a")).held


async def _waiting(locks: Locks, count: int) -> bool:
    return (await locks.show("a")).waiting == count


async def _is_held(locks: Locks) -> bool:
    return (await locks.show("a")).held


async def _free(locks: Locks) -> bool:
    state = await locks.show("a")
    return not state.held and not state.waiting


def _scripts(server: Topology) -> int:
    """How many scripts all primaries have run."""
    stats = [node.info("commandstats").get("cmdstat_evalsha", {"calls": 0}) for node in server.primaries()]
    return sum(int(one["calls"]) for one in stats)


def _metric(name: str) -> float:
    """Add up one of our metrics over its labels."""
    return sum(
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == f"headgate_lock_{name}"
    )


def _asked() -> float:
    """How often this process has asked for a lock."""
    return sum(
        sample.value
        for family in SCRIPT_SECONDS.collect()
        for sample in family.samples
        if sample.name.endswith("_count") and sample.labels["script"] == "acquire"
    )


async def _quiet(server: Topology) -> bool:
    before = _scripts(server)
    await asyncio.sleep(0.1)
    return _scripts(server) == before
