"""Routes of the relay: upstreams for operators, jobs and permits for services. The proxy itself is a mount."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from msgspec import Meta

from headgate.http.conditional import expected_version
from headgate.http.paging import MOST_ON_A_PAGE, PageQuery
from headgate.http.routes import Access, Answer, Call, ClientGone, Operation, Stopping
from headgate.kit.problems import DeadlineExceeded, InvalidRequest, VersionConflict
from headgate.relay.job_queue import LISTED, upstream_of
from headgate.relay.model import JobState, Upstream, upstream_name, user_id
from headgate.relay.permits import Permit
from headgate.relay.problems import CostTooHigh, JobSending, JobUnknown, LineFull, UpstreamUnknown
from headgate.relay.relay import Relay
from headgate.relay.upstreams import THERE
from headgate.relay.wire import (
    Completion,
    JobList,
    JobView,
    PermitAnswer,
    PermitRequest,
    UpstreamList,
    UpstreamStatus,
    UpstreamView,
)

TAG = "relay"
UPSTREAMS = "/api/admin/upstreams"
ANY_VERSION: Final = -1


class JobFilter(PageQuery, frozen=True):
    """The filter of a list of jobs. Without `limit` a page has at most 200 of them."""

    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_ON_A_PAGE)] | None,
        Meta(description=f"at most so many, 1 to {MOST_ON_A_PAGE:,}; else {LISTED}. A page may have fewer, also none"),
    ] = None
    page: Annotated[
        Annotated[str, Meta(max_length=600)] | None,
        Meta(description="`nextPage` of the page before"),
    ] = None
    state: JobState | None = None


class RelayRoutes:
    """The handlers of the relay's routes."""

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
        query: JobFilter = call.query
        jobs, next_page = await self._relay.jobs.page(
            _name(call), query.state, limit=query.limit or LISTED, page=query.page
        )
        return JobList(list(jobs), next_page)

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
            await call.until_disconnect(ask())
            if call.disconnected().done():  # the client left just when it was granted: the permit would never be used
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
        report: Completion = call.body
        view = await self._relay.upstreams.get(upstream_name(report.upstream))
        user = user_id(report.user, "user")
        await self._relay.permits.complete(
            view, user, call.path["permit"], report.outcome, age_ms=report.age_ms, pause_seconds=report.pause_seconds
        )


def operations(relay: Relay) -> list[Operation]:
    """List the relay's routes."""
    routes = RelayRoutes(relay)
    one = f"{UPSTREAMS}/{{upstream}}"
    admin, service, read = Access.ADMIN, Access.SERVICE, Access.READ
    refusals = (UpstreamUnknown, LineFull, DeadlineExceeded, CostTooHigh)
    return [
        Operation("GET", UPSTREAMS, routes.list_upstreams, "List upstreams", access=read, tag=TAG, answer=UpstreamList),
        Operation("GET", one, routes.get_upstream, "Read an upstream's policy", access=read, tag=TAG,
                  answer=UpstreamView, errors=(UpstreamUnknown,)),
        Operation("PUT", one, routes.put_upstream, "Add or change an upstream", access=admin, tag=TAG, body=Upstream,
                  answer=UpstreamView, errors=(InvalidRequest, VersionConflict),
                  description="In force for the next grant.",
                  headers={"If-Match": 'The version that is changed, such as `"3"`, or `*` for any; else 412.',
                           "If-None-Match": "`*`: only if there is no such upstream."}),
        Operation("DELETE", one, routes.remove_upstream, "Take an upstream out of service", access=admin, tag=TAG,
                  status=204, errors=(UpstreamUnknown,)),
        Operation("GET", f"{one}/status", routes.upstream_status, "See who waits for an upstream", access=read, tag=TAG,
                  answer=UpstreamStatus, errors=(UpstreamUnknown,)),
        Operation("GET", f"{one}/jobs", routes.list_jobs, "List an upstream's jobs", access=read, tag=TAG,
                  query=JobFilter, answer=JobList, errors=(InvalidRequest,),
                  description="Those that have not ended, in the order in which they came, then the ended, the latest "
                              "first. One that ends between two pages may be on both. The list ends where `nextPage` is null."),
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
    version = expected_version(call, ANY_VERSION)
    if version == ANY_VERSION:
        return THERE
    return "" if version is None else str(version)


def _with_version(view: UpstreamView) -> Answer:
    return Answer(view, headers={"ETag": f'"{view.version}"'})
