"""`hg.relay`: permits around your own calls, requests through the relay, jobs, and upstreams; store and HTTP mode alike.

Beside the store a permit is taken and settled by this process itself; through a gateway it does the same over HTTP. A
block under a permit that outlives it is cancelled before the store gives the permit to somebody else.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from headgate.http.client_response import Headers
from headgate.kit.problems import Closed, DeadlineExceeded, HeadgateError, TooLarge
from headgate.relay.forwarder import RelayRequest
from headgate.relay.headers import pause_of, refuse_dots, target_of, written_headers
from headgate.relay.model import JobState, Order, Outcome, Upstream, upstream_name, user_id
from headgate.relay.permits import Permit
from headgate.relay.problems import PermitExpired, UserMissing
from headgate.relay.relay import Relay as Feature
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
    """An upstream's answer, and what waiting for it cost."""

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
    """The permit of a block; say what became of the call if the end of the block does not tell it."""

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
        """Give the permit itself where this process holds it, beside the store."""
        return self._permit

    def answered(self) -> None:
        """Say that the answer has begun: the permit cools from now, not from the end of the block."""
        self.answered_at = asyncio.get_running_loop().time()

    def unsent(self) -> None:
        """Say that nothing was sent: the permit is free again at once."""
        self.outcome = Outcome.UNSENT

    def refused(self, pause_seconds: float) -> None:
        """Say that the upstream answered 429: everybody pauses for so long."""
        self.answered()
        self.outcome, self.pause_seconds = Outcome.REFUSED, pause_seconds


class Relay(ABC):
    """What both modes can do."""

    @asynccontextmanager
    async def permit(
        self, upstream: str, user: str, *, permits: int = 1, wait: float | None = None
    ) -> AsyncIterator[HeldPermit]:
        """Wait for a permit and hold it around your own call. A block that fails counts as sent and never answered."""
        loop = asyncio.get_running_loop()
        held, lease_at = await self._acquire(upstream, user, permits, wait)
        scope = asyncio.timeout_at(lease_at)
        try:
            async with scope:
                yield held
        except TimeoutError as error:
            with suppress(HeadgateError):  # the block's own word is worth more; what is not told ends with the lease
                await self._settle(upstream, user, held, held.outcome or Outcome.LOST, 0.0)
            if scope.expired():
                raise PermitExpired("The permit ended before the block did; the call may have been made.") from error
            raise
        except BaseException:
            answered = held.answered_at is not None
            outcome = held.outcome or (Outcome.ENDED if answered else Outcome.LOST)
            with suppress(HeadgateError):
                await asyncio.shield(self._settle(upstream, user, held, outcome, _age(held, loop)))
            raise
        await asyncio.shield(self._settle(upstream, user, held, held.outcome or Outcome.ENDED, _age(held, loop)))

    def transport(self, upstream: str, user: str, inner: httpx2.AsyncBaseTransport | None = None) -> PermitTransport:
        """Give a transport for httpx2 that takes a permit for every request it sends."""
        return PermitTransport(self, upstream, user, inner or httpx2.AsyncHTTPTransport())

    @abstractmethod
    async def request(
        self, method: str, upstream: str, path: str, *, user: str, query: str = "", content: bytes = b"",
        headers: Mapping[str, str] | None = None, deadline: float | None = None, permits: int = 1,
    ) -> RelayResponse:  # fmt: skip
        """Send a request through the relay and wait for its answer."""

    @abstractmethod
    async def submit(
        self, method: str, upstream: str, path: str, *, user: str, query: str = "", content: bytes = b"",
        headers: Mapping[str, str] | None = None, deadline: float | None = None, permits: int = 1,
    ) -> str:  # fmt: skip
        """Leave a request as a job and give its id."""

    @abstractmethod
    async def job(self, id: str) -> JobView:
        """Tell how a job stands."""

    @abstractmethod
    async def cancel(self, id: str) -> None:
        """Cancel a job that waits."""

    @abstractmethod
    async def jobs(self, upstream: str, state: JobState | None = None) -> Sequence[JobView]:
        """List all of an upstream's jobs: those that have not ended, in their order, then the ended, the latest first."""

    @abstractmethod
    async def upstreams(self) -> Sequence[UpstreamView]:
        """List all upstreams."""

    @abstractmethod
    async def put_upstream(self, name: str, policy: Upstream) -> UpstreamView:
        """Add or change an upstream."""

    @abstractmethod
    async def remove_upstream(self, name: str) -> None:
        """Take an upstream out of service."""

    @abstractmethod
    async def status(self, name: str) -> UpstreamStatus:
        """Tell who waits for an upstream."""

    async def wait_for(self, id: str, *, every: float = 0.5) -> JobView:
        """Wait until a job has ended."""
        while True:
            view = await self.job(id)
            if view.state not in (JobState.WAITING, JobState.SENDING):
                return view
            await asyncio.sleep(every)

    @abstractmethod
    async def _acquire(
        self, upstream: str, user: str, permits: int, wait: float | None
    ) -> tuple[HeldPermit, float]: ...

    @abstractmethod
    async def _settle(
        self, upstream: str, user: str, held: HeldPermit, outcome: Outcome, age_seconds: float
    ) -> None: ...


