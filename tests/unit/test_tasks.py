"""Tasks with an owner: closing waits for their end, also when they have just ended."""

from __future__ import annotations

import asyncio
import inspect

from headgate.kit.tasks import Tasks


async def test_closing_ends_although_a_task_is_done_and_its_callbacks_have_not_run() -> None:
    tasks = Tasks()

    async def at_once() -> None:
        return None

    started = [tasks.start(at_once()) for _ in range(3)]
    async with asyncio.timeout(5):
        await tasks.close()
    assert all(task.done() for task in started)


async def test_closing_cancels_what_runs() -> None:
    tasks = Tasks()
    task = tasks.start(asyncio.sleep(3600))
    async with asyncio.timeout(5):
        await tasks.close()
    assert task.done()


async def test_a_task_that_is_cancelled_before_its_first_step_leaves_no_warning() -> None:
    tasks = Tasks()
    ran = []

    async def work() -> None:
        ran.append(1)

    coroutine = work()
    tasks.start(coroutine).cancel()
    await tasks.close()
    assert not ran
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED, (
        "closed, and so nobody warns that it was never awaited"
    )
