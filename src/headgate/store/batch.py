"""Group commit: concurrent callers of one script on one thing share one call.

While a script call is in flight, further calls are collected; when its reply comes, they are sent together. So the busier it
gets, the less each call costs, and a single call is sent at once.
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

MOST_IN_FLIGHT: Final = 2
TICK_SECONDS: Final = 0.02
Shared = Callable[[Thing], tuple[Arg, ...]]
Preface = Callable[[Thing, Reply], object]


class BatchedCall(PendingReply):
    """One caller's part of a script call: its arguments, its deadline and, as a future, its reply.

    `preface` is the part of the script's reply that is the same for all callers, if the script has one.
    """

    __slots__ = ("item", "limit", "preface")

    item: tuple[Arg, ...]
    limit: float
    preface: Any


def _nothing(thing: Thing) -> tuple[Arg, ...]:
    return ()


class Batch:
    """Calls of a script whose variadic arguments are items of equal width, one reply each.

    `shared` gives the arguments before the items. If the script's reply begins with a part that is the same for all callers,
    `preface` decodes it, and each caller finds it in `BatchedCall.preface`.
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
        self._states: dict[str, _ThingCalls] = {}  # by the thing's base: a text is looked up faster
        self._loop = asyncio.get_running_loop()

    def call(self, thing: Thing, *item: Arg, deadline: float | None = None) -> BatchedCall:
        """Run one item, together with all others that are pending for this thing."""
        state = self._states.get(thing.base)
        if state is None:
            state = self._states[thing.base] = _ThingCalls()
        call = BatchedCall(loop=self._loop)
        call.item = item
        call.limit = limit = self._loop.time() + self._patience if deadline is None else deadline
        call.callback = None
        state.pending.append(call)
        if state.timer is None or limit < state.timer_at:
            self._set_timer(state, limit)
        if not state.scheduled and len(state.in_flight) < MOST_IN_FLIGHT:
            state.scheduled = True
            # At the end of this turn of the loop, so that calls made in the same turn share it.
            self._loop.call_soon(self._send_next, thing, state)
        return call

    def _send_next(self, thing: Thing, state: _ThingCalls) -> None:
        state.scheduled = False
        calls = state.take(self._most)
        if calls:
            state.in_flight.append(calls)
            self._send(thing, state, calls)
        elif not state.in_flight:
            self._states.pop(thing.base, None)
            if state.timer is not None:
                state.timer.cancel()

    def _send(self, thing: Thing, state: _ThingCalls, calls: list[BatchedCall]) -> None:
        """Send calls: at once if the connection is open, else in a task, which also handles all errors."""
        metrics.batch_size(self._script.name).observe(len(calls))
        try:
            sent_call = self._store.send_now(self._script, thing, self._arguments(thing, calls), _limit(calls))
        except Exception:  # noqa: BLE001 -- the task meets it again and tells the callers concerned
            sent_call = None
        if sent_call is None:
            self._start_task(thing, state, calls)
        else:
            sent_call.reply.callback = partial(self._replied, thing, state, calls, sent_call)

    def _replied(
        self, thing: Thing, state: _ThingCalls, calls: list[BatchedCall], sent_call: PendingCall, reply: PendingReply
    ) -> None:
        replies = None if reply.cancelled() or reply.exception() is not None else reply.result()
        if not self._fits(replies, calls):
            self._start_task(thing, state, calls, sent_call)
            return
        metrics.script_seconds(self._script.name, "ok").observe(self._loop.time() - sent_call.started)
        try:
            self._settle(thing, calls, replies)
        except Exception as error:  # noqa: BLE001 -- a defect of ours: the callers get it, and none may hang
            for call in calls:
                _fail(call, error)
        self._finish(thing, state, calls)

    def _start_task(
        self, thing: Thing, state: _ThingCalls, calls: list[BatchedCall], sent_call: PendingCall | None = None
    ) -> None:
        task = self._store.tasks.start(self._run(thing, calls, sent_call))
        sent = sent_call is not None
        task.add_done_callback(partial(self._task_ended, thing, state, calls, sent))

    async def _run(self, thing: Thing, calls: list[BatchedCall], sent_call: PendingCall | None = None) -> None:
        try:
            await self._run_calls(thing, calls, sent_call)
        except Exception as error:  # noqa: BLE001 -- a defect of ours: the callers get it, and none may hang
            for call in calls:
                _fail(call, error)

    def _task_ended(
        self, thing: Thing, state: _ThingCalls, calls: list[BatchedCall], sent: bool, task: asyncio.Task[None]
    ) -> None:
        if task.cancelled() or task.exception() is not None:  # the store was closed
            unknown = sent and not self._script.header.repeatable
            for call in calls:
                call.fail(OutcomeUnknown() if unknown else Closed())
        self._finish(thing, state, calls)

    def _finish(self, thing: Thing, state: _ThingCalls, calls: list[BatchedCall]) -> None:
        """Remove calls that are settled, and send those that were collected meanwhile."""
        state.in_flight.remove(calls)
        if not state.scheduled:
            self._send_next(thing, state)

    def _set_timer(self, state: _ThingCalls, limit: float) -> None:
        """Set the timer of a thing's calls to the first deadline; one timer serves all of them."""
        if state.timer is not None:
            state.timer.cancel()
        # One turn later: after a stall of the loop, an answer that has arrived meanwhile is delivered first.
        state.timer = self._loop.call_at(limit, self._loop.call_soon, self._time_out, state)
        state.timer_at = limit

    def _time_out(self, state: _ThingCalls) -> None:
        """Fail the calls whose deadline has passed, pending or in flight; the others stay."""
        now = self._loop.time()
        state.timer = None
        limits: list[float] = []
        again = self._script.header.repeatable
        for calls, late in (
            (state.pending, StoreUnavailable),
            *((calls, StoreUnavailable if again else OutcomeUnknown) for calls in state.in_flight),
        ):
            for call in tuple(calls):  # a callback may call again at once
                if call.done():
                    continue
                if call.limit <= now:
                    call.fail(late(retry_after=1))
                else:
                    limits.append(call.limit)
        if limits:
            self._set_timer(state, max(min(limits), now + TICK_SECONDS))

    async def _run_calls(self, thing: Thing, calls: list[BatchedCall], sent_call: PendingCall | None = None) -> None:
        arguments = self._arguments(thing, calls)
        try:
            replies = await self._store.run(
                self._script, thing, *arguments, deadline=_limit(calls), sent_call=sent_call
            )
            if not self._fits(replies, calls):
                raise ScriptFailed(f"{self._script.name}.lua did not give one reply for each item")
        except (ScriptFailed, TypeError, UnicodeError) as error:
            ran = isinstance(error, ScriptFailed)  # the others are arguments that cannot be sent
            if len(calls) == 1 or (ran and not self._script.header.repeatable):
                for call in calls:
                    _fail(call, error)
                return
            # One item may have broken it for all: each is run alone, so that only its caller gets the error.
            for call in calls:
                await self._run_calls(thing, [call])
        except HeadgateError as error:
            for call in calls:
                _fail(call, error)
        else:
            self._settle(thing, calls, replies)

    def _arguments(self, thing: Thing, calls: list[BatchedCall]) -> tuple[Arg, ...]:
        return (*self._shared(thing), *[part for call in calls for part in call.item])

    def _fits(self, replies: Reply, calls: list[BatchedCall]) -> TypeGuard[list[Reply]]:
        """Tell whether there is one reply for each call, after the preface if there should be one."""
        return isinstance(replies, list) and len(replies) == len(calls) + (self._preface is not None)

    def _settle(self, thing: Thing, calls: list[BatchedCall], replies: list[Reply]) -> None:
        preface = self._preface(thing, replies.pop(0)) if self._preface is not None else None
        for call, reply in zip(calls, replies, strict=True):
            call.preface = preface
            if isinstance(reply, ServerError):
                _fail(call, as_problem(reply))
            else:
                call.answer(reply)


class _ThingCalls:
    """The calls of one thing: pending ones, those in flight, and the timer of the first deadline."""

    __slots__ = ("in_flight", "pending", "scheduled", "timer", "timer_at")

    def __init__(self) -> None:
        self.pending: deque[BatchedCall] = deque()
        self.in_flight: list[list[BatchedCall]] = []
        self.scheduled = False
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0  # some loops' timers do not tell it

    def take(self, most: int) -> list[BatchedCall]:
        """Take out the calls to send next, without those that were cancelled meanwhile."""
        pending = self.pending
        calls: list[BatchedCall] = []
        if len(pending) <= most:
            calls = [call for call in pending if not call.done()]
            pending.clear()
        while pending and len(calls) < most:
            call = pending.popleft()
            if not call.done():
                calls.append(call)
        return calls


def _limit(calls: list[BatchedCall]) -> float:
    return max([call.limit for call in calls])


def _fail(call: BatchedCall, error: Exception) -> None:
    """Give a caller an exception of its own; one object raised in many tasks would mix up their tracebacks."""
    own = error
    if isinstance(error, HeadgateError):
        own = type(error)(error.public_detail, retry_after=error.retry_after, **error.members).because(error.reason)
        own.__cause__ = error.__cause__
    call.fail(own)
