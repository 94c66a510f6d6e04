"""Routes of the relay: upstreams for operators, jobs and permits for services. The proxy itself is a mount."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from headgate.kit.conditional import expected_version
from headgate.kit.http import Access, Answer, Call, ClientGone, Operation, Stopping, Wire
from headgate.kit.problems import DeadlineExceeded, InvalidRequest, VersionConflict
from headgate.relay.jobs import upstream_of
from headgate.relay.model import (
    JobState,
    JobView,
    Outcome,
    Upstream,
    UpstreamStatus,
    UpstreamView,
    upstream_name,
    user_id,
)
from headgate.relay.permits import Permit
from headgate.relay.problems import CostTooHigh, JobSending, JobUnknown, LineFull, UpstreamUnknown
from headgate.relay.relay import Relay

TAG = "relay"
UPSTREAMS = "/api/admin/upstreams"


class UpstreamList(Wire, frozen=True):
    """All upstreams."""

    upstreams: list[UpstreamView]


class JobList(Wire, frozen=True):
    """Jobs of an upstream."""

    jobs: list[JobView]


class JobFilter(Wire, frozen=True):
    """Which jobs to list."""

    state: JobState | None = None


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


class Routes:
    """The handlers."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def list_upstreams(self, call: Call) -> UpstreamList:
        return UpstreamList(list(await self._relay.upstreams.list()))

    async def get_upstream(self, call: Call) -> Answer:
        return _with_version(await self._relay.upstreams.get(_name(call), fresh=True))

    async def put_upstream(self, call: Call) -> Answer:
        name = upstream_name(call.path["upstream"])
        return _with_version(await self._relay.upstreams.put(name, call.body, expected=_expected(call)))

    async def remove_upstream(self, call: Call) -> None:
        name = _name(call)
        if not await self._relay.upstreams.remove(name):
            raise UpstreamUnknown(f"There is no upstream named {name}.")

    async def upstream_status(self, call: Call) -> UpstreamStatus:
        return await self._relay.upstreams.status(_name(call))

    async def list_jobs(self, call: Call) -> JobList:
        return JobList(list(await self._relay.jobs.list(_name(call), call.query.state)))

    async def get_job(self, call: Call) -> JobView:
        return await self._relay.jobs.get(call.path["job"])

    async def cancel_job(self, call: Call) -> None:
        upstream_of(call.path["job"])
        await self._relay.jobs.cancel(call.path["job"])

    async def acquire_permit(self, call: Call) -> PermitAnswer:
        asked: PermitRequest = call.body
        loop = asyncio.get_running_loop()
        arrived, wait = loop.time(), asked.wait_seconds
        view = await self._relay.upstreams.get(
            upstream_name(asked.upstream), deadline=None if wait is None else arrived + wait
        )
        user = user_id(asked.user, "user")
        deadline = arrived + (view.policy.deadline_seconds if wait is None else wait)
        granted: list[Permit] = []

        async def ask() -> None:
            granted.append(
                await self._relay.permits.acquire(view.name, view.policy, user, deadline=deadline, units=asked.permits)
            )

        try:
            await call.attend(ask())
            if call.departure().done():  # just when it was granted: nobody would use it, or tell of it
                raise Stopping(retry_after=1) if call.stop.raised else ClientGone()
        except BaseException:
            for permit in granted:
                permit.give_back()
            raise
        permit = granted[0]
        permit.hand_over()
        return PermitAnswer(
            permit=permit.id,
            place=permit.place,
            position=permit.position,
            waited_ms=round(permit.waited * 1000),
            send_within_seconds=max(0.0, permit.send_by - loop.time()),
            lease_seconds=max(0.0, permit.lease_at - loop.time()),
            delivery_seconds=view.policy.delivery_seconds,
        )

    async def complete_permit(self, call: Call) -> None:
        told: Completion = call.body
        view = await self._relay.upstreams.get(upstream_name(told.upstream))
        user = user_id(told.user, "user")
        await self._relay.permits.complete(
            view, user, call.path["permit"], told.outcome, age_ms=told.age_ms, pause_seconds=told.pause_seconds
        )


def operations(relay: Relay) -> list[Operation]:
    """List the routes."""
    routes = Routes(relay)
    one = f"{UPSTREAMS}/{{upstream}}"
    admin, service, read = Access.ADMIN, Access.SERVICE, Access.READ
    refusals = (UpstreamUnknown, LineFull, DeadlineExceeded, CostTooHigh)
    return [
        Operation("GET", UPSTREAMS, routes.list_upstreams, "List upstreams", access=read, tag=TAG, answer=UpstreamList),
        Operation("GET", one, routes.get_upstream, "Read an upstream's policy", access=read, tag=TAG,
                  answer=UpstreamView, errors=(UpstreamUnknown,)),
        Operation("PUT", one, routes.put_upstream, "Add or change an upstream", access=admin, tag=TAG, body=Upstream,
                  answer=UpstreamView, errors=(InvalidRequest, VersionConflict),
                  description="In force for the next grant. `If-Match` takes a version, `If-None-Match: *` creates only."),
        Operation("DELETE", one, routes.remove_upstream, "Take an upstream out of service", access=admin, tag=TAG,
                  status=204, errors=(UpstreamUnknown,)),
        Operation("GET", f"{one}/status", routes.upstream_status, "See who waits for an upstream", access=read, tag=TAG,
                  answer=UpstreamStatus, errors=(UpstreamUnknown,)),
        Operation("GET", f"{one}/jobs", routes.list_jobs, "List an upstream's jobs", access=read, tag=TAG,
                  query=JobFilter, answer=JobList),
        Operation("GET", "/relay/jobs/{job}", routes.get_job, "See how a job stands", access=service, tag=TAG,
                  answer=JobView, errors=(JobUnknown,)),
        Operation("DELETE", "/relay/jobs/{job}", routes.cancel_job, "Cancel a job that waits", access=service, tag=TAG,
                  status=204, errors=(JobUnknown, JobSending)),
        Operation("POST", "/relay/permits", routes.acquire_permit, "Wait for a permit and take it", access=service,
                  tag=TAG, body=PermitRequest, answer=PermitAnswer, errors=refusals),
        Operation("POST", "/relay/permits/{permit}/complete", routes.complete_permit, "Tell how a permit was used",
                  access=service, tag=TAG, body=Completion, status=204, errors=(UpstreamUnknown,)),
    ]  # fmt: skip


def _name(call: Call) -> str:
    return upstream_name(call.path["upstream"])


def _expected(call: Call) -> str:
    if call.header("if-none-match") not in (None, "*"):
        raise InvalidRequest("If-None-Match may only be *.", field="If-None-Match")
    version = expected_version(call)
    return "" if version is None else str(version)


def _with_version(view: UpstreamView) -> Answer:
    return Answer(view, headers={"ETag": f'"{view.version}"'})
