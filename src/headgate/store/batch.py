"""Group commit: concurrent callers of one script on one thing share one call.

While a call is on its way, the next callers gather; when it returns, they go together. So the busier it gets, the less each
costs, and an idle caller waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from headgate.kit.problems import HeadgateError, StoreUnavailable
from headgate.store import metrics
from headgate.store.errors import ScriptFailed, as_problem
from headgate.store.keys import Thing
from headgate.store.link import Arg, Reply, ServerError
from headgate.store.script import Script
from headgate.store.store import Store

FLIGHTS: Final = 2
Shared = Callable[[Thing], tuple[Arg, ...]]


def _nothing(thing: Thing) -> tuple[Arg, ...]:
    return ()


class Batch:
    """Calls of a script whose variadic arguments are items of equal width, one reply each."""

    def __init__(self, store: Store, script: Script, *, shared: Shared = _nothing, most: int = 256) -> None:
        self._store = store
        self._script = script
        self._shared = shared
        self._most = most
        self._lanes: dict[Thing, _Lane] = {}
        self._loop = asyncio.get_running_loop()
        self._size = metrics.BATCH_SIZE.labels(script.name)

    async def call(self, thing: Thing, *item: Arg, deadline: float | None = None) -> Reply:
        """Run one item, together with whatever else is waiting for this thing."""
        lane = self._lanes.get(thing)
        if lane is None:
            lane = self._lanes[thing] = _Lane()
        future: asyncio.Future[Reply] = self._loop.create_future()
        limit = self._store.deadline() if deadline is None else deadline
        lane.waiting.append((item, future, limit))
        if not lane.scheduled and lane.flights < FLIGHTS:
            lane.scheduled = True
            # At the end of this turn of the loop, so that whoever is ready now comes along.
            self._loop.call_soon(self._depart, thing, lane)
        if deadline is None:
            return await future
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError as error:
            raise StoreUnavailable(retry_after=1) from error

    def _depart(self, thing: Thing, lane: _Lane) -> None:
        lane.scheduled = False
        crew: list[_Seat] = []
        while lane.waiting and len(crew) < self._most:
            seat = lane.waiting.popleft()
            if not seat[1].done():
                crew.append(seat)
        if crew:
            lane.flights += 1
            self._store.errands.start(self._fly(thing, lane, crew))
        elif not lane.flights:
            self._lanes.pop(thing, None)

    async def _fly(self, thing: Thing, lane: _Lane, crew: list[_Seat]) -> None:
        try:
            await self._deliver(thing, crew)
        except asyncio.CancelledError:
            for _, future, _ in crew:
                future.cancel()
            raise
        finally:
            lane.flights -= 1
            if not lane.scheduled:
                self._depart(thing, lane)

    async def _deliver(self, thing: Thing, crew: list[_Seat]) -> None:
        self._size.observe(len(crew))
        limit = max(limit for _, _, limit in crew)
        arguments = [part for item, _, _ in crew for part in item]
        try:
            replies = await self._store.run(self._script, thing, *self._shared(thing), *arguments, deadline=limit)
            if not isinstance(replies, list) or len(replies) != len(crew):
                raise ScriptFailed(f"{self._script.name}.lua did not give one reply for each item")
        except ScriptFailed as error:
            if len(crew) == 1 or not self._script.header.repeatable:
                for _, future, _ in crew:
                    _fail(future, error)
                return
            # One item may have broken it for all: each alone, so that only that one's caller hears of it.
            for seat in crew:
                await self._deliver(thing, [seat])
            return
        except HeadgateError as error:
            for _, future, _ in crew:
                _fail(future, error)
            return
        for (_, future, _), reply in zip(crew, replies, strict=True):
            if isinstance(reply, ServerError):
                _fail(future, as_problem(reply))
            elif not future.done():
                future.set_result(reply)


_Seat = tuple[tuple[Arg, ...], asyncio.Future[Reply], float]


class _Lane:
    """The callers of one thing: who waits, and how many calls are on their way."""

    __slots__ = ("flights", "scheduled", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Seat] = deque()
        self.flights = 0
        self.scheduled = False


def _fail(future: asyncio.Future[Reply], error: HeadgateError) -> None:
    """Give a caller an exception of its own; one object raised in many tasks would mix up their tracebacks."""
    if not future.done():
        own = type(error)(error.detail, retry_after=error.retry_after, **error.members)
        own.__cause__ = error.__cause__
        future.set_exception(own)
