"""The seats that a server offers to a queue, kept alive by heartbeats that also report its open sessions.

A report counts only up to its `asOf`, a number of the store that grows with each redeemed ticket. A redeem in flight must not be
reported as absent, so `asOf` stays at the number known when the oldest redeem in flight began. A redeem whose response was lost
is undone by the next report, and its owner has the ticket back; so ends of sessions that failed are sent before that report.

A server that is registered too has one heartbeat for both: its registration is renewed after its seats, so that no server is
registered without seats.
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
    from headgate.sdk.backends.queue import QueueBackend

REPORT_EVERY = 10
RETRY_SECONDS = 0.5
LEAVE_SECONDS = 1.0
ENDS_AT_ONCE = 100

log = get_logger()


class Registration(Protocol):
    """A registration that is renewed with each heartbeat of the seats."""

    async def beat(self, offer: Offer) -> bool:
        """Renew it; False if an operator has evicted it."""

    async def leave(self, offer: Offer) -> None:
        """End it."""


class Offer:
    """Seats on offer. `sessions` are the open sessions; `draining` is set when this server should take no new ones."""

    def __init__(
        self,
        backend: QueueBackend,
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
        self._backend = backend
        self._latest = 0
        self._redeeming: dict[object, int] = {}
        self._redeems = 0
        self._report_in = 0
        self._unsent_ends: dict[str, Reason] = {}
        self._due = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._tasks = Tasks()

    async def __aenter__(self) -> Offer:
        await self._tasks.close()  # withdrawals of an earlier use end here
        self._tasks = Tasks()
        first = self._tasks.start(self.beat())
        try:
            await finished(first)
        except BaseException:
            # The seats may be on offer although this server does not start: no user may be sent to them.
            await self._withdraw(first)
            raise
        self._beating = self._tasks.start(self._keep_beating())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # The removal goes on even if this task is cancelled meanwhile.
            await finished(self._tasks.start(self._end()))
        except HeadgateError as problem:
            log.warning("server could not sign off; its lease ends by itself", error=problem.detail)

    async def _withdraw(self, first: asyncio.Task[None]) -> None:
        """Withdraw the seats that the first heartbeat may have offered.

        With an id given by the caller this is tried for a second only: a successor may use the id then, and the lease ends by
        itself. An id that was made here is unique: its seats are withdrawn in the background for as long as a lease lasts.
        """
        leaving = self._tasks.start(self._retry_leaving(first))
        try:
            await asyncio.wait((leaving,), timeout=LEAVE_SECONDS)
        finally:
            if self._named:
                first.cancel()
                leaving.cancel()

    async def _retry_leaving(self, first: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + LEASE_MS / 1000
        await asyncio.wait((first,))  # the removal must come after it
        while loop.time() < limit:
            try:
                await self._leave()
                return
            except HeadgateError as problem:
                if isinstance(problem, Closed) or problem.status < 500:
                    return  # there are no seats, or they cannot be withdrawn
                log.debug("seats not withdrawn yet", queue=self.queue, error=problem.detail)
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
            await self._backend.remove_server(self.queue, self.instance_id, drain=False)

    async def redeem(self, ticket_id: str, session_id: str) -> Redeemed:
        """Spend a ticket for a session on this server."""
        call = object()
        self._redeeming[call] = self._latest
        self._redeems += 1
        try:
            redeemed = await self._backend.redeem(self.queue, ticket_id, session_id, self.instance_id)
            self.sessions.add(session_id)
            self._latest = max(self._latest, redeemed.seq)
            return redeemed
        except StoreUnavailable:
            self._report_in = 0  # it may have been redeemed; the next report undoes it
            raise
        finally:
            del self._redeeming[call]

    async def end(self, session_id: str, reason: Reason | str = Reason.LEFT) -> None:
        """End a session of this server; if the store is unavailable, this is repeated with the next heartbeat."""
        self.sessions.discard(session_id)
        try:
            await self._backend.end(self.queue, session_id, self.instance_id, Reason(reason))
        except StoreUnavailable:
            self._unsent_ends[session_id] = Reason(reason)
            self._report_in = 0
            raise

    async def _send_ends(self) -> None:
        """Send the ends that failed; a report alone would undo the redeem of a session that had just begun."""

        async def send(session_id: str, reason: Reason) -> None:
            await self._backend.end(self.queue, session_id, self.instance_id, reason)
            self._unsent_ends.pop(session_id, None)

        while some := tuple(self._unsent_ends.items())[:ENDS_AT_ONCE]:
            await asyncio.gather(*(send(session_id, reason) for session_id, reason in some))

    async def drain(self) -> None:
        """Take no new sessions: tickets already given are honoured and open sessions stay."""
        self.draining.set()
        await self._backend.remove_server(self.queue, self.instance_id, drain=True)
        if self.registration is not None:
            await self.registration.beat(self)

    def beat_soon(self) -> None:
        """Send the next heartbeat now, for a capacity that changed."""
        self._due.set()

    async def beat(self) -> None:
        """Renew the lease of the seats and then the registration; a server that is evicted from the registry drains."""
        await self._beat_seats()
        if self.registration is not None and not await self.registration.beat(self) and not self.draining.is_set():
            await self.drain()

    async def _beat_seats(self) -> None:
        """Renew the lease of the seats; every tenth time, and whenever the store asks, report the open sessions."""
        await self._send_ends()
        reporting = self._report_in <= 0
        as_of = min(self._redeeming.values(), default=self._latest)
        idle, redeems = not self._redeeming, self._redeems
        # Set before sending, because a failure meanwhile sets it to 0 again.
        self._report_in = REPORT_EVERY if reporting else self._report_in - 1
        reported = sorted(self.sessions) if reporting else None
        request = HeartbeatRequest(self.queue, self.capacity, self.max_capacity, self.address, reported, as_of)
        beat = await self._backend.heartbeat(self.instance_id, request)
        if idle and redeems == self._redeems and beat.seq > self._latest:
            # A redeem succeeded whose response was lost, and none is in flight.
            self._latest, self._report_in = beat.seq, 0
            self._due.set()
        if not self.sessions.issuperset(reported or ()):
            # Sessions that ended meanwhile may have been reported after their end; the next heartbeat corrects it.
            self._report_in = 0
        if beat.report:
            self._report_in = 0
            if reporting:
                self._due.set()  # the store takes a long report in parts
            else:
                await self._beat_seats()
        if beat.drain:
            self.draining.set()
        elif self.draining.is_set():  # the call failed, or the store has lost it
            await self._backend.remove_server(self.queue, self.instance_id, drain=True)

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
                # No ticket can be redeemed any more; the lease of the seats ends by itself.
                self.draining.set()
                log.warning("the client was closed; its seats are offered no more", queue=self.queue)
                return
            except HeadgateError as error:
                # The store may have lost this server: report everything as soon as it is back.
                self._report_in, pause = 0, RETRY_SECONDS
                log.warning("heartbeat failed", queue=self.queue, error=error.detail)
            except Exception:  # without further heartbeats all sessions would be lost
                self._report_in, pause = 0, RETRY_SECONDS
                log.exception("heartbeat failed", queue=self.queue)
