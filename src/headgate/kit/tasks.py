"""Background tasks: each has an owner that ends it, and a failure is raised where the task is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from headgate.kit.problems import Closed

Result = TypeVar("Result")


class Tasks:
    """Runs tasks that must finish even when their caller is cancelled, and ends them when their owner closes.

    Unlike in a TaskGroup, a task that fails does not end the others. A task that `close` cancels raises Closed and not
    CancelledError: whoever awaits it was not cancelled itself.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refused: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self, work: Coroutine[Any, Any, Result], context: Context | None = None) -> asyncio.Task[Result]:
        """Start a task, in the caller's context unless another is given; after `close`, the task raises Closed at once."""
        loop = asyncio.get_running_loop()
        if self._closed:
            work.close()
            task: asyncio.Task[Result] = loop.create_task(_refuse())
            self._refused.add(task)
        else:
            name = getattr(work, "__qualname__", None)  # the coroutine that runs would be `_run` for all of them
            task = loop.create_task(self._run(work), name=name, context=context)
            self._tasks.add(task)
            # A task that is cancelled before its first step never runs the coroutine.
            task.add_done_callback(lambda _: work.close())
        task.add_done_callback(self._ended)
        return task

    async def close(self, seconds: float = 0.0) -> None:
        """Give running tasks so many seconds to finish, then cancel the rest and wait for their end."""
        if seconds > 0 and self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        self._closed = True
        await asyncio.sleep(0)  # a new task takes its first step: before it, `_run` could not turn its end into Closed
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
            task.exception()  # keeps asyncio from warning about a failure that nobody awaited


async def _refuse() -> NoReturn:
    raise Closed


async def finished(task: asyncio.Task[Result]) -> Result:
    """Wait for a task without cancelling it when the caller is cancelled; raises Closed if the task was cancelled."""
    await asyncio.wait((task,))
    if task.cancelled():
        raise Closed
    return task.result()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks that still run, and wait for their end."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


class CallsInProgress:
    """Counts the calls in progress (`with calls:`), so that `close()` can wait for them."""

    __slots__ = ("_count", "_none_left")

    def __init__(self) -> None:
        self._count = 0
        self._none_left = asyncio.Event()

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count -= 1
        if not self._count:
            self._none_left.set()

    async def finished(self, seconds: float) -> None:
        """Wait until no call is in progress, at most so many seconds."""
        self._none_left.clear()
        if self._count:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._none_left.wait()
