"""What is alike wherever locks come from (a store, a quorum, a gateway): the recipe people use, and the care for what is held."""

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
from headgate.locks.held import Held
from headgate.locks.model import AlreadyHeld, Grant, LockHeld, LockNames, LockState, Want

CLOSE_SECONDS: Final = 3.0

P = ParamSpec("P")
R = TypeVar("R")


class LockSource(ABC):
    """Gives locks and looks after those that are held; the keeper of each `Held`."""

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
        """Describe a lock; nothing happens before it is entered.

        `ttl` is how long it outlives a dead holder, `wait` how long to stand in line (None: as long as it takes, 0: not
        at all), `delay` how long it stays closed after a holder was lost, `replicas` how many replicas of the store must
        have it before it counts (else NotReplicated).
        """
        return Lock(self, Want(namespace or self.namespace, name, ttl, wait, delay, label, renew, replicas))

    async def acquire(self, want: Want, taker: object = None) -> Held:
        """Take a lock; `taker` is who may not take it twice, the running task unless given."""
        who = taker if taker is not None else asyncio.current_task()
        key = (who, want.namespace, want.name)
        mine = self._holdings.get(key)
        if mine is not None and not mine.lost.is_set():
            raise AlreadyHeld(f"This task holds the lock {want.name} already.")
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = metrics.FAILED
        try:
            grant = await self.take(want, self.names.next())
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

    async def take(self, want: Want, holder: str) -> Grant:
        """Take a lock for a holder, unless this source closes; if it does so meanwhile, it waits for what is given here."""
        self._refuse_when_closing()
        with self._calls:
            grant = await self.grant(want, holder)
            if self._closing:
                # Nobody would look after it any more.
                with suppress(HeadgateError):
                    await self.give_up(want, holder)
                self._refuse_when_closing()
            return grant

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise Closed

    @abstractmethod
    async def grant(self, want: Want, holder: str) -> Grant:
        """Take a lock for a holder, standing in line if it must; raises LockHeld when the wait is over."""

    @abstractmethod
    async def renew(self, grant: Grant, deadline: float) -> None:
        """Make the lease last one TTL more."""

    async def release(self, grant: Grant) -> None:
        """Give a lock back; if this source closes meanwhile, it waits for that."""
        with self._calls:
            await self.hand_back(grant)

    @abstractmethod
    async def hand_back(self, grant: Grant) -> None:
        """Give a lock back; raises NotHolder."""

    @abstractmethod
    async def give_up(self, want: Want, holder: str) -> None:
        """Give back whatever a holder has, a lock or a place in line; raises StoreUnavailable."""

    @abstractmethod
    async def show(self, name: str, namespace: str | None = None) -> LockState:
        """Tell how a lock stands."""

    @abstractmethod
    def watch(self, name: str, namespace: str | None = None) -> AsyncGenerator[LockState, None]:
        """Give a lock's state now and after each change of hands."""

    def leave(self, grant: Grant) -> None:
        """Give back whatever is still held, in the background."""
        self.leave_soon(grant.want, grant.holder)

    def leave_soon(self, want: Want, holder: str) -> None:
        """Give back what a holder may have, in the background, until it worked or the lease has ended by itself."""
        if not self._closed:
            self.beside(self._leave(want, holder))

    async def _leave(self, want: Want, holder: str) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + want.ttl
        while loop.time() < limit:
            try:
                await self.give_up(want, holder)
                break
            except HeadgateError:
                await asyncio.sleep(min(0.2, want.ttl / 10))

    def start(self, held: Held) -> None:
        """Begin to look after a lock."""
        metrics.HELD.inc()

    def end(self, held: Held) -> None:
        """Look after a lock no more."""
        metrics.HELD.dec()
        key = self._keys.pop(held, None)
        if key is not None and self._holdings.get(key) is held:
            del self._holdings[key]

    def spawn(self, held: Held) -> None:
        """Run a renewal beside its holder."""
        self.beside(held.renew())

    def beside(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run something beside the caller; it ends at the latest when this source is closed."""
        return self._tasks.start(work)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    def dismiss(self) -> None:
        """Send those home who still wait."""

    async def close(self) -> None:
        """Tell whoever still holds a lock that it is over, give all back, and wait a moment for that."""
        self._closing = True
        for held in list(self._keys):
            held.lose("the client was closed")
            self.leave(held.grant)
        self.dismiss()
        # An answer may be on its way, and what it gives must be given back.
        await self._calls.finished(CLOSE_SECONDS)
        await self._tasks.close(CLOSE_SECONDS)
        self._closed = True


class Lock:
    """A recipe for a lock: `async with lock as held:`, or a decorator; it may be used many times and at once."""

    def __init__(self, source: LockSource, want: Want) -> None:
        self.want = want
        self._source = source
        self._entered: dict[asyncio.Task[object] | None, list[Held]] = {}

    async def acquire(self, taker: object = None) -> Held:
        """Take the lock and give what is held; the caller gives it back. Its block is cancelled only inside `async with held`."""
        return await self._source.acquire(self.want, taker)

    async def try_lock(self, taker: object = None) -> Held | None:
        """Take the lock if it is free now and nobody stands in line, else give None."""
        try:
            return await self._source.acquire(msgspec.structs.replace(self.want, wait=0), taker)
        except LockHeld:
            return None

    async def show(self) -> LockState:
        """Tell how this lock stands."""
        return await self._source.show(self.want.name, self.want.namespace)

    async def __aenter__(self) -> Held:
        held = await self.acquire()
        await held.__aenter__()
        # Whoever lost it may take it again inside the block that it was lost in.
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
