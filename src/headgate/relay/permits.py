"""Permits: the right to send one request, granted by the store in the order of arrival.

A permit has three states. Cancelled while it waits, or granted and unused, it is free again; once the request was sent it
must cool. A holder must begin to send before `send_by`, a time of its own monotonic clock fixed before it asked: a pause of
the process in between makes the permit expire, never the request late.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, cast

from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, DeadlineExceeded, HeadgateError, InvalidRequest, StoreFull, StoreUnavailable
from headgate.kit.tasks import CallsInProgress
from headgate.relay import metrics
from headgate.relay.metrics import UpstreamMetrics
from headgate.relay.model import NAMESPACE, SEND_MS, Outcome, Upstream
from headgate.relay.problems import LineFull, PermitExpired, UpstreamUnknown
from headgate.relay.upstream_state import UpstreamState
from headgate.relay.upstreams import Upstreams
from headgate.relay.waiters import PermitWaiter
from headgate.relay.wire import UpstreamView
from headgate.store import Script, Store, Thing, script
from headgate.store.client.link import Arg, Reply

ACQUIRE = script(__package__, "acquire")
ACQUIRE_AGAIN = script(__package__, "acquire_again")
COMPLETE = script(__package__, "complete")
CANCEL = script(__package__, "cancel")
REPORT = script(__package__, "report")
BEAT = script(__package__, "beat")

BEAT_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 3.0  # a second less than the time after which the store considers a process dead
STORE_PAUSE: Final = 0.25
GRANTED, WAITING, TOO_LATE, FULL = 1, 0, 2, 3

log = get_logger()
_PERMIT = re.compile(r"r[0-9a-f]{12}\.[0-9]{1,15}\.[0-9]{1,4}")


class Permit:
    """A permit that this process holds; it is settled exactly once with the outcome of its request."""

    __slots__ = ("_permits", "_sent", "_settled", "id", "lease_at", "meters", "name", "paused_seconds", "place", "policy",
                 "position", "room", "send_by", "user", "waited")  # fmt: skip

    def __init__(
        self, permits: Permits, name: str, policy: Upstream, user: str, waiter: PermitWaiter, *,
        position: int, waited: float, asked: float, left_ms: int, room: int,
    ) -> None:  # fmt: skip
        self._permits = permits
        self.meters = permits.meters(name)
        self._sent = False
        self._settled = False
        self.name = name
        self.policy = policy
        self.user = user
        self.id = waiter.id
        self.place = waiter.place
        self.position = position
        self.waited = waited
        self.room = room
        self.paused_seconds = 0.0
        self.lease_at = asked + left_ms / 1000
        self.send_by = asked + (left_ms - policy.lease_ms + SEND_MS) / 1000

    @property
    def sent(self) -> bool:
        """Whether anything may have been sent to the upstream."""
        return self._sent

    def sending(self) -> None:
        """Mark the permit as used, just before the first byte is sent; raises PermitExpired if it is too late."""
        if asyncio.get_running_loop().time() >= self.send_by:
            self.meters.late_permits.inc()
            raise PermitExpired
        if not self._sent:
            self._sent = True
            self._permits.sends(self)

    def settle(
        self, outcome: Outcome, *, age_seconds: float = 0.0, pause_seconds: float = 0.0
    ) -> asyncio.Task[None] | None:
        """Report the outcome to the store in the background, repeatedly until it succeeds or the lease has ended."""
        if self._settled:
            return None
        self._settled = outcome is not Outcome.ANSWERED
        return self._permits.settle(self, outcome, age_seconds, pause_seconds)

    def hand_over(self) -> None:
        """Leave this permit to a client in another process, which reports the outcome itself."""
        self._settled = True
        self._permits.hand_over(self)

    def give_back(self) -> None:
        """Settle the permit without an answer: it is free if unsent, else the request may still arrive."""
        self.settle(Outcome.LOST if self._sent else Outcome.UNSENT)


class Permits:
    """Acquires permits from the store for one process, and keeps them alive by heartbeats."""

    def __init__(self, store: Store, upstreams: Upstreams) -> None:
        self.process = f"r{secrets.token_hex(6)}"
        self._store = store
        self._upstreams = upstreams
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._states: dict[str, UpstreamState[Permit]] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._calls = CallsInProgress()
        self._closing = False
        self._beat: asyncio.Task[None] | None = None
        self._beat_now = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(self._loop.time() + CLOSE_SECONDS)

    def refuse(self) -> None:
        """Refuse new and waiting calls with `Closed`."""
        self._closing = True
        for state in self._states.values():
            state.lines.call_all()

    async def close(self, limit: float) -> None:
        """Refuse all calls, and report every permit and every cancelled waiter to the store, until the limit."""
        self.refuse()
        await self._calls.finished(limit - self._loop.time())
        await self.settled(limit - self._loop.time())
        if self._beat is not None:
            self._beat.cancel()
        for state in self._states.values():
            state.listening.close()
            state.meters.flush()

    def thing(self, name: str) -> Thing:
        """Return an upstream's thing."""
        return self._store.thing("upstream", NAMESPACE, name)

    async def acquire(
        self, name: str, policy: Upstream, user: str, *, deadline: float, units: int = 1, place: int = 0, most: int | None = None
    ) -> Permit:  # fmt: skip
        """Wait in line for a permit until the deadline; `place` is the place of an earlier permit, which is kept."""
        state = self._state(name)
        started = self._loop.time()
        most = policy.max_waiting if most is None else most
        position = -1
        with self._calls, state.lines.join(user, f"{self.process}.{next(self._numbers)}.{units}") as waiter:
            waiter.place = place
            waits = False
            try:
                while True:
                    asked = self._loop.time()
                    reply = await self._ask(state, policy, user, waiter, most, deadline)
                    self._refuse_when_closing()  # its outcome could not be reported any more
                    how, ms, exact = cast("int", reply[0]), _int(reply[3]), reply[4] == 1
                    waiter.place = _int(reply[1])
                    if position < 0:
                        position = cast("int", reply[2])
                    state.learn(reply[7], reply[8])
                    if how == GRANTED:
                        room, used = cast("int", reply[5]), cast("int", reply[6])
                        waited = self._loop.time() - started
                        state.note_grant(waited, room, used)
                        permit = Permit(self, name, policy, user, waiter, position=position, waited=waited,
                                        asked=asked, left_ms=ms, room=max(0, room))  # fmt: skip
                        state.held[permit.id] = permit
                        return permit
                    if how == TOO_LATE:
                        raise DeadlineExceeded(
                            f"Its turn comes in {ms / 1000:.1f} s at the earliest, after your deadline.",
                            retry_after=max(1, round(ms / 1000)), position=reply[2],
                        )  # fmt: skip
                    if how == FULL:
                        raise LineFull(
                            f"{position} requests of this user are waiting already.", retry_after=max(1, ms // 1000)
                        )
                    state.last_beat = max(state.last_beat, asked)
                    if not waits:
                        waits = True
                        state.meters.waiting.inc()
                    await waiter.turn(waiter.place, ms / 1000, exact=exact, deadline=deadline)
                    if self._loop.time() >= deadline:
                        raise DeadlineExceeded("Its turn did not come before your deadline.")
            except BaseException:
                self._start(self._cancel(state, policy, user, waiter.id))
                raise
            finally:
                if waits:
                    state.meters.waiting.dec()

    async def _ask(
        self,
        state: UpstreamState[Permit],
        policy: Upstream,
        user: str,
        waiter: PermitWaiter,
        most: int,
        deadline: float,
    ) -> list[Reply]:
        """Ask the store once; during an outage, retry until the deadline.

        A store that is out of memory still serves waiters that have a place, and refuses the others at once.
        """
        what = ACQUIRE
        while True:
            self._refuse_when_closing()
            now = self._loop.time()
            waiter.asks()
            limit = min(deadline, now + 2.0)
            try:
                reply = await self._run(
                    what, state, user, user, waiter.id, waiter.place, max(0, int((deadline - now) * 1000)), most,
                    policy.lease_ms, deadline=limit,
                )  # fmt: skip
                return cast("list[Reply]", reply)
            except UpstreamUnknown:
                await self._upstreams.get(state.name, fresh=True)  # writes back a policy that the store has lost
            except Closed:
                raise
            except StoreFull:
                if not waiter.place or what is ACQUIRE_AGAIN:
                    raise
                what = ACQUIRE_AGAIN
            except StoreUnavailable:
                if self._loop.time() + STORE_PAUSE >= deadline:
                    raise
                await asyncio.sleep(STORE_PAUSE)

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise Closed

    def hand_over(self, permit: Permit) -> None:
        """Forget a permit that another process uses."""
        self._state(permit.name).held.pop(permit.id, None)

    async def complete(
        self, view: UpstreamView, user: str, permit: str, outcome: Outcome, *, age_ms: int, pause_seconds: float
    ) -> None:
        """Report the outcome of a permit that was used in another process."""
        if not _PERMIT.fullmatch(permit):
            raise InvalidRequest("This is not the id of a permit.", field="permit")
        policy, state = view.policy, self._state(view.name)
        late_ms, pause_ms = round(policy.delivery_seconds * 1000), round(pause_seconds * 1000)
        if outcome is not Outcome.UNSENT:
            state.note_answer(self._loop.time() - age_ms / 1000 + (late_ms / 1000 if outcome is Outcome.LOST else 0.0))
        await self._run(
            COMPLETE, state, user, user, permit, outcome, age_ms, late_ms, pause_ms, policy.lease_ms,
            _jitter(),
        )  # fmt: skip

    def sends(self, permit: Permit) -> None:
        """Count a request that is sent."""
        permit.meters.sends.inc()
        permit.meters.in_flight.inc()

    def settle(self, permit: Permit, outcome: Outcome, age_seconds: float, pause_seconds: float) -> asyncio.Task[None]:
        """Start the task that reports the outcome of a permit's request."""
        state = self._state(permit.name)
        held = state.held.pop(permit.id, None)
        if held is not None and permit.sent:
            permit.meters.in_flight.dec()
        if outcome is Outcome.ANSWERED:
            state.streaming[permit.id] = permit
        else:
            state.streaming.pop(permit.id, None)
        permit.meters.answer(outcome)
        answered = self._loop.time() - age_seconds
        if outcome is not Outcome.UNSENT:
            state.note_answer(answered + (permit.policy.delivery_seconds if outcome is Outcome.LOST else 0.0))
        return self._start(self._settle(state, permit, outcome, answered, pause_seconds))

    async def settled(self, seconds: float) -> None:
        """Wait until every outcome is reported, for at most so many seconds."""
        if self._settling:
            await asyncio.wait(tuple(self._settling), timeout=seconds)

    async def _settle(
        self, state: UpstreamState[Permit], permit: Permit, outcome: Outcome, answered: float, pause_seconds: float
    ) -> None:
        policy = permit.policy
        late_ms, jitter = round(policy.delivery_seconds * 1000), _jitter()
        # At the end of the lease the store counts the request as answered; a later report changes nothing.
        while self._loop.time() < permit.lease_at or outcome is Outcome.ANSWERED:
            # The loop's clock may count whole milliseconds: the answer is never reported as older than it is.
            age_ms = max(0, int((self._loop.time() - answered) * 1000) - 1)
            try:
                reply = cast(
                    "list[Reply]",
                    await self._run(COMPLETE, state, permit.user, permit.user, permit.id, outcome, age_ms, late_ms,
                                    round(pause_seconds * 1000), policy.lease_ms, jitter),
                )  # fmt: skip
                state.learn(reply[0], reply[1])
                permit.paused_seconds = _int(reply[2]) / 1000
                return
            except Closed:
                raise
            except StoreUnavailable:
                await asyncio.sleep(STORE_PAUSE)

    async def _cancel(self, state: UpstreamState[Permit], policy: Upstream, user: str, waiter: str) -> None:
        limit = self._loop.time() + policy.lease_ms / 1000
        while self._loop.time() < limit:
            try:
                await self._run(CANCEL, state, user, user, waiter, policy.lease_ms)
                return
            except Closed:
                raise
            except StoreUnavailable:
                await asyncio.sleep(STORE_PAUSE)

    async def _run(
        self, what: Script, state: UpstreamState[Permit], user: str, *args: Arg, deadline: float | None = None
    ) -> Reply:
        state.meters.call(what.name)
        return await self._store.run(what, state.thing, *args, deadline=deadline, user=user)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._store.tasks.start(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    def meters(self, name: str) -> UpstreamMetrics:
        """Return an upstream's metrics."""
        return self._state(name).meters

    def _state(self, name: str) -> UpstreamState[Permit]:
        state = self._states.get(name)
        if self._beat is None:
            self._beat = self._store.tasks.start(self._keep_beating())
        if state is None:
            state = self._states[name] = UpstreamState(name, self.thing(name), self._beat_now)
            on_hint = state.subscriber(self._upstreams.expire)
            state.listening.enter_context(self._store.hints.listen(state.thing, "events", on_hint))
        return state

    # Heartbeats

    async def _keep_beating(self) -> None:
        """Send a heartbeat for our waiters and permits every second, and notice a loss of data by the replies."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._beat_now.wait()
            self._beat_now.clear()
            busy = [state for state in self._states.values() if state.busy() or state.beat_due]
            for name in [
                name for name, state in self._states.items() if state not in busy and not self._upstreams.knows(name)
            ]:
                self._states.pop(name).listening.close()
            await asyncio.gather(*(self._beat_once(state) for state in busy))

    async def _beat_once(self, state: UpstreamState[Permit]) -> None:
        beaten = self._loop.time()
        try:
            beat_due, state.beat_due = state.beat_due, False
            process = self.process if state.busy() else ""
            try:
                reply = cast(
                    "list[Reply]",
                    await self._store.run(BEAT, state.thing, process, state.reported_epoch, state.answered_ms()),
                )
            except HeadgateError:
                state.beat_due = beat_due
                raise
            if not reply[0]:
                await self._upstreams.get(state.name, fresh=True)  # writes back a policy that the store has lost
                self._beat_now.set()  # the next heartbeat then reports our permits
                return
            self._upstreams.confirm(state.name, int(cast("bytes", reply[1])))
            state.learn(reply[0], reply[1])
            state.reported_epoch = cast("bytes", reply[0])
            # The heartbeat arrived at some time between its start and now: measure the gap up to now, the next from its start.
            silent, state.last_beat = self._loop.time() - state.last_beat > SILENT_SECONDS, beaten
            if silent:
                state.lines.show_places()
            if state.unreported:
                state.unreported = False  # a loss from here on is a new one
                try:
                    await self._report(state)
                except HeadgateError:
                    state.unreported = True
                    raise
        except HeadgateError as error:
            log.debug("no sign of life could be given", upstream=state.name, error=error.detail)

    async def _report(self, state: UpstreamState[Permit]) -> None:
        """Report all permits that we hold, which the store may have lost: from unsent ones to streamed answers."""
        log.info("history may be lost, holding for one window", upstream=state.name)
        metrics.HOLDS.labels(state.name).inc()
        users: dict[str, list[Permit]] = {}
        for permit in (*state.held.values(), *state.streaming.values()):
            users.setdefault(permit.user, []).append(permit)
        await asyncio.gather(*(self._report_user(state, user, permits) for user, permits in users.items()))
        state.lines.show_places()

    async def _report_user(self, state: UpstreamState[Permit], user: str, permits: list[Permit]) -> None:
        ids = [permit.id for permit in permits]
        await self._store.run(REPORT, state.thing, user, permits[0].policy.lease_ms, *ids, user=user)


def _jitter() -> float:
    return secrets.randbelow(1000) / 1000


def _int(reply: Reply) -> int:
    return int(cast("bytes", reply))
