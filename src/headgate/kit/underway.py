"""Those who are still inside something that closes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType


class Underway:
    """`with underway:` counts whoever is inside; whoever closes waits with `over` until the last has left."""

    __slots__ = ("_count", "_empty")

    def __init__(self) -> None:
        self._count = 0
        self._empty = asyncio.Event()

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count -= 1
        if not self._count:
            self._empty.set()

    async def over(self, seconds: float) -> None:
        """Wait until nobody is inside, or so long."""
        self._empty.clear()
        if self._count:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()
