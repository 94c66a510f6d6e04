"""The connection to a gateway; problems are raised as the same exceptions that the store raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Final, TypeVar

import httpx2
import msgspec

from headgate.http.cookies import no_cookies
from headgate.kit import traces
from headgate.kit.fork import forks
from headgate.kit.ids import sent_secret
from headgate.kit.problems import Closed, Forked, HeadgateError, InvalidRequest, StoreUnavailable, from_document
from headgate.sdk.decoding import decode_response

TIMEOUT_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 45.0  # a gateway says something on every stream at least each 15 s

T = TypeVar("T")
Query = Mapping[str, str | int | float | bool | list[str] | None]
Event = httpx2.ServerSentEvent


class GatewayUnavailable(StoreUnavailable):
    """The gateway cannot be reached; try again shortly."""


class NotText(InvalidRequest):
    """A text has a lone surrogate, or a header a character that headers cannot carry; it was not sent."""


class Http:
    """A connection pool to one gateway, signed in with a token."""

    def __init__(self, url: str, token: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.url = gateway_url(url).rstrip("/")
        token = sent_secret(token or "", "The token")
        at = httpx2.URL(self.url)
        # For messages: the URL without a password.
        self._said = self.url if not at.userinfo else str(at.copy_with(username=None, password=None))
        self._closed = False
        self._forks = forks.count
        self._calls: set[asyncio.Timeout] = set()
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"X-API-Token": token} if token else {},
            cookies=no_cookies(),  # requests of many users are relayed, and their upstreams set cookies
            timeout=httpx2.Timeout(timeout_seconds),
            limits=httpx2.Limits(max_connections=None),
            follow_redirects=False,
        )

    async def __aenter__(self) -> Http:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            call.reschedule(now)
        await self._client.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _while_open(self) -> AsyncIterator[None]:
        """Cancel the block when this is closed; closing the pool alone would not end a call that is still connecting."""
        async with asyncio.timeout(None) as call:
            self._calls.add(call)
            try:
                yield
            finally:
                self._calls.discard(call)

    @contextmanager
    def _reached(self, trouble: str) -> Iterator[None]:
        """Turn errors of the HTTP client into Closed, Forked, NotText and GatewayUnavailable."""
        if self._forks != forks.count:
            raise Forked
        if self._closed:
            raise Closed
        try:
            yield
        except UnicodeEncodeError as error:
            raise NotText from error
        except (httpx2.RequestError, RuntimeError, TimeoutError) as error:
            if self._closed:
                raise Closed from error
            if not isinstance(error, httpx2.RequestError):
                raise
            if isinstance(error, httpx2.LocalProtocolError) and "header" in str(error).lower():
                raise NotText from None  # its text repeats the header, which may be a secret
            raise GatewayUnavailable(f"{trouble}: {_words(error)}.") from error

    async def request(
        self,
        method: str,
        path: str,
        *,
        answer: type[T],
        query: Query | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> T:
        """Make one call; its JSON comes back as `answer` (`type(None)` for none), a problem as its exception."""
        response = await self.send(
            method, path, query=query, body=body, headers=headers, timeout_seconds=timeout_seconds
        )
        if answer is type(None):
            return msgspec.convert(None, answer)
        try:
            return decode_response(response.content, answer)
        except msgspec.DecodeError as error:
            raise GatewayUnavailable(
                f"{self._said} answered {response.status_code}, but not as a gateway: {error}."
            ) from error

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> httpx2.Response:
        """Make one call and give the whole response, for callers who want its headers."""
        sent = dict(headers or {})
        if body is not None:
            sent["Content-Type"] = "application/json"
        with self._reached(f"{self._said} cannot be reached"), self._span(method) as span:
            async with self._while_open():
                response = await self._client.request(
                    method,
                    path,
                    params=_present(query),
                    content=msgspec.json.encode(body) if body is not None else None,
                    headers=sent | traces.headers(),
                    timeout=httpx2.USE_CLIENT_DEFAULT if timeout_seconds is None else httpx2.Timeout(timeout_seconds),
                )
            span.answer(response.status_code)
        if response.status_code >= 400:
            raise problem_of(response.status_code, response.content)
        return response

    def _span(self, method: str) -> AbstractContextManager[traces.Span]:
        """Record a call as a child of the current span; the path is left out, since it may hold a ticket."""
        if not traces.on():
            return traces.span(method)
        url = httpx2.URL(self.url)
        return traces.call_span(method, url.host, url.port or (443 if url.scheme == "https" else 80), self._said)

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        headers: Mapping[str, str | bytes] | None = None,
        timeout_seconds: float | None = None,
    ) -> httpx2.Response:
        """Send bytes as they are and give the response, whatever its status; for requests that are relayed."""
        timeout = httpx2.Timeout(TIMEOUT_SECONDS, read=timeout_seconds)
        written = [
            (name.encode("ascii"), value.encode("ascii") if isinstance(value, str) else value)
            for name, value in (headers or {}).items()
        ]
        with self._reached(f"{self._said} cannot be reached"):
            async with self._while_open():
                return await self._client.request(
                    method, path, content=content or None, headers=written, timeout=timeout
                )

    @asynccontextmanager
    async def events(
        self, path: str, *, query: Query | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Open a stream of Server-Sent Events; a connection that falls silent is given up."""
        timeout = httpx2.Timeout(TIMEOUT_SECONDS, read=SILENT_SECONDS)
        with self._reached(f"The stream from {self._said} broke"):
            stream = self._client.stream(
                "GET", path, params=_present(query), headers=dict(headers or {}), timeout=timeout
            )
            async with AsyncExitStack() as stack:
                async with self._while_open():
                    response = await stack.enter_async_context(stream)
                if response.status_code >= 400:
                    raise problem_of(response.status_code, await response.aread())
                yield aiter(httpx2.EventSource(response))


def gateway_url(url: str) -> str:
    """Check a gateway's URL; the error does not repeat it, because it may hold a password."""
    url = url.strip()
    try:
        parsed = httpx2.URL(url)
        port = parsed.port
    except (httpx2.InvalidURL, ValueError):
        raise InvalidRequest("The gateway's URL cannot be read; it looks like http://host:8080.", field="url") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host or "%20" in parsed.host or " " in parsed.host:
        raise InvalidRequest("The gateway's URL names no host; it looks like http://host:8080.", field="url")
    if port is not None and not 0 < port < 65536:
        raise InvalidRequest(f"The gateway's URL has the port {port}; ports are 1 to 65535.", field="url")
    return url


def problem_of(status: int, content: bytes) -> HeadgateError:
    """Decode an error response into its exception; it may come from a proxy in front of the gateway."""
    try:
        document = msgspec.json.decode(content, type=dict[str, object])
    except msgspec.DecodeError:
        document = {"title": f"The gateway answered {status}"}
        if status in {502, 503, 504}:
            return GatewayUnavailable(f"Something in front of the gateway answered {status}.")
    return from_document(document, status)


def problem_in(event: Event) -> HeadgateError:
    """Decode the event `problem`, with which a gateway ends a stream that it cannot continue."""
    document = msgspec.json.decode(event.data, type=dict[str, object])
    status = document.get("status")
    return from_document(document, status if isinstance(status, int) else 500)


def _present(query: Query | None) -> dict[str, str | list[str]]:
    """Write the parameters of a query, without those that are None."""
    found: dict[str, str | list[str]] = {}
    for name, value in (query or {}).items():
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, list):
            found[name] = value
        elif value is not None:
            found[name] = str(value)
    return found


def _words(error: httpx2.RequestError) -> str:
    return str(error).rstrip(".") or type(error).__name__
