"""The waiters of one lock in this process, with one subscription and one timer for all of them.

A waiter asks the store again only on a hint that it is its turn, or on a timer. Only the first waiter of this process
has a timer, since nobody behind it can be served before it. The timer is set for the latest moment at which the lock
opens (the lease's end, as last known), plus one grace for each process ahead that may be dead. So a lost hint delays a
waiter, but never loses it.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from headgate.locks import metrics
from headgate.store import Store, Thing

ROUNDING: Final = 0.003


class LockWaiter:
    """One waiter; `called` is set when it should ask the store again, or was granted the lock (then with `fence`)."""

    __slots__ = ("ahead", "called", "fence", "holder", "place", "sent")

    def __init__(self, holder: str, place: int, ahead: int) -> None:
        self.holder = holder
        self.place = place
        self.ahead = ahead
        self.called = asyncio.Event()
        self.fence = 0
        self.sent = 0.0

    def __lt__(self, other: LockWaiter) -> bool:
        return self.place < other.place


class WaiterList:
    """Waiters ordered by place; it exists while it has users."""

    def __init__(self, store: Store, thing: Thing, grace: float, on_empty: Callable[[WaiterList], None]) -> None:
        self.thing = thing
        self._grace = grace
        self._on_empty = on_empty
        self._loop = asyncio.get_running_loop()
        self._waiters: list[LockWaiter] = []
        self._by_holder: dict[str, list[LockWaiter]] = {}  # a client may send several requests under one name
        self._attending = 0
        self._missed = False
        self._opens_at = self._loop.time()
        self._as_of = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # not every loop's timers have `when()`
        self._listening = ExitStack()
        self._listening.enter_context(store.hints.listen(thing, "events", self._on_hint))

    def attend(self) -> None:
        """Keep the list alive while a caller uses it."""
        self._attending += 1

    def depart(self) -> None:
        """End the use that `attend` began."""
        self._attending -= 1
        if not self._attending:
            self._listening.close()
            if self._timer is not None:
                self._timer.cancel()
            self._on_empty(self)

    def add(self, waiter: LockWaiter) -> None:
        """Insert a waiter by its place."""
        insort(self._waiters, waiter)
        self._by_holder.setdefault(waiter.holder, []).append(waiter)
        metrics.WAITING.inc()
        if self._missed:
            self._missed = False
            self._waiters[0].called.set()
        self._arm()

    def remove(self, waiter: LockWaiter) -> None:
        """Remove a waiter."""
        self._waiters.remove(waiter)
        same = self._by_holder[waiter.holder]
        same.remove(waiter)
        if not same:
            del self._by_holder[waiter.holder]
        metrics.WAITING.dec()
        self._arm()

    def is_first(self, waiter: LockWaiter) -> bool:
        """Whether a waiter is the first of this process."""
        return self._waiters[0] is waiter

    def hand(self, holder: str, fence: int, sent: float) -> None:
        """Give a waiter the lock that a release of this process passed on; with fence 0 it should ask the store."""
        for waiter in self._by_holder.get(holder, ()):
            waiter.fence, waiter.sent = fence, sent
            waiter.called.set()

    def call_all(self) -> None:
        """Make all waiters ask again."""
        for waiter in self._waiters:
            waiter.called.set()

    def learn(self, as_of: int, opens_in: float) -> None:
        """Update when the lock opens, unless the news is older than what we know."""
        if as_of >= self._as_of:
            self._as_of = as_of
            self._opens_at = self._loop.time() + opens_in
        self._arm()

    def _on_hint(self, words: str | None) -> None:
        if words is None:
            # A hint may have been missed: only the first waiter asks, since the others are behind it.
            if self._waiters:
                self._waiters[0].called.set()
            else:
                self._missed = True
            return
        kind, as_of, *rest = words.split(" ")
        match kind:
            case "free":
                self._on_free(int(as_of), rest[0], rest[1])
            case "taken":
                self.learn(int(as_of), int(rest[0]) / 1000)
                for waiter in self._waiters:
                    if waiter.place >= int(rest[1]):
                        break
                    waiter.called.set()  # it was passed over, and asks for its old place
            case _:
                self.learn(int(as_of), int(rest[0]) / 1000)

    def _on_free(self, as_of: int, head: str, runner_up: str) -> None:
        for waiter in self._by_holder.get(head, ()):
            waiter.ahead = 0
            waiter.called.set()
        for waiter in self._by_holder.get(runner_up, ()):
            waiter.ahead = 1
        first = self._waiters[0] if self._waiters else None
        if first is not None and first.holder != head:
            first.ahead = max(first.ahead, 1)
        self.learn(as_of, 0.0)

    def _arm(self) -> None:
        """Set the timer for the first waiter; an earlier timer stays and is checked again when it fires."""
        if not self._waiters:
            return
        due = self._due()
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(due, self._on_timer), due

    def _due(self) -> float:
        return self._opens_at + self._waiters[0].ahead * self._grace + ROUNDING

    def _on_timer(self) -> None:
        self._timer = None
        if not self._waiters:
            return
        if self._loop.time() < self._due():
            self._arm()
        else:
            # The waiter asks the store, and the reply sets the timer again.
            self._waiters[0].called.set()
