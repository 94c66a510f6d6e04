"""`hg.queue`: join a queue and wait in it; for servers: offer seats, redeem tickets and end sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from time import monotonic

from headgate.kit.problems import Closed, HeadgateError, InvalidRequest, RateLimited, StoreUnavailable
from headgate.sdk.backends.queue import QueueBackend
from headgate.sdk.offer import Offer
from headgate.waiting_room.model import DEFAULT_QUEUE, EntryArguments, Reason, State
from headgate.waiting_room.signing import PublicKeys, Ticket
from headgate.waiting_room.wire import Board, Entry, Redeemed, RenewedSession, Servers, Status

_RETRY_SECONDS = 1.0
_KEYS_SECONDS = 1.0
_FRESH_SECONDS = 300.0
_REFRESH_SECONDS = 30.0
_IN_LINE = frozenset({State.WAITING, State.AWAY})


class Queue:
    """The waiting room for one client; `queue` defaults to `main` everywhere."""

    def __init__(self, backend: QueueBackend, namespace: str) -> None:
        self._backend = backend
        self._namespace = namespace
        self._keys: PublicKeys | None = None
        self._fetching = asyncio.Lock()
        self._fetches = 0
        self._fetch_after = 0.0
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
        # Over HTTP the token decides whether this caller is trusted; on the store every caller is.
        arguments = EntryArguments(nickname, user_id, proof, place_token, idempotency_key, trusted=True)
        return await self._backend.entry(queue, arguments)

    async def status(self, user_id: str, *, queue: str = DEFAULT_QUEUE, place_token: str | None = None) -> Status:
        """Give a user's status in a queue; asking for it also tells the queue that the user is still there."""
        return await self._backend.status(queue, user_id, place_token)

    async def wait(
        self, user_id: str, *, queue: str = DEFAULT_QUEUE, place_token: str | None = None
    ) -> AsyncGenerator[Status, None]:
        """Give each change until the wait is over; the last one is PROMOTED, or says why there is no more to wait for.

        An outage of the gateway or the store does not end it, nor does RateLimited: it goes on after a pause.
        """
        last: Status | None = None
        while True:
            pause = random.uniform(0.5, 1.5) * _RETRY_SECONDS
            try:
                async with aclosing(self._backend.stream(queue, user_id, place_token)) as statuses:
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
        await self._backend.leave(queue, user_id, place_token)

    async def board(self, queue: str = DEFAULT_QUEUE) -> Board:
        """Give the public view of a queue."""
        return await self._backend.board(queue)

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
            self._backend,
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
        return await self._backend.redeem(queue, ticket_id, session_id, instance_id)

    async def end(
        self,
        session_id: str,
        *,
        queue: str = DEFAULT_QUEUE,
        instance_id: str | None = None,
        reason: Reason | str = Reason.LEFT,
    ) -> None:
        """End a session; `dropped` keeps its seat for a while so that its owner may come back. May be repeated."""
        await self._backend.end(queue, session_id, instance_id, Reason(reason))

    async def renew(self, session_id: str, *, queue: str = DEFAULT_QUEUE) -> RenewedSession:
        """Renew a session that has no server for another `sessionTtlSeconds`; raises SessionUnknown once it is over."""
        return await self._backend.renew(queue, session_id)

    async def servers(self, queue: str = DEFAULT_QUEUE) -> Servers:
        """List the servers that offer seats."""
        return await self._backend.servers(queue)

    async def check_ticket(self, ticket: str, *, queue: str = DEFAULT_QUEUE, instance_id: str | None = None) -> Ticket:
        """Check a signed ticket by its signature alone; raises TicketInvalid or TicketExpired.

        The public keys and the store's time are fetched at first and then every five minutes. A ticket that passes may have
        been used: only `redeem` knows.
        """
        keys = await self._keys_for(ticket)
        return keys.check_ticket(
            ticket, queue=queue, instance_id=instance_id, namespace=self._namespace, now=self._backend.now()
        )

    async def _keys_for(self, ticket: str) -> PublicKeys:
        """Give the public keys; forged tickets that name unknown keys cause at most one fetch a second."""
        fetches = self._fetches
        if self._keys is not None and self._keys.knows(ticket):
            return await self._refreshed(self._keys)
        async with self._fetching:
            # A fetch that began after this call serves this call too.
            if self._keys is None or (self._fetches == fetches and not self._keys.knows(ticket)):
                await asyncio.sleep(max(0.0, self._fetch_after - monotonic()))
                self._keys = await self._fetch_keys()
            return self._keys

    async def _refreshed(self, keys: PublicKeys) -> PublicKeys:
        """Fetch the keys again from time to time, since the store's clock may be set; during an outage the old ones serve."""
        if monotonic() < self._refresh_at or self._fetching.locked():
            return keys
        async with self._fetching:
            self._refresh_at = monotonic() + _REFRESH_SECONDS
            try:
                self._keys = keys = await self._fetch_keys()
            except Closed:
                raise
            except HeadgateError:
                pass
            return keys

    async def _fetch_keys(self) -> PublicKeys:
        self._fetches += 1
        self._fetch_after = monotonic() + _KEYS_SECONDS
        keys = await self._backend.public_keys()
        self._refresh_at = monotonic() + _FRESH_SECONDS
        return keys


def _shown(status: Status | None) -> object:
    """Give the fields of a status that people see; a new poll interval alone is no change."""
    return status and (
        status.status, status.rank, status.eta, status.least_seconds, status.paused, status.ticket_id
    )  # fmt: skip
