"""The two ways to the waiting room: beside the store to the room itself, over HTTP to a gateway's routes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from math import isfinite
from time import monotonic
from typing import Protocol

import msgspec

from headgate.kit.ids import member_id
from headgate.kit.problems import Forbidden, InvalidRequest
from headgate.sdk.answers import read_answer
from headgate.sdk.http import GatewayUnavailable, Http
from headgate.store import Store
from headgate.waiting_room.model import EntryArguments, Reason
from headgate.waiting_room.problems import TicketInvalid
from headgate.waiting_room.signing import STORE_TIME, PublicKeys
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import Beat, Board, Entry, HeartbeatRequest, Redeemed, RenewedSession, Servers, Status


class QueueBackend(Protocol):
    """What both modes can do."""

    async def entry(self, queue: str, arguments: EntryArguments) -> Entry: ...

    async def status(self, queue: str, user_id: str, place_token: str | None) -> Status: ...

    def stream(self, queue: str, user_id: str, place_token: str | None) -> AsyncGenerator[Status, None]: ...

    async def leave(self, queue: str, user_id: str, place_token: str | None) -> None: ...

    async def board(self, queue: str) -> Board: ...

    async def redeem(self, queue: str, ticket_id: str, session_id: str, instance_id: str | None) -> Redeemed: ...

    async def end(self, queue: str, session_id: str, instance_id: str | None, reason: Reason) -> None: ...

    async def renew(self, queue: str, session_id: str) -> RenewedSession: ...

    async def heartbeat(self, instance_id: str, request: HeartbeatRequest) -> Beat: ...

    async def remove_server(self, queue: str, instance_id: str, drain: bool) -> None: ...

    async def servers(self, queue: str) -> Servers: ...

    async def public_keys(self) -> PublicKeys: ...

    def now(self) -> float | None: ...


class StoreQueueBackend:
    """The waiting room beside the store: whoever holds the store's address is trusted."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._room = WaitingRoom(store)
        self._namespace = namespace

    async def entry(self, queue: str, arguments: EntryArguments) -> Entry:
        return await self._room.entry(self._namespace, queue, arguments)

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

    async def renew(self, queue: str, session_id: str) -> RenewedSession:
        user_id, seconds = await self._room.renew(self._namespace, queue, session_id)
        return RenewedSession(session_id, queue, user_id, round(seconds * 1000))

    async def heartbeat(self, instance_id: str, request: HeartbeatRequest) -> Beat:
        return await self._room.heartbeat(self._namespace, instance_id, request)

    async def remove_server(self, queue: str, instance_id: str, drain: bool) -> None:
        await self._room.remove_server(self._namespace, queue, instance_id, drain=drain)

    async def servers(self, queue: str) -> Servers:
        return await self._room.servers(self._namespace, queue)

    async def public_keys(self) -> PublicKeys:
        return await self._room.public_keys()

    def now(self) -> float | None:
        return self._store.now()


class HttpQueueBackend:
    """The waiting room through a gateway."""

    def __init__(self, http: Http, namespace: str) -> None:
        self._http = http
        self._namespace = namespace
        self._told: tuple[float, float] | None = None  # the store's time, and our monotonic clock then

    async def entry(self, queue: str, arguments: EntryArguments) -> Entry:
        body = {
            "queue": queue,
            "nickname": arguments.nickname,
            "userId": arguments.user_id,
            "proof": arguments.proof,
        }
        headers = _token(arguments.place_token)
        if arguments.idempotency_key is not None:
            headers["Idempotency-Key"] = arguments.idempotency_key
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

    async def renew(self, queue: str, session_id: str) -> RenewedSession:
        return await self._http.request(
            "POST",
            f"/api/queue/sessions/{member_id(session_id, 'sessionId')}/renew",
            query={"namespace": self._namespace},
            body={"queue": queue},
            answer=RenewedSession,
        )

    async def heartbeat(self, instance_id: str, request: HeartbeatRequest) -> Beat:
        body = {name: value for name, value in msgspec.to_builtins(request).items() if value is not None}
        return await self._http.request(
            "PUT",
            _server(instance_id),
            query={"namespace": self._namespace},
            body=body,
            answer=Beat,
        )

    async def remove_server(self, queue: str, instance_id: str, drain: bool) -> None:
        await self._http.request(
            "DELETE", _server(instance_id), query=self._query(queue, drain=drain), answer=type(None)
        )

    async def servers(self, queue: str) -> Servers:
        return await self._http.request("GET", "/api/queue/servers", query=self._query(queue), answer=Servers)

    async def public_keys(self) -> PublicKeys:
        answer = await self._http.send("GET", "/.well-known/jwks.json", headers={"Cache-Control": "no-cache"})
        told = _seconds(answer.headers.get(STORE_TIME))
        if told is not None:  # what answers from a cache all the same says for how long it has been there
            self._told = (told + (_seconds(answer.headers.get("Age")) or 0.0), monotonic())
        return PublicKeys.read(answer.content)

    def now(self) -> float | None:
        """Give the store's time as the gateway last told it; None if it did not, as one of an older version."""
        if self._told is None:
            return None
        told, then = self._told
        return told + monotonic() - then

    def _query(self, queue: str, **more: str | bool) -> dict[str, str | bool]:
        return {"queue": queue, "namespace": self._namespace, **more}


def _token(place_token: str | None) -> dict[str, str]:
    if place_token and not (place_token.isascii() and place_token.isprintable()):
        raise Forbidden("This place token is not one of ours.")  # and it cannot even be sent
    return {"X-Place-Token": place_token} if place_token else {}


def _seconds(value: str | None) -> float | None:
    """Read a header that says seconds; None if it says none that could be."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None


def _ticket(ticket_id: str) -> str:
    """Check what becomes part of an address; it comes from a player, who might name another address with it."""
    try:
        return member_id(ticket_id, "ticketId")
    except InvalidRequest as error:
        raise TicketInvalid from error


def _server(instance_id: str) -> str:
    return f"/api/queue/servers/{member_id(instance_id, 'instanceId')}"
