"""Watches a lock change hands: by hints, and by a timer at the end of the lease, which causes no hint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Final

from headgate.kit.problems import Closed, StoreUnavailable
from headgate.locks.model import LockState
from headgate.locks.problems import QuorumLost

IDLE_SECONDS: Final = 30.0
AWAY_SECONDS: Final = 0.5
ROUNDING: Final = 0.005

Listener = Callable[[str | None], None]


async def watch_lock(
    listen: Callable[[Listener], AbstractContextManager[None]], show: Callable[[], Awaitable[LockState]]
) -> AsyncGenerator[LockState, None]:
    """Yield the state now, and again whenever the holder changes or the lock becomes free."""
    news = _News()
    last: tuple[bool, int] | None = None
    with listen(news.on_hint):
        while True:
            news.event.clear()
            try:
                state = await show()
            except Closed:
                raise
            except (StoreUnavailable, QuorumLost):
                await asyncio.sleep(AWAY_SECONDS)
                continue
            if last != (state.held, state.fence):
                last = (state.held, state.fence)
                yield state
            await news.wait(state.ttl_ms / 1000 + ROUNDING if state.held else IDLE_SECONDS)


class _News:
    """When to read again: at once after a change, else at a time that each renewal moves further away."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._look_at = 0.0

    def on_hint(self, words: str | None) -> None:
        if words is not None and words.startswith("held "):
            self._look_at = max(self._look_at, self._loop.time() + int(words.split(" ")[2]) / 1000)
        else:
            self.event.set()

    async def wait(self, seconds: float) -> None:
        self._look_at = self._loop.time() + seconds
        while not self.event.is_set() and self._loop.time() < self._look_at:
            try:
                async with asyncio.timeout_at(self._look_at):
                    await self.event.wait()
            except TimeoutError:
                continue  # the deadline may have been moved meanwhile
