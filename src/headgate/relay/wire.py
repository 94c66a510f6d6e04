"""The structs of the relay's requests and answers, shared by its routes and the SDK."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.wire import Wire
from headgate.relay.model import JobState, Outcome, Upstream


class Response(Wire, frozen=True, omit_defaults=True):
    """What the upstream answered; bytes that are not text come in base64."""

    status: int
    headers: list[tuple[str, str]]
    body: str | None = None
    body_base64: str | None = None
    truncated: bool = False


class JobView(Wire, frozen=True, omit_defaults=True):
    """A job as its owner sees it."""

    id: str
    state: JobState
    upstream: str
    position: int | None = None
    eta: str | None = None
    attempts: int = 0
    reason: str | None = None
    response: Response | None = None


class UpstreamView(Wire, frozen=True):
    """An upstream with its policy and version."""

    name: str
    version: int
    policy: Upstream


class UserFigures(Wire, frozen=True):
    """How it stands with one user; `waiting` are requests in line, `jobs` those that wait, in line or not yet."""

    user: str
    waiting: int
    in_flight: int
    cooling: int
    room: int
    held_ms: int
    jobs: int = 0


class UpstreamStatus(Wire, frozen=True):
    """How it stands with an upstream: sums over its users, and the busiest of them."""

    name: str
    users: int
    waiting: int
    in_flight: int
    cooling: int
    held_ms: int
    busiest: tuple[UserFigures, ...]
    jobs: int = 0


class UpstreamList(Wire, frozen=True):
    """All upstreams."""

    upstreams: list[UpstreamView]


class JobList(Wire, frozen=True):
    """Jobs of an upstream: those that have not ended, in their order, then the ended, the latest first."""

    jobs: list[JobView]
    next_page: Annotated[str | None, Meta(description="the `page` of the next call; null on the last page")] = None


class PermitRequest(Wire, frozen=True):
    """Ask for a permit, and wait for it."""

    upstream: str
    user: str
    permits: Annotated[int, Meta(ge=1, le=1000)] = 1
    wait_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class PermitAnswer(Wire, frozen=True):
    """A permit: begin to send within `sendWithinSeconds`, and say within `leaseSeconds` how it went."""

    permit: str
    place: int
    position: int
    waited_ms: int
    send_within_seconds: float
    lease_seconds: float
    delivery_seconds: float


class Completion(Wire, frozen=True):
    """How the request of a permit went."""

    upstream: str
    user: str
    outcome: Outcome
    age_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    pause_seconds: Annotated[float, Meta(ge=0, le=21_600)] = 0.0
