"""Requests and answers of the gate."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headgate.kit.ids import ThingName
from headgate.kit.wire import Wire

ResourceName = Annotated[str, Meta(max_length=256)]


class CheckQuery(Wire):
    """The user and the resource or path that a site's backend asks about."""

    user_id: str
    resource: ResourceName = ""
    event_type: Annotated[str, Meta(max_length=64)] = ""
    path: Annotated[str, Meta(max_length=4096)] = ""


class CheckAnswer(Wire, omit_defaults=True):
    """Pass or wait; a user who must wait has a place in the queue already."""

    decision: str
    queue: str | None = None
    rank: int | None = None
    wait_url: str | None = None
    reason: str = ""


class GateQuery(Wire):
    """Options of a location, from the proxy's own configuration; nothing in them comes from the visitor."""

    namespace: ThingName = "default"
    resource: ThingName = ""
    event_type: ThingName = ""


class WaitQuery(msgspec.Struct, frozen=True, rename={"return_to": "return"}):
    """The page to return to, and how the waiting page is shown; unknown parameters of a shared link are ignored."""

    return_to: str = ""
    lang: str = ""
    plain: str = ""


class RevokeRequest(Wire):
    """The user whose pass is ended."""

    user_id: str


class BypassRequest(Wire):
    """For how long a program of the site's own may pass the gate."""

    for_seconds: Annotated[int, Meta(ge=1, le=31_536_000)]


class BypassHeader(Wire):
    """The header to send; a request that has it passes this queue's gate until it expires."""

    header: str
    value: str
    expires_in_seconds: int
