"""Calls each listener from a task of its own, so that a slow or failing one does not delay the others."""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from headgate.kit.logs import get_logger
from headgate.kit.tasks import Tasks

MOST: Final = 10_000

log = get_logger()
C = TypeVar("C")
Listener = Callable[[C], Awaitable[None] | None]


class ListenerTask(Generic[C]):
    """One listener, its pending changes and the task that calls it; one far behind gets only each subject's latest."""

    def __init__(self, listener: Listener[C], subject: Callable[[C], Hashable]) -> None:
        self.listener = listener
        self._subject = subject
        self._pending: deque[C] = deque()
        self._most = MOST
        self._ready = asyncio.Event()
        self._stopped = False
        self._tasks = Tasks()
        self._task = self._tasks.start(self._run())

    def put(self, change: C) -> None:
        """Queue a change for this listener."""
        self._pending.append(change)
        if len(self._pending) > self._most:
            self._pending = deque({self._subject(each): each for each in self._pending}.values())
            self._most = max(MOST, 2 * len(self._pending))
        self._ready.set()

    async def stop(self) -> None:
        """Stop calling the listener."""
        self._stopped = True
        if self._task is not asyncio.current_task():  # a listener that unsubscribes itself runs to its end
            await self._tasks.close()

    async def _run(self) -> None:
        plain = not inspect.iscoroutinefunction(self.listener)
        while not self._stopped:
            await self._ready.wait()
            self._ready.clear()
            while self._pending and not self._stopped:
                change = self._pending.popleft()
                try:
                    answer = await _in_thread(self.listener, change) if plain else self.listener(change)
                    if inspect.isawaitable(answer):
                        await answer
                except Exception:  # noqa: BLE001  # user code; the next changes must still be delivered
                    # Not log.exception: a formatter that shows local variables would show a secret.
                    log.error("a listener failed", traceback=traceback.format_exc())


async def _in_thread(listener: Listener[C], change: C) -> object:
    """Call a plain function in a new thread: one that hangs must delay neither heartbeats nor other listeners."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[object] = loop.create_future()

    def settle(result: object, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def call() -> None:
        result: object = None
        failure: Exception | None = None
        try:
            result = listener(change)
        except Exception as error:  # noqa: BLE001  # it is raised again where the listener is awaited
            failure = error
        with suppress(RuntimeError):  # the loop may be gone by the time a slow listener returns
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=call, name="headgate listener", daemon=True).start()
    return await answer
