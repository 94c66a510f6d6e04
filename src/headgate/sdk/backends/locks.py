"""The backend of `hg.locks` behind a gateway; on the store it is `headgate.locks.Locks`. Both are a `LockSource`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import msgspec

from headgate.kit.ids import thing_name
from headgate.kit.problems import Closed, InvalidRequest, NotFound, StoreUnavailable
from headgate.kit.tasks import finished
from headgate.locks import FencedValue, LockEvent, LockHeld, LockSource, LockState, NotHolder, NotReplicated
from headgate.locks.fences import checked_value
from headgate.locks.model import Grant, LockRequest
from headgate.locks.wire import (
    LONGEST_WAIT,
    Acquired,
    AcquireRequest,
    BreakRequest,
    Broken,
    FencedRequest,
    HolderRequest,
    LockHistory,
    LockList,
)
from headgate.sdk.http import Http

PATIENCE_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.5
FRESH_SHARE: Final = 0.25
SHORTEST_TTL: Final = 1.0


class HttpLocksBackend(LockSource):
    """Locks behind a gateway."""

    def __init__(self, http: Http, namespace: str = "default") -> None:
        super().__init__(namespace)
        self._http = http
        self._waiting: set[asyncio.Task[Acquired]] = set()

    async def grant(self, request: LockRequest, holder: str) -> Grant:
        """Take a lock; the gateway waits in line for this client, for at most five minutes at a time."""
        if request.ttl < SHORTEST_TTL:
            raise InvalidRequest(f"ttl must be at least {SHORTEST_TTL:g} s through a gateway.", field="ttl")
        loop = asyncio.get_running_loop()
        limit = None if request.wait is None else loop.time() + request.wait
        try:
            while True:
                left = LONGEST_WAIT if limit is None else min(LONGEST_WAIT, max(0.0, limit - loop.time()))
                sent = loop.time()
                try:
                    acquired = (
                        await self._wait(request, holder, left) if left else await self._acquire(request, holder, 0)
                    )
                except LockHeld:
                    if limit is not None and loop.time() >= limit:
                        raise
                    continue
                grant = Grant(request, holder, acquired.fence, sent)
                if loop.time() - sent < request.ttl * FRESH_SHARE:
                    return grant
                # After a wait only the gateway knows when the lease began. A renewal starts it at a known time.
                sent = loop.time()
                await self.renew(grant, sent + PATIENCE_SECONDS)
                return Grant(request, holder, acquired.fence, sent)
        except (LockHeld, NotReplicated):
            raise
        except BaseException:
            self.withdraw_soon(request, holder)
            raise

    async def _wait(self, request: LockRequest, holder: str, wait: float) -> Acquired:
        """Request the lock and wait; cancelling the request makes the gateway leave the line."""
        asking = self.start_task(self._acquire(request, holder, wait))
        self._waiting.add(asking)
        try:
            return await finished(asking)
        finally:
            self._waiting.discard(asking)
            asking.cancel()

    def wake_waiters(self) -> None:
        """Cancel the requests that wait in line; all others end soon by themselves."""
        for asking in self._waiting:
            asking.cancel()

    async def _acquire(self, request: LockRequest, holder: str, wait: float) -> Acquired:
        body = AcquireRequest(
            ttl_seconds=request.ttl,
            wait_seconds=wait,
            holder=holder,
            delay_seconds=request.delay,
            label=request.label,
            replicas=request.replicas,
        )
        return await self._http.request(
            "POST",
            f"{_path(request.name)}/acquire",
            query={"namespace": request.namespace},
            body=body,
            answer=Acquired,
            timeout_seconds=wait + PATIENCE_SECONDS,
        )

    async def renew(self, grant: Grant, deadline: float) -> None:
        """Renew the lease for one more TTL."""
        left = max(0.05, deadline - asyncio.get_running_loop().time())
        await self._http.request(
            "POST",
            f"{_path(grant.request.name)}/renew",
            query={"namespace": grant.request.namespace},
            body=HolderRequest(grant.holder),
            answer=Acquired,
            timeout_seconds=left,
        )

    async def release_grant(self, grant: Grant) -> None:
        """Release a lock."""
        await self._release(grant.request, grant.holder)

    async def withdraw(self, request: LockRequest, holder: str) -> None:
        """Release the lock if this holder has it; a place in line ends with its request."""
        with suppress(NotHolder):
            await self._release(request, holder)

    async def _release(self, request: LockRequest, holder: str) -> None:
        await self._http.request(
            "POST",
            f"{_path(request.name)}/release",
            query={"namespace": request.namespace},
            body=HolderRequest(holder),
            answer=type(None),
        )

    async def show(self, name: str, namespace: str | None = None) -> LockState:
        """Give a lock's state."""
        return await self._http.request("GET", _path(name), query=self._query(namespace), answer=LockState)

    async def list(self, namespace: str | None = None) -> Sequence[LockState]:
        """Give the locks that are held or waited for, by name."""
        found = await self._http.request("GET", "/lock/v1", query=self._query(namespace), answer=LockList)
        return found.locks

    async def history(self, name: str, namespace: str | None = None) -> Sequence[LockEvent]:
        """List how holders lost the lock against their will, the latest first."""
        path = f"{_path(name)}/history"
        return (await self._http.request("GET", path, query=self._query(namespace), answer=LockHistory)).events

    async def break_lock(
        self, name: str, namespace: str | None = None, *, by: str = "", reason: str = "", fence: int | None = None
    ) -> int:
        """Take a lock away from its holder; the gateway notes the token's name."""
        path = f"{_path(name)}/break"
        body = BreakRequest(reason, fence)
        return (await self._http.request("POST", path, query=self._query(namespace), body=body, answer=Broken)).fence

    async def watch(self, name: str, namespace: str | None = None) -> AsyncGenerator[LockState, None]:
        """Give a lock's state now and after each change of its holder; a stream that breaks is opened again."""
        last: tuple[bool, int] | None = None
        while True:
            try:
                async with self._http.events(f"{_path(name)}/watch", query=self._query(namespace)) as events:
                    async for event in events:
                        state = msgspec.json.decode(event.data, type=LockState)
                        if last != (state.held, state.fence):
                            last = (state.held, state.fence)
                            yield state
            except Closed:
                raise
            except StoreUnavailable:
                pass
            await asyncio.sleep(PAUSE_SECONDS)

    async def fenced_set(self, key: str, value: str, fence: int, namespace: str | None = None) -> None:
        """Write a value under a fence; raises FenceOutdated if a newer holder has written."""
        path = f"/fenced/v1/{quote(thing_name(key, 'key'), safe='')}"
        body = FencedRequest(checked_value(value), fence)
        await self._http.request("PUT", path, query=self._query(namespace), body=body, answer=type(None))

    async def fenced_get(self, key: str, namespace: str | None = None) -> FencedValue | None:
        """Read a value with the fence it was written under."""
        path = f"/fenced/v1/{quote(thing_name(key, 'key'), safe='')}"
        try:
            return await self._http.request("GET", path, query=self._query(namespace), answer=FencedValue)
        except NotFound:
            return None

    def _query(self, namespace: str | None) -> dict[str, str]:
        return {"namespace": namespace or self.namespace}


def _path(name: str) -> str:
    return f"/lock/v1/{quote(thing_name(name, 'name'), safe='')}"
