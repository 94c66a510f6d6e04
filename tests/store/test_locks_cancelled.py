"""Cancellation at every await: whatever moment it comes, nothing stays behind and nobody waits for a ghost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from headgate.locks import LockHeld, Locks
from headgate.store import Store, StoreSettings, open_store
from tests.topology import Topology, eventually

LONG_TTL = 60.0  # far longer than the test waits: only giving back can free the lock in time


class CancelledAt:
    """Awaits a coroutine and cancels its task at one suspension: while it waits, or just when its wait has ended."""

    def __init__(self, work: Coroutine[Any, Any, None], at: int, *, late: bool) -> None:
        self._work = work
        self._at = at
        self._late = late
        self.reached = False

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(next, steps)
        suspensions = 0
        while True:
            try:
                awaited = step()
            except StopIteration:
                return
            suspensions += 1
            if suspensions == self._at:
                self.reached = True
                if self._late and awaited is not None:
                    # Runs before the task is woken: the answer is there, and so is the cancellation.
                    awaited.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                step = partial(steps.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 -- handed on to the coroutine, which decides
                step = partial(steps.throw, error)


@pytest.fixture
async def locks(store: Store) -> AsyncIterator[Locks]:
    async with Locks(store) as made:
        yield made


@pytest.fixture
async def other(server: Topology, prefix: str) -> AsyncIterator[Locks]:
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store, Locks(store) as made:
        yield made


async def inject(work: Callable[[], Coroutine[Any, Any, None]], check: Callable[[], Awaitable[None]]) -> int:
    """Cancel at the first suspension, the second …, both ways, and check after each; give how many there were."""
    at = 0
    reached = True
    while reached:
        at += 1
        reached = False
        for late in (False, True):
            cancelled = CancelledAt(work(), at, late=late)

            async def run(cancelled: CancelledAt = cancelled) -> None:
                await cancelled

            task = asyncio.create_task(run())
            async with asyncio.timeout(10):
                await asyncio.wait({task})
            assert task.cancelled() or task.exception() is None, task.exception()
            reached = reached or cancelled.reached
            await check()
        assert at < 200, "it never ends"
    return at - 1


async def test_an_uncontended_lock_is_never_left_behind(locks: Locks, other: Locks) -> None:
    async def work() -> None:
        async with locks.lock("a", ttl=LONG_TTL):
            await asyncio.sleep(0)

    async def check() -> None:
        async with other.lock("a", ttl=LONG_TTL, wait=3):
            pass
        await eventually(lambda: _empty(other))

    assert await inject(work, check) >= 3


async def test_a_waiter_is_never_left_in_line(locks: Locks, other: Locks) -> None:
    held = await other.lock("a", ttl=LONG_TTL).acquire()

    async def work() -> None:
        locks._noted.clear()  # as the first time in this process, with every await there is
        with suppress(LockHeld):
            async with locks.lock("a", ttl=LONG_TTL, wait=0.05):
                raise AssertionError("it is held by another")

    async def check() -> None:
        await eventually(lambda: _waiting(other, 0))

    assert await inject(work, check) >= 4
    await held.release()


async def test_a_waiter_who_is_called_and_cancelled_passes_the_turn_on(locks: Locks, other: Locks) -> None:
    release_tasks: set[asyncio.Task[None]] = set()

    async def work() -> None:
        held = await other.lock("a", ttl=LONG_TTL).acquire()

        async def release_soon() -> None:
            await eventually(lambda: _waiting(other, 1), seconds=0.2, every=0.005)
            await held.release()

        async def release() -> None:
            try:
                await release_soon()
            except AssertionError:
                await held.release()

        task = asyncio.create_task(release())
        release_tasks.add(task)
        task.add_done_callback(release_tasks.discard)
        async with locks.lock("a", ttl=LONG_TTL):
            await asyncio.sleep(0)

    async def check() -> None:
        await asyncio.gather(*release_tasks)
        async with other.lock("a", ttl=LONG_TTL, wait=3):
            pass
        await eventually(lambda: _empty(other))

    assert await inject(work, check) >= 5


async def _waiting(locks: Locks, count: int) -> bool:
    return (await locks.show("a")).waiting == count


async def _empty(locks: Locks) -> bool:
    state = await locks.show("a")
    return not state.held and not state.waiting
