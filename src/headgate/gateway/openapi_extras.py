"""Parts of the OpenAPI document that are not operations of the gateway: the relay's proxy and the arena's problems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headgate.http.routes import Access, Mount, Operation, mounted
from headgate.kit.problems import DeadlineExceeded, Malformed, TooLarge
from headgate.relay.problems import (
    CostTooHigh,
    LineFull,
    PermitExpired,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnknown,
    UserMissing,
)

PROXY: Final = Operation(
    "POST",
    "/relay/{upstream}/{path:path}",
    mounted,
    "Call an upstream, when it is the user's turn",
    description="Any method, with any body; both ways are streamed. The request waits in the user's line until the upstream's "
    "limits let it through. X-API-Token is the relay's; Authorization belongs to the upstream. With `Prefer: respond-async` "
    "it becomes a job that is sent later.",
    access=Access.SERVICE,
    bearer=False,
    any_method=True,
    tag="relay",
    name="relay",
    body=bytes,
    body_optional=True,
    headers={
        "X-User-Id": "whose request this is; the upstream's `userHeader` may name another header",
        "X-Permits": "how many permits it costs, 1 unless set",
        "X-Deadline-Ms": "how long it may wait, in place of the upstream's `deadlineSeconds`",
        "Prefer": "`respond-async` makes a job of it",
    },
    answers={
        200: "What the upstream answered: its own status, headers and body, with X-Queue-Position, X-Queue-Wait and RateLimit.",
        202: "A job: Location is where its state and its answer are read.",
    },
    errors=(
        *(UpstreamUnknown, UserMissing, Malformed, TooLarge, LineFull, CostTooHigh, DeadlineExceeded),
        *(PermitExpired, UpstreamFailed, UpstreamTimeout),
    ),
)
_BY_PREFIX: Final = {"/relay": (PROXY,)}
# An arena has its own port, and its problems link to the gateway's pages.
ARENA: Final[tuple[dict[str, object], ...]] = (
    {
        "code": "ticket_missing",
        "status": 401,
        "title": "Ticket missing",
        "detail": "Show a ticket: in ?ticketId=, in Authorization, or in Sec-WebSocket-Protocol.",
    },
    {
        "code": "origin_refused",
        "status": 403,
        "title": "Origin refused",
        "detail": "Pages of this site may not enter here.",
    },
    {
        "code": "draining",
        "status": 503,
        "title": "Draining",
        "detail": "This server is closing; your ticket was not used and you will be given another server.",
    },
)


def routes(mounts: Iterable[Mount]) -> list[Operation]:
    """List the routes of mounts: their own, or those that are described here."""
    return [route for mount in mounts for route in mount.routes or _BY_PREFIX.get(mount.prefix, ())]
