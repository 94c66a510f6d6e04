"""A server's side of the waiting room: seats on offer, kept alive by heartbeats, with a report of who is inside.

The store trusts a report only as far as its `asOf`. A redeem whose answer is still on its way must not be reported as
absent, so while redeems are under way, `asOf` stays at what was known when the oldest of them began. A redeem whose answer was
lost is undone by the next report, and its owner has the ticket back; so an end that could not be told is told before that report.

A server that is registered too has one heartbeat for both: its registration is renewed by the beat that renews its seats, after
them, so that nobody is registered who has no seats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from headgate.kit.ids import new_ulid
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError, StoreUnavailable
from headgate.kit.tasks import Tasks, cancel, finished
from headgate.waiting_room.model import BEAT_SECONDS, LEASE_MS, Reason
from headgate.waiting_room.wire import HeartbeatRequest, Redeemed

if TYPE_CHECKING:
    from headgate.sdk.queue_modes import QueueBackend

REPORT_EVERY = 10
RETRY_SECONDS = 0.5
LEAVE_SECONDS = 1.0
ENDS_AT_ONCE = 100

log = get_logger()


class Registration(Protocol):
    """What is told to others from the same heartbeat."""

    async def beat(self, offer: Offer) -> bool:
        """Renew it; False: it is not wanted any more."""

    async def leave(self, offer: Offer) -> None:
        """End it."""


class Offer:
    """Seats on offer. `sessions` is who is inside, `draining` is set when this server should take nobody new."""

    def __init__(
        self,
        line: QueueBackend,
        *,
        queue: str,
        capacity: int,
        max_capacity: int | None,
        address: str,
        instance_id: str | None,
        sessions: Sequence[str],
    ) -> None:
        self.queue = queue
        self.capacity = capacity
        self.max_capacity = max_capacity
        self.address = address
        self.instance_id = instance_id or new_ulid()
        self._named = bool(instance_id)
        self.sessions: set[str] = set(sessions)
        self.draining = asyncio.Event()
        self.registration: Registration | None = None
        self._line = line
        self._latest = 0
        self._under_way: dict[object, int] = {}
        self._redeems = 0
        self._report_in = 0
        self._untold: dict[str, Reason] = {}
        self._due = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._tasks = Tasks()

    async def __aenter__(self) -> Offer:
        await self._tasks.close()  # entered again, it takes back nothing any more
        self._tasks = Tasks()
        first = self._tasks.start(self.beat())
        try:
            await finished(first)
        except BaseException:
            # The seats may be on offer, and nobody is there: whoever was called to them would stand before a closed door.
            await self._withdraw(first)
            raise
        self._beating = self._tasks.start(self._keep_beating())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Whoever is cancelled while leaving has left all the same.
            await finished(self._tasks.start(self._end()))
        except HeadgateError as problem:
            log.warning("server could not sign off; its lease ends by itself", error=problem.detail)

    async def _withdraw(self, first: asyncio.Task[None]) -> None:
        """Take back what the first heartbeat may have offered; who was given a name has a moment for it.

        After that, the name may be that of a successor, and the seats are left to their lease. A name that was made here is nobody
        else's: its seats are taken back as long as that lasts.
        """
        leaving = self._tasks.start(self._take_back(first))
        try:
            await asyncio.wait((leaving,), timeout=LEAVE_SECONDS)
        finally:
            if self._named:
                first.cancel()
                leaving.cancel()

    async def _take_back(self, first: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + LEASE_MS / 1000
        await asyncio.wait((first,))  # whoever takes it back must come after it
        while loop.time() < limit:
            try:
                await self._leave()
                return
            except HeadgateError as problem:
                if isinstance(problem, Closed) or problem.status < 500:
                    return  # there is nothing to be taken back, or no way to do it
                log.debug("seats could not be taken back yet", queue=self.queue, error=problem.detail)
                await asyncio.sleep(RETRY_SECONDS)

    async def _end(self) -> None:
        if self._beating is not None:
            await cancel(self._beating)
        await self._leave()

    async def _leave(self) -> None:
        try:
            if self.registration is not None:
                await self.registration.leave(self)
        finally:
            await self._line.remove_server(self.queue, self.instance_id, drain=False)

    async def redeem(self, ticket_id: str, session_id: str) -> Redeemed:
        """Spend a ticket for a session on this server."""
        call = object()
        self._under_way[call] = self._latest
        self._redeems += 1
        try:
            redeemed = await self._line.redeem(self.queue, ticket_id, session_id, self.instance_id)
            self.sessions.add(session_id)
            self._latest = max(self._latest, redeemed.seq)
            return redeemed
        except StoreUnavailable:
            self._report_in = 0  # it may have been redeemed; the next report tells that nobody came in
            raise
        finally:
            del self._under_way[call]

    async def end(self, session_id: str, reason: Reason | str = Reason.LEFT) -> None:
        """End a session of this server; if the store is away, it is told with the next heartbeat."""
        self.sessions.discard(session_id)
        try:
            await self._line.end(self.queue, session_id, self.instance_id, Reason(reason))
        except StoreUnavailable:
            self._untold[session_id] = Reason(reason)
            self._report_in = 0
            raise

    async def _tell_ends(self) -> None:
        """Tell the ends that could not be told; to a report alone, a session that just began never did."""

        async def tell(session_id: str, reason: Reason) -> None:
            await self._line.end(self.queue, session_id, self.instance_id, reason)
            self._untold.pop(session_id, None)

        while some := tuple(self._untold.items())[:ENDS_AT_ONCE]:
            await asyncio.gather(*(tell(session_id, reason) for session_id, reason in some))

    async def drain(self) -> None:
        """Take nobody new: tickets already given are honoured and sessions stay."""
        self.draining.set()
        await self._line.remove_server(self.queue, self.instance_id, drain=True)
        if self.registration is not None:
            await self.registration.beat(self)

    def beat_soon(self) -> None:
        """Send the next heartbeat now, for a capacity that changed."""
        self._due.set()

    async def beat(self) -> None:
        """Renew the lease of the seats, and with it the registration; who is evicted there offers no more seats."""
        await self._beat_seats()
        if self.registration is not None and not await self.registration.beat(self) and not self.draining.is_set():
            await self.drain()

    async def _beat_seats(self) -> None:
        """Renew the lease; every so often, and whenever the store asks, say who is inside."""
        await self._tell_ends()
        reporting = self._report_in <= 0
        as_of = min(self._under_way.values(), default=self._latest)
        at_rest, redeems = not self._under_way, self._redeems
        # Before it is sent: whatever goes wrong meanwhile wants another.
        self._report_in = REPORT_EVERY if reporting else self._report_in - 1
        inside = sorted(self.sessions) if reporting else None
        request = HeartbeatRequest(
            queue=self.queue,
            capacity=self.capacity,
            max_capacity=self.max_capacity,
            address=self.address,
            sessions=inside,
            as_of=as_of,
        )
        beat = await self._line.heartbeat(self.instance_id, request)
        if at_rest and redeems == self._redeems and beat.seq > self._latest:
            # Somebody was let in whose answer never reached us, and nothing is on its way any more.
            self._latest, self._report_in = beat.seq, 0
            self._due.set()
        if not self.sessions.issuperset(inside or ()):
            # Who left meanwhile may have been reported after their end; say soon that they are gone.
            self._report_in = 0
        if beat.report:
            self._report_in = 0
            if reporting:
                self._due.set()  # the store takes a long report in parts
            else:
                await self._beat_seats()
        if beat.drain:
            self.draining.set()
        elif self.draining.is_set():  # the store could not be told, or has lost it
            await self._line.remove_server(self.queue, self.instance_id, drain=True)

    async def _keep_beating(self) -> None:
        pause = BEAT_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._due.wait()
            self._due.clear()
            try:
                await self.beat()
                pause = BEAT_SECONDS
            except Closed:
                # Nobody can be let in any more; the seats' lease ends by itself.
                self.draining.set()
                log.warning("the client was closed; its seats are offered no more", queue=self.queue)
                return
            except HeadgateError as error:
                # The store may have lost what it knew of us: say all of it as soon as it is back.
                self._report_in, pause = 0, RETRY_SECONDS
                log.warning("heartbeat failed", queue=self.queue, error=error.detail)
            except Exception:  # whatever the way to the store brings: without the next beat everybody inside is lost
                self._report_in, pause = 0, RETRY_SECONDS
                log.exception("heartbeat failed", queue=self.queue)
