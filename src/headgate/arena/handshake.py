"""Checks WebSocket handshakes (path, origin, ticket) and refuses them before they complete."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Protocol
from urllib.parse import SplitResult, parse_qs, urlsplit

import msgspec
from websockets.datastructures import Headers, MultipleValuesError
from websockets.http11 import Request, Response

from headgate.arena.problems import Draining, OriginRefused, TargetTooLong, TicketMissing, UpgradeRequired
from headgate.http.origins import ANY, origin_of, read_origins
from headgate.kit.ids import member_id
from headgate.kit.problems import HeadgateError, HeadTooLarge, InvalidRequest, Malformed, MethodNotAllowed
from headgate.kit.settings import SettingInvalid
from headgate.waiting_room.model import Reason
from headgate.waiting_room.problems import TicketExpired, TicketInvalid, TicketUsed
from headgate.waiting_room.wire import Redeemed

PATH = "/gameserver"
SUBPROTOCOL = "headgate"
_PAGE_SCHEMES = {"ws": "http", "wss": "https"}


class SeatService(Protocol):
    """The seats that a server offers in a queue; the SDK's `Offer` is one."""

    instance_id: str

    async def redeem(self, ticket_id: str, session_id: str) -> Redeemed:
        """Redeem a ticket for a session on this server."""

    async def end(self, session_id: str, reason: Reason) -> None:
        """End a session of this server."""

    async def drain(self) -> None:
        """Accept no new players."""


class TicketCheck(Protocol):
    """Verifies a signed ticket without the store."""

    async def __call__(self, ticket: str) -> str:
        """Give the bare id of a signed ticket; raises TicketInvalid or TicketExpired."""


def ticket_of(request: Request) -> str:
    """Find the ticket in a handshake, plain or signed; raises TicketMissing."""
    query = parse_qs(_address(request).query)
    for name in ("ticketId", "ticket"):
        if query.get(name, [""])[0]:
            return query[name][0]
    scheme, _, credentials = _header(request, "Authorization").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    offered = [part.strip() for part in ",".join(request.headers.get_all("Sec-WebSocket-Protocol")).split(",")]
    for protocol in offered:
        if protocol and protocol != SUBPROTOCOL:
            return protocol
    raise TicketMissing


def is_signed(ticket: str) -> bool:
    """Whether a ticket has the signed form; the signature is not verified here."""
    return ticket.count(".") == 2


async def ticket_id(ticket: str, check: TicketCheck) -> str:
    """Give the plain id of a ticket, after verifying a signed one or validating a plain one."""
    if is_signed(ticket):
        return await check(ticket)
    try:
        return member_id(ticket, "ticketId")
    except InvalidRequest as error:
        raise TicketInvalid from error


class AllowedOrigins:
    """Decides which pages may enter: those of the configured sites, and those of the arena's own origin.

    Scheme, host and port must match. The arena's own origin is that of its public address, or the host that the request
    names, since a proxy in front may use another name for it.
    """

    def __init__(self, allowed: Sequence[str], address: str) -> None:
        self._allowed = read_origins(allowed, "arena.origins")
        scheme, _, rest = address.partition("://")
        own = origin_of(f"{_PAGE_SCHEMES.get(scheme.lower(), '')}://{rest.partition('/')[0].partition('?')[0]}")
        self._own = frozenset(() if own is None else (own,))

    def check(self, request: Request) -> None:
        """Refuse pages of other sites; clients that are not browsers send no origin."""
        origins = request.headers.get_all("Origin")
        if not origins or ANY in self._allowed:
            return
        if len(origins) > 1 or not (origins[0] in self._allowed or origins[0] in self._own or _is_own(request)):
            raise OriginRefused


def networks(texts: Sequence[str]) -> list[IPv4Network | IPv6Network]:
    """Parse the networks of trusted proxies."""
    try:
        return [ip_network(text, strict=False) for text in texts]
    except ValueError as error:
        raise SettingInvalid(f"arena.trusted_proxies: {error}.") from error


def client_address(peer: str, request: Request, proxies: Sequence[IPv4Network | IPv6Network]) -> str:
    """Give the client's address: the peer's, or the last one that a trusted proxy added."""
    if not any(ip_address(peer) in network for network in proxies):
        return peer
    seen = ",".join(request.headers.get_all("X-Forwarded-For")).rpartition(",")[2].strip()
    return seen or peer


def is_game_path(request: Request) -> bool:
    """Whether a request has the path of the game."""
    return _address(request).path == PATH


def refusal(error: HeadgateError) -> Response:
    """Build the response of a refused handshake; every bad ticket is 403."""
    status = 403 if isinstance(error, TicketInvalid | TicketUsed | TicketExpired) else error.status
    body = msgspec.json.encode({**error.document(), "status": status})
    headers = Headers()
    headers["Content-Type"] = "application/problem+json"
    headers["Content-Length"] = str(len(body))
    headers["Cache-Control"] = "no-store"
    headers["Connection"] = "close"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None:
        headers["Retry-After"] = f"{error.retry_after:.0f}"
    return Response(status, HTTPStatus(status).phrase, headers, body)


def library_refusal(status: int) -> Response:
    """Build a problem response for a request that the WebSocket library itself refuses."""
    match status:
        case 405:
            return refusal(MethodNotAllowed("The game is entered with GET."))
        case 414:
            return refusal(TargetTooLong())
        case 426:
            return refusal(UpgradeRequired())
        case 431:
            return refusal(HeadTooLarge("The request has more than 128 headers, or one of more than 8 kB."))
        case 503:
            return refusal(Draining(retry_after=1))
        case 500:
            return refusal(HeadgateError("The handshake failed; the arena's log says why."))
        case _:
            return refusal(Malformed("This is not the handshake of a WebSocket of version 13."))


def _is_own(request: Request) -> bool:
    """Whether the page comes from the requested origin, which is plain http unless a proxy says otherwise."""
    hosts, schemes = request.headers.get_all("Host"), request.headers.get_all("X-Forwarded-Proto")
    if len(hosts) != 1 or len(schemes) > 1:
        return False
    return request.headers["Origin"] == origin_of(f"{schemes[0] if schemes else 'http'}://{hosts[0]}")


def _address(request: Request) -> SplitResult:
    try:
        return urlsplit(request.path)
    except ValueError:
        return urlsplit("")


def _header(request: Request, name: str) -> str:
    try:
        return request.headers.get(name, "")
    except MultipleValuesError:
        return ""
