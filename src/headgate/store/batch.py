"""Group commit: concurrent callers of one script on one thing share one call.

While a call is on its way, the next callers gather; when it returns, they go together. So the busier it gets, the less each
costs, and an idle caller waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from headgate.kit.problems import HeadgateError, OutcomeUnknown, StoreUnavailable
from headgate.store import metrics
from headgate.store.errors import ScriptFailed, as_problem
from headgate.store.keys import Thing
from headgate.store.link import Arg, Reply, ServerError
from headgate.store.script import Script
from headgate.store.store import Store

FLIGHTS: Final = 2
TICK_SECONDS: Final = 0.02
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
        if lane.timer is None or limit < lane.timer_at:
            self._watch(lane, limit)
        if not lane.scheduled and len(lane.flying) < FLIGHTS:
            lane.scheduled = True
            # At the end of this turn of the loop, so that whoever is ready now comes along.
            self._loop.call_soon(self._depart, thing, lane)
        return await future

    def _depart(self, thing: Thing, lane: _Lane) -> None:
        lane.scheduled = False
        crew: list[_Seat] = []
        while lane.waiting and len(crew) < self._most:
            seat = lane.waiting.popleft()
            if not seat[1].done():
                crew.append(seat)
        if crew:
            lane.flying.append(crew)
            self._store.errands.start(self._fly(thing, lane, crew))
        elif not lane.flying:
            self._lanes.pop(thing, None)
            if lane.timer is not None:
                lane.timer.cancel()

    async def _fly(self, thing: Thing, lane: _Lane, crew: list[_Seat]) -> None:
        try:
            await self._deliver(thing, crew)
        except asyncio.CancelledError:
            for _, future, _ in crew:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 -- a defect of ours: its callers must hear of it, and none may hang
            for _, future, _ in crew:
                _fail(future, error)
        finally:
            lane.flying.remove(crew)
            if not lane.scheduled:
                self._depart(thing, lane)

    def _watch(self, lane: _Lane, limit: float) -> None:
        """Look again at a lane when its first deadline has passed; one timer serves all its callers."""
        if lane.timer is not None:
            lane.timer.cancel()
        # One turn later: after a stall of the loop, an answer that has arrived meanwhile is delivered first.
        lane.timer = self._loop.call_at(limit, self._loop.call_soon, self._expire, lane)
        lane.timer_at = limit

    def _expire(self, lane: _Lane) -> None:
        """Tell those whose time is up, whether they still wait or are on their way; the others stay."""
        now = self._loop.time()
        lane.timer = None
        limits: list[float] = []
        again = self._script.header.repeatable
        for seats, late in (
            (lane.waiting, StoreUnavailable),
            *((crew, StoreUnavailable if again else OutcomeUnknown) for crew in lane.flying),
        ):
            for _, future, limit in seats:
                if future.done():
                    continue
                if limit <= now:
                    future.set_exception(late(retry_after=1))
                else:
                    limits.append(limit)
        if limits:
            self._watch(lane, max(min(limits), now + TICK_SECONDS))

    async def _deliver(self, thing: Thing, crew: list[_Seat]) -> None:
        self._size.observe(len(crew))
        limit = max(limit for _, _, limit in crew)
        arguments = [part for item, _, _ in crew for part in item]
        try:
            replies = await self._store.run(self._script, thing, *self._shared(thing), *arguments, deadline=limit)
            if not isinstance(replies, list) or len(replies) != len(crew):
                raise ScriptFailed(f"{self._script.name}.lua did not give one reply for each item")
        except (ScriptFailed, TypeError, UnicodeError) as error:
            ran = isinstance(error, ScriptFailed)  # the others are arguments that cannot be sent
            if len(crew) == 1 or (ran and not self._script.header.repeatable):
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
    """The callers of one thing: who waits, who is on the way, and when the first deadline passes."""

    __slots__ = ("flying", "scheduled", "timer", "timer_at", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Seat] = deque()
        self.flying: list[list[_Seat]] = []
        self.scheduled = False
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0  # not every loop's timers know it


def _fail(future: asyncio.Future[Reply], error: Exception) -> None:
    """Give a caller an exception of its own; one object raised in many tasks would mix up their tracebacks."""
    if future.done():
        return
    own = error
    if isinstance(error, HeadgateError):
        own = type(error)(error.detail, retry_after=error.retry_after, **error.members)
        own.__cause__ = error.__cause__
    future.set_exception(own)