class StoreRelayBackend(Relay):
    """Beside the store."""

    def __init__(self, feature: Feature) -> None:
        self._feature = feature

    async def close(self) -> None:
        """Let the store hear of everything before the connection ends."""
        await self._feature.__aexit__(None, None, None)

    async def request(
        self, method: str, upstream: str, path: str, *, user: str, query: str = "", content: bytes = b"",
        headers: Mapping[str, str] | None = None, deadline: float | None = None, permits: int = 1,
    ) -> RelayResponse:  # fmt: skip
        started = asyncio.get_running_loop().time()
        view = await self._feature.upstreams.get(upstream, deadline=None if deadline is None else started + deadline)
        target = target_of(view.policy, _bytes(_path(path)), _bytes(query))
        user = user_id(user, "user")
        named = _named(method, headers, view.policy, user)
        request = RelayRequest(method, target, named, BufferedBody(content), user, permits)
        limit = started + (view.policy.deadline_seconds if deadline is None else deadline)
        async with self._feature.forwarder.forward(view, request, deadline=limit) as answer:
            body = b"".join([chunk async for chunk in answer.chunks])
            plain = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
            return RelayResponse(answer.status, plain, body, answer.position, round(answer.waited * 1000))

    async def submit(
        self, method: str, upstream: str, path: str, *, user: str, query: str = "", content: bytes = b"",
        headers: Mapping[str, str] | None = None, deadline: float | None = None, permits: int = 1,
    ) -> str:  # fmt: skip
        view = await self._feature.upstreams.get(upstream)
        target_of(view.policy, _bytes(_path(path)), _bytes(query))
        if len(content) > self._feature.settings.job_bytes:
            raise TooLarge(f"The body of a job may have {self._feature.settings.job_bytes} bytes.")
        longest = self._feature.settings.job_ms
        wait_ms = longest if deadline is None else min(longest, max(1, round(deadline * 1000)))
        user = user_id(user, "user")
        named = _named(method, headers, view.policy, user)
        kept = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in named]
        order = Order(method, _path(path), query, kept, content, user, permits, wait_ms)
        return await self._feature.jobs.submit(upstream, order)

    async def job(self, id: str) -> JobView:
        return await self._feature.jobs.get(id)

    async def cancel(self, id: str) -> None:
        await self._feature.jobs.cancel(id)

    async def jobs(self, upstream: str, state: JobState | None = None) -> Sequence[JobView]:
        return await self._feature.jobs.list(upstream, state)

    async def upstreams(self) -> Sequence[UpstreamView]:
        return await self._feature.upstreams.list()

    async def put_upstream(self, name: str, policy: Upstream) -> UpstreamView:
        return await self._feature.upstreams.put(name, policy)

    async def remove_upstream(self, name: str) -> None:
        await self._feature.upstreams.remove(name)

    async def status(self, name: str) -> UpstreamStatus:
        return await self._feature.upstreams.status(name)

    async def _acquire(self, upstream: str, user: str, permits: int, wait: float | None) -> tuple[HeldPermit, float]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        view = await self._feature.upstreams.get(upstream, deadline=None if wait is None else started + wait)
        limit = started + (view.policy.deadline_seconds if wait is None else wait)
        position, waited, place = -1, 0.0, 0
        while True:
            permit = await self._feature.permits.acquire(
                upstream, view.policy, user_id(user, "user"), deadline=limit, units=permits, place=place
            )
            position = permit.position if position < 0 else position
            waited, place = waited + permit.waited, permit.place
            try:
                permit.sending()
            except PermitExpired:  # the store's answer was too long on its way
                permit.give_back()
                if loop.time() >= limit:
                    raise DeadlineExceeded("Its permit came too late to be used before your deadline.") from None
                continue
            held = HeldPermit(permit.id, position, round(waited * 1000), permit)
            return held, permit.lease_at - view.policy.delivery_seconds

    async def _settle(self, upstream: str, user: str, held: HeldPermit, outcome: Outcome, age_seconds: float) -> None:
        assert held.own is not None
        told = held.own.settle(outcome, age_seconds=age_seconds, pause_seconds=held.pause_seconds)
        if told is not None:
            await asyncio.wait((told,))
            if told.cancelled() or isinstance(told.exception(), Closed):
                raise Closed


