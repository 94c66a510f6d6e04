"""Forwards one request: waits for a permit, sends it, and decides whether it may be sent again.

A request is sent again only if the first attempt had no effect (nothing was sent, or the upstream refused it with 429),
or if it is repeatable (a safe method, or an Idempotency-Key). Every attempt has a permit of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from headgate.http.client import ClientConnection, Pool, PoolExhausted, RequestFailed, RequestTimeout, write_head
from headgate.http.client_response import ClientResponse, Headers
from headgate.kit import traces
from headgate.kit.problems import DeadlineExceeded
from headgate.kit.tasks import CallsInProgress
from headgate.relay.headers import SAFE, pause_of, request_headers, response_headers, with_trace
from headgate.relay.model import Outcome, Upstream
from headgate.relay.permits import Permit, Permits
from headgate.relay.problems import PermitExpired, UpstreamFailed, UpstreamTimeout
from headgate.relay.settings import RelaySettings
from headgate.relay.wire import UpstreamView

ANSWERED_SECONDS: Final = 1.0
DRAIN_BYTES: Final = 65_536
DRAIN_SECONDS: Final = 1.0
HEAD_SECONDS: Final = 0.05  # how long the head of a streamed answer waits for the first bytes of its body
AttemptCallback = Callable[[], Awaitable[None]]


class BodySource(Protocol):
    """The body of a request that is forwarded."""

    @property
    def length(self) -> int | None:
        """The length in bytes; -1 without a body, None if unknown."""

    @property
    def replayable(self) -> bool:
        """Whether `chunks` can be read from the beginning again."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""


