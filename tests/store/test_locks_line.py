"""The line in front of a lock: order, wake-ups, and what waiting costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
import uvloop

from headgate.kit.problems import StoreUnavailable
from headgate.locks import (
    LockHeld,
    Locks,
)
from headgate.locks.waiters import LockWaiter
from headgate.store import Store
from tests.store.lock_world import (
    CALM,
    LONG_TTL,
    LONGER_THAN_THE_GRACE,
    another,
    are_waiting,
    asked,
    quiet,
    scripts,
    within,
)
from tests.topology import Stopwatch, Topology, eventually


async def test_a_wait_that_is_too_short_leaves_nothing_behind(locks: Locks) -> None:
    async with locks.lock("a"):
        watch = Stopwatch()
        with pytest.raises(LockHeld):
            await locks.acquire(locks.lock("a", wait=0.2).request, taker=object())
        assert watch.wall >= 0.2
        assert watch.seconds < 1
        assert (await locks.show("a")).waiting == 0


async def test_waiters_are_served_in_the_order_they_came(server: Topology, prefix: str, locks: Locks) -> None:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(another(server, prefix, CALM)) for _ in range(3)]
        served: list[int] = []

        async def wait(n: int) -> None:
            async with others[n % 3].lock("a", ttl=10):
                served.append(n)

        async with asyncio.TaskGroup() as group:
            async with locks.lock("a", ttl=10):
                for n in range(12):
                    group.create_task(wait(n))
                    await eventually(lambda n=n: are_waiting(locks, n + 1))  # type: ignore[misc]
        assert served == list(range(12))


async def test_tasks_that_ask_together_for_new_names_are_served_in_order(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    """The store knows no script yet, and the list of locks none of the names."""
    async with another(fresh_server(), prefix, CALM) as locks:
        for name in range(10):
            served: list[int] = []

            async def wait(n: int, name: int = name, served: list[int] = served) -> None:
                async with locks.lock(f"new-{name}", ttl=30):
                    served.append(n)

            async with asyncio.TaskGroup() as group:
                for n in range(30):
                    group.create_task(wait(n))
                    await asyncio.sleep(0)  # the next comes when this one has just asked
            assert served == list(range(30))


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


async def test_dead_waiters_at_the_head_cost_less_than_a_second(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix) as first, another(server, prefix) as second:
        held = await locks.lock("a", ttl=30).acquire()
        want = first.lock("a", ttl=30).request
        for n in range(5):  # five of a killed process: in line, and silent
            await first._ask(first.thing("a"), want, f"dead-{n}", join=True)
        waiting = asyncio.create_task(second.lock("a", ttl=30).acquire())
        await eventually(lambda: are_waiting(locks, 6))
        watch = Stopwatch()
        await held.release()
        await (await waiting).release()
        assert watch.wall > 0.45
        assert watch.seconds < 1
        assert (await locks.show("a")).waiting == 0


async def test_one_release_wakes_one_of_many_and_waiting_sends_nothing(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(another(server, prefix, CALM))
        others = [await stack.enter_async_context(another(server, prefix, CALM)) for _ in range(10)]
        async with holder.lock("a"):
            pass  # from here on the server knows every script
        async with holder.lock("a", ttl=60):
            tasks = [asyncio.create_task(other.lock("a", ttl=60).acquire()) for other in others for _ in range(20)]
            await eventually(lambda: are_waiting(holder, 200))
            await eventually(lambda: quiet(server))
            before = scripts(server)
            await asyncio.sleep(1.2)
            assert scripts(server) == before
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(LONGER_THAN_THE_GRACE)  # of the runner-up
        assert scripts(server) - before == 2  # one release, one acquisition
        assert sum(task.done() for task in tasks) == 1
        for task in waiting:
            task.cancel()
        await (await done.pop()).release()


def test_a_line_sets_its_timer_on_another_kind_of_loop_too(server: Topology, prefix: str) -> None:
    """The timers of uvloop whose time has come already are of another kind."""

    async def work() -> bool:
        async with another(server, prefix) as locks:
            line = locks._line(locks.thing("a"))
            waiter = LockWaiter("me", 1, 0)
            line.add(waiter)
            for as_of in range(1, 4):
                line.learn(as_of, -1.0)  # the lock has been open for a second
            called = await within(3, waiter.called.wait())
            line.remove(waiter)
            line.depart()
            return called

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work())


async def test_those_who_wait_hear_of_renewals_and_do_not_ask(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix) as other:
        before = asked()
        async with locks.lock("a", ttl=3):
            waiting = asyncio.create_task(other.lock("a", ttl=30).acquire())
            await eventually(lambda: asked() == before + 3)  # the holder, the waiter, and its look once it listens
            await asyncio.sleep(3.5)
            assert asked() == before + 3
        await (await waiting).release()


async def test_a_waiter_is_told_when_the_client_closes(server: Topology, prefix: str, locks: Locks) -> None:
    async with locks.lock("a", ttl=30):
        async with another(server, prefix) as other:
            waiting = asyncio.create_task(other.lock("a", ttl=30).acquire())
            await eventually(lambda: are_waiting(locks, 1))
        with pytest.raises(StoreUnavailable):
            await waiting
        await eventually(lambda: are_waiting(locks, 0))


async def test_a_client_that_closes_leaves_nobody_in_line_however_far_the_question_was(
    store: Store, locks: Locks
) -> None:
    async with locks.lock("a", ttl=LONG_TTL):
        for beats in range(40):  # of the loop: from before the question is sent until long after its answer
            closing = Locks(store)
            asking = asyncio.create_task(closing.lock("a", ttl=LONG_TTL).acquire())
            for _ in range(beats):
                await asyncio.sleep(0)
            await closing.close()
            with pytest.raises(StoreUnavailable):
                await within(10, asking)
            assert await are_waiting(locks, 0)


async def test_a_release_between_the_try_and_the_subscription_is_not_missed(
    server: Topology, prefix: str, locks: Locks
) -> None:
    async with another(server, prefix) as other:
        for _ in range(20):
            held = await locks.lock("a", ttl=30).acquire()
            waiting = asyncio.create_task(other.lock("a", ttl=30).acquire())
            await eventually(lambda: are_waiting(locks, 1), every=0)
            await held.release()
            watch = Stopwatch()
            await (await waiting).release()
            assert watch.seconds < 0.5


async def test_a_lost_wake_up_is_made_good_by_the_next_one_who_comes(
    server: Topology, prefix: str, locks: Locks
) -> None:
    async with another(server, prefix) as other, another(server, prefix) as third:
        before = asked()
        held = await locks.lock("a", ttl=30).acquire()
        waiting = asyncio.create_task(other.lock("a", ttl=30).acquire())
        await eventually(lambda: asked() == before + 3)  # the holder, the waiter, and its look once it listens
        deaf = other.store.hints._listeners.copy()
        other.store.hints._listeners.clear()
        await held.release()
        await asyncio.sleep(0.7)  # longer than the grace: its call is void
        assert not waiting.done()
        other.store.hints._listeners.update(deaf)
        # A newcomer does not take what another was called for without hearing it: it has it called again.
        assert await third.lock("a").try_lock() is None
        await (await within(1, waiting)).release()


async def test_a_waiter_that_was_passed_over_keeps_its_place(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix, CALM) as slow, another(server, prefix, CALM) as quick:
        served: list[str] = []
        may_go = asyncio.Event()

        async def wait(who: Locks, name: str) -> None:
            async with who.lock("a", ttl=30):
                served.append(name)
                await may_go.wait()

        held = await locks.lock("a", ttl=30).acquire()
        async with asyncio.TaskGroup() as group:
            group.create_task(wait(slow, "slow"))
            await eventually(lambda: are_waiting(locks, 1))
            group.create_task(wait(quick, "first"))
            await eventually(lambda: are_waiting(locks, 2))
            group.create_task(wait(quick, "second"))
            await eventually(lambda: are_waiting(locks, 3))
            listeners = slow.store.hints._listeners.copy()
            slow.store.hints._listeners.clear()
            await held.release()
            await eventually(lambda: served == ["first"])
            # It was asleep when it was called. What it hears next tells it that it was passed over.
            slow.store.hints._listeners.update(listeners)
            slow.store.hints._notify(slow.thing("a").key("events").encode(), None)
            await eventually(lambda: are_waiting(locks, 2))
            may_go.set()
        assert served == ["first", "slow", "second"]
