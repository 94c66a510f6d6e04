"""Background work with an owner: a failure goes to whoever awaits the task, and nothing outlives the owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, NoReturn, TypeVar

from headgate.kit.problems import Closed

Result = TypeVar("Result")


class Tasks:
    """A set of tasks that end together. Unlike a TaskGroup's, one that fails does not take the others along.

    Whoever awaits one when the owner closes was not cancelled itself: it is told that the client was closed.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refused: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Result], context: Context | None = None) -> asyncio.Task[Result]:
        """Run something beside the caller, in the caller's context unless another is given; once closed, it fails at once."""
        loop = asyncio.get_running_loop()
        if self._closed:
            work.close()
            task: asyncio.Task[Result] = loop.create_task(_refuse())
            self._refused.add(task)
        else:
            task = loop.create_task(self._run(work), context=context)
            self._tasks.add(task)
            task.add_done_callback(lambda _: work.close())  # one that was cancelled before its first step never ran
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait for its end, and until those were told who came too late."""
        self._closed = True
        await asyncio.sleep(0)  # who was just started takes a first step, without which it could not tell why it ends
        while tasks := (*self._tasks, *self._refused):
            for task in self._tasks:
                task.cancel()
            # `wait` always lets the loop run, and with it `_ended`. `gather` of tasks that are done does not, since
            # Python 3.12: this loop would then never end.
            await asyncio.wait(tasks)

    async def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await work
        except asyncio.CancelledError:
            if self._closed:
                raise Closed from None
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._refused.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it has it too; asking here only keeps asyncio from warning


async def _refuse() -> NoReturn:
    raise Closed
