"""Backends of `hg.relay`: on the store this process takes and settles permits itself, over HTTP a gateway or a relay does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from headgate.http.client_response import Headers
from headgate.kit.problems import Closed, DeadlineExceeded, TooLarge
from headgate.relay.forwarder import RelayRequest
from headgate.relay.headers import refuse_dots, target_of, written_headers
from headgate.relay.model import JobState, Order, Outcome, Upstream, upstream_name, user_id
from headgate.relay.permits import Permit
from headgate.relay.problems import PermitExpired, UserMissing
from headgate.relay.relay import Relay as StoreRelay
from headgate.relay.request_body import BufferedBody
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
from headgate.sdk.http import Http, NotText, problem_of
from headgate.store import Store

SPARE_SECONDS: Final = 10.0
LONGEST_WAIT: Final = 86_400.0
USER_HEADER: Final = "X-User-Id"


class RelayResponse(msgspec.Struct, frozen=True):
    """An upstream's response, with the position that the request had in line and how long it waited."""

    status: int
    headers: list[tuple[str, str]]
    content: bytes
    position: int
    waited_ms: int

    def header(self, name: str) -> str | None:
        """Give a header's first value, or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> object:
        """Read the body as JSON."""
        return msgspec.json.decode(self.content)


class HeldPermit:
    """The permit of a block; its methods report how the call ended, where the end of the block does not show it."""

    def __init__(self, id: str, position: int, waited_ms: int, permit: Permit | None = None) -> None:
        self.id = id
        self._permit = permit
        self.position = position
        self.waited_ms = waited_ms
        self.outcome: Outcome | None = None
        self.pause_seconds = 0.0
        self.answered_at: float | None = None

    @property
    def own(self) -> Permit | None:
        """Give the permit itself where this process holds it, on the store."""
        return self._permit

    def answered(self) -> None:
        """Report that the response has begun: the permit cools from now, not from the end of the block."""
        self.answered_at = asyncio.get_running_loop().time()

    def unsent(self) -> None:
        """Report that nothing was sent: the permit is free again at once."""
        self.outcome = Outcome.UNSENT

    def refused(self, pause_seconds: float) -> None:
        """Report that the upstream answered 429: all callers pause for so long."""
        self.answered()
        self.outcome, self.pause_seconds = Outcome.REFUSED, pause_seconds


class RelayCall(msgspec.Struct, frozen=True):
    """The arguments of `Relay.request` and `Relay.submit`."""

    method: str
    upstream: str
    path: str
    user: str
    query: str
    content: bytes
    headers: Mapping[str, str]
    deadline: float | None
    permits: int


class RelayBackend(Protocol):
    """The calls that `Relay` is built on; `acquire` gives a permit and the time of the event loop at which it ends."""

    async def acquire(self, upstream: str, user: str, permits: int, wait: float | None) -> tuple[HeldPermit, float]: ...

    async def settle(
        self, upstream: str, user: str, held: HeldPermit, outcome: Outcome, age_seconds: float
    ) -> None: ...

    async def request(self, call: RelayCall) -> RelayResponse: ...

    async def submit(self, call: RelayCall) -> str: ...

    async def job(self, id: str) -> JobView: ...

    async def cancel(self, id: str) -> None: ...

    async def jobs(self, upstream: str, state: JobState | None) -> Sequence[JobView]: ...

    async def upstreams(self) -> Sequence[UpstreamView]: ...

    async def put_upstream(self, name: str, policy: Upstream) -> UpstreamView: ...

    async def remove_upstream(self, name: str) -> None: ...

    async def status(self, name: str) -> UpstreamStatus: ...

    async def close(self) -> None: ...


class StoreRelayBackend:
    """The relay on the store."""

    def __init__(self, store: Store) -> None:
        self._relay = StoreRelay(store)

    async def close(self) -> None:
        """Wait until the store knows the outcome of every permit, before the connection ends."""
        await self._relay.__aexit__(None, None, None)

    async def request(self, call: RelayCall) -> RelayResponse:
        started = asyncio.get_running_loop().time()
        deadline = call.deadline
        view = await self._relay.upstreams.get(call.upstream, deadline=None if deadline is None else started + deadline)
        target = target_of(view.policy, _bytes(_path(call.path)), _bytes(call.query))
        user = user_id(call.user, "user")
        headers = _with_user_header(call, view.policy, user)
        request = RelayRequest(call.method, target, headers, BufferedBody(call.content), user, call.permits)
        limit = started + (view.policy.deadline_seconds if deadline is None else deadline)
        async with self._relay.forwarder.forward(view, request, deadline=limit) as answer:
            body = b"".join([chunk async for chunk in answer.chunks])
            return RelayResponse(
                answer.status, _decoded(answer.headers), body, answer.position, round(answer.waited * 1000)
            )

    async def submit(self, call: RelayCall) -> str:
        view = await self._relay.upstreams.get(call.upstream)
        target_of(view.policy, _bytes(_path(call.path)), _bytes(call.query))
        if len(call.content) > self._relay.settings.job_bytes:
            raise TooLarge(f"The body of a job may have {self._relay.settings.job_bytes} bytes.")
        longest = self._relay.settings.job_ms
        wait_ms = longest if call.deadline is None else min(longest, max(1, round(call.deadline * 1000)))
        user = user_id(call.user, "user")
        headers = _decoded(_with_user_header(call, view.policy, user))
        order = Order(call.method, _path(call.path), call.query, headers, call.content, user, call.permits, wait_ms)
        return await self._relay.jobs.submit(call.upstream, order)

    async def job(self, id: str) -> JobView:
        return await self._relay.jobs.get(id)

    async def cancel(self, id: str) -> None:
        await self._relay.jobs.cancel(id)

    async def jobs(self, upstream: str, state: JobState | None) -> Sequence[JobView]:
        return await self._relay.jobs.list(upstream, state)

    async def upstreams(self) -> Sequence[UpstreamView]:
        return await self._relay.upstreams.list()

    async def put_upstream(self, name: str, policy: Upstream) -> UpstreamView:
        return await self._relay.upstreams.put(name, policy)

    async def remove_upstream(self, name: str) -> None:
        await self._relay.upstreams.remove(name)

    async def status(self, name: str) -> UpstreamStatus:
        return await self._relay.upstreams.status(name)

    async def acquire(self, upstream: str, user: str, permits: int, wait: float | None) -> tuple[HeldPermit, float]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        view = await self._relay.upstreams.get(upstream, deadline=None if wait is None else started + wait)
        limit = started + (view.policy.deadline_seconds if wait is None else wait)
        position, waited, place = -1, 0.0, 0
        while True:
            permit = await self._relay.permits.acquire(
                upstream, view.policy, user_id(user, "user"), deadline=limit, units=permits, place=place
            )
            position = permit.position if position < 0 else position
            waited, place = waited + permit.waited, permit.place
            try:
                permit.sending()
            except PermitExpired:  # the store's reply took too long
                permit.give_back()
                if loop.time() >= limit:
                    raise DeadlineExceeded("Its permit came too late to be used before your deadline.") from None
                continue
            held = HeldPermit(permit.id, position, round(waited * 1000), permit)
            return held, permit.lease_at - view.policy.delivery_seconds

    async def settle(self, upstream: str, user: str, held: HeldPermit, outcome: Outcome, age_seconds: float) -> None:
        assert held.own is not None
        settling = held.own.settle(outcome, age_seconds=age_seconds, pause_seconds=held.pause_seconds)
        if settling is not None:
            await asyncio.wait((settling,))
            if settling.cancelled() or isinstance(settling.exception(), Closed):
                raise Closed


class HttpRelayBackend:
    """The relay behind a gateway, or a relay process."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._user_headers: dict[str, str] = {}

    async def close(self) -> None:
        """Do nothing: every call of this backend has ended when it returns."""

    async def request(self, call: RelayCall) -> RelayResponse:
        response = await self._send(call, call.headers)
        headers = [(name, value) for name, value in response.headers.multi_items() if not name.startswith("x-queue-")]
        position = int(response.headers.get("x-queue-position", 0))
        waited_ms = int(response.headers.get("x-queue-wait", 0))
        return RelayResponse(response.status_code, headers, response.content, position, waited_ms)

    async def submit(self, call: RelayCall) -> str:
        response = await self._send(call, {**call.headers, "Prefer": "respond-async"})
        return msgspec.json.decode(response.content, type=JobView).id

    async def job(self, id: str) -> JobView:
        return await self._http.request("GET", f"/relay/jobs/{quote(id, safe='')}", answer=JobView)

    async def cancel(self, id: str) -> None:
        await self._http.request("DELETE", f"/relay/jobs/{quote(id, safe='')}", answer=type(None))

    async def jobs(self, upstream: str, state: JobState | None) -> Sequence[JobView]:
        found: dict[str, JobView] = {}  # a job that ends between two pages is on both
        page: str | None = None
        while True:
            query = {"state": state, "page": page}
            answer = await self._http.request("GET", f"{_upstream_path(upstream)}/jobs", query=query, answer=JobList)
            found.update((view.id, view) for view in answer.jobs)
            page = answer.next_page
            if page is None:
                return [*found.values()]

    async def upstreams(self) -> Sequence[UpstreamView]:
        return (await self._http.request("GET", "/api/admin/upstreams", answer=UpstreamList)).upstreams

    async def put_upstream(self, name: str, policy: Upstream) -> UpstreamView:
        return await self._http.request("PUT", _upstream_path(name), body=policy, answer=UpstreamView)

    async def remove_upstream(self, name: str) -> None:
        await self._http.request("DELETE", _upstream_path(name), answer=type(None))

    async def status(self, name: str) -> UpstreamStatus:
        return await self._http.request("GET", f"{_upstream_path(name)}/status", answer=UpstreamStatus)

    async def _send(self, call: RelayCall, headers: Mapping[str, str]) -> httpx2.Response:
        """Send a call; the upstream says which header names the user, in a refusal that comes before anything is sent."""
        written_headers(call.method, headers)
        path = _path(call.path)
        refuse_dots(_bytes(path))  # the HTTP client would resolve them, and call another route of the gateway
        user, upstream = user_id(call.user, "user"), call.upstream
        sent = {**headers, "X-Permits": str(call.permits)}
        if call.deadline is not None:
            sent["X-Deadline-Ms"] = str(max(1, round(call.deadline * 1000)))
        url = f"/relay/{quote(upstream_name(upstream), safe='')}{path}{'?' + call.query if call.query else ''}"
        timeout = None if call.deadline is None else call.deadline + SPARE_SECONDS
        while True:
            user_header = self._user_headers.get(upstream, USER_HEADER)
            others = {name: value for name, value in sent.items() if name.lower() != user_header.lower()}
            all_headers: dict[str, str | bytes] = {**others, user_header: user.encode()}
            try:
                response = await self._http.exchange(
                    call.method, url, content=call.content, headers=all_headers, timeout_seconds=timeout
                )
            except UnicodeEncodeError as error:
                raise NotText from error
            is_problem = response.headers.get("content-type", "").startswith("application/problem+json")
            if not is_problem or "x-queue-position" in response.headers:
                return response
            problem = problem_of(response.status_code, response.content)
            wanted = problem.members.get("header") if isinstance(problem, UserMissing) else None
            if not isinstance(wanted, str) or wanted == user_header:
                raise problem
            self._user_headers[upstream] = wanted

    async def acquire(self, upstream: str, user: str, permits: int, wait: float | None) -> tuple[HeldPermit, float]:
        sent_at = asyncio.get_running_loop().time()
        answer = await self._http.request(
            "POST",
            "/relay/permits",
            body=PermitRequest(upstream=upstream, user=user_id(user), permits=permits, wait_seconds=wait),
            answer=PermitAnswer,
            timeout_seconds=(LONGEST_WAIT if wait is None else wait) + SPARE_SECONDS,
        )
        # The gateway measured the lease when it had the permit; counting from at most 1 s ago ends it early, never late.
        now = asyncio.get_running_loop().time()
        lease_at = max(sent_at, now - 1.0) + answer.lease_seconds
        return HeldPermit(answer.permit, answer.position, answer.waited_ms), lease_at - answer.delivery_seconds

    async def settle(self, upstream: str, user: str, held: HeldPermit, outcome: Outcome, age_seconds: float) -> None:
        body = Completion(
            upstream=upstream, user=user, outcome=outcome, age_ms=int(age_seconds * 1000),
            pause_seconds=held.pause_seconds,
        )  # fmt: skip
        await self._http.request("POST", f"/relay/permits/{held.id}/complete", body=body, answer=type(None))


def _with_user_header(call: RelayCall, policy: Upstream, user: str) -> Headers:
    """Write a call's headers, with the upstream's header for the user in place of any that the caller gave."""
    name = policy.user_header.lower().encode()
    others = [header for header in written_headers(call.method, call.headers) if header[0] != name]
    return [*others, (name, user.encode())]


def _decoded(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # a lone surrogate is refused later, like every character beyond ASCII


def _path(path: str) -> str:
    return urlsplit(path if path.startswith("/") else f"/{path}").path


def _upstream_path(name: str) -> str:
    return f"/api/admin/upstreams/{quote(upstream_name(name), safe='')}"
