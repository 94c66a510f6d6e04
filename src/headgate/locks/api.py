"""HTTP routes of locks, for languages without an SDK and for operators."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

import msgspec

from headgate.http.routes import EVENTS, Access, Call, Operation, Stream, event
from headgate.kit.ids import display_text, new_ulid
from headgate.kit.problems import NotFound
from headgate.locks import wire
from headgate.locks.fences import FencedValue
from headgate.locks.locks import Locks
from headgate.locks.model import LockRequest, LockState, checked_holder
from headgate.locks.problems import FenceOutdated, LockHeld, NotHolder, NotReplicated

MOST_BODY: Final = 4_194_304


def operations(locks: Locks) -> list[Operation]:
    """List the routes of the locks."""
    api = LockRoutes(locks)
    one, tag = "/lock/v1/{name}", "lock"
    return [
        Operation(
            "POST", f"{one}/acquire", api.acquire_lock, "Take a lock, standing in line if you like",
            access=Access.SERVICE, tag=tag, body=wire.AcquireRequest, answer=wire.Acquired,
            errors=(LockHeld, NotReplicated), namespaced=True,
        ),
        Operation(
            "POST", f"{one}/renew", api.renew_lock, "Make your lease last one whole TTL from now",
            access=Access.SERVICE, tag=tag, body=wire.HolderRequest, answer=wire.Acquired, errors=(NotHolder,),
            namespaced=True,
        ),
        Operation(
            "POST", f"{one}/release", api.release_lock, "Give a lock back",
            access=Access.SERVICE, tag=tag, body=wire.HolderRequest, errors=(NotHolder,), namespaced=True,
        ),
        Operation(
            "POST", f"{one}/break", api.break_lock, "Take a lock away from its holder",
            access=Access.ADMIN, tag=tag, body=wire.BreakRequest, body_optional=True, answer=wire.Broken,
            namespaced=True,
        ),
        Operation(
            "GET", one, api.show_lock, "See whether a lock is held",
            access=Access.READ, tag=tag, answer=LockState, namespaced=True,
        ),
        Operation(
            "GET", f"{one}/watch", api.watch_lock, "Follow a lock as it changes hands",
            access=Access.READ, tag=tag, content_type=EVENTS, namespaced=True,
            description="Server-Sent Events named `lock`, each the lock's state; the present one comes first. "
            "Changes of locks whose name begins with `election:` are told at once.",
        ),
        Operation(
            "GET", f"{one}/history", api.lock_history, "See which holdings ran out or were broken",
            access=Access.READ, tag=tag, answer=wire.LockHistory, namespaced=True,
        ),
        Operation(
            "GET", "/lock/v1", api.list_locks, "List the locks that are held or waited for",
            access=Access.READ, tag=tag, answer=wire.LockList, namespaced=True,
        ),
        Operation(
            "PUT", "/fenced/v1/{key}", api.set_fenced, "Write a value unless a newer holder has written",
            access=Access.SERVICE, tag=tag, body=wire.FencedRequest, body_limit=MOST_BODY, errors=(FenceOutdated,),
            namespaced=True,
        ),
        Operation(
            "GET", "/fenced/v1/{key}", api.get_fenced, "Read a value and the fence it was written under",
            access=Access.READ, tag=tag, answer=FencedValue, errors=(NotFound,), namespaced=True,
        ),
    ]  # fmt: skip


class LockRoutes:
    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    async def acquire_lock(self, call: Call) -> wire.Acquired:
        body: wire.AcquireRequest = call.body
        holder = checked_holder(body.holder) if body.holder is not None else self._locks.names.next()
        request = LockRequest(
            call.namespace,
            call.path["name"],
            body.ttl_seconds,
            body.wait_seconds,
            body.delay_seconds,
            body.label or call.caller.name[: wire.MOST_LABEL],
            replicas=body.replicas,
            # A client may retry under the same name; withdrawing a cut request must not release the retry's lock.
            request_id=new_ulid() if body.holder is not None else "-",
        )
        granting = self._locks.take(request, holder)
        # A client that disconnects stops waiting.
        grant = await (call.until_disconnect(granting) if body.wait_seconds else granting)
        return wire.Acquired(holder, grant.fence, body.ttl_seconds)

    async def renew_lock(self, call: Call) -> wire.Acquired:
        holder: str = call.body.holder
        fence, ttl = await self._locks.renew_as(call.namespace, call.path["name"], holder)
        return wire.Acquired(holder, fence, ttl)

    async def release_lock(self, call: Call) -> None:
        await self._locks.release_as(call.namespace, call.path["name"], call.body.holder)

    async def break_lock(self, call: Call) -> wire.Broken:
        body: wire.BreakRequest = call.body or wire.BreakRequest()
        reason = display_text(body.reason, "reason", 500) if body.reason else ""
        return wire.Broken(
            await self._locks.break_lock(
                call.path["name"], call.namespace, by=call.caller.name, reason=reason, fence=body.fence
            )
        )

    async def show_lock(self, call: Call) -> LockState:
        return await self._locks.show(call.path["name"], call.namespace)

    async def watch_lock(self, call: Call) -> Stream:
        return Stream(_events(self._locks.watch(call.path["name"], call.namespace)))

    async def lock_history(self, call: Call) -> wire.LockHistory:
        return wire.LockHistory(await self._locks.history(call.path["name"], call.namespace))

    async def list_locks(self, call: Call) -> wire.LockList:
        return wire.LockList(await self._locks.list(call.namespace))

    async def set_fenced(self, call: Call) -> None:
        body: wire.FencedRequest = call.body
        await self._locks.fenced_set(call.path["key"], body.value, body.fence, call.namespace)

    async def get_fenced(self, call: Call) -> FencedValue:
        found = await self._locks.fenced_get(call.path["key"], call.namespace)
        if found is None:
            raise NotFound("Nothing was written under this key.")
        return found


async def _events(states: AsyncGenerator[LockState, None]) -> AsyncIterator[bytes]:
    async with aclosing(states):
        async for state in states:
            yield event("lock", msgspec.json.encode(state), id=state.fence)
