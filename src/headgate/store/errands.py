"""Background work with an owner: a failure goes to whoever awaits the task, and nothing outlives the owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

Result = TypeVar("Result")


class Errands:
    """A set of tasks that end together. Unlike a TaskGroup's, one that fails does not take the others along."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result], context: Context | None = None) -> asyncio.Task[Result]:
        """Run something beside the caller, in the caller's context unless another is given."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait for its end, also of what is started at the end of another."""
        while tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it has it too; asking here only keeps asyncio from warning
