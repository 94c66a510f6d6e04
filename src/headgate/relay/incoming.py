"""The body of a request that waits: a little of it is read ahead, the rest stays with the client until it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headgate.kit.http import ClientGone, Receive
from headgate.relay.headers import Headers


class Incoming:
    """Reads what the client sends, and notices when it leaves."""

    def __init__(self, receive: Receive, headers: Headers, buffer_bytes: int) -> None:
        self._receive = receive
        self._limit = buffer_bytes
        self._kept: list[bytes] = []
        self._size = 0
        self._read = 0
        self._streaming = False
        self._whole = False
        self._change = asyncio.Condition()
        self.gone = asyncio.get_running_loop().create_future()
        length = next((value for name, value in headers if name == b"content-length"), None)
        chunked = any(name == b"transfer-encoding" for name, _ in headers)
        self._length = int(length) if length is not None else None if chunked else -1

    @property
    def length(self) -> int | None:
        """Give the length; -1 without a body, None if nobody knows."""
        return self._length

    @property
    def replayable(self) -> bool:
        """Tell whether everything read so far is kept."""
        return not self._streaming

    async def listen(self) -> None:
        """Read until the client has sent everything and left; run this beside the work."""
        try:
            while True:
                async with self._change:
                    await self._change.wait_for(lambda: self._size < self._limit or self._streaming)
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    break
                async with self._change:
                    chunk = message.get("body", b"")
                    if chunk and not self._whole:
                        self._kept.append(chunk)
                        self._size += len(chunk)
                    self._whole = self._whole or not message.get("more_body", False)
                    self._change.notify_all()
        finally:
            if not self.gone.done():
                self.gone.set_result(None)
            async with self._change:
                self._change.notify_all()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give the body: again from the beginning as long as all of it fits into the buffer."""
        position = 0
        while True:
            async with self._change:
                if position >= len(self._kept) and not self._whole and self._size >= self._limit:
                    # More than we keep: from here on it passes through once.
                    self._streaming = True
                    self._kept.clear()
                    self._size = position = 0
                    self._change.notify_all()
                while position >= len(self._kept) and not self._whole and not self.gone.done():
                    await self._change.wait()
                if position < len(self._kept):
                    if self._streaming:
                        chunk = self._kept.pop(0)
                        self._size -= len(chunk)
                        self._change.notify_all()
                    else:
                        chunk = self._kept[position]
                        position += 1
                elif self._whole:
                    return
                else:
                    raise ClientGone
            yield chunk

    async def whole(self, most: int) -> bytes | None:
        """Read all of it; None if it is larger than that."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > most:
                return None
            parts.append(chunk)
        return b"".join(parts)


class Kept:
    """A body that is here already."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    @property
    def length(self) -> int | None:
        """Give the length; -1 without a body."""
        return len(self._body) or -1

    @property
    def replayable(self) -> bool:
        """Tell that it can be read again."""
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give it."""
        yield self._body
