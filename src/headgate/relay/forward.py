"""One request on its way: wait for a permit, send, and decide what may be sent again.

A request is sent a second time only if the first surely did nothing: nothing left, or the upstream refused it with 429;
or if doing it twice does no harm: a safe method, or an Idempotency-Key. Every sending has a permit of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

import msgspec

from headgate.kit.problems import DeadlineExceeded
from headgate.kit.underway import Underway
from headgate.relay.headers import SAFE, Headers, pause_of, request_headers, response_headers
from headgate.relay.model import Outcome, Upstream, UpstreamView
from headgate.relay.outgoing import Connection, Pool, write_head
from headgate.relay.permits import Permit, Permits
from headgate.relay.problems import PermitExpired, UpstreamFailed
from headgate.relay.response import Response
from headgate.relay.settings import RelaySettings

ANSWERED_SECONDS: Final = 1.0
DRAIN_BYTES: Final = 65_536
Before = Callable[[], Awaitable[None]]


class Source(Protocol):
    """Where a request's body comes from."""

    @property
    def length(self) -> int | None:
        """Give the length; -1 without a body, None if nobody knows."""

    @property
    def replayable(self) -> bool:
        """Tell whether `chunks` can be read from the beginning again."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Read it."""


class Request(msgspec.Struct, frozen=True):
    """What is to be sent."""

    method: str
    target: bytes
    headers: Headers
    body: Source
    user: str
    units: int = 1

    @property
    def repeatable(self) -> bool:
        """Tell whether doing it twice does no harm."""
        return self.method in SAFE or any(name == b"idempotency-key" for name, _ in self.headers)


class Answer:
    """The head of an answer, and its body as it comes."""

    __slots__ = ("_response", "chunks", "headers", "permit", "position", "waited")

    def __init__(
        self, response: Response, chunks: AsyncIterator[bytes], permit: Permit, position: int, waited: float
    ) -> None:
        self._response = response
        self.headers = response_headers(response.headers)
        self.chunks = chunks
        self.permit = permit
        self.position = position
        self.waited = waited

    @property
    def status(self) -> int:
        """Give the status."""
        return self._response.status

    @property
    def whole(self) -> bytes | None:
        """Give the whole body if it is here already; then `chunks` need not be read."""
        return b"".join(self._response.chunks) if self._response.complete else None


