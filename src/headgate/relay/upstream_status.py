"""Sums up the figures of all users of an upstream, page by page, at a bounded cost."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from typing import Final, cast

from headgate.relay.wire import UpstreamStatus, UserFigures
from headgate.store import Store, Thing

PAGE: Final = 200
SHOWN: Final = 20
CACHE_FACTOR: Final = 9
NO_USER: Final = ""


class UpstreamStatusReader:
    """Reads the status of one upstream.

    Concurrent callers share one count. A count of more than one page is cached for nine times as long as it took, so
    that a process spends at most a tenth of its time on it, however many callers and users there are.
    """

    def __init__(self, store: Store, thing: Thing, figures: Callable[[str], Awaitable[UserFigures]]) -> None:
        self._store = store
        self._thing = thing
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._counting: asyncio.Task[UpstreamStatus] | None = None
        self._cached_until = 0.0

    async def status(self) -> UpstreamStatus:
        """Return the sums over all users, and the busiest of them."""
        task = self._counting
        if task is None or (task.done() and self._loop.time() >= self._cached_until):
            task = self._counting = self._store.tasks.start(self._count())
        await asyncio.wait({task})  # the count goes on when its first caller is cancelled
        return task.result()

    async def _count(self) -> UpstreamStatus:
        started = self._loop.time()
        seen: set[bytes] = set()
        waiting = in_flight = cooling = jobs = 0
        held_ms = (await self._figures(NO_USER)).held_ms  # a hold of the whole upstream, which may have no users
        busiest: list[UserFigures] = []
        cursor, pages = b"0", 0
        while pages == 0 or cursor != b"0":
            reply = await self._store.read(self._thing, "ZSCAN", self._thing.key("users"), cursor, "COUNT", PAGE)
            cursor, found = cast("tuple[bytes, list[bytes]]", reply)
            users = set(found[::2]) - seen  # a scan may return a member twice
            seen |= users
            page = await asyncio.gather(*(self._figures(user.decode()) for user in users))
            waiting += sum(one.waiting for one in page)
            in_flight += sum(one.in_flight for one in page)
            cooling += sum(one.cooling for one in page)
            jobs += sum(one.jobs for one in page)
            held_ms = max(held_ms, *(one.held_ms for one in page), 0)
            busiest = heapq.nsmallest(SHOWN, [*busiest, *page], key=_busy_first)
            pages += 1
        if pages > 1:
            now = self._loop.time()
            self._cached_until = now + CACHE_FACTOR * (now - started)
        return UpstreamStatus(
            self._thing.name,
            users=len(seen),
            waiting=waiting,
            in_flight=in_flight,
            cooling=cooling,
            held_ms=held_ms,
            busiest=tuple(busiest),
            jobs=jobs,
        )


def _busy_first(one: UserFigures) -> tuple[int, int, int, str]:
    return -one.waiting, -one.in_flight, -one.cooling, one.user
