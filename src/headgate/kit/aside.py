"""Work that goes on when its caller has left: what was begun is ended, or taken back, before the client closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headgate.kit.problems import Closed

R = TypeVar("R")


async def ended(task: asyncio.Task[R]) -> R:
    """Wait for a task that goes on if whoever waits is cancelled; raises Closed if it was cut off by the close."""
    await asyncio.wait((task,))
    if task.cancelled():
        raise Closed
    return task.result()


class Aside:
    """Tasks beside their callers, with one who waits for them at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run something that its caller may leave; a failure goes to whoever awaits it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, seconds: float) -> None:
        """Wait so long for what still runs, and cancel the rest."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        while tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # asking here only keeps asyncio from warning of what nobody awaited
