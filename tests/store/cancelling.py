"""Cancelling a coroutine at each of its suspensions in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
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
