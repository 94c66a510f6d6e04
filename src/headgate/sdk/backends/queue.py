"""Backends of `hg.queue`: the waiting room itself on the store, or the routes of a gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from math import isfinite
from time import monotonic
from typing import Protocol

import msgspec

from headgate.kit.ids import member_id
from headgate.kit.problems import Forbidden, InvalidRequest
from headgate.sdk.decoding import decode_response
from headgate.sdk.http import GatewayUnavailable, Http
from headgate.store import Store
from headgate.waiting_room.model import EntryArguments, Reason
from headgate.waiting_room.problems import TicketInvalid
from headgate.waiting_room.signing import STORE_TIME, PublicKeys
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import Beat, Board, Entry, HeartbeatRequest, Redeemed, RenewedSession, Servers, Status


class QueueBackend(Protocol):
    """The calls that `Queue` and `Offer` are built on."""

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
    """The waiting room on the store; its caller has full access to the store, so it may speak for every user."""

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
    """The waiting room behind a gateway."""

    def __init__(self, http: Http, namespace: str) -> None:
        self._http = http
        self._namespaced = {"namespace": namespace}
        self._store_time: tuple[float, float] | None = None  # the store's time, and our monotonic clock then

    async def entry(self, queue: str, arguments: EntryArguments) -> Entry:
        headers = _token_header(arguments.place_token)
        if arguments.idempotency_key is not None:
            headers["Idempotency-Key"] = arguments.idempotency_key
        body = _given(queue=queue, nickname=arguments.nickname, userId=arguments.user_id, proof=arguments.proof)
        return await self._http.request(
            "POST", "/api/queue/entry", query=self._namespaced, body=body, headers=headers, answer=Entry
        )

    async def status(self, queue: str, user_id: str, place_token: str | None) -> Status:
        query, headers = self._query(queue, userId=user_id), _token_header(place_token)
        return await self._http.request("GET", "/api/queue/status", query=query, headers=headers, answer=Status)

    async def stream(self, queue: str, user_id: str, place_token: str | None) -> AsyncGenerator[Status, None]:
        query = self._query(queue, userId=user_id)
        async with self._http.events("/api/queue/stream", query=query, headers=_token_header(place_token)) as events:
            async for event in events:
                if event.event == "status":
                    try:
                        status = decode_response(event.data, Status)
                    except msgspec.DecodeError as error:
                        raise GatewayUnavailable(f"The stream sent an event that is no status: {error}.") from error
                    yield status

    async def leave(self, queue: str, user_id: str, place_token: str | None) -> None:
        query, headers = self._query(queue, userId=user_id), _token_header(place_token)
        await self._http.request("DELETE", "/api/queue/entry", query=query, headers=headers, answer=type(None))

    async def board(self, queue: str) -> Board:
        return await self._http.request("GET", "/api/queue/board", query=self._query(queue), answer=Board)

    async def redeem(self, queue: str, ticket_id: str, session_id: str, instance_id: str | None) -> Redeemed:
        body = _given(queue=queue, sessionId=session_id, instanceId=instance_id or None)
        path = f"/api/queue/tickets/{_ticket(ticket_id)}/redeem"
        return await self._http.request("POST", path, query=self._namespaced, body=body, answer=Redeemed)

    async def end(self, queue: str, session_id: str, instance_id: str | None, reason: Reason) -> None:
        body = _given(queue=queue, reason=reason, instanceId=instance_id or None)
        path = f"/api/queue/sessions/{member_id(session_id, 'sessionId')}/end"
        await self._http.request("POST", path, query=self._namespaced, body=body, answer=type(None))

    async def renew(self, queue: str, session_id: str) -> RenewedSession:
        path = f"/api/queue/sessions/{member_id(session_id, 'sessionId')}/renew"
        body = {"queue": queue}
        return await self._http.request("POST", path, query=self._namespaced, body=body, answer=RenewedSession)

    async def heartbeat(self, instance_id: str, request: HeartbeatRequest) -> Beat:
        return await self._http.request(
            "PUT", _server_path(instance_id), query=self._namespaced, body=request, answer=Beat
        )

    async def remove_server(self, queue: str, instance_id: str, drain: bool) -> None:
        query = self._query(queue, drain=drain)
        await self._http.request("DELETE", _server_path(instance_id), query=query, answer=type(None))

    async def servers(self, queue: str) -> Servers:
        return await self._http.request("GET", "/api/queue/servers", query=self._query(queue), answer=Servers)

    async def public_keys(self) -> PublicKeys:
        response = await self._http.send("GET", "/.well-known/jwks.json", headers={"Cache-Control": "no-cache"})
        seconds = _seconds(response.headers.get(STORE_TIME))
        if seconds is not None:  # a cache in between that answers all the same says the response's age
            self._store_time = (seconds + (_seconds(response.headers.get("Age")) or 0.0), monotonic())
        return PublicKeys.read(response.content)

    def now(self) -> float | None:
        """Give the store's time by the gateway's last response; None if it named none, as gateways of older versions."""
        if self._store_time is None:
            return None
        seconds, then = self._store_time
        return seconds + monotonic() - then

    def _query(self, queue: str, **more: str | bool) -> dict[str, str | bool]:
        return {"queue": queue, **self._namespaced, **more}


def _given(**fields: object) -> dict[str, object]:
    """Make the body of a request, without the fields that are None."""
    return {name: value for name, value in fields.items() if value is not None}


def _token_header(place_token: str | None) -> dict[str, str]:
    if place_token and not (place_token.isascii() and place_token.isprintable()):
        raise Forbidden("This place token is not one of ours.")  # a header could not carry it
    return {"X-Place-Token": place_token} if place_token else {}


def _seconds(value: str | None) -> float | None:
    """Read a header that holds seconds; None if it is missing or no such number."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None


def _ticket(ticket_id: str) -> str:
    """Check a ticket id, which becomes part of the path: it comes from a player, who might aim at another route with it."""
    try:
        return member_id(ticket_id, "ticketId")
    except InvalidRequest as error:
        raise TicketInvalid from error


def _server_path(instance_id: str) -> str:
    return f"/api/queue/servers/{member_id(instance_id, 'instanceId')}"
