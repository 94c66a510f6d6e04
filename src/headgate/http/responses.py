"""Renders responses: JSON, problem documents and streams, all with the same security headers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from math import ceil

import msgspec

from headgate.http.routes import EVENTS, JSON, Answer, Call, Send, Stream, event, header_value
from headgate.kit.problems import HeadgateError, MethodNotAllowed, RateLimited, Unauthorized
from headgate.kit.tasks import cancel

Headers = list[tuple[bytes, bytes]]

PROBLEM = "application/problem+json"
KEEP_ALIVE_SECONDS = 15.0
SEND_SECONDS = 30.0

_SECURITY = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
encode = msgspec.json.Encoder().encode
_encode_any = msgspec.json.Encoder(enc_hook=str).encode


def _headers(content_type: str | None, headers: Mapping[str, str]) -> Headers:
    named = {**_SECURITY, **({"content-type": content_type} if content_type else {})}
    named |= {name.lower(): value for name, value in headers.items()}
    return [(name.encode("latin-1"), header_value(value)) for name, value in named.items()]


def header_lines(headers: Headers) -> bytes:
    """Write headers as the lines of a response."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


@lru_cache(maxsize=256)
def _default_headers(content_type: str | None) -> bytes:
    return header_lines(_headers(content_type, {}))


_JSON_HEADERS = _default_headers(JSON)
_PROBLEM_HEADERS = _default_headers(PROBLEM)
_EMPTY_HEADERS = _default_headers(None)


def rendered(result: object, status: int) -> tuple[int, bytes, bytes]:
    """Render the result of a handler as status, header lines and body."""
    if result is None:
        return 204, _EMPTY_HEADERS, b""
    if not isinstance(result, Answer):
        return status, _JSON_HEADERS, encode(result)
    body = result.body
    if body is None:
        return result.status, header_lines(_headers(None, result.headers)), b""
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        body = encode(body)
    if result.headers:
        return result.status, header_lines(_headers(result.content_type, result.headers)), body
    return result.status, _default_headers(result.content_type), body


def problem(error: HeadgateError, request_id: str) -> tuple[int, bytes, bytes]:
    """Render an error as an RFC 9457 document: status, header lines and body."""
    document = error.document()
    document["requestId"] = request_id
    headers: Headers = []
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(ceil(error.retry_after), 1)))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b'Bearer realm="headgate"'))
    elif isinstance(error, MethodNotAllowed):
        headers.append((b"allow", str(error.members.get("allow", "")).encode()))
    elif isinstance(error, RateLimited) and "policy" in error.members:
        policy = str(document.pop("policy")).encode()
        remaining = b"%b;r=0;t=%d" % (policy.partition(b";")[0], ceil(error.retry_after or 1))
        headers += [(b"ratelimit-policy", policy), (b"ratelimit", remaining)]
    return error.status, _PROBLEM_HEADERS + header_lines(headers), _encode_any(document)


def last_problem(error: HeadgateError) -> tuple[int, bytes]:
    """Render a problem that ends a connection: its status, and the response after the status line."""
    request_id = secrets.token_hex(8)
    status, headers, body = problem(error, request_id)
    headers += b"x-request-id: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (request_id.encode(), len(body))
    return status, headers + body


def stream_headers(stream: Stream) -> Headers:
    """Return the headers of a stream, which ask proxies not to buffer it."""
    return _headers(stream.content_type, {"x-accel-buffering": "no", **stream.headers})


class StreamRunner:
    """Sends a stream until it ends, the client disconnects or stops reading, or the gateway stops."""

    def __init__(self, stream: Stream, call: Call, send: Send) -> None:
        self._chunks = stream.chunks
        self._events = stream.content_type == EVENTS
        self._call = call
        self._send = send
        self._sending = False
        self._sent_at = 0.0

    async def run(self) -> None:
        """Send all chunks; an error ends the stream."""
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        pump = asyncio.create_task(self._pump())  # ended below; a `Tasks` for each stream would cost more
        disconnected = self._call.disconnected()
        try:
            while not pump.done() and not disconnected.done():
                idle_for = loop.time() - self._sent_at
                timeout_seconds = SEND_SECONDS if self._sending else KEEP_ALIVE_SECONDS
                if idle_for < timeout_seconds:
                    await asyncio.wait(
                        (pump, disconnected), timeout=timeout_seconds - idle_for, return_when=asyncio.FIRST_COMPLETED
                    )
                elif self._sending:
                    break
                elif self._events:
                    await self._send_chunk(b":\n\n")
                else:
                    self._sent_at = loop.time()
            if pump.done():
                pump.result()
        finally:
            await cancel(pump)
            await close_chunks(self._chunks)

    async def _pump(self) -> None:
        try:
            async for chunk in self._chunks:
                await self._send_chunk(chunk)
        except HeadgateError as error:
            if not self._events:
                raise
            document = {**error.document(), "requestId": self._call.request_id}
            await self._send_chunk(event("problem", _encode_any(document)))

    async def _send_chunk(self, chunk: bytes) -> None:
        self._sending = True
        self._sent_at = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._sending = False
        # Sending does not always suspend, and after a disconnect it never does. Without this pause, a stream that always has
        # another chunk would block the event loop.
        await asyncio.sleep(0)


async def close_chunks(chunks: AsyncIterator[bytes]) -> None:
    """Close a generator that will not be read any further."""
    close = getattr(chunks, "aclose", None)
    if close is not None:
        await close()
