"""`hg.queue`: stand in line, and, for servers, offer seats, redeem tickets and end sessions.

Both modes speak through the same small set of calls; in store mode they go to the waiting room itself, in HTTP mode to a
gateway's routes. What is built on top of them is the same code for both.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Protocol

import msgspec

from headgate.kit.ids import member_id
from headgate.kit.problems import Forbidden, InvalidRequest, RateLimited, StoreUnavailable
from headgate.sdk.answers import read_answer
from headgate.sdk.http import GatewayUnavailable, Http
from headgate.sdk.seats import Offer
from headgate.store import Store
from headgate.waiting_room import Beat, Board, Entry, Redeemed, Servers, State, Status, WaitingRoom
from headgate.waiting_room.model import DEFAULT_QUEUE, Reason
from headgate.waiting_room.problems import TicketInvalid
from headgate.waiting_room.signing import PublicKeys, Ticket

_RETRY_SECONDS = 1.0
_KEYS_SECONDS = 1.0
_IN_LINE = frozenset({State.WAITING, State.AWAY})


class Line(Protocol):
    """What both modes can do."""

    async def entry(
        self,
        queue: str,
        nickname: str,
        user_id: str | None,
        proof: str | None,
        place_token: str | None,
        idempotency_key: str | None,
    ) -> Entry: ...

    async def status(self, queue: str, user_id: str, place_token: str | None) -> Status: ...

    def stream(self, queue: str, user_id: str, place_token: str | None) -> AsyncGenerator[Status, None]: ...

    async def leave(self, queue: str, user_id: str, place_token: str | None) -> None: ...

    async def board(self, queue: str) -> Board: ...

    async def redeem(self, queue: str, ticket_id: str, session_id: str, instance_id: str | None) -> Redeemed: ...

    async def end(self, queue: str, session_id: str, instance_id: str | None, reason: Reason) -> None: ...

    async def heartbeat(
        self,
        queue: str,
        instance_id: str,
        *,
        capacity: int | None,
        max_capacity: int | None,
        address: str,
        sessions: Sequence[str] | None,
        as_of: int,
    ) -> Beat: ...

    async def remove_server(self, queue: str, instance_id: str, drain: bool) -> None: ...

    async def servers(self, queue: str) -> Servers: ...

    async def public_keys(self) -> PublicKeys: ...


class Queue:
    """The waiting room as a client sees it; `queue` defaults to `main` everywhere."""

    def __init__(self, line: Line, namespace: str) -> None:
        self._line = line
        self._namespace = namespace
        self._keys: PublicKeys | None = None
        self._asking = asyncio.Lock()
        self._asked = 0
        self._ask_after = 0.0

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
        return await self._line.entry(queue, nickname, user_id, proof, place_token, idempotency_key)

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

    async def servers(self, queue: str = DEFAULT_QUEUE) -> Servers:
        """Show who offers seats."""
        return await self._line.servers(queue)

    async def check_ticket(self, ticket: str, *, queue: str = DEFAULT_QUEUE, instance_id: str | None = None) -> Ticket:
        """Check a signed ticket without asking anybody, except once for the public keys; raises TicketInvalid or TicketExpired.

        A ticket that passes may have been used: only `redeem` knows.
        """
        keys = await self._keys_for(ticket)
        return keys.check_ticket(ticket, queue=queue, instance_id=instance_id, namespace=self._namespace)

    async def _keys_for(self, ticket: str) -> PublicKeys:
        """Give the public keys; made-up tickets that name unknown ones make us ask no more than once a second."""
        asked = self._asked
        if self._keys is not None and self._keys.knows(ticket):
            return self._keys
        async with self._asking:
            # Whoever asked after we came asked for us too.
            if self._keys is None or (self._asked == asked and not self._keys.knows(ticket)):
                await asyncio.sleep(max(0.0, self._ask_after - monotonic()))
                self._asked += 1
                self._ask_after = monotonic() + _KEYS_SECONDS
                self._keys = await self._line.public_keys()
            return self._keys


class StoreLine:
    """The waiting room beside the store: whoever holds the store's address is trusted."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._room = WaitingRoom(store)
        self._namespace = namespace

    async def entry(
        self,
        queue: str,
        nickname: str,
        user_id: str | None,
        proof: str | None,
        place_token: str | None,
        idempotency_key: str | None,
    ) -> Entry:
        return await self._room.entry(
            self._namespace,
            queue,
            nickname,
            user_id=user_id,
            proof=proof,
            place_token=place_token,
            idempotency_key=idempotency_key,
            trusted=True,
        )

    async def status(self, queue: str, user_id: str, place_token: str | None) -> Status:
        return await self._room.status(self._namespace, queue, user_id, place_token=place_token, trusted=True)

    def stream(self, queue: str, user_id: str, place_token: str | None) -> AsyncGenerator[Status, None]:
        return self._room.watch(self._namespace, queue, user_id, place_token=place_token, trusted=True)

    async def leave(self, queue: str, user_id: str, place_token: str | None) -> None:
        await self._room.leave(self._namespace, queue, user_id, place_token=place_token, trusted=True)

    async def board(self, queue: str) -> Board:
        return await self._room.board(self._namespace, queue)

    async def redeem(self, queue: str, ticket_id: str, session_id: str, instance_id: str | None) -> Redeemed:
        return await self._room.redeem(self._namespace, queue, ticket_id, session_id, instance_id)

    async def end(self, queue: str, session_id: str, instance_id: str | None, reason: Reason) -> None:
        await self._room.end(self._namespace, queue, session_id, instance_id, reason)

    async def heartbeat(
        self,
        queue: str,
        instance_id: str,
        *,
        capacity: int | None,
        max_capacity: int | None,
        address: str,
        sessions: Sequence[str] | None,
        as_of: int,
    ) -> Beat:
        return await self._room.heartbeat(
            self._namespace,
            queue,
            instance_id,
            capacity=capacity,
            max_capacity=max_capacity,
            address=address,
            sessions=sessions,
            as_of=as_of,
        )

    async def remove_server(self, queue: str, instance_id: str, drain: bool) -> None:
        await self._room.remove_server(self._namespace, queue, instance_id, drain=drain)

    async def servers(self, queue: str) -> Servers:
        return await self._room.servers(self._namespace, queue)

    async def public_keys(self) -> PublicKeys:
        return await self._room.public_keys()