class HttpRelayBackend(Relay):
    """Through a gateway or a relay."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._user_headers: dict[str, str] = {}

    async def request(
        self, method: str, upstream: str, path: str, *, user: str, query: str = "", content: bytes = b"",
        headers: Mapping[str, str] | None = None, deadline: float | None = None, permits: int = 1,
    ) -> RelayResponse:  # fmt: skip
        response = await self._through(method, upstream, path, user, query, content, headers, deadline, permits)
        plain = [(name, value) for name, value in response.headers.multi_items() if not name.startswith("x-queue-")]
        position = int(response.headers.get("x-queue-position", 0))
        waited = int(response.headers.get("x-queue-wait", 0))
        return RelayResponse(response.status_code, plain, response.content, position, waited)

    async def submit(
        self, method: str, upstream: str, path: str, *, user: str, query: str = "", content: bytes = b"",
        headers: Mapping[str, str] | None = None, deadline: float | None = None, permits: int = 1,
    ) -> str:  # fmt: skip
        asking = {**(headers or {}), "Prefer": "respond-async"}
        response = await self._through(method, upstream, path, user, query, content, asking, deadline, permits)
        return msgspec.json.decode(response.content, type=JobView).id

    async def job(self, id: str) -> JobView:
        return await self._http.request("GET", f"/relay/jobs/{quote(id, safe='')}", answer=JobView)

    async def cancel(self, id: str) -> None:
        await self._http.request("DELETE", f"/relay/jobs/{quote(id, safe='')}", answer=type(None))

    async def jobs(self, upstream: str, state: JobState | None = None) -> Sequence[JobView]:
        found: dict[str, JobView] = {}  # one that ends between two pages is on both
        page: str | None = None
        while True:
            query = {"state": state, "page": page}
            answer = await self._http.request("GET", f"{_upstream(upstream)}/jobs", query=query, answer=JobList)
            found.update((view.id, view) for view in answer.jobs)
            page = answer.next_page
            if page is None:
                return [*found.values()]

    async def upstreams(self) -> Sequence[UpstreamView]:
        return (await self._http.request("GET", "/api/admin/upstreams", answer=UpstreamList)).upstreams

    async def put_upstream(self, name: str, policy: Upstream) -> UpstreamView:
        return await self._http.request("PUT", _upstream(name), body=policy, answer=UpstreamView)

    async def remove_upstream(self, name: str) -> None:
        await self._http.request("DELETE", _upstream(name), answer=type(None))

    async def status(self, name: str) -> UpstreamStatus:
        return await self._http.request("GET", f"{_upstream(name)}/status", answer=UpstreamStatus)

    async def _through(
        self, method: str, upstream: str, path: str, user: str, query: str, content: bytes,
        headers: Mapping[str, str] | None, deadline: float | None, permits: int,
    ) -> httpx2.Response:  # fmt: skip
        """Send it; the header that names the user is the upstream's own, which a refusal tells before anything is sent."""
        written_headers(method, headers or {})
        refuse_dots(_bytes(_path(path)))  # the HTTP client would resolve them, and ask another route of the gateway
        user = user_id(user, "user")
        sent = {**(headers or {}), "X-Permits": str(permits)}
        if deadline is not None:
            sent["X-Deadline-Ms"] = str(max(1, round(deadline * 1000)))
        address = f"/relay/{quote(upstream_name(upstream), safe='')}{_path(path)}{'?' + query if query else ''}"
        seconds = None if deadline is None else deadline + SPARE_SECONDS
        while True:
            named = self._user_headers.get(upstream, USER_HEADER)
            others = {name: value for name, value in sent.items() if name.lower() != named.lower()}
            try:
                response = await self._http.exchange(
                    method, address, content=content, headers={**others, named: user.encode()}, timeout_seconds=seconds
                )
            except UnicodeEncodeError as trouble:
                raise NotText from trouble
            problem = response.headers.get("content-type", "").startswith("application/problem+json")
            if not problem or "x-queue-position" in response.headers:
                return response
            error = problem_of(response.status_code, response.content)
            told = error.members.get("header") if isinstance(error, UserMissing) else None
            if not isinstance(told, str) or told == named:
                raise error
            self._user_headers[upstream] = told

    async def _acquire(self, upstream: str, user: str, permits: int, wait: float | None) -> tuple[HeldPermit, float]:
        asked = asyncio.get_running_loop().time()
        answer = await self._http.request(
            "POST",
            "/relay/permits",
            body=PermitRequest(upstream=upstream, user=user_id(user), permits=permits, wait_seconds=wait),
            answer=PermitAnswer,
            timeout_seconds=(LONGEST_WAIT if wait is None else wait) + SPARE_SECONDS,
        )
        # The lease was measured after the gateway had the permit; counting from before we heard of it is on the safe side.
        now = asyncio.get_running_loop().time()
        lease_at = max(asked, now - 1.0) + answer.lease_seconds
        return HeldPermit(answer.permit, answer.position, answer.waited_ms), lease_at - answer.delivery_seconds

    async def _settle(self, upstream: str, user: str, held: HeldPermit, outcome: Outcome, age_seconds: float) -> None:
        told = Completion(
            upstream=upstream, user=user, outcome=outcome, age_ms=int(age_seconds * 1000),
            pause_seconds=held.pause_seconds,
        )  # fmt: skip
        await self._http.request("POST", f"/relay/permits/{held.id}/complete", body=told, answer=type(None))


