"""The locks' routes, for languages without an SDK and for operators."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headgate.http.routes import EVENTS, Access, Call, Operation, Stream, event
from headgate.kit.ids import MemberId, display_text, new_ulid
from headgate.kit.problems import NotFound
from headgate.kit.wire import Wire
from headgate.locks.guard import MOST_FENCE, FencedValue
from headgate.locks.locks import Locks
from headgate.locks.model import (
    LONGEST_DELAY,
    LONGEST_TTL,
    MOST_REPLICAS,
    FenceOutdated,
    LockEvent,
    LockHeld,
    LockState,
    NotHolder,
    NotReplicated,
    Want,
    checked_holder,
)

LONGEST_WAIT: Final = 300
MOST_LABEL: Final = 64
MOST_BODY: Final = 4_194_304
Holder = Annotated[MemberId, Meta(examples=["worker-7"])]
Fence = Annotated[int, Meta(ge=1, le=MOST_FENCE)]


class AcquireRequest(Wire):
    """Ask for a lock; the same holder asking again while it holds gets the same fence."""

    ttl_seconds: Annotated[float, Meta(ge=1, le=LONGEST_TTL, examples=[10])]
    wait_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 0
    holder: Holder | None = None
    delay_seconds: Annotated[float, Meta(ge=0, le=LONGEST_DELAY)] = 0
    label: Annotated[
        str, Meta(max_length=MOST_LABEL, description="who holds it, for people; the token's name unless given")
    ] = ""
    replicas: Annotated[int, Meta(ge=0, le=MOST_REPLICAS)] = 0


class Acquired(Wire):
    """A lock that is yours: renew it before its TTL ends, and show its fence to what it guards."""

    holder: str
    fence: int
    ttl_seconds: float


class HolderRequest(Wire):
    """Who renews or releases."""

    holder: Holder


class BreakRequest(Wire):
    """Why a lock is taken away; with a fence, only if that holding is still the one."""

    reason: Annotated[str, Meta(max_length=500)] = ""
    fence: Fence | None = None


class Broken(Wire):
    """The fence of the holding that was ended; 0 if there was none."""

    fence: int


class LockList(Wire):
    """Locks that are held or waited for."""

    locks: Sequence[LockState]


class LockHistory(Wire):
    """How holdings ended against their holders' wish, the latest first."""

    events: Sequence[LockEvent]


class FencedRequest(Wire):
    """A value to write under a fence."""

    value: str
    fence: Fence


def operations(locks: Locks) -> list[Operation]:
    """List the routes of the locks."""
    api = LockRoutes(locks)
    one, tag = "/lock/v1/{name}", "lock"
    return [
        Operation(
            "POST", f"{one}/acquire", api.acquire_lock, "Take a lock, standing in line if you like",
            access=Access.SERVICE, tag=tag, body=AcquireRequest, answer=Acquired, errors=(LockHeld, NotReplicated),
            namespaced=True,
        ),
        Operation(
            "POST", f"{one}/renew", api.renew_lock, "Make your lease last one whole TTL from now",
            access=Access.SERVICE, tag=tag, body=HolderRequest, answer=Acquired, errors=(NotHolder,), namespaced=True,
        ),
        Operation(
            "POST", f"{one}/release", api.release_lock, "Give a lock back",
            access=Access.SERVICE, tag=tag, body=HolderRequest, errors=(NotHolder,), namespaced=True,
        ),
        Operation(
            "POST", f"{one}/break", api.break_lock, "Take a lock away from its holder",
            access=Access.ADMIN, tag=tag, body=BreakRequest, body_optional=True, answer=Broken, namespaced=True,
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
            access=Access.READ, tag=tag, answer=LockHistory, namespaced=True,
        ),
        Operation(
            "GET", "/lock/v1", api.list_locks, "List the locks that are held or waited for",
            access=Access.READ, tag=tag, answer=LockList, namespaced=True,
        ),
        Operation(
            "PUT", "/fenced/v1/{key}", api.set_fenced, "Write a value unless a newer holder has written",
            access=Access.SERVICE, tag=tag, body=FencedRequest, body_limit=MOST_BODY, errors=(FenceOutdated,),
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

    async def acquire_lock(self, call: Call) -> Acquired:
        body: AcquireRequest = call.body
        holder = checked_holder(body.holder) if body.holder is not None else self._locks.names.next()
        want = Want(
            call.namespace,
            call.path["name"],
            body.ttl_seconds,
            body.wait_seconds,
            body.delay_seconds,
            body.label or call.caller.name[:MOST_LABEL],
            replicas=body.replicas,
            # A client that heard nothing asks again in the same name; that we notice late does not take it from it.
            request=new_ulid() if body.holder is not None else "-",
        )
        granting = self._locks.take(want, holder)
        # Whoever hangs up leaves the line.
        grant = await (call.until_disconnect(granting) if body.wait_seconds else granting)
        return Acquired(holder, grant.fence, body.ttl_seconds)

    async def renew_lock(self, call: Call) -> Acquired:
        holder: str = call.body.holder
        fence, ttl = await self._locks.renew_as(call.namespace, call.path["name"], holder)
        return Acquired(holder, fence, ttl)

    async def release_lock(self, call: Call) -> None:
        await self._locks.release_as(call.namespace, call.path["name"], call.body.holder)

    async def break_lock(self, call: Call) -> Broken:
        body: BreakRequest = call.body or BreakRequest()
        reason = display_text(body.reason, "reason", 500) if body.reason else ""
        return Broken(
            await self._locks.break_lock(
                call.path["name"], call.namespace, by=call.caller.name, reason=reason, fence=body.fence
            )
        )

    async def show_lock(self, call: Call) -> LockState:
        return await self._locks.show(call.path["name"], call.namespace)

    async def watch_lock(self, call: Call) -> Stream:
        return Stream(_events(self._locks.watch(call.path["name"], call.namespace)))

    async def lock_history(self, call: Call) -> LockHistory:
        return LockHistory(await self._locks.history(call.path["name"], call.namespace))

    async def list_locks(self, call: Call) -> LockList:
        return LockList(await self._locks.list(call.namespace))

    async def set_fenced(self, call: Call) -> None:
        body: FencedRequest = call.body
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
