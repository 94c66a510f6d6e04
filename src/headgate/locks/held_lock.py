"""A held lock renews itself, and tells its holder when it is lost.

The lease ends in the store at least one TTL after the last renewal was sent. We count from before it was sent, by our
own monotonic clock, and stop a margin earlier: then `lost` is set and the block is cancelled while nobody else can have
the lock yet. A process that was suspended at that moment finds out at its next use: `fence` raises instead of
returning.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import Final, Protocol

from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, StoreUnavailable
from headgate.locks import metrics
from headgate.locks.model import Grant
from headgate.locks.problems import LockLost, NotHolder, QuorumLost

DRIFT: Final = 0.01
MARGIN: Final = 0.1
LEAST_MARGIN: Final = 0.02
MOST_MARGIN: Final = 0.5
RENEWALS_PER_TTL: Final = 3

log = get_logger()


class LeaseKeeper(Protocol):
    """Renews and releases held locks."""

    async def renew(self, grant: Grant, deadline: float) -> None:
        """Extend the lease to one TTL from now; raises NotHolder, or StoreUnavailable at the deadline."""

    async def release(self, grant: Grant) -> None:
        """Release the lock; raises NotHolder."""

    def leave(self, grant: Grant) -> None:
        """Release whatever is still held, in the background, ignoring errors."""

    def start(self, held: Held) -> None:
        """Start to keep track of a held lock."""

    def end(self, held: Held) -> None:
        """Stop keeping track of it."""

    def spawn(self, held: Held) -> None:
        """Run `held.renew()` in a background task."""


class Held:
    """A held lock; `async with held:` releases it at the end, and cancels the block when the lock is lost."""

    def __init__(self, grant: Grant, keeper: LeaseKeeper) -> None:
        self.grant = grant
        self.lost = asyncio.Event()
        self.reason = ""
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._sent = grant.sent
        self._ended = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False
        ttl = grant.request.ttl
        self._margin = min(max(ttl * MARGIN, LEAST_MARGIN), MOST_MARGIN)
        keeper.start(self)
        first = self._sent + ttl / RENEWALS_PER_TTL if grant.request.renew else self.lost_at
        self._timer: asyncio.TimerHandle = self._loop.call_at(first, self._tick)

    @property
    def name(self) -> str:
        """The lock's name."""
        return self.grant.request.name

    @property
    def holder(self) -> str:
        """The name of this holder, with which the lock can be renewed and released."""
        return self.grant.holder

    @property
    def fence(self) -> int:
        """The number that grows with every acquisition; raises LockLost once the lock can no longer be trusted."""
        self.check()
        return self.grant.fence

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that a guarded resource checks."""
        return {"X-Fence-Lock": self.name, "X-Fence": str(self.fence)}

    @property
    def lost_at(self) -> float:
        """The monotonic time at which the lock counts as lost, unless it is renewed before."""
        ttl = self.grant.request.ttl
        return self._sent + ttl * (1 - DRIFT) - self._margin

    @property
    def lease_ends(self) -> float:
        """The monotonic time before which nobody else can have the lock."""
        return self._sent + self.grant.request.ttl * (1 - DRIFT)

    def check(self) -> None:
        """Raise LockLost if the lock was lost or its lease has ended, even if no timer has fired yet."""
        self._look()
        if self.lost.is_set():
            raise LockLost(f"The lock {self.name} was lost: {self.reason}.")
        if self._ended:
            raise NotHolder(f"The lock {self.name} was given back.")

    async def __aenter__(self) -> Held:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelling = self._task.cancelling()
        self._look()  # the grant may have arrived too late
        if self.lost.is_set():
            self._end()
            self._keeper.leave(self.grant)
            raise LockLost(f"The lock {self.name} was lost: {self.reason}.")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._look()
        if self.lost.is_set():
            self._end()
            self._keeper.leave(self.grant)
            ours = self._cancelled and task is not None and task.uncancel() <= self._cancelling
            if kind is None or (ours and issubclass(kind, asyncio.CancelledError)):
                raise LockLost(f"The lock {self.name} was lost: {self.reason}.") from error
            return
        if self._ended:
            return  # released inside the block
        try:
            await self.release()
        except NotHolder as refused:
            if kind is None:
                raise LockLost(f"The lock {self.name} was lost: {refused}") from refused
        except (StoreUnavailable, QuorumLost) as trouble:
            # The block is done; the lock ends with its lease at the latest.
            log.warning("lock not given back yet", lock=self.name, error=str(trouble))

    async def release(self) -> None:
        """Release the lock; raises NotHolder if another has it."""
        if self._ended:
            raise NotHolder(f"The lock {self.name} was given back already.")
        self._end()
        try:
            await self._keeper.release(self.grant)
        except NotHolder:
            metrics.LOST.labels("taken").inc()
            raise
        except BaseException:
            self._keeper.leave(self.grant)
            raise

    async def renew(self) -> None:
        """Retry the renewal until it succeeds or the lock is lost; the keeper runs this."""
        pause = self.grant.request.ttl / 50
        while self._active():
            sent = self._loop.time()
            try:
                await self._keeper.renew(self.grant, self.lost_at)
            except NotHolder:
                if not self._ended:
                    metrics.NOT_RENEWED.inc()
                    self.lose("it was taken away")
                return
            except HeadgateError as error:
                metrics.NOT_RENEWED.inc()
                log.debug("lock not renewed yet", lock=self.name, error=str(error))
                await asyncio.sleep(pause)
                continue
            metrics.RENEWED.inc()
            self._sent = max(self._sent, sent)
            if self._active():
                self._timer.cancel()
                self._timer = self._loop.call_at(sent + self.grant.request.ttl / RENEWALS_PER_TTL, self._tick)
            return

    def lose(self, reason: str) -> None:
        """Mark the lock as lost and cancel the holder's block."""
        if self._ended or self.lost.is_set():
            return
        self.reason = reason
        self.lost.set()
        self._timer.cancel()
        metrics.LOST.labels(reason.replace(" ", "_")).inc()
        log.warning("lock lost", lock=self.name, fence=self.grant.fence, reason=reason)
        # A holder that calls this itself gets the exception; a cancellation would hit it later, outside the block.
        if self._task is not None and self._task is not _running_task():
            self._cancelled = self._task.cancel()

    def _look(self) -> None:
        """Mark the lock as lost if its lease has ended and no timer has fired yet."""
        # Not the loop's time: some loops read the clock only between callbacks, and this callback may have blocked.
        if self._active() and monotonic() >= self.lost_at:
            self.lose("not renewed in time")

    def _active(self) -> bool:
        return not self._ended and not self.lost.is_set()

    def _tick(self) -> None:
        if not self._active():
            return
        if self._loop.time() >= self.lost_at:
            self.lose("not renewed in time")
            return
        self._timer = self._loop.call_at(self.lost_at, self._tick)
        if self.grant.request.renew:
            self._keeper.spawn(self)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._timer.cancel()
            metrics.HOLD_SECONDS.observe(self._loop.time() - self._began)
            self._keeper.end(self)


def _running_task() -> asyncio.Task[object] | None:
    """Give the running task; None in a callback of the loop."""
    return asyncio.current_task()