class HttpLine:
    """The waiting room through a gateway."""

    def __init__(self, http: Http, namespace: str) -> None:
        self._http = http
        self._namespace = namespace

    async def entry(
        self,
        queue: str,
        nickname: str,
        user_id: str | None,
        proof: str | None,
        place_token: str | None,
        idempotency_key: str | None,
    ) -> Entry:
        body = {"queue": queue, "nickname": nickname, "userId": user_id, "proof": proof}
        headers = _token(place_token)
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        return await self._http.request(
            "POST",
            "/api/queue/entry",
            query={"namespace": self._namespace},
            body={name: value for name, value in body.items() if value is not None},
            headers=headers,
            answer=Entry,
        )

    async def status(self, queue: str, user_id: str, place_token: str | None) -> Status:
        return await self._http.request(
            "GET",
            "/api/queue/status",
            query=self._query(queue, userId=user_id),
            headers=_token(place_token),
            answer=Status,
        )

    async def stream(self, queue: str, user_id: str, place_token: str | None) -> AsyncGenerator[Status, None]:
        query = self._query(queue, userId=user_id)
        async with self._http.events("/api/queue/stream", query=query, headers=_token(place_token)) as events:
            async for event in events:
                if event.event == "status":
                    try:
                        status = read_answer(event.data, Status)
                    except msgspec.DecodeError as error:
                        raise GatewayUnavailable(f"The stream brought what is no status: {error}.") from error
                    yield status

    async def leave(self, queue: str, user_id: str, place_token: str | None) -> None:
        await self._http.request(
            "DELETE",
            "/api/queue/entry",
            query=self._query(queue, userId=user_id),
            headers=_token(place_token),
            answer=type(None),
        )

    async def board(self, queue: str) -> Board:
        return await self._http.request("GET", "/api/queue/board", query=self._query(queue), answer=Board)

    async def redeem(self, queue: str, ticket_id: str, session_id: str, instance_id: str | None) -> Redeemed:
        body = {"queue": queue, "sessionId": session_id} | ({"instanceId": instance_id} if instance_id else {})
        return await self._http.request(
            "POST",
            f"/api/queue/tickets/{_ticket(ticket_id)}/redeem",
            query={"namespace": self._namespace},
            body=body,
            answer=Redeemed,
        )

    async def end(self, queue: str, session_id: str, instance_id: str | None, reason: Reason) -> None:
        body = {"queue": queue, "reason": reason} | ({"instanceId": instance_id} if instance_id else {})
        await self._http.request(
            "POST",
            f"/api/queue/sessions/{member_id(session_id, 'sessionId')}/end",
            query={"namespace": self._namespace},
            body=body,
            answer=type(None),
        )

    async def heartbeat(
        self,
        queue: str,
        instance_id: str,
        *,
        capacity: int | None,
        max_capacity: int | None,
        address: str,
        sessions: Sequence[str] | None,
        as_of: int,
    ) -> Beat:
        body = {
            "queue": queue,
            "capacity": capacity,
            "maxCapacity": max_capacity,
            "address": address,
            "sessions": sessions,
            "asOf": as_of,
        }
        return await self._http.request(
            "PUT",
            _server(instance_id),
            query={"namespace": self._namespace},
            body={name: value for name, value in body.items() if value is not None},
            answer=Beat,
        )

    async def remove_server(self, queue: str, instance_id: str, drain: bool) -> None:
        await self._http.request(
            "DELETE", _server(instance_id), query=self._query(queue, drain=drain), answer=type(None)
        )

    async def servers(self, queue: str) -> Servers:
        return await self._http.request("GET", "/api/queue/servers", query=self._query(queue), answer=Servers)

    async def public_keys(self) -> PublicKeys:
        return PublicKeys.read((await self._http.send("GET", "/.well-known/jwks.json")).content)

    def _query(self, queue: str, **more: str | bool) -> dict[str, str | bool]:
        return {"queue": queue, "namespace": self._namespace, **more}


def queue_of(backend: Http | Store, namespace: str) -> Queue:
    """Make the part for a client's mode."""
    line = HttpLine(backend, namespace) if isinstance(backend, Http) else StoreLine(backend, namespace)
    return Queue(line, namespace)


def _token(place_token: str | None) -> dict[str, str]:
    if place_token and not (place_token.isascii() and place_token.isprintable()):
        raise Forbidden("This place token is not one of ours.")  # and it cannot even be sent
    return {"X-Place-Token": place_token} if place_token else {}


def _ticket(ticket_id: str) -> str:
    """Check what becomes part of an address; it comes from a player, who might name another address with it."""
    try:
        return member_id(ticket_id, "ticketId")
    except InvalidRequest as error:
        raise TicketInvalid from error


def _server(instance_id: str) -> str:
    return f"/api/queue/servers/{member_id(instance_id, 'instanceId')}"


def _shown(status: Status | None) -> object:
    """Give the part of a status that people see; a new poll interval alone is no change."""
    return status and (status.status, status.rank, status.eta, status.least_seconds, status.ticket_id)
