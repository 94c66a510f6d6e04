"""`hg.queue`: stand in line, and, for servers, offer seats, redeem tickets and end sessions.

Both modes speak through the same small set of calls, in `queue_modes`. What is built on top of them is the same code for both.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from time import monotonic

from headgate.kit.problems import Closed, HeadgateError, InvalidRequest, RateLimited, StoreUnavailable
from headgate.sdk.http import Http
from headgate.sdk.queue_modes import HttpQueueBackend, QueueBackend, StoreQueueBackend
from headgate.sdk.seats import Offer
from headgate.store import Store
from headgate.waiting_room.model import DEFAULT_QUEUE, EntryArguments, Reason, State
from headgate.waiting_room.signing import PublicKeys, Ticket
from headgate.waiting_room.wire import Board, Entry, Redeemed, RenewedSession, Servers, Status

_RETRY_SECONDS = 1.0
_KEYS_SECONDS = 1.0
_FRESH_SECONDS = 300.0
_REFRESH_SECONDS = 30.0
_IN_LINE = frozenset({State.WAITING, State.AWAY})


class Queue:
    """The waiting room as a client sees it; `queue` defaults to `main` everywhere."""

    def __init__(self, line: QueueBackend, namespace: str) -> None:
        self._line = line
        self._namespace = namespace
        self._keys: PublicKeys | None = None
        self._asking = asyncio.Lock()
        self._asked = 0
        self._ask_after = 0.0
        self._refresh_at = 0.0

    async def entry(
        self,
        nickname: str,
        *,
        queue: str = DEFAULT_QUEUE,
        user_id: str | None = None,
        proof: str | None = None,
        place_token: str | None = None,
        idempotency_key: str | None = None,
    ) -> Entry:
        """Join a queue; the same user keeps the same place however often this is called."""
        if idempotency_key is not None and not (idempotency_key.isascii() and idempotency_key.isprintable()):
            raise InvalidRequest("Idempotency-Key must be printable ASCII.", field="Idempotency-Key")
        # Over HTTP the token decides whether this caller is trusted; beside the store every caller is.
        arguments = EntryArguments(nickname, user_id, proof, place_token, idempotency_key, trusted=True)
        return await self._line.entry(queue, arguments)

    async def status(self, user_id: str, *, queue: str = DEFAULT_QUEUE, place_token: str | None = None) -> Status:
        """Ask where somebody stands; this also says that they are still there."""
        return await self._line.status(queue, user_id, place_token)

    async def wait(
        self, user_id: str, *, queue: str = DEFAULT_QUEUE, place_token: str | None = None
    ) -> AsyncGenerator[Status, None]:
        """Give each change until the wait is over; the last one is PROMOTED, or says why there is no more to wait for.

        An outage of the gateway or the store does not end it, and who is told to ask less often does so.
        """
        last: Status | None = None
        while True:
            pause = random.uniform(0.5, 1.5) * _RETRY_SECONDS
            try:
                async with aclosing(self._line.stream(queue, user_id, place_token)) as statuses:
                    async for status in statuses:
                        if _shown(status) != _shown(last):
                            yield status
                        last = status
                        if status.status not in _IN_LINE:
                            return
            except Closed:
                raise
            except (StoreUnavailable, RateLimited) as error:
                pause = max(pause, error.retry_after or 0.0)
            await asyncio.sleep(pause)

    async def leave(self, user_id: str, *, queue: str = DEFAULT_QUEUE, place_token: str | None = None) -> None:
        """Give up the place, or the ticket and its seat; may be repeated."""
        await self._line.leave(queue, user_id, place_token)

    async def board(self, queue: str = DEFAULT_QUEUE) -> Board:
        """Look at the line as everybody may see it."""
        return await self._line.board(queue)

    def offer_seats(
        self,
        *,
        capacity: int,
        address: str,
        queue: str = DEFAULT_QUEUE,
        max_capacity: int | None = None,
        instance_id: str | None = None,
        sessions: Sequence[str] = (),
    ) -> Offer:
        """Offer seats as a server for as long as the block lasts: `async with hg.queue.offer_seats(…) as offer:`."""
        return Offer(
            self._line,
            queue=queue,
            capacity=capacity,
            max_capacity=max_capacity,
            address=address,
            instance_id=instance_id,
            sessions=sessions,
        )

    async def redeem(
        self, ticket_id: str, *, session_id: str, queue: str = DEFAULT_QUEUE, instance_id: str | None = None
    ) -> Redeemed:
        """Spend a ticket for a session, exactly once; the same session gets the same answer again."""
        return await self._line.redeem(queue, ticket_id, session_id, instance_id)

    async def end(
        self,
        session_id: str,
        *,
        queue: str = DEFAULT_QUEUE,
        instance_id: str | None = None,
        reason: Reason | str = Reason.LEFT,
    ) -> None:
        """End a session; `dropped` keeps its seat for a while so that its owner may come back. May be repeated."""
        await self._line.end(queue, session_id, instance_id, Reason(reason))

    async def renew(self, session_id: str, *, queue: str = DEFAULT_QUEUE) -> RenewedSession:
        """Renew a session that has no server for another `sessionTtlSeconds`; raises SessionUnknown once it is over."""
        return await self._line.renew(queue, session_id)

    async def servers(self, queue: str = DEFAULT_QUEUE) -> Servers:
        """Show who offers seats."""
        return await self._line.servers(queue)

    async def check_ticket(self, ticket: str, *, queue: str = DEFAULT_QUEUE, instance_id: str | None = None) -> Ticket:
        """Check a signed ticket without asking anybody; raises TicketInvalid or TicketExpired.

        Only the public keys and the store's time are asked for, at first and then every five minutes. A ticket that passes may
        have been used: only `redeem` knows.
        """
        keys = await self._keys_for(ticket)
        return keys.check_ticket(
            ticket, queue=queue, instance_id=instance_id, namespace=self._namespace, now=self._line.now()
        )

    async def _keys_for(self, ticket: str) -> PublicKeys:
        """Give the public keys; made-up tickets that name unknown ones make us ask no more than once a second."""
        asked = self._asked
        if self._keys is not None and self._keys.knows(ticket):
            return await self._refreshed(self._keys)
        async with self._asking:
            # Whoever asked after we came asked for us too.
            if self._keys is None or (self._asked == asked and not self._keys.knows(ticket)):
                await asyncio.sleep(max(0.0, self._ask_after - monotonic()))
                self._keys = await self._ask_keys()
            return self._keys

    async def _refreshed(self, keys: PublicKeys) -> PublicKeys:
        """Ask again from time to time, since the store's clock may be set; while nobody answers, go by what is known."""
        if monotonic() < self._refresh_at or self._asking.locked():
            return keys
        async with self._asking:
            self._refresh_at = monotonic() + _REFRESH_SECONDS
            try:
                self._keys = keys = await self._ask_keys()
            except Closed:
                raise
            except HeadgateError:
                pass
            return keys

    async def _ask_keys(self) -> PublicKeys:
        self._asked += 1
        self._ask_after = monotonic() + _KEYS_SECONDS
        keys = await self._line.public_keys()
        self._refresh_at = monotonic() + _FRESH_SECONDS
        return keys


def queue_of(backend: Http | Store, namespace: str) -> Queue:
    """Make the part for a client's mode."""
    line = HttpQueueBackend(backend, namespace) if isinstance(backend, Http) else StoreQueueBackend(backend, namespace)
    return Queue(line, namespace)


def _shown(status: Status | None) -> object:
    """Give the part of a status that people see; a new poll interval alone is no change."""
    return status and (
        status.status, status.rank, status.eta, status.least_seconds, status.paused, status.ticket_id
    )  # fmt: skip