class RelayRequest(msgspec.Struct, frozen=True):
    """A request for an upstream."""

    method: str
    target: bytes
    headers: Headers
    body: BodySource
    user: str
    units: int = 1

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice does no harm."""
        return self.method in SAFE or any(name == b"idempotency-key" for name, _ in self.headers)


class RelayAnswer:
    """The head of an upstream's answer, and its body as it arrives.

    `ahead` is the part of the body that was read already. `truncated` means that the body of a 429 broke off and is dropped.
    """

    __slots__ = ("_ahead", "_connection", "_response", "_seconds", "chunks", "headers", "permit", "position", "truncated",
                 "waited")  # fmt: skip

    def __init__(
        self, connection: ClientConnection, response: ClientResponse, chunks: AsyncIterator[bytes], permit: Permit, *,
        seconds: float, position: int, waited: float, ahead: bytes = b"", truncated: bool = False,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._response = response
        self._seconds = seconds
        self._ahead = ahead
        self.headers = response_headers(response.headers, body=not truncated)
        self.chunks = chunks
        self.permit = permit
        self.position = position
        self.waited = waited
        self.truncated = truncated

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    @property
    def whole(self) -> bytes | None:
        """The whole body if it has arrived already; then `chunks` need not be read."""
        if self.truncated:
            return b""
        return self._ahead + b"".join(self._response.chunks) if self._response.complete else None

    async def begins(self) -> bool:
        """Wait until some of the body or its end has arrived; False if it is a stream without data yet.

        An error until then is raised before anything of the answer was passed on.
        """
        if self._ahead or self.truncated:
            return True
        with _upstream_errors():
            begun = await self._connection.body_begins(self._seconds if self._response.sized else HEAD_SECONDS)
        if not begun and self._response.sized:
            raise UpstreamTimeout("The answer stopped after its head.", outcome="answered")
        return begun


class Forwarder:
    """Sends requests to upstreams within their limits."""

    def __init__(self, permits: Permits, settings: RelaySettings) -> None:
        self._permits = permits
        self._secrets = settings.secrets_by_name()
        self._refused = [ipaddress.ip_network(text) for text in settings.refused_networks]
        self._pools: dict[str, Pool] = {}
        self._calls = CallsInProgress()
        self._loop = asyncio.get_running_loop()

    async def over(self, seconds: float) -> None:
        """Wait until every request has ended, for at most so many seconds."""
        await self._calls.finished(seconds)

    def close(self) -> None:
        """Close the idle connections, and the others when their requests have ended."""
        for pool in self._pools.values():
            pool.close()

    @asynccontextmanager
    async def forward(
        self, view: UpstreamView, request: RelayRequest, *, deadline: float, place: int = 0, most: int | None = None,
        before: AttemptCallback | None = None, refused: AttemptCallback | None = None,
    ) -> AsyncIterator[RelayAnswer]:  # fmt: skip
        """Wait for a permit, send, and yield the answer, whose body is read inside the block.

        `before` is called before each attempt, `refused` when the upstream refused one and the request waits again.
        """
        with self._calls:
            async with self._forward(view, request, deadline, place, most, before, refused) as answer:
                yield answer

    @asynccontextmanager
    async def _forward(
        self, view: UpstreamView, request: RelayRequest, deadline: float, place: int, most: int | None,
        before: AttemptCallback | None, refused: AttemptCallback | None,
    ) -> AsyncIterator[RelayAnswer]:  # fmt: skip
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
                    pause = await self._pause(policy, request, permit, response, deadline)
                    again = policy.retry.refused and request.body.replayable and self._loop.time() + pause < deadline
                else:
                    again = status in policy.retry.statuses and request.repeatable and request.body.replayable
                    again = again and attempts < policy.retry.attempts
                    attempts += again
                if again:
                    if status == 429 and refused is not None:
                        await refused()
                    await _short_body(connection)  # so that the connection can be used again
                    continue
                if not policy.concurrent:
                    permit.settle(Outcome.ENDED, age_seconds=self._age(response))
                ahead, truncated = await _short_body(connection) if status == 429 else (b"", False)
                chunks = self._body(policy, permit, connection, response, ahead, truncated=truncated)
                yield RelayAnswer(
                    connection, response, chunks, permit, seconds=policy.timeout_seconds, position=position,
                    waited=waited, ahead=ahead, truncated=truncated,
                )  # fmt: skip
                return
            finally:
                permit.settle(Outcome.ENDED, age_seconds=self._age(response))
                pool.release(connection)

    async def _ask(
        self, name: str, policy: Upstream, request: RelayRequest, permit: Permit, before: AttemptCallback | None
    ) -> tuple[ClientConnection, Pool, ClientResponse]:
        """Send the request under a permit; on any error the permit is settled."""
        try:
            if before is not None:
                await before()
            pool = self._pool(name, policy)
            with _upstream_errors():
                connection = await pool.acquire(
                    min(policy.connect_seconds, max(0.05, permit.send_by - self._loop.time()))
                )
        except PoolExhausted:
            permit.give_back()
            raise PermitExpired from None
        except BaseException:
            permit.give_back()
            raise
        length = request.body.length
        try:
            with _span(name, policy, request) as span, _upstream_errors():
                headers = request_headers(with_trace(request.headers), policy, self._secrets, length=length)
                head = write_head(request.method, request.target, headers)
                body = None if length is not None and length <= 0 else request.body.chunks()
                started = self._loop.time()
                response = await connection.request(
                    request.method, head, body, length=length, begin=permit.sending, seconds=policy.timeout_seconds
                )
                span.answer(response.status)
        except BaseException:
            if connection.first_byte is not None:
                permit.settle(Outcome.ENDED, age_seconds=self._loop.time() - connection.first_byte)
            else:
                permit.give_back()
            connection.close()
            pool.release(connection)
            raise
        permit.meters.upstream_seconds.observe((response.first_byte or started) - started)
        return connection, pool, response

    def _age(self, response: ClientResponse) -> float:
        """Return how many seconds ago an answer began."""
        return self._loop.time() - (response.first_byte or 0.0)

    async def _pause(
        self, policy: Upstream, request: RelayRequest, permit: Permit, response: ClientResponse, deadline: float
    ) -> float:
        """Report a 429: the store pauses this user for as long as the upstream says, then lets one request go first."""
        permit.meters.refusals.inc()
        window = policy.window_of(request.user)
        pause = pause_of(response.headers, window.seconds if window and window.seconds else 1.0)
        settling = permit.settle(Outcome.REFUSED, pause_seconds=pause)
        if settling is not None:
            # The store must know of the refusal before the next attempt; there is none after the deadline.
            await asyncio.wait((settling,), timeout=max(0.0, deadline - self._loop.time()))
        return max(pause, permit.paused_seconds)

    async def _body(
        self, policy: Upstream, permit: Permit, connection: ClientConnection, response: ClientResponse, ahead: bytes, *,
        truncated: bool,
    ) -> AsyncIterator[bytes]:  # fmt: skip
        if truncated:
            return
        if ahead:
            yield ahead
        first_byte = response.first_byte or 0.0
        report_at = first_byte + ANSWERED_SECONDS
        with _upstream_errors():
            async for chunk in connection.chunks(policy.timeout_seconds):
                yield chunk
                now = self._loop.time()
                if policy.concurrent and now >= report_at:
                    report_at = now + policy.lease_ms / 3000
                    permit.settle(Outcome.ANSWERED, age_seconds=now - first_byte)

    def _pool(self, name: str, policy: Upstream) -> Pool:
        pool = self._pools.get(name)
        if pool is None or pool.key != (policy.base_url, policy.verify_tls, policy.max_connections):
            if pool is not None:
                pool.close()
            pool = self._pools[name] = Pool(
                policy.base_url, verify_tls=policy.verify_tls, max_connections=policy.max_connections,
                refused=self._refused, peer="upstream",
            )  # fmt: skip
        return pool


@contextmanager
def _upstream_errors() -> Iterator[None]:
    """Turn the errors of the HTTP client into those of the relay."""
    try:
        yield
    except RequestTimeout as error:
        raise UpstreamTimeout(str(error), outcome=error.outcome) from error
    except RequestFailed as error:
        raise UpstreamFailed(str(error), outcome=error.outcome) from error


def _span(upstream: str, policy: Upstream, request: RelayRequest) -> AbstractContextManager[traces.Span]:
    """Open the trace span of one attempt, below the span of its request or job."""
    if not traces.on():
        return traces.span("send")
    base = urlsplit(policy.base_url)
    port = base.port or (443 if base.scheme == "https" else 80)
    url = f"{base.scheme}://{base.netloc.rpartition('@')[2]}{request.target.decode('latin-1')}"
    return traces.call_span(request.method, base.hostname or "", port, url, attributes={"headgate.upstream": upstream})


def _may_repeat(request: RelayRequest, error: UpstreamFailed) -> bool:
    unsent = error.members.get("outcome") == "unsent"
    return request.body.replayable and (unsent or request.repeatable)


async def _short_body(connection: ClientConnection) -> tuple[bytes, bool]:
    """Read a short body, or the beginning of a long one; True if it broke off or was too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for chunk in connection.chunks(DRAIN_SECONDS):
                body += chunk
                if len(body) > DRAIN_BYTES:
                    break
    except (TimeoutError, RequestFailed):
        return b"", True
    return bytes(body), False
