"""HTTP routes of the waiting room for users and for servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, Final

from headgate.http.routes import ANONYMOUS, EVENTS, Access, Answer, Call, Operation, Stream, event
from headgate.kit.problems import Forbidden, HeadgateError, InvalidRequest
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.problems import (
    NotInLine,
    QueueClosed,
    QueueFull,
    QueueReset,
    QueueUnknown,
    SessionTaken,
    SessionUnknown,
    TicketExpired,
    TicketInvalid,
    TicketUsed,
)
from headgate.waiting_room.signing import STORE_TIME
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import (
    Beat,
    Board,
    EndRequest,
    Entry,
    EntryRequest,
    HeartbeatRequest,
    PersonQuery,
    QueueQuery,
    Redeemed,
    RedeemRequest,
    RemoveServerQuery,
    RenewedSession,
    RenewRequest,
    Servers,
    Status,
)

TAG: Final = "queue"
NO_STORE: Final = {"Cache-Control": "no-store"}
MOST_REPORT: Final = 2_097_152
LOST: Final = (QueueUnknown, QueueReset, NotInLine, Forbidden)
PLACE_TOKEN: Final = {"X-Place-Token": "the placeToken of the entry, which proves the place"}


def operations(room: WaitingRoom) -> list[Operation]:
    """List the routes."""
    api = QueueRoutes(room)

    def route(method: str, path: str, handler: Any, summary: str, access: Access, **more: Any) -> Operation:
        return Operation(method, path, handler, summary, access=access, tag=TAG, namespaced=True, **more)

    service = Access.SERVICE
    return [
        route(
            "POST", "/api/queue/entry", api.entry, "Join a queue", Access.PUBLIC, body=EntryRequest, answer=Entry, prompt=True,
            errors=(QueueUnknown, QueueClosed, QueueFull, QueueReset, Forbidden), limit="entry",
            user=_limited_entry, headers=PLACE_TOKEN | {"Idempotency-Key": "makes a retry the same entry"},
            description="Without userId an anonymous waiter is made, whose userId is their secret. With one, a service token, "
            "the site's proof or the place token is needed. The same user keeps the same place.",
        ),
        route(
            "GET", "/api/queue/status", api.status, "Ask where somebody stands", Access.PUBLIC, query=PersonQuery,
            answer=Status, errors=LOST, limit="status", user=_limited_user, headers=PLACE_TOKEN, prompt=True,
            description="Asking also says that they are still there.",
        ),
        route(
            "DELETE", "/api/queue/entry", api.leave, "Leave a queue", Access.PUBLIC, query=PersonQuery,
            errors=(QueueUnknown, Forbidden), limit="status", user=_limited_user, headers=PLACE_TOKEN,
            description="Gives up the place, or the ticket and its seat. Leaving twice is fine.",
        ),
        route(
            "GET", "/api/queue/stream", api.stream, "Follow somebody's status", Access.PUBLIC, query=PersonQuery,
            answer=Status, content_type=EVENTS, errors=LOST, limit="stream", user=_limited_user,
            headers=PLACE_TOKEN, description="Server-Sent Events named `status`, one for each change; what ends it otherwise is one named `problem`.",
        ),
        route(
            "GET", "/api/queue/board", api.board, "Look at the line", Access.PUBLIC, query=QueueQuery, answer=Board,
            errors=(QueueUnknown,), limit="status",
            description="The same for everybody and cacheable for a second; `marks` are pairs [place, rank].",
        ),
        route(
            "PUT", "/api/queue/servers/{instanceId}", api.heartbeat, "Offer seats", service, body=HeartbeatRequest,
            answer=Beat, errors=(QueueUnknown,), body_limit=MOST_REPORT, name="offer_seats",
            description="A heartbeat every 3 s keeps a lease of 10 s. `report` in the answer asks for `sessions`, without "
            "which a server that the store does not know offers no seat.",
        ),
        route(
            "DELETE", "/api/queue/servers/{instanceId}", api.remove_server, "Stop offering seats", service,
            query=RemoveServerQuery, errors=(QueueUnknown,),
            description="With drain=true tickets are honoured and sessions stay; without, its sessions end at once, except "
            "those redeemed since its last report: their owners are called again.",
        ),
        route("GET", "/api/queue/servers", api.servers, "Show who offers seats", Access.READ, query=QueueQuery, answer=Servers,
              errors=(QueueUnknown,)),
        route(
            "POST", "/api/queue/tickets/{ticketId}/redeem", api.redeem, "Spend a ticket", service, body=RedeemRequest,
            answer=Redeemed, errors=(QueueUnknown, TicketInvalid, TicketUsed, TicketExpired, SessionTaken),
            description="Exactly once; the same session may ask again and gets the same answer.",
        ),
        route(
            "POST", "/api/queue/sessions/{sessionId}/end", api.end, "End a session", service, body=EndRequest,
            body_optional=True, errors=(QueueUnknown,),
            description="Frees the seat; `dropped` keeps it for its owner for `reentrySeconds`. May be repeated.",
        ),
        route(
            "POST", "/api/queue/sessions/{sessionId}/renew", api.renew, "Renew a session that has no server", service,
            body=RenewRequest, body_optional=True, answer=RenewedSession, errors=(QueueUnknown, SessionUnknown),
            description="It lasts for `sessionTtlSeconds` from now on. A session on a server needs no renewal: it lasts while its "
            "server reports it.",
        ),
        Operation(
            "GET", "/.well-known/jwks.json", api.jwks, "Public keys of tickets", access=Access.PUBLIC, tag=TAG,
            answer=dict[str, list[dict[str, str]]], description="A JWKS, newest key first.",
        ),
    ]  # fmt: skip


class QueueRoutes:
    """The handlers of the routes."""

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room

    def entry(self, call: Call) -> Awaitable[Entry]:
        request: EntryRequest = call.body
        arguments = EntryArguments(
            request.nickname,
            request.user_id,
            request.proof,
            call.header("x-place-token"),
            call.header("idempotency-key"),
            _trusted(call),
        )
        return self._room.entry(call.namespace, request.queue, arguments)

    def status(self, call: Call) -> Awaitable[Status]:
        query: PersonQuery = call.query
        # Positional arguments: this is the most frequent request, and keywords cost more.
        return self._room.status(call.namespace, query.queue, query.user_id, _token(call), _trusted(call))

    async def leave(self, call: Call) -> None:
        query: PersonQuery = call.query
        await self._room.leave(
            call.namespace,
            query.queue,
            query.user_id,
            place_token=_token(call),
            trusted=_trusted(call),
        )

    async def stream(self, call: Call) -> Stream:
        query: PersonQuery = call.query
        statuses = self._room.watch(
            call.namespace,
            query.queue,
            query.user_id,
            place_token=_token(call),
            trusted=_trusted(call),
        )
        # The first status is read before the answer begins, so that a user who is not in line gets a plain problem.
        first = await anext(statuses)
        return Stream(_events(first, statuses), headers=NO_STORE)

    async def board(self, call: Call) -> Answer:
        query: QueueQuery = call.query
        board = await self._room.board(call.namespace, query.queue)
        return Answer(board, headers={"Cache-Control": "public, max-age=1"})

    async def heartbeat(self, call: Call) -> Beat:
        return await self._room.heartbeat(call.namespace, call.path["instanceId"], call.body)

    async def remove_server(self, call: Call) -> None:
        query: RemoveServerQuery = call.query
        await self._room.remove_server(call.namespace, query.queue, call.path["instanceId"], drain=query.drain)

    async def servers(self, call: Call) -> Servers:
        query: QueueQuery = call.query
        return await self._room.servers(call.namespace, query.queue)

    async def redeem(self, call: Call) -> Answer:
        request: RedeemRequest = call.body
        redeemed = await self._room.redeem(
            call.namespace, request.queue, call.path["ticketId"], request.session_id, request.instance_id
        )
        return Answer(redeemed, headers=NO_STORE)

    async def end(self, call: Call) -> None:
        request: EndRequest = call.body or EndRequest()
        await self._room.end(call.namespace, request.queue, call.path["sessionId"], request.instance_id, request.reason)

    async def renew(self, call: Call) -> RenewedSession:
        request: RenewRequest = call.body or RenewRequest()
        session_id = call.path["sessionId"]
        user_id, seconds = await self._room.renew(call.namespace, request.queue, session_id)
        return RenewedSession(session_id, request.queue, user_id, round(seconds * 1000))

    async def jwks(self, _call: Call) -> Answer:
        keys = await self._room.signing_keys()
        return Answer(
            keys.jwks(), headers={"Cache-Control": "public, max-age=300", STORE_TIME: f"{self._room.now():.3f}"}
        )


async def _events(first: Status, rest: AsyncGenerator[Status, None]) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield event("status", first)
        try:
            async for status in rest:
                yield event("status", status)
        except HeadgateError as error:
            # The answer has begun, so its status code is sent already.
            yield event("problem", error.document())


def _trusted(call: Call) -> bool:
    """Tell whether the caller may act for any account; nearly all callers are anonymous."""
    return call.caller is not ANONYMOUS and call.caller.may(Access.SERVICE)


def _limited_user(call: Call) -> str:
    """Give the key of a request's rate limit: a stranger who names an account does not use up the account's limit."""
    query: PersonQuery = call.query
    return query.user_id if _trusted(call) else f"{call.client} {query.user_id}"


def _limited_entry(call: Call) -> str | None:
    """Give the key of an entry's rate limit, if it names a user."""
    request: EntryRequest = call.body
    return request.user_id if request.user_id is None or _trusted(call) else f"{call.client} {request.user_id}"


def _token(call: Call) -> str | None:
    """Give the place token, which is in a header or, for a browser's event stream, in the query."""
    query: PersonQuery = call.query
    if b"x-place-token" not in call.headers:  # the usual case
        return query.place_token
    header = call.header("x-place-token")
    if query.place_token is not None and header != query.place_token:
        raise InvalidRequest("X-Place-Token and placeToken differ.", field="placeToken")
    return header or query.place_token
