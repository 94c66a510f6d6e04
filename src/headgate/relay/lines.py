"""Waiting in this process: who waits, in which line, and when each asks the store again.

A waiter sleeps until a time that is known, or until a hint says it. Of all waiters of one line in this process only the
first keeps a timer for the case that a hint was lost or that whoever would have caused it is dead; so waiting costs no
store calls, however long the line is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SLACK_SECONDS: Final = 1.0
EARLY_SECONDS: Final = 0.001


class Waiter:
    """One request in line."""

    __slots__ = ("_called", "_due", "_line", "_loop", "_sleeper", "_timer", "fallback", "id", "place")

    def __init__(self, id: str, line: Line) -> None:
        self.id = id
        self.place = 0
        self.fallback = 0.0
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._due = False
        self._sleeper: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._called: float | None = None

    def asks(self) -> None:
        """Forget earlier hints: what comes from now on is newer than the answer."""
        self._due = False
        self._called = None

    def call(self, at: float) -> None:
        """Take a hint: ask at this time."""
        self._called = at
        self._arm(at)

    async def turn(self, place: int, seconds: float, *, exact: bool, deadline: float) -> None:
        """Sleep until it is time to ask again, at the latest at the deadline."""
        now = self._loop.time()
        self.place = place
        self.fallback = now + seconds + SLACK_SECONDS
        self._line.sort()
        if exact:
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
        """As the first of its line here, ask again by itself after the least time that it must wait."""
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


class Line:
    """The waiters of one user at one upstream in this process."""

    __slots__ = ("_first", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[str, Waiter] = {}
        self._first: Waiter | None = None

    @property
    def first(self) -> Waiter | None:
        """Give the one that keeps watch: about the lowest place of ours."""
        return self._first

    def sort(self) -> None:
        """Find out who is first, after a place became known or somebody left; they came about in their order."""
        first = self._first
        if first is not None and first.id in self.waiters:
            last = next(reversed(self.waiters.values()))
            if last.place and last.place < first.place:
                self._first = last
        else:
            self._first = next((waiter for waiter in self.waiters.values() if waiter.place), None)
        if self._first is not None and self._first is not first:
            self._first.keep_watch()


class Lines:
    """All lines of one upstream in this process."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._waiters: dict[str, Waiter] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def join(self, user: str, id: str) -> Iterator[Waiter]:
        """Stand in a user's line for as long as the block lasts."""
        line = self._lines.setdefault(user, Line())
        waiter = Waiter(id, line)
        line.waiters[id] = self._waiters[id] = waiter
        try:
            yield waiter
        finally:
            del line.waiters[id], self._waiters[id]
            if line.waiters:
                line.sort()
            elif self._lines.get(user) is line:
                del self._lines[user]

    def hear(self, words: str | None) -> None:
        """Take a hint: one waiter's time, or that anything may have changed."""
        kind, _, rest = (words or "").partition(" ")
        if kind == "turn":
            id, _, ms = rest.partition(" ")
            waiter = self._waiters.get(id)
            if waiter is not None:
                waiter.call(self._loop.time() + int(ms) / 1000)
        elif kind in ("", "policy"):
            self.ask_all()

    def ask_all(self) -> None:
        """Let the first of each line ask now, not all in the same instant."""
        now = self._loop.time()
        for number, line in enumerate(self._lines.values()):
            if line.first is not None:
                line.first.call(now + min(1.0, number * 0.0005))

    def call_all(self) -> None:
        """Let everybody ask now."""
        now = self._loop.time()
        for waiter in tuple(self._waiters.values()):
            waiter.call(now - EARLY_SECONDS)

    def show_places(self) -> None:
        """Let everybody ask, a few at a time: while we were silent, their places may have been given up."""
        now = self._loop.time()
        for number, waiter in enumerate(self._waiters.values()):
            waiter.call(now + number * 0.0005)
