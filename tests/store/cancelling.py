"""Cancelling a coroutine at each of its suspensions in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any


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


async def cancelled_at_each(
    work: Callable[[], Coroutine[Any, Any, None]],
) -> AsyncGenerator[tuple[int, CancelledAt, asyncio.Task[None]], None]:
    """Cancel at the first suspension, the second …, both ways; give each time how it ended, until it comes to its own end."""
    at, reached = 0, True
    while reached:
        at += 1
        reached = False
        for late in (False, True):
            cancelled = CancelledAt(work(), at, late=late)
            task = asyncio.create_task(_awaited(cancelled))
            async with asyncio.timeout(10):
                await asyncio.wait({task})
            reached = reached or cancelled.reached
            yield at, cancelled, task
        assert at < 200, "it never ends"


async def inject(work: Callable[[], Coroutine[Any, Any, None]], check: Callable[[], Awaitable[None]]) -> int:
    """Cancel at each suspension and check after each; give how many there were."""
    last = 0
    async for at, _, task in cancelled_at_each(work):
        last = at
        assert task.cancelled() or task.exception() is None, task.exception()
        await check()
    return last - 1


async def _awaited(work: CancelledAt) -> None:
    await work
