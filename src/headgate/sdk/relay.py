"""`hg.relay`: permits around your own calls, requests through the relay, jobs, and upstreams.

A block under a permit that outlives it is cancelled before the store gives the permit to another caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import httpx2

from headgate.kit.problems import HeadgateError
from headgate.relay.headers import pause_of
from headgate.relay.model import JobState, Outcome, Upstream
from headgate.relay.problems import PermitExpired
from headgate.relay.wire import JobView, UpstreamStatus, UpstreamView
from headgate.sdk.backends.relay import HeldPermit, RelayBackend, RelayCall, RelayResponse


class Relay:
    """The relay for one client."""

    def __init__(self, backend: RelayBackend) -> None:
        self._backend = backend

    @asynccontextmanager
    async def permit(
        self, upstream: str, user: str, *, permits: int = 1, wait: float | None = None
    ) -> AsyncIterator[HeldPermit]:
        """Wait for a permit and hold it around your own call. A block that fails counts as sent and never answered."""
        settle = self._backend.settle
        held, lease_at = await self._backend.acquire(upstream, user, permits, wait)
        scope = asyncio.timeout_at(lease_at)
        try:
            async with scope:
                yield held
        except TimeoutError as error:
            with suppress(HeadgateError):  # the block's error matters more; an unsettled permit ends with its lease
                await settle(upstream, user, held, held.outcome or Outcome.LOST, 0.0)
            if scope.expired():
                raise PermitExpired("The permit ended before the block did; the call may have been made.") from error
            raise
        except BaseException:
            answered = held.answered_at is not None
            outcome = held.outcome or (Outcome.ENDED if answered else Outcome.LOST)
            with suppress(HeadgateError):
                await asyncio.shield(settle(upstream, user, held, outcome, _age(held)))
            raise
        await asyncio.shield(settle(upstream, user, held, held.outcome or Outcome.ENDED, _age(held)))

    def transport(self, upstream: str, user: str, inner: httpx2.AsyncBaseTransport | None = None) -> PermitTransport:
        """Give a transport for httpx2 that takes a permit for every request it sends."""
        return PermitTransport(self, upstream, user, inner or httpx2.AsyncHTTPTransport())

    async def request(
        self, method: str, upstream: str, path: str, *, user: str, query: str = "", content: bytes = b"",
        headers: Mapping[str, str] | None = None, deadline: float | None = None, permits: int = 1,
    ) -> RelayResponse:  # fmt: skip
        """Send a request through the relay and wait for its response."""
        return await self._backend.request(
            RelayCall(method, upstream, path, user, query, content, headers or {}, deadline, permits)
        )

    async def submit(
        self, method: str, upstream: str, path: str, *, user: str, query: str = "", content: bytes = b"",
        headers: Mapping[str, str] | None = None, deadline: float | None = None, permits: int = 1,
    ) -> str:  # fmt: skip
        """Leave a request as a job and give its id."""
        return await self._backend.submit(
            RelayCall(method, upstream, path, user, query, content, headers or {}, deadline, permits)
        )

    async def job(self, id: str) -> JobView:
        """Give a job's state and, once it has ended, its response."""
        return await self._backend.job(id)

    async def cancel(self, id: str) -> None:
        """Cancel a job that waits."""
        await self._backend.cancel(id)

    async def jobs(self, upstream: str, state: JobState | None = None) -> Sequence[JobView]:
        """List all of an upstream's jobs: those that have not ended, in their order, then the ended, the latest first."""
        return await self._backend.jobs(upstream, state)

    async def upstreams(self) -> Sequence[UpstreamView]:
        """List all upstreams."""
        return await self._backend.upstreams()

    async def put_upstream(self, name: str, policy: Upstream) -> UpstreamView:
        """Add or change an upstream."""
        return await self._backend.put_upstream(name, policy)

    async def remove_upstream(self, name: str) -> None:
        """Take an upstream out of service."""
        await self._backend.remove_upstream(name)

    async def status(self, name: str) -> UpstreamStatus:
        """Give an upstream's figures: in flight, cooling, and waiting by user."""
        return await self._backend.status(name)

    async def wait_for(self, id: str, *, every: float = 0.5) -> JobView:
        """Wait until a job has ended."""
        while True:
            view = await self.job(id)
            if view.state not in (JobState.WAITING, JobState.SENDING):
                return view
            await asyncio.sleep(every)

    async def close(self) -> None:
        """Refuse further calls, and wait a while for requests and permits that are in flight."""
        await self._backend.close()


class PermitTransport(httpx2.AsyncBaseTransport):
    """Sends each request under a permit, which cools from the moment that the response's headers are here."""

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


def _age(held: HeldPermit) -> float:
    return 0.0 if held.answered_at is None else asyncio.get_running_loop().time() - held.answered_at
