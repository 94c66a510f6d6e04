"""The waiters of this process: in which line each waits, and when it asks the store again.

A waiter sleeps until a known time, or until a hint names one. Of all waiters of one line in this process only the
first keeps a timer for the case that a hint was lost or that the process that would have caused it is dead. So waiting
costs no store calls, however long the line is. A known time holds for one policy: when the policy changes, waiters with a
known time ask again, because the hint that would correct it may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SLACK_SECONDS: Final = 1.0
EARLY_SECONDS: Final = 0.001
APART_SECONDS: Final = 0.0005  # between the calls of many waiters that ask for the same reason


class PermitWaiter:
    """One request that waits in a user's line."""

    __slots__ = ("_called", "_due", "_line", "_loop", "_outdated", "_sleeper", "_timer", "fallback", "id", "place")

    def __init__(self, id: str, line: UserLine) -> None:
        self.id = id
        self.place = 0
        self.fallback = 0.0
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._due = False
        self._sleeper: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._called: float | None = None
        self._outdated: float | None = None

    @property
    def timed(self) -> bool:
        """Whether it has a time to ask, or is asking and may get one."""
        return self._timer is not None or self._sleeper is None

    def asks(self) -> None:
        """Forget earlier hints when a call to the store begins: later hints are newer than its reply."""
        self._due = False
        self._called = None
        self._outdated = None
        self._disarm()

    def call(self, at: float) -> None:
        """Handle a hint: ask at this time."""
        self._called = at
        self._arm(at)

    def ask_again(self, at: float) -> None:
        """Ask at this time, even if a call in flight returns another time, which may be outdated."""
        self.call(at)
        if self._sleeper is None:
            self._outdated = at

    async def turn(self, place: int, seconds: float, *, exact: bool, deadline: float) -> None:
        """Sleep until it is time to ask again, at the latest at the deadline."""
        now = self._loop.time()
        self.place = place
        self.fallback = now + seconds + SLACK_SECONDS
        self._line.sort()
        if self._outdated is not None:
            self._arm(self._outdated)
        elif exact:
            self._arm(now + seconds)
        elif self._called is not None:
            self._arm(self._called)
        else:
            self.keep_watch()
        if self._due:
            return
        self._sleeper = self._loop.create_future()
        limit = self._loop.call_at(deadline, self._rise)
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            limit.cancel()
            self._disarm()

    def keep_watch(self) -> None:
        """If it is the first of its line here, start the timer after which it asks again without a hint."""
        if self._timer is None and self._line.first is self:
            self._arm(max(self.fallback, self._loop.time() + SLACK_SECONDS))

    def _arm(self, at: float) -> None:
        self._disarm()
        at += EARLY_SECONDS
        if at <= self._loop.time():
            self._rise()
        else:
            self._timer = self._loop.call_at(at, self._rise)

    def _rise(self) -> None:
        self._due = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class UserLine:
    """The waiters of one user at one upstream in this process."""

    __slots__ = ("_first", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[str, PermitWaiter] = {}
        self._first: PermitWaiter | None = None

    @property
    def first(self) -> PermitWaiter | None:
        """The waiter that keeps the timer: usually the one with the lowest place in this process."""
        return self._first

    def sort(self) -> None:
        """Update the first waiter after a place became known or a waiter left; waiters are added roughly in order."""
        first = self._first
        if first is not None and first.id in self.waiters:
            last = next(reversed(self.waiters.values()))
            if last.place and last.place < first.place:
                self._first = last
        else:
            self._first = next((waiter for waiter in self.waiters.values() if waiter.place), None)
        if self._first is not None and self._first is not first:
            self._first.keep_watch()


class UserLines:
    """The lines of all users of one upstream in this process."""

    def __init__(self) -> None:
        self._lines: dict[str, UserLine] = {}
        self._waiters: dict[str, PermitWaiter] = {}
        self._version = b""  # of the policy that known times are based on
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def join(self, user: str, id: str) -> Iterator[PermitWaiter]:
        """Add a waiter to a user's line for as long as the block lasts."""
        line = self._lines.setdefault(user, UserLine())
        waiter = PermitWaiter(id, line)
        line.waiters[id] = self._waiters[id] = waiter
        try:
            yield waiter
        finally:
            del line.waiters[id], self._waiters[id]
            if line.waiters:
                line.sort()
            elif self._lines.get(user) is line:
                del self._lines[user]

    def on_hint(self, words: str | None) -> None:
        """Handle a hint: the time of one waiter, a new policy, or None after hints may have been lost."""
        kind, _, rest = (words or "").partition(" ")
        if kind == "turn":
            id, _, ms = rest.partition(" ")
            waiter = self._waiters.get(id)
            if waiter is not None:
                waiter.call(self._loop.time() + int(ms) / 1000)
        elif kind == "policy":
            self._version = rest.encode()
            self.ask_anew()
        elif not kind:
            self.ask_firsts()

    def learn(self, version: bytes) -> None:
        """Record the policy version of a reply; if it is new, its hint was lost, so waiters ask again."""
        known, self._version = self._version, version
        if known not in (b"", version):
            self.ask_anew()

    def ask_firsts(self) -> None:
        """Let the first of each line ask now, spread over up to a second."""
        for first, at in self._firsts():
            first.call(at)

    def ask_anew(self) -> None:
        """Let the first of each line ask, then all others with a known time: a new policy may let them go sooner."""
        at = self._loop.time()
        for first, at in self._firsts():
            first.ask_again(at)
        for line in self._lines.values():
            for waiter in line.waiters.values():
                if waiter.timed and waiter is not line.first:
                    at += APART_SECONDS
                    waiter.ask_again(at)

    def _firsts(self) -> Iterator[tuple[PermitWaiter, float]]:
        now = self._loop.time()
        for number, line in enumerate(self._lines.values()):
            if line.first is not None:
                yield line.first, now + min(1.0, number * APART_SECONDS)

    def call_all(self) -> None:
        """Let all waiters ask now."""
        now = self._loop.time()
        for waiter in tuple(self._waiters.values()):
            waiter.call(now - EARLY_SECONDS)

    def show_places(self) -> None:
        """Let all waiters ask, spread out: without heartbeats the store may have removed their places."""
        now = self._loop.time()
        for number, waiter in enumerate(self._waiters.values()):
            waiter.call(now + number * APART_SECONDS)
