"""Group commit: concurrent callers of one script on one thing share one call.

While a call is on its way, the next callers gather; when it returns, they go together. So the busier it gets, the less each
costs, and an idle caller waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeGuard

from headgate.kit.problems import Closed, HeadgateError, OutcomeUnknown, StoreUnavailable
from headgate.store import metrics
from headgate.store.client.link import Arg, Reply, ServerError
from headgate.store.client.pending import PendingReply
from headgate.store.errors import ScriptFailed, as_problem
from headgate.store.keys import Thing
from headgate.store.scripts.script import Script
from headgate.store.store import PendingCall, Store

FLIGHTS: Final = 2
TICK_SECONDS: Final = 0.02
Shared = Callable[[Thing], tuple[Arg, ...]]
Preface = Callable[[Thing, Reply], object]


class BatchedCall(PendingReply):
    """A caller's seat in a call: what they ask, until when they wait, and their answer.

    `preface` is what the script said to all in the call alike, if it says such a thing.
    """

    __slots__ = ("item", "limit", "preface")

    item: tuple[Arg, ...]
    limit: float
    preface: Any


def _nothing(thing: Thing) -> tuple[Arg, ...]:
    return ()


class Batch:
    """Calls of a script whose variadic arguments are items of equal width, one reply each.

    `shared` gives the arguments before them. A script may say something to all of them first; then `preface` reads it, and
    each caller finds it in the seat.
    """

    def __init__(
        self,
        store: Store,
        script: Script,
        *,
        shared: Shared = _nothing,
        preface: Preface | None = None,
        most: int = 256,
    ) -> None:
        self._store = store
        self._script = script
        self._shared = shared
        self._preface = preface
        self._most = most
        self._patience = store.deadline_seconds
        self._lanes: dict[str, _ThingCalls] = {}  # by the thing's base: a text is looked up faster
        self._loop = asyncio.get_running_loop()

    def call(self, thing: Thing, *item: Arg, deadline: float | None = None) -> BatchedCall:
        """Run one item, together with whatever else is waiting for this thing."""
        lane = self._lanes.get(thing.base)
        if lane is None:
            lane = self._lanes[thing.base] = _ThingCalls()
        seat = BatchedCall(loop=self._loop)
        seat.item = item
        seat.limit = limit = self._loop.time() + self._patience if deadline is None else deadline
        seat.directly = None
        lane.waiting.append(seat)
        if lane.timer is None or limit < lane.timer_at:
            self._watch(lane, limit)
        if not lane.scheduled and len(lane.flying) < FLIGHTS:
            lane.scheduled = True
            # At the end of this turn of the loop, so that whoever is ready now comes along.
            self._loop.call_soon(self._depart, thing, lane)
        return seat

    def _depart(self, thing: Thing, lane: _ThingCalls) -> None:
        lane.scheduled = False
        crew = lane.take(self._most)
        if crew:
            lane.flying.append(crew)
            self._take_off(thing, lane, crew)
        elif not lane.flying:
            self._lanes.pop(thing.base, None)
            if lane.timer is not None:
                lane.timer.cancel()

    def _take_off(self, thing: Thing, lane: _ThingCalls, crew: list[BatchedCall]) -> None:
        """Send a call: at once if the way to the store is open, else, and whenever it is not as usual, in a task."""
        metrics.batch_size(self._script.name).observe(len(crew))
        try:
            begun = self._store.begin(self._script, thing, self._arguments(thing, crew), _limit(crew))
        except Exception:  # noqa: BLE001 -- the task comes by it again, finds out whose it is and tells them
            begun = None
        if begun is None:
            self._start(thing, lane, crew)
        else:
            begun.reply.directly = partial(self._landed, thing, lane, crew, begun)

    def _landed(
        self, thing: Thing, lane: _ThingCalls, crew: list[BatchedCall], begun: PendingCall, reply: PendingReply
    ) -> None:
        replies = None if reply.cancelled() or reply.exception() is not None else reply.result()
        if not self._fits(replies, crew):
            self._start(thing, lane, crew, begun)
            return
        metrics.script_seconds(self._script.name, "ok").observe(self._loop.time() - begun.started)
        try:
            self._hand_out(thing, crew, replies)
        except Exception as error:  # noqa: BLE001 -- a defect of ours: its callers must hear of it, and none may hang
            for seat in crew:
                _fail(seat, error)
        self._make_room(thing, lane, crew)

    def _start(
        self, thing: Thing, lane: _ThingCalls, crew: list[BatchedCall], begun: PendingCall | None = None
    ) -> None:
        task = self._store.tasks.start(self._fly(thing, crew, begun))
        sent = begun is not None
        task.add_done_callback(partial(self._flown, thing, lane, crew, sent))

    async def _fly(self, thing: Thing, crew: list[BatchedCall], begun: PendingCall | None = None) -> None:
        try:
            await self._deliver(thing, crew, begun)
        except Exception as error:  # noqa: BLE001 -- a defect of ours: its callers must hear of it, and none may hang
            for seat in crew:
                _fail(seat, error)

    def _flown(
        self, thing: Thing, lane: _ThingCalls, crew: list[BatchedCall], sent: bool, task: asyncio.Task[None]
    ) -> None:
        if task.cancelled() or task.exception() is not None:  # the store was closed
            unknown = sent and not self._script.header.repeatable
            for seat in crew:
                seat.fail(OutcomeUnknown() if unknown else Closed())
        self._make_room(thing, lane, crew)

    def _make_room(self, thing: Thing, lane: _ThingCalls, crew: list[BatchedCall]) -> None:
        """A call is over: whoever gathered meanwhile may go."""
        lane.flying.remove(crew)
        if not lane.scheduled:
            self._depart(thing, lane)

    def _watch(self, lane: _ThingCalls, limit: float) -> None:
        """Look again at a lane when its first deadline has passed; one timer serves all its callers."""
        if lane.timer is not None:
            lane.timer.cancel()
        # One turn later: after a stall of the loop, an answer that has arrived meanwhile is delivered first.
        lane.timer = self._loop.call_at(limit, self._loop.call_soon, self._expire, lane)
        lane.timer_at = limit

    def _expire(self, lane: _ThingCalls) -> None:
        """Tell those whose time is up, whether they still wait or are on their way; the others stay."""
        now = self._loop.time()
        lane.timer = None
        limits: list[float] = []
        again = self._script.header.repeatable
        for seats, late in (
            (lane.waiting, StoreUnavailable),
            *((crew, StoreUnavailable if again else OutcomeUnknown) for crew in lane.flying),
        ):
            for seat in tuple(seats):  # who is told may ask again at once
                if seat.done():
                    continue
                if seat.limit <= now:
                    seat.fail(late(retry_after=1))
                else:
                    limits.append(seat.limit)
        if limits:
            self._watch(lane, max(min(limits), now + TICK_SECONDS))

    async def _deliver(self, thing: Thing, crew: list[BatchedCall], begun: PendingCall | None = None) -> None:
        arguments = self._arguments(thing, crew)
        try:
            replies = await self._store.run(self._script, thing, *arguments, deadline=_limit(crew), begun=begun)
            if not self._fits(replies, crew):
                raise ScriptFailed(f"{self._script.name}.lua did not give one reply for each item")
        except (ScriptFailed, TypeError, UnicodeError) as error:
            ran = isinstance(error, ScriptFailed)  # the others are arguments that cannot be sent
            if len(crew) == 1 or (ran and not self._script.header.repeatable):
                for seat in crew:
                    _fail(seat, error)
                return
            # One item may have broken it for all: each alone, so that only that one's caller hears of it.
            for seat in crew:
                await self._deliver(thing, [seat])
        except HeadgateError as error:
            for seat in crew:
                _fail(seat, error)
        else:
            self._hand_out(thing, crew, replies)

    def _arguments(self, thing: Thing, crew: list[BatchedCall]) -> tuple[Arg, ...]:
        return (*self._shared(thing), *[part for seat in crew for part in seat.item])

    def _fits(self, replies: Reply, crew: list[BatchedCall]) -> TypeGuard[list[Reply]]:
        """Tell whether there is a reply for each, and the preface if there should be one."""
        return isinstance(replies, list) and len(replies) == len(crew) + (self._preface is not None)

    def _hand_out(self, thing: Thing, crew: list[BatchedCall], replies: list[Reply]) -> None:
        said = self._preface(thing, replies.pop(0)) if self._preface is not None else None
        for seat, reply in zip(crew, replies, strict=True):
            seat.preface = said
            if isinstance(reply, ServerError):
                _fail(seat, as_problem(reply))
            else:
                seat.answer(reply)


class _ThingCalls:
    """The callers of one thing: who waits, who is on the way, and when the first deadline passes."""

    __slots__ = ("flying", "scheduled", "timer", "timer_at", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[BatchedCall] = deque()
        self.flying: list[list[BatchedCall]] = []
        self.scheduled = False
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0  # not every loop's timers know it

    def take(self, most: int) -> list[BatchedCall]:
        """Take out who goes next; those who gave up meanwhile do not."""
        waiting = self.waiting
        crew: list[BatchedCall] = []
        if len(waiting) <= most:
            crew = [seat for seat in waiting if not seat.done()]
            waiting.clear()
        while waiting and len(crew) < most:
            seat = waiting.popleft()
            if not seat.done():
                crew.append(seat)
        return crew


def _limit(crew: list[BatchedCall]) -> float:
    return max([seat.limit for seat in crew])


def _fail(seat: BatchedCall, error: Exception) -> None:
    """Give a caller an exception of its own; one object raised in many tasks would mix up their tracebacks."""
    own = error
    if isinstance(error, HeadgateError):
        own = type(error)(error.public_detail, retry_after=error.retry_after, **error.members).because(error.reason)
        own.__cause__ = error.__cause__
    seat.fail(own)
