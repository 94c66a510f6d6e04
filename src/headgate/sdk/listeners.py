"""Listeners: each is called in its own time, so that a slow or failing one harms nobody else."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import structlog

MOST: Final = 10_000

log = structlog.get_logger()
C = TypeVar("C")
Listener = Callable[[C], Awaitable[None] | None]


class Listening(Generic[C]):
    """One listener and what it has yet to hear; far behind, it hears only the latest of each subject."""

    def __init__(self, listener: Listener[C], subject: Callable[[C], Hashable]) -> None:
        self.listener = listener
        self._subject = subject
        self._waiting: deque[C] = deque()
        self._ready = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def tell(self, change: C) -> None:
        """Put a change in line for this listener."""
        self._waiting.append(change)
        if len(self._waiting) > MOST:
            self._waiting = deque({self._subject(each): each for each in self._waiting}.values())
        self._ready.set()

    async def stop(self) -> None:
        """Call it no more."""
        if self._task is asyncio.current_task():
            return  # a listener that unsubscribes itself finishes what it is doing
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        plain = not inspect.iscoroutinefunction(self.listener)
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting:
                change = self._waiting.popleft()
                try:
                    # In a thread: a plain function that takes its time must not hold up heartbeats.
                    answer = await asyncio.to_thread(self.listener, change) if plain else self.listener(change)
                    if inspect.isawaitable(answer):
                        await answer
                except Exception:  # whoever listens is not our code, and the others must go on
                    log.exception("a listener failed")