class Forwarder:
    """Sends requests to upstreams within their limits."""

    def __init__(self, permits: Permits, settings: RelaySettings) -> None:
        self._permits = permits
        self._secrets = settings.secrets_by_name()
        self._refused = [ipaddress.ip_network(text) for text in settings.refused_networks]
        self._pools: dict[str, Pool] = {}
        self._underway = Underway()
        self._loop = asyncio.get_running_loop()

    async def over(self, seconds: float) -> None:
        """Wait until every request has ended, or so long."""
        await self._underway.over(seconds)

    def close(self) -> None:
        """End the connections that rest, and those in use when their requests have ended."""
        for pool in self._pools.values():
            pool.close()

    @asynccontextmanager
    async def forward(
        self, view: UpstreamView, request: Request, *, deadline: float, place: int = 0, most: int | None = None,
        before: Before | None = None,
    ) -> AsyncIterator[Answer]:  # fmt: skip
        """Wait, send, and give the answer; inside the block its body is read."""
        with self._underway:
            async with self._forward(view, request, deadline, place, most, before) as answer:
                yield answer

    @asynccontextmanager
    async def _forward(
        self, view: UpstreamView, request: Request, deadline: float, place: int, most: int | None, before: Before | None
    ) -> AsyncIterator[Answer]:
        policy = view.policy
        position, waited, attempts = -1, 0.0, 0
        while True:
            permit = await self._permits.acquire(
                view.name, policy, request.user, deadline=deadline, units=request.units, place=place, most=most
            )
            place, waited = permit.place, waited + permit.waited
            position = permit.position if position < 0 else position
            try:
                connection, pool, response = await self._ask(view.name, policy, request, permit, before)
            except PermitExpired:
                if self._loop.time() >= deadline:
                    raise DeadlineExceeded("It could not be sent before your deadline.") from None
                continue
            except UpstreamFailed as error:
                if not _may_repeat(request, error) or attempts >= policy.retry.attempts:
                    raise
                attempts += 1
                continue
            try:
                status = response.status
                if status == 429:
                    pause = await self._pause(policy, request, permit, response)
                    again = policy.retry.refused and request.body.replayable and self._loop.time() + pause < deadline
                else:
                    again = status in policy.retry.statuses and request.repeatable and request.body.replayable
                    again = again and attempts < policy.retry.attempts
                    attempts += again
                if again:
                    await _drain(connection)
                    continue
                if not policy.concurrent:
                    permit.settle(Outcome.ENDED, age_seconds=self._age(response))
                yield Answer(response, self._body(policy, permit, connection, response), permit, position, waited)
                return
            finally:
                permit.settle(Outcome.ENDED, age_seconds=self._age(response))
                pool.give_back(connection)

    async def _ask(
        self, name: str, policy: Upstream, request: Request, permit: Permit, before: Before | None
    ) -> tuple[Connection, Pool, Response]:
        """Send on a permit; whatever goes wrong, the permit is told."""
        try:
            if before is not None:
                await before()
            pool = self._pool(name, policy)
            connection = await pool.take(min(policy.connect_seconds, max(0.05, permit.send_by - self._loop.time())))
        except BaseException:
            permit.give_back()
            raise
        length = request.body.length
        try:
            headers = request_headers(request.headers, policy, self._secrets, length=length)
            head = write_head(request.method, request.target, headers)
            body = None if length is not None and length <= 0 else request.body.chunks()
            started = self._loop.time()
            response = await connection.ask(
                request.method, head, body, length=length, begin=permit.sending, seconds=policy.timeout_seconds
            )
        except BaseException:
            if connection.first_byte is not None:
                permit.settle(Outcome.ENDED, age_seconds=self._loop.time() - connection.first_byte)
            else:
                permit.give_back()
            connection.close()
            pool.give_back(connection)
            raise
        permit.meters.upstream_seconds.observe((response.first_byte or started) - started)
        return connection, pool, response

    def _age(self, response: Response) -> float:
        """Say how long ago an answer began."""
        return self._loop.time() - (response.first_byte or 0.0)

    async def _pause(self, policy: Upstream, request: Request, permit: Permit, response: Response) -> float:
        """Hear a 429: the store pauses this user as long as the upstream says, then lets one go first."""
        permit.meters.refusals.inc()
        window = policy.window_of(request.user)
        pause = pause_of(response.headers, window.seconds if window and window.seconds else 1.0)
        told = permit.settle(Outcome.REFUSED, pause_seconds=pause)
        if told is not None:
            await asyncio.wait((told,))  # before we ask again
        return pause

    async def _body(
        self, policy: Upstream, permit: Permit, connection: Connection, response: Response
    ) -> AsyncIterator[bytes]:
        first_byte = response.first_byte or 0.0
        tell_at = first_byte + ANSWERED_SECONDS
        async for chunk in connection.chunks(policy.timeout_seconds):
            yield chunk
            now = self._loop.time()
            if policy.concurrent and now >= tell_at:
                tell_at = now + policy.lease_ms / 3000
                permit.settle(Outcome.ANSWERED, age_seconds=now - first_byte)

    def _pool(self, name: str, policy: Upstream) -> Pool:
        pool = self._pools.get(name)
        if pool is None or pool.key != (policy.base_url, policy.verify_tls, policy.max_connections):
            if pool is not None:
                pool.close()
            pool = self._pools[name] = Pool(policy, self._refused)
        return pool


def _may_repeat(request: Request, error: UpstreamFailed) -> bool:
    unsent = error.members.get("outcome") == "unsent"
    return request.body.replayable and (unsent or request.repeatable)


async def _drain(connection: Connection) -> None:
    """Read the rest of a short answer, so that the connection can be used again."""
    read = 0
    async for chunk in connection.chunks(1.0):
        read += len(chunk)
        if read > DRAIN_BYTES:
            return
