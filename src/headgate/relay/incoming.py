"""The body of a request that waits: a little of it is read ahead, the rest stays with the client until it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import cast

from headgate.http.client_response import Headers
from headgate.http.routes import Call, ClientGone, Message, Receive, Send, Stopping, cancelled


class Incoming:
    """Reads what the client sends."""

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
        """Give the body: again from the beginning as long as all of it fits into the buffer."""
        position = 0
        while True:
            if position >= len(self._kept) and not self._whole and self._size >= self._limit:
                # More than we keep: from here on it passes through once.
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
        """Read all of it; None if it is larger than that."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > most:
                return None
            parts.append(chunk)
        return b"".join(parts)


class KeptBody:
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


class Attendance:
    """Cancels the task that serves a client who has left, whose body is broken, or whose relay has no more time."""

    def __init__(self, call: Call, body: Incoming, drain_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = cast("asyncio.Task[None]", asyncio.current_task())
        self._stop = call.stop
        self._body = body
        self._drain_seconds = drain_seconds
        self._reason: BaseException | None = None
        self._over = False
        self.begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._listening: asyncio.Task[None] | None = None
        call.disconnected().add_done_callback(self._departed)
        if body.length is None or body.length > 0:
            self._listen()

    def until_last(self, send: Send) -> Send:
        """Give a `send` that ends the attendance before the last word goes out: who leaves after that misses nothing."""

        def sending(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                self.begun = True
            elif not message.get("more_body", False):
                self._over = True
            return send(message)

        return sending

    def explain(self) -> None:
        """Raise the reason if it was we who cancelled."""
        if self._reason is not None and self._task.uncancel() == 0:
            raise self._reason

    async def end(self) -> None:
        """Stop attending."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listening is not None:
            await cancelled(self._listening)

    def _departed(self, _: asyncio.Future[None]) -> None:
        if self._over:
            return
        if not self._stop.raised:
            self._cancel(ClientGone())
            return
        self._timer = self._loop.call_later(self._drain_seconds, self._cancel, Stopping(retry_after=1))
        if self._listening is None:
            self._listen()

    def _listen(self) -> None:
        self._listening = asyncio.ensure_future(self._body.listen())
        self._listening.add_done_callback(self._heard)

    def _heard(self, listening: asyncio.Task[None]) -> None:
        if not listening.cancelled():
            self._cancel(listening.exception() or ClientGone())

    def _cancel(self, reason: BaseException) -> None:
        if not self._over and self._reason is None:
            self._reason = reason
            self._task.cancel()