class PermitTransport(httpx2.AsyncBaseTransport):
    """Sends each request under a permit; the permit cools when the head of the answer is here."""

    def __init__(self, relay: Relay, upstream: str, user: str, inner: httpx2.AsyncBaseTransport) -> None:
        self._relay = relay
        self._upstream = upstream
        self._user = user
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        async with self._relay.permit(self._upstream, self._user) as held:
            try:
                response = await self._inner.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol):
                held.unsent()
                raise
            if response.status_code == 429:
                headers = [(name.lower(), value) for name, value in response.headers.raw]
                held.refused(pause_of(headers, 1.0))
            return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def relay_of(backend: Http | Store) -> StoreRelayBackend | HttpRelayBackend:
    """Give the relay part for what a client talks to."""
    return StoreRelayBackend(Feature(backend)) if isinstance(backend, Store) else HttpRelayBackend(backend)


def _age(held: HeldPermit, loop: asyncio.AbstractEventLoop) -> float:
    return 0.0 if held.answered_at is None else loop.time() - held.answered_at


def _named(method: str, headers: Mapping[str, str] | None, policy: Upstream, user: str) -> Headers:
    """Write a caller's headers with the one that says whose request it is, which nobody else may say."""
    name = policy.user_header.lower().encode()
    named = [header for header in written_headers(method, headers or {}) if header[0] != name]
    return [*named, (name, user.encode())]


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # half of a character is refused like every other that is not ASCII


def _path(path: str) -> str:
    return urlsplit(path if path.startswith("/") else f"/{path}").path


def _upstream(name: str) -> str:
    return f"/api/admin/upstreams/{quote(upstream_name(name), safe='')}"
