"""Bodies of relayed requests: a few bytes are buffered while the request waits, the rest stays with the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headgate.http.client_response import Headers
from headgate.http.routes import ClientGone, Receive


class RequestBody:
    """The body of a client's request, read in the background up to a buffer's size."""

    def __init__(self, receive: Receive, headers: Headers, buffer_bytes: int) -> None:
        self._receive = receive
        self._limit = buffer_bytes
        self._kept: list[bytes] = []
        self._size = 0
        self._streaming = False
        self._gone = False
        self._changes: set[asyncio.Future[None]] = set()
        length = next((value for name, value in headers if name == b"content-length"), None)
        chunked = any(name == b"transfer-encoding" for name, _ in headers)
        self._length = int(length) if length is not None else None if chunked else -1
        self._whole = self._length in (-1, 0)

    @property
    def length(self) -> int | None:
        """The length in bytes; -1 without a body, None if unknown."""
        return self._length

    @property
    def replayable(self) -> bool:
        """Whether everything read so far is still buffered."""
        return not self._streaming

    async def listen(self) -> None:
        """Read until the client has sent everything and left; run this as a task beside the request."""
        try:
            while True:
                while self._size >= self._limit and not self._streaming:
                    await self._change()
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    return
                chunk = message.get("body", b"")
                if chunk and not self._whole:
                    self._kept.append(chunk)
                    self._size += len(chunk)
                self._whole = self._whole or not message.get("more_body", False)
                self._changed()
        finally:
            self._gone = True
            self._changed()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body; each call starts from the beginning as long as all of it fits into the buffer."""
        position = 0
        while True:
            if position >= len(self._kept) and not self._whole and self._size >= self._limit:
                # Larger than the buffer: from here on it is streamed and cannot be read again.
                self._streaming = True
                self._kept.clear()
                self._size = position = 0
                self._changed()
            while position >= len(self._kept) and not self._whole and not self._gone:
                await self._change()
            if position < len(self._kept):
                if self._streaming:
                    chunk = self._kept.pop(0)
                    self._size -= len(chunk)
                    self._changed()
                else:
                    chunk = self._kept[position]
                    position += 1
            elif self._whole:
                return
            else:
                raise ClientGone
            yield chunk

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._changes.add(future)
        try:
            await future
        finally:
            self._changes.discard(future)

    def _changed(self) -> None:
        for future in self._changes:
            if not future.done():
                future.set_result(None)

    async def whole(self, most: int) -> bytes | None:
        """Read the whole body; None if it is larger than `most` bytes."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > most:
                return None
            parts.append(chunk)
        return b"".join(parts)


class BufferedBody:
    """A body that is in memory."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    @property
    def length(self) -> int | None:
        """The length in bytes; -1 without a body."""
        return len(self._body) or -1

    @property
    def replayable(self) -> bool:
        """True: it can always be read again."""
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        yield self._body
