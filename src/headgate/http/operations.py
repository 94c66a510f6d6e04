"""The operations port that every process has: `/livez`, `/readyz` and `/metrics`.

It answers three fixed addresses and closes the connection, in the process's own event loop: if the loop hangs, so does
the probe, and that is the point. What faces users is another listener with another server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Annotated

from msgspec import Meta

from headgate.kit import metrics
from headgate.kit.logs import get_logger
from headgate.kit.settings import Doc, Settings

Ready = Callable[[], Awaitable[str | None]]
Notice = Callable[[], str | None]


class OperationsSettings(Settings, section="ops"):
    """Where probes and metrics are answered."""

    host: Annotated[str, Doc("address to listen on; 0.0.0.0 where probes come from other machines")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535), Doc("port to listen on; 0 takes a free one, and so does the default if it is taken")
    ] = 9464


log = get_logger()
_PATIENCE_SECONDS = 5.0
_MOST_HEADER_BYTES = 16_384
_TEXT = "text/plain; charset=utf-8"


@asynccontextmanager
async def serve_operations(
    port: int, ready: Ready, notice: Notice | None = None, *, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """Serve probes and metrics, and give the port (0 takes a free one).

    `ready` says why not, or None if ready. `notice` says what an operator should see to although requests are served.
    """
    under_way: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                head = await _head(reader)
            method, path = _first_line(head) if isinstance(head, bytes) else (b"GET", b"")
            reply = await _answer_in_time(method, path, ready, notice) if isinstance(head, bytes) else head
            async with asyncio.timeout(_PATIENCE_SECONDS):
                writer.write(_rendered(*reply, with_body=method != b"HEAD"))
                await writer.drain()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            await answer(reader, writer)
        finally:
            under_way.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, host, port, limit=_MOST_HEADER_BYTES)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


Reply = tuple[HTTPStatus, str, bytes]


async def _head(reader: asyncio.StreamReader) -> bytes | Reply:
    """Read a request up to the end of its headers; give it, or why it cannot be read."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > _MOST_HEADER_BYTES:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TEXT, b"the headers are larger than 16 kB\n"
        more = await reader.read(_MOST_HEADER_BYTES)
        if not more:
            raise asyncio.IncompleteReadError(head, None)
        head += more
        if head.count(b"\n") > head.count(b"\r\n"):
            return HTTPStatus.BAD_REQUEST, _TEXT, b"lines end with CR LF\n"
    return head


def _first_line(head: bytes) -> tuple[bytes, bytes]:
    """Give a request's method and path; the path is empty if this is no request."""
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or not words[0] or not words[2].startswith(b"HTTP/1."):
        return b"GET", b""
    return words[0], words[1].partition(b"?")[0]


async def _answer_in_time(method: bytes, path: bytes, ready: Ready, notice: Notice | None) -> Reply:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await _answer(method, path, ready, notice)
    except TimeoutError:
        return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"no answer within {_PATIENCE_SECONDS:g} s\n".encode()


async def _answer(method: bytes, path: bytes, ready: Ready, notice: Notice | None) -> Reply:
    text = _TEXT
    if method not in (b"GET", b"HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, text, b"only GET and HEAD\n"
    match path:
        case b"":
            return HTTPStatus.BAD_REQUEST, text, b"this is not HTTP/1.1\n"
        case b"/livez":
            return HTTPStatus.OK, text, b"alive\n"
        case b"/readyz":
            why_not = await _why_not(ready)
            if why_not is None:
                said = notice() if notice is not None else None
                return HTTPStatus.OK, text, b"ready\n" if said is None else f"ready, but {said}\n".encode()
            return HTTPStatus.SERVICE_UNAVAILABLE, text, f"{why_not}\n".encode()
        case b"/metrics":
            return HTTPStatus.OK, metrics.CONTENT_TYPE, await metrics.scrape()
        case _:
            return HTTPStatus.NOT_FOUND, text, b"here are /livez, /readyz and /metrics\n"


async def _why_not(ready: Ready) -> str | None:
    try:
        return await ready()
    except Exception as error:  # noqa: BLE001  # a probe must answer whatever the check ran into
        log.warning("readiness check failed", error=repr(error))
        return "the readiness check failed"


def _rendered(status: HTTPStatus, content_type: str, body: bytes, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
