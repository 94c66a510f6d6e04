"""Cancellation at every await: whatever moment it comes, nothing stays behind and nobody waits for a ghost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headgate.locks import LockHeld, Locks
from tests.store.cancelling import inject
from tests.store.lock_world import LONG_TTL, are_waiting, is_free, within
from tests.topology import eventually


async def test_an_uncontended_lock_is_never_left_behind(locks: Locks, other: Locks) -> None:
    async def work() -> None:
        async with locks.lock("a", ttl=LONG_TTL):
            await asyncio.sleep(0)

    async def check() -> None:
        async with await within(3, other.lock("a", ttl=LONG_TTL).acquire()):
            pass
        await eventually(lambda: is_free(other))

    assert await inject(work, check) >= 3


async def test_a_waiter_is_never_left_in_line(locks: Locks, other: Locks) -> None:
    held = await other.lock("a", ttl=LONG_TTL).acquire()

    async def work() -> None:
        locks._indexed_until.clear()  # as the first time in this process, with every await there is
        with suppress(LockHeld):
            async with locks.lock("a", ttl=LONG_TTL, wait=0.05):
                raise AssertionError("it is held by another")

    async def check() -> None:
        await eventually(lambda: are_waiting(other, 0))

    assert await inject(work, check) >= 4
    await held.release()


async def test_a_waiter_who_is_called_and_cancelled_passes_the_turn_on(locks: Locks, other: Locks) -> None:
    release_tasks: set[asyncio.Task[None]] = set()

    async def work() -> None:
        held = await other.lock("a", ttl=LONG_TTL).acquire()
        ended = False

        async def in_line_or_gone() -> bool:
            return ended or await are_waiting(other, 1)

        async def release() -> None:
            await eventually(in_line_or_gone, every=0.005)
            await held.release()

        task = asyncio.create_task(release())
        release_tasks.add(task)
        task.add_done_callback(release_tasks.discard)
        try:
            async with locks.lock("a", ttl=LONG_TTL):
                await asyncio.sleep(0)
        finally:
            ended = True

    async def check() -> None:
        await asyncio.gather(*release_tasks)
        async with await within(3, other.lock("a", ttl=LONG_TTL).acquire()):
            pass
        await eventually(lambda: is_free(other))

    assert await inject(work, check) >= 5
