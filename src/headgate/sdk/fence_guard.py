"""`FenceGuard`: ASGI middleware for a service that a lock protects; it checks the fence that a request carries.

A request whose fence is older than one seen before is refused. A new holder's first request raises the mark and then waits
until requests of an older holder that are already inside have ended; so no late write can follow a newer one.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import msgspec

from headgate.http.routes import Asgi, Receive, Scope, Send
from headgate.kit.ids import thing_name
from headgate.kit.problems import HeadgateError, InvalidRequest
from headgate.locks.fences import checked_fence
from headgate.locks.problems import FenceOutdated

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOCK_HEADER: Final = b"x-fence-lock"
FENCE_HEADER: Final = b"x-fence"
LONGEST_FENCE: Final = 16


class FenceMissing(HeadgateError):
    """This resource is guarded by a lock; send its name in X-Fence-Lock and your fence in X-Fence."""

    code, status = "fence_missing", 428


class FenceMarks(Protocol):
    """Keeps the highest fence seen: `hg.locks.fences`, for a service of several processes."""

    async def admit(self, namespace: str, resource: str, fence: int) -> None:
        """Raise the mark of a resource; raises FenceOutdated if it is higher already."""


class FenceGuard:
    """ASGI middleware: `app = FenceGuard(app, lock="nightly")`; without marks, this process alone remembers."""

    def __init__(self, app: Asgi, lock: str, marks: FenceMarks | None = None, *, namespace: str = "default") -> None:
        self._app = app
        self._lock = thing_name(lock, "lock")
        self._marks = marks
        self._namespace = namespace
        self._mark = 0
        self._inside: dict[int, int] = {}
        self._left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE:
            await self._app(scope, receive, send)
            return
        try:
            fence = self._read(scope)
            if self._marks is not None:
                await self._marks.admit(self._namespace, self._lock, fence)
            await self._enter(fence)
        except HeadgateError as error:
            await _refuse(send, error)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._leave(fence)

    def _read(self, scope: Scope) -> int:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if headers.get(LOCK_HEADER) != self._lock.encode():
            raise FenceMissing
        text = headers.get(FENCE_HEADER, b"")
        if not text.isdigit() or len(text) > LONGEST_FENCE:
            raise InvalidRequest("X-Fence must be the fence of the lock's holder.", field="X-Fence")
        return checked_fence(int(text))

    async def _enter(self, fence: int) -> None:
        while True:
            if fence < self._mark:
                raise FenceOutdated
            self._mark = fence
            if not any(older < fence for older in self._inside):
                break
            await self._left.wait()
        self._inside[fence] = self._inside.get(fence, 0) + 1

    def _leave(self, fence: int) -> None:
        self._inside[fence] -= 1
        if not self._inside[fence]:
            del self._inside[fence]
        self._left.set()
        self._left = asyncio.Event()


async def _refuse(send: Send, error: HeadgateError) -> None:
    body = msgspec.json.encode(error.document())
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
