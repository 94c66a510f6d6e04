"""The structs of the relay's requests and answers, shared by its routes and the SDK."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.wire import Wire
from headgate.relay.model import JobState, Outcome, Upstream


class Response(Wire, frozen=True, omit_defaults=True):
    """The upstream's answer to a job; a body that is not text is in base64."""

    status: int
    headers: list[tuple[str, str]]
    body: str | None = None
    body_base64: str | None = None
    truncated: bool = False


class JobView(Wire, frozen=True, omit_defaults=True):
    """A job as its owner sees it, with its place in line and an estimate while it waits."""

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
    """The figures of one user; `waiting` counts requests in line, `jobs` the jobs that wait, in line or not yet."""

    user: str
    waiting: int
    in_flight: int
    cooling: int
    room: int
    held_ms: int
    jobs: int = 0


class UpstreamStatus(Wire, frozen=True):
    """The figures of an upstream: sums over its users, and the busiest of them."""

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
    """Jobs of an upstream: the open ones in their order, then the ended ones, the latest first."""

    jobs: list[JobView]
    next_page: Annotated[str | None, Meta(description="the `page` of the next call; null on the last page")] = None


class PermitRequest(Wire, frozen=True):
    """A request for a permit, which waits until it is granted."""

    upstream: str
    user: str
    permits: Annotated[int, Meta(ge=1, le=1000)] = 1
    wait_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class PermitAnswer(Wire, frozen=True):
    """A permit: begin to send within `sendWithinSeconds`, and report the outcome within `leaseSeconds`."""

    permit: str
    place: int
    position: int
    waited_ms: int
    send_within_seconds: float
    lease_seconds: float
    delivery_seconds: float


class Completion(Wire, frozen=True):
    """A report of how the request of a permit went."""

    upstream: str
    user: str
    outcome: Outcome
    age_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    pause_seconds: Annotated[float, Meta(ge=0, le=21_600)] = 0.0
