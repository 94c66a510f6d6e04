"""Locks for threads: the lease is renewed in the façade's own thread, so a busy block does not lose it."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import ParamSpec, TypeVar

from headgate.kit.problems import Closed
from headgate.locks import Election, Held, Leader, Lock, LockState
from headgate.sdk.loop_thread import LoopThread

P = ParamSpec("P")
R = TypeVar("R")


class SyncHeld:
    """A lock that this thread holds. A thread cannot be cancelled: look at `lost`, or at `fence`, which raises LockLost.

    A forked child does not hold what its parent holds: there it counts as lost, and leaving the block gives nothing back.
    """

    def __init__(self, thread: LoopThread, held: Held) -> None:
        self._thread = thread
        self._held = held

    @property
    def name(self) -> str:
        """Give the lock's name."""
        return self._held.name

    @property
    def holder(self) -> str:
        """Give the name of this holding."""
        return self._held.holder

    @property
    def lost(self) -> bool:
        """Tell whether the lock was lost."""
        return self._thread.inherited or self._held.lost.is_set()

    @property
    def fence(self) -> int:
        """Give the number that grows with every acquisition; raises LockLost once the lock can no longer be trusted."""
        self.check()
        return self._held.grant.fence

    @property
    def headers(self) -> dict[str, str]:
        """Give the HTTP headers that a guarded resource wants to see."""
        self.check()
        return self._held.headers

    def check(self) -> None:
        """Raise LockLost if the lock was lost or its end has passed."""

        async def look() -> None:
            self._held.check()

        self._thread.run(look())

    def release(self) -> None:
        """Give the lock back; raises NotHolder if it was not ours any more."""
        self._thread.run(self._held.release())

    def __enter__(self) -> SyncHeld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.inherited:
            self._thread.run(self._held.__aexit__(kind, error, trace))


class SyncLock:
    """A recipe for a lock: `with lock as held:`, or a decorator; any number of threads may use it at once.

    It is described anew for each use, because a forked child has a client of its own.
    """

    def __init__(self, opened: Callable[[], LoopThread], describe: Callable[[], Lock]) -> None:
        self._opened = opened
        self._describe = describe
        self._entered = threading.local()

    def acquire(self) -> SyncHeld:
        """Take the lock; the caller gives it back."""
        taker = threading.current_thread()

        async def acquire() -> Held:
            return await self._describe().acquire(taker)

        thread = self._opened()
        return SyncHeld(thread, thread.run(acquire()))

    def try_lock(self) -> SyncHeld | None:
        """Take the lock if it is free now and nobody stands in line, else give None."""
        taker = threading.current_thread()

        async def try_lock() -> Held | None:
            return await self._describe().try_lock(taker)

        thread = self._opened()
        held = thread.run(try_lock())
        return None if held is None else SyncHeld(thread, held)

    def show(self) -> LockState:
        """Tell how this lock stands."""

        async def show() -> LockState:
            return await self._describe().show()

        return self._opened().run(show())

    def __enter__(self) -> SyncHeld:
        held = self.acquire()
        # After a loss, the lock may be taken again inside the same block.
        self._entered.__dict__.setdefault("held", []).append(held)
        return held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held: SyncHeld = self._entered.held.pop()
        held.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Hold the lock around every call of a function."""

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return guarded


class SyncElection:
    """An election, for threads."""

    def __init__(self, opened: Callable[[], LoopThread], describe: Callable[[], Election]) -> None:
        self._opened = opened
        self._describe = describe

    def campaign(self, candidate: str | None = None, *, wait: float | None = None) -> SyncLock:
        """Stand for election: `with election.campaign() as term:` is entered once elected."""
        return SyncLock(self._opened, lambda: self._describe().campaign(candidate, wait=wait))

    def leader(self) -> Leader | None:
        """Tell who leads now."""

        async def leader() -> Leader | None:
            return await self._describe().leader()

        return self._opened().run(leader())

    def observe(self) -> Iterator[Leader | None]:
        """Give the leader now and after each change; None while nobody leads."""
        thread = self._opened()

        async def begin() -> AsyncGenerator[Leader | None, None]:
            return self._describe().observe()

        leaders = thread.run(begin())

        async def following() -> Leader | None:
            return await anext(leaders)

        try:
            while True:
                yield thread.run(following())
        finally:
            with suppress(Closed):
                thread.run(leaders.aclose())
