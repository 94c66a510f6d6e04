"""Locks for threads: the lease is renewed in the façade's own thread, so a busy block does not lose it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from headgate.kit.problems import Closed
from headgate.locks import Election, Held, Leader, Lock, LockState

P = ParamSpec("P")
R = TypeVar("R")


class Run(Protocol):
    """Runs a coroutine in the façade's event loop and gives its result."""

    def __call__(self, work: Coroutine[Any, Any, R], /) -> R: ...


class SyncHeld:
    """A lock that this thread holds. A thread cannot be cancelled: look at `lost`, or at `fence`, which raises LockLost."""

    def __init__(self, run: Run, held: Held) -> None:
        self._run = run
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
        return self._held.lost.is_set()

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

        self._run(look())

    def release(self) -> None:
        """Give the lock back; raises NotHolder if it was not ours any more."""
        self._run(self._held.release())

    def __enter__(self) -> SyncHeld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._held.__aexit__(kind, error, trace))


class SyncLock:
    """A recipe for a lock: `with lock as held:`, or a decorator; any number of threads may use it at once."""

    def __init__(self, run: Run, lock: Lock) -> None:
        self._run = run
        self._lock = lock
        self._entered = threading.local()

    def acquire(self) -> SyncHeld:
        """Take the lock; the caller gives it back."""
        return SyncHeld(self._run, self._run(self._lock.acquire(threading.current_thread())))

    def try_lock(self) -> SyncHeld | None:
        """Take the lock if it is free now and nobody stands in line, else give None."""
        held = self._run(self._lock.try_lock(threading.current_thread()))
        return None if held is None else SyncHeld(self._run, held)

    def show(self) -> LockState:
        """Tell how this lock stands."""
        return self._run(self._lock.show())

    def __enter__(self) -> SyncHeld:
        held = self._entered.held = self.acquire()
        return held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held: SyncHeld = self._entered.held
        held.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Hold the lock around every call of a function."""

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return guarded


class SyncElection:
    """One office, for threads."""

    def __init__(self, run: Run, election: Election) -> None:
        self._run = run
        self._election = election

    def campaign(self, candidate: str | None = None, *, wait: float | None = None) -> SyncLock:
        """Stand for election: `with election.campaign() as term:` is entered once elected."""
        return SyncLock(self._run, self._election.campaign(candidate, wait=wait))

    def leader(self) -> Leader | None:
        """Tell who leads now."""
        return self._run(self._election.leader())

    def observe(self) -> Iterator[Leader | None]:
        """Give the leader now and after each change; None while nobody leads."""
        leaders = self._election.observe()

        async def following() -> Leader | None:
            return await anext(leaders)

        try:
            while True:
                yield self._run(following())
        finally:
            with suppress(Closed):
                self._run(leaders.aclose())
