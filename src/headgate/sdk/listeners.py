"""Listeners: each is called in its own time, so that a slow or failing one harms nobody else."""

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


class Listening(Generic[C]):
    """One listener and what it has yet to hear; far behind, it hears only the latest of each subject."""

    def __init__(self, listener: Listener[C], subject: Callable[[C], Hashable]) -> None:
        self.listener = listener
        self._subject = subject
        self._waiting: deque[C] = deque()
        self._most = MOST
        self._ready = asyncio.Event()
        self._stopped = False
        self._tasks = Tasks()
        self._task = self._tasks.start(self._run())

    def tell(self, change: C) -> None:
        """Put a change in line for this listener."""
        self._waiting.append(change)
        if len(self._waiting) > self._most:
            self._waiting = deque({self._subject(each): each for each in self._waiting}.values())
            self._most = max(MOST, 2 * len(self._waiting))
        self._ready.set()

    async def stop(self) -> None:
        """Call it no more."""
        self._stopped = True
        if self._task is not asyncio.current_task():  # a listener that unsubscribes itself finishes what it is doing
            await self._tasks.close()

    async def _run(self) -> None:
        plain = not inspect.iscoroutinefunction(self.listener)
        while not self._stopped:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting and not self._stopped:
                change = self._waiting.popleft()
                try:
                    answer = await _in_thread(self.listener, change) if plain else self.listener(change)
                    if inspect.isawaitable(answer):
                        await answer
                except Exception:  # noqa: BLE001  # whoever listens is not our code, and the others must go on
                    # Not as an exception: a log that shows what variables held would show a secret.
                    log.error("a listener failed", traceback=traceback.format_exc())


async def _in_thread(listener: Listener[C], change: C) -> object:
    """Call a plain function in a thread of its own: one that hangs must hold up neither heartbeats nor its neighbours."""
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
