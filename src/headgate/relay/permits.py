"""Permits: the right to send one request, granted by the store in the order of arrival.

Three states, and what a cancel means in each: waiting (free), granted but not sent on (free), sent (must cool). A holder
must begin to send before `send_by`, a moment of its own monotonic clock that was fixed before it asked; whatever pauses
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
from headgate.relay.metrics import Meters
from headgate.relay.model import NAMESPACE, SEND_MS, Outcome, Upstream, UpstreamView
from headgate.relay.problems import LineFull, PermitExpired, UpstreamUnknown
from headgate.relay.upstream_site import UpstreamSite
from headgate.relay.upstreams import Upstreams
from headgate.relay.waiting import PermitWaiter
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
SILENT_SECONDS: Final = 3.0  # a second less than the store takes us for dead after
STORE_PAUSE: Final = 0.25
GRANTED, WAITING, TOO_LATE, FULL = 1, 0, 2, 3

log = get_logger()
_PERMIT = re.compile(r"r[0-9a-f]{12}\.[0-9]{1,15}\.[0-9]{1,4}")


class Permit:
    """A permit in hand; told what became of its request exactly once."""

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
        """Tell whether anything may have left for the upstream."""
        return self._sent

    def sending(self) -> None:
        """Say that the first byte leaves now; raises PermitExpired if that would be too late."""
        if asyncio.get_running_loop().time() >= self.send_by:
            self.meters.late_permits.inc()
            raise PermitExpired
        if not self._sent:
            self._sent = True
            self._permits.sends(self)

    def settle(
        self, outcome: Outcome, *, age_seconds: float = 0.0, pause_seconds: float = 0.0
    ) -> asyncio.Task[None] | None:
        """Tell the store how it went, in the background and until it hears it or the lease has ended."""
        if self._settled:
            return None
        self._settled = outcome is not Outcome.ANSWERED
        return self._permits.settle(self, outcome, age_seconds, pause_seconds)

    def hand_over(self) -> None:
        """Leave this permit to somebody in another process, who tells the store themselves."""
        self._settled = True
        self._permits.hand_over(self)

    def give_back(self) -> None:
        """End a permit in whatever state it is, without knowing more: free if unsent, else perhaps still on its way."""
        self.settle(Outcome.LOST if self._sent else Outcome.UNSENT)


class Permits:
    """Asks the store for permits and waits for them, for one process."""

    def __init__(self, store: Store, upstreams: Upstreams) -> None:
        self.process = f"r{secrets.token_hex(6)}"
        self._store = store
        self._upstreams = upstreams
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._sites: dict[str, UpstreamSite[Permit]] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._calls = CallsInProgress()
        self._closing = False
        self._beat: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(self._loop.time() + CLOSE_SECONDS)

    def refuse(self) -> None:
        """Tell whoever asks or waits that this client closes."""
        self._closing = True
        for site in self._sites.values():
            site.lines.call_all()

    async def close(self, limit: float) -> None:
        """Refuse everybody, and let the store hear of every permit and of whoever left a line, until then."""
        self.refuse()
        await self._calls.finished(limit - self._loop.time())
        await self.settled(limit - self._loop.time())
        if self._beat is not None:
            self._beat.cancel()
        for site in self._sites.values():
            site.listening.close()
            site.meters.tell()

    def thing(self, name: str) -> Thing:
        """Name an upstream's thing."""
        return self._store.thing("upstream", NAMESPACE, name)

    async def acquire(
        self, name: str, policy: Upstream, user: str, *, deadline: float, units: int = 1, place: int = 0, most: int | None = None
    ) -> Permit:  # fmt: skip
        """Wait in line for a permit until the deadline; a place given by an earlier permit is kept."""
        site = self._site(name)
        started = self._loop.time()
        most = policy.max_waiting if most is None else most
        position = -1
        with self._calls, site.lines.join(user, f"{self.process}.{next(self._numbers)}.{units}") as waiter:
            waiter.place = place
            waits = False
            try:
                while True:
                    asked = self._loop.time()
                    reply = await self._ask(site, policy, user, waiter, most, deadline)
                    self._refuse_when_closing()  # nobody would hear how it was used
                    how, ms, exact = cast("int", reply[0]), _int(reply[3]), reply[4] == 1
                    waiter.place = _int(reply[1])
                    if position < 0:
                        position = cast("int", reply[2])
                    site.learn(reply[7], reply[8])
                    if how == GRANTED:
                        room, used = cast("int", reply[5]), cast("int", reply[6])
                        waited = self._loop.time() - started
                        site.note_grant(waited, room, used)
                        permit = Permit(self, name, policy, user, waiter, position=position, waited=waited,
                                        asked=asked, left_ms=ms, room=max(0, room))  # fmt: skip
                        site.held[permit.id] = permit
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
                    site.heard = max(site.heard, asked)
                    if not waits:
                        waits = True
                        site.meters.waiting.inc()
                    await waiter.turn(waiter.place, ms / 1000, exact=exact, deadline=deadline)
                    if self._loop.time() >= deadline:
                        raise DeadlineExceeded("Its turn did not come before your deadline.")
            except BaseException:
                self._start(self._cancel(site, policy, user, waiter.id))
                raise
            finally:
                if waits:
                    site.meters.waiting.dec()

    async def _ask(
        self, site: UpstreamSite[Permit], policy: Upstream, user: str, waiter: PermitWaiter, most: int, deadline: float
    ) -> list[Reply]:
        """Ask once; while the store is away, wait and ask again until the deadline.

        A store that is out of memory goes on with those who have a place, and refuses the others at once.
        """
        what = ACQUIRE
        while True:
            self._refuse_when_closing()
            now = self._loop.time()
            waiter.asks()
            limit = min(deadline, now + 2.0)
            try:
                reply = await self._run(
                    what, site, user, user, waiter.id, waiter.place, max(0, int((deadline - now) * 1000)), most,
                    policy.lease_ms, deadline=limit,
                )  # fmt: skip
                return cast("list[Reply]", reply)
            except UpstreamUnknown:
                await self._upstreams.get(site.name, fresh=True)  # brings back a policy that the store has lost
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
        """Forget a permit that is used elsewhere."""
        self._site(permit.name).held.pop(permit.id, None)

    async def complete(
        self, view: UpstreamView, user: str, permit: str, outcome: Outcome, *, age_ms: int, pause_seconds: float
    ) -> None:
        """Tell the store how a permit was used in another process."""
        if not _PERMIT.fullmatch(permit):
            raise InvalidRequest("This is not the id of a permit.", field="permit")
        policy, site = view.policy, self._site(view.name)
        late_ms, pause_ms = round(policy.delivery_seconds * 1000), round(pause_seconds * 1000)
        if outcome is not Outcome.UNSENT:
            site.note_answer(self._loop.time() - age_ms / 1000 + (late_ms / 1000 if outcome is Outcome.LOST else 0.0))
        await self._run(
            COMPLETE, site, user, user, permit, outcome, age_ms, late_ms, pause_ms, policy.lease_ms,
            _jitter(),
        )  # fmt: skip

    def sends(self, permit: Permit) -> None:
        """Count a request that leaves."""
        permit.meters.sends.inc()
        permit.meters.in_flight.inc()

    def settle(self, permit: Permit, outcome: Outcome, age_seconds: float, pause_seconds: float) -> asyncio.Task[None]:
        """Begin to tell the store how a permit's request went."""
        site = self._site(permit.name)
        held = site.held.pop(permit.id, None)
        if held is not None and permit.sent:
            permit.meters.in_flight.dec()
        if outcome is Outcome.ANSWERED:
            site.streaming[permit.id] = permit
        else:
            site.streaming.pop(permit.id, None)
        permit.meters.answer(outcome)
        answered = self._loop.time() - age_seconds
        if outcome is not Outcome.UNSENT:
            site.note_answer(answered + (permit.policy.delivery_seconds if outcome is Outcome.LOST else 0.0))
        return self._start(self._settle(site, permit, outcome, answered, pause_seconds))

    async def settled(self, seconds: float) -> None:
        """Wait until the store has heard of every permit, or so long."""
        if self._settling:
            await asyncio.wait(tuple(self._settling), timeout=seconds)

    async def _settle(
        self, site: UpstreamSite[Permit], permit: Permit, outcome: Outcome, answered: float, pause_seconds: float
    ) -> None:
        policy = permit.policy
        late_ms, jitter = round(policy.delivery_seconds * 1000), _jitter()
        # After the lease the store takes the request for answered then; a word after that changes nothing.
        while self._loop.time() < permit.lease_at or outcome is Outcome.ANSWERED:
            # The loop's clock may count whole milliseconds: the answer is never taken for older than it is.
            age_ms = max(0, int((self._loop.time() - answered) * 1000) - 1)
            try:
                reply = cast(
                    "list[Reply]",
                    await self._run(COMPLETE, site, permit.user, permit.user, permit.id, outcome, age_ms, late_ms,
                                    round(pause_seconds * 1000), policy.lease_ms, jitter),
                )  # fmt: skip
                site.learn(reply[0], reply[1])
                permit.paused_seconds = _int(reply[2]) / 1000
                return
            except Closed:
                raise
            except StoreUnavailable:
                await asyncio.sleep(STORE_PAUSE)

    async def _cancel(self, site: UpstreamSite[Permit], policy: Upstream, user: str, waiter: str) -> None:
        limit = self._loop.time() + policy.lease_ms / 1000
        while self._loop.time() < limit:
            try:
                await self._run(CANCEL, site, user, user, waiter, policy.lease_ms)
                return
            except Closed:
                raise
            except StoreUnavailable:
                await asyncio.sleep(STORE_PAUSE)

    async def _run(
        self, what: Script, site: UpstreamSite[Permit], user: str, *args: Arg, deadline: float | None = None
    ) -> Reply:
        site.meters.call(what.name)
        return await self._store.run(what, site.thing, *args, deadline=deadline, user=user)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._store.tasks.start(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    def meters(self, name: str) -> Meters:
        """Give an upstream's metrics."""
        return self._site(name).meters

    def _site(self, name: str) -> UpstreamSite[Permit]:
        site = self._sites.get(name)
        if self._beat is None:
            self._beat = self._store.tasks.start(self._keep_beating())
        if site is None:
            site = self._sites[name] = UpstreamSite(name, self.thing(name), self._hurry)
            hear = site.hear(self._upstreams.doubt)
            site.listening.enter_context(self._store.hints.listen(site.thing, "events", hear))
        return site

    # Signs of life

    async def _keep_beating(self) -> None:
        """Tell the store every second that our waiters and permits are alive, and notice a lost history."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._hurry.wait()
            self._hurry.clear()
            busy = [site for site in self._sites.values() if site.busy() or site.unheard]
            for name in [
                name for name, site in self._sites.items() if site not in busy and not self._upstreams.knows(name)
            ]:
                self._sites.pop(name).listening.close()
            await asyncio.gather(*(self._beat_once(site) for site in busy))

    async def _beat_once(self, site: UpstreamSite[Permit]) -> None:
        beaten = self._loop.time()
        try:
            told, site.unheard = site.unheard, False
            process = self.process if site.busy() else ""
            try:
                reply = cast(
                    "list[Reply]",
                    await self._store.run(BEAT, site.thing, process, site.told_epoch, site.answered_ms()),
                )
            except HeadgateError:
                site.unheard = told
                raise
            if not reply[0]:
                await self._upstreams.get(site.name, fresh=True)  # brings back a policy that the store has lost
                self._hurry.set()  # and says then what we have in hand
                return
            self._upstreams.confirm(site.name, int(cast("bytes", reply[1])))
            site.learn(reply[0], reply[1])
            site.told_epoch = cast("bytes", reply[0])
            # The store heard us at some moment between then and now: it may have been silent until just now.
            silent, site.heard = self._loop.time() - site.heard > SILENT_SECONDS, beaten
            if silent:
                site.lines.show_places()
            if site.unreported:
                site.unreported = False  # from here on, what is lost is lost anew
                try:
                    await self._report(site)
                except HeadgateError:
                    site.unreported = True
                    raise
        except HeadgateError as error:
            log.debug("no sign of life could be given", upstream=site.name, error=error.detail)

    async def _report(self, site: UpstreamSite[Permit]) -> None:
        """Say again what is in hand, from not yet sent to not yet ended: the store may have forgotten it."""
        log.info("history may be lost, holding for one window", upstream=site.name)
        metrics.HOLDS.labels(site.name).inc()
        users: dict[str, list[Permit]] = {}
        for permit in (*site.held.values(), *site.streaming.values()):
            users.setdefault(permit.user, []).append(permit)
        await asyncio.gather(*(self._report_user(site, user, permits) for user, permits in users.items()))
        site.lines.show_places()

    async def _report_user(self, site: UpstreamSite[Permit], user: str, permits: list[Permit]) -> None:
        ids = [permit.id for permit in permits]
        await self._store.run(REPORT, site.thing, user, permits[0].policy.lease_ms, *ids, user=user)


def _jitter() -> float:
    return secrets.randbelow(1000) / 1000


def _int(reply: Reply) -> int:
    return int(cast("bytes", reply))
