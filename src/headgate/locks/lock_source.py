"""The common part of locks in a store, in a quorum and behind a gateway: acquiring, renewing and closing."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

import msgspec

from headgate.kit.problems import Closed, HeadgateError
from headgate.kit.tasks import CallsInProgress, Tasks
from headgate.locks import metrics
from headgate.locks.held_lock import Held
from headgate.locks.model import Grant, LockNames, LockRequest, LockState
from headgate.locks.problems import AlreadyHeld, LockHeld

CLOSE_SECONDS: Final = 3.0

P = ParamSpec("P")
R = TypeVar("R")


class LockSource(ABC):
    """Base class of everything that grants locks; it renews and releases each `Held`."""

    def __init__(self, namespace: str = "default") -> None:
        self.namespace = namespace
        self.names = LockNames()
        self._holdings: dict[tuple[object, str, str], Held] = {}
        self._keys: dict[Held, tuple[object, str, str]] = {}
        self._tasks = Tasks()
        self._calls = CallsInProgress()
        self._closing = False
        self._closed = False

    def lock(
        self,
        name: str,
        ttl: float = 10.0,
        wait: float | None = None,
        *,
        delay: float = 0.0,
        label: str = "",
        renew: bool = True,
        replicas: int = 0,
        namespace: str | None = None,
    ) -> Lock:
        """Describe a lock; it is acquired when it is entered.

        `ttl` is how long it outlives a dead holder, `wait` how long to wait for it (None: without limit, 0: not at
        all), `delay` how long it stays closed after a holder was lost, `replicas` how many replicas of the store must
        have it before it counts (else NotReplicated).
        """
        return Lock(self, LockRequest(namespace or self.namespace, name, ttl, wait, delay, label, renew, replicas))

    async def acquire(self, request: LockRequest, taker: object = None) -> Held:
        """Acquire a lock; `taker` may not acquire it twice, and is the running task by default."""
        who = taker if taker is not None else asyncio.current_task()
        key = (who, request.namespace, request.name)
        mine = self._holdings.get(key)
        if mine is not None and not mine.lost.is_set():
            raise AlreadyHeld(f"This task holds the lock {request.name} already.")
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = metrics.FAILED
        try:
            grant = await self.take(request, self.names.next())
            outcome = metrics.ACQUIRED
        except LockHeld:
            outcome = metrics.REFUSED
            raise
        finally:
            outcome.observe(loop.time() - began)
        held = Held(grant, self)
        self._holdings[key] = held
        self._keys[held] = key
        return held

    async def take(self, request: LockRequest, holder: str) -> Grant:
        """Acquire a lock for a holder; raises Closed if this source is closing. `close()` waits for this call."""
        self._refuse_when_closing()
        with self._calls:
            grant = await self.grant(request, holder)
            if self._closing:
                # It would not be renewed any more.
                with suppress(HeadgateError):
                    await self.withdraw(request, holder)
                self._refuse_when_closing()
            return grant

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise Closed

    @abstractmethod
    async def grant(self, request: LockRequest, holder: str) -> Grant:
        """Acquire a lock for a holder, waiting if necessary; raises LockHeld after the wait."""

    @abstractmethod
    async def renew(self, grant: Grant, deadline: float) -> None:
        """Extend the lease to one TTL from now."""

    async def release(self, grant: Grant) -> None:
        """Release a lock; `close()` waits for this call."""
        with self._calls:
            await self.release_grant(grant)

    @abstractmethod
    async def release_grant(self, grant: Grant) -> None:
        """Release a lock; raises NotHolder."""

    @abstractmethod
    async def withdraw(self, request: LockRequest, holder: str) -> None:
        """Release the lock, or leave the line; raises StoreUnavailable."""

    @abstractmethod
    async def show(self, name: str, namespace: str | None = None) -> LockState:
        """Give the state of a lock."""

    @abstractmethod
    def watch(self, name: str, namespace: str | None = None) -> AsyncGenerator[LockState, None]:
        """Yield a lock's state now and after each change of holder."""

    def leave(self, grant: Grant) -> None:
        """Release whatever is still held, in the background."""
        self.withdraw_soon(grant.request, grant.holder)

    def withdraw_soon(self, request: LockRequest, holder: str) -> None:
        """Release a lock or leave the line in the background, retrying until it works or the lease has ended."""
        if not self._closed:
            self.start_task(self._leave(request, holder))

    async def _leave(self, request: LockRequest, holder: str) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + request.ttl
        while loop.time() < limit:
            try:
                await self.withdraw(request, holder)
                break
            except HeadgateError:
                await asyncio.sleep(min(0.2, request.ttl / 10))

    def start(self, held: Held) -> None:
        """Count a held lock."""
        metrics.HELD.inc()

    def end(self, held: Held) -> None:
        """Forget a lock that is no longer held."""
        metrics.HELD.dec()
        key = self._keys.pop(held, None)
        if key is not None and self._holdings.get(key) is held:
            del self._holdings[key]

    def spawn(self, held: Held) -> None:
        """Run a renewal in the background."""
        self.start_task(held.renew())

    def start_task(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run a background task; it is cancelled at the latest when this source is closed."""
        return self._tasks.start(work)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    def wake_waiters(self) -> None:
        """Wake all waiters, so that they find this source closing."""

    async def close(self) -> None:
        """Mark all held locks as lost, release them, and wait a moment for that."""
        self._closing = True
        for held in list(self._keys):
            held.lose("the client was closed")
            self.leave(held.grant)
        self.wake_waiters()
        # A reply in flight may grant a lock, which must be released.
        await self._calls.finished(CLOSE_SECONDS)
        await self._tasks.close(CLOSE_SECONDS)
        self._closed = True


class Lock:
    """A reusable description of a lock: `async with lock as held:`, or a decorator; it may be used concurrently."""

    def __init__(self, source: LockSource, request: LockRequest) -> None:
        self.request = request
        self._source = source
        self._entered: dict[asyncio.Task[object] | None, list[Held]] = {}

    async def acquire(self, taker: object = None) -> Held:
        """Acquire the lock; the caller releases it. A block is cancelled on loss only inside `async with held`."""
        return await self._source.acquire(self.request, taker)

    async def try_lock(self, taker: object = None) -> Held | None:
        """Acquire the lock if it is free and has no waiters, else return None."""
        try:
            return await self._source.acquire(msgspec.structs.replace(self.request, wait=0), taker)
        except LockHeld:
            return None

    async def show(self) -> LockState:
        """Give the state of this lock."""
        return await self._source.show(self.request.name, self.request.namespace)

    async def __aenter__(self) -> Held:
        held = await self.acquire()
        await held.__aenter__()
        # A task that lost the lock may acquire it again inside the same block.
        self._entered.setdefault(asyncio.current_task(), []).append(held)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        entered = self._entered[task]
        held = entered.pop()
        if not entered:
            del self._entered[task]
        await held.__aexit__(kind, error, trace)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Hold the lock around every call of a coroutine function."""

        @functools.wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        return guarded
