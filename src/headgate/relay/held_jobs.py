"""The jobs of one upstream that a runner holds, and which of them it gives back when it has no room for another.

A runner holds some jobs in advance, so that they stand in their lines and go as soon as they may. It holds a bounded number,
and many users with long backlogs could fill that with jobs whose turn is hours away. So a job that can go soon takes the
room of one that cannot: first of the users whose turn is furthest off, then of whoever has most jobs waiting. What is given
back keeps its place in line and waits in the store.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

from headgate.kit.ids import new_ulid

SOON_SECONDS: Final = 2.0  # twice as long as a runner may rest between two looks
SPARE_SECONDS: Final = 1.0  # for so long a list of what could be given back is used,
LEAST_SPARE_SECONDS: Final = 0.1  # and for so long if nothing is left on it: making one costs a look at every job
NOBODY: Final = ""


class HeldJob:
    """A job in our hands; `attempt` is what it is marked with before it is sent, however often the store must hear it.

    `waits` says that it stands in line and that the store knows of no sending: only then can it be given back.
    """

    __slots__ = ("attempt", "id", "marked", "task", "upstream", "user", "waits")

    def __init__(self, upstream: str, user: str, id: str) -> None:
        self.upstream = upstream
        self.user = user
        self.id = id
        self.attempt = new_ulid()
        self.marked = False
        self.waits = False
        self.task: asyncio.Task[None] | None = None


class HeldJobs:
    """Counts the jobs of one upstream that this runner holds, by user and in the order of each user's line."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._users: dict[str, dict[str, HeldJob]] = {}
        self._free_at: dict[str, float] = {}
        self._spare: ReleasableJobs | None = None

    @property
    def room(self) -> int:
        """Tell how many more may be held."""
        return self._most - self._count

    def add(self, held: HeldJob) -> None:
        """Hold one more."""
        self._users.setdefault(held.user, {})[held.id] = held
        self._count += 1

    def remove(self, held: HeldJob) -> None:
        """Hold one no more."""
        jobs = self._users[held.user]
        del jobs[held.id]
        self._count -= 1
        if not jobs:
            del self._users[held.user]
            self._free_at.pop(held.user, None)

    def learn(self, user: str, free_at: float) -> None:
        """Hear when the next job of a user can go at the earliest."""
        if user in self._users:
            self._free_at[user] = free_at

    def spare(self, now: float) -> ReleasableJobs:
        """List what could be given back now; a list that was made just now is used again."""
        spare = self._spare
        age = now - spare.made_at if spare is not None else SPARE_SECONDS
        if spare is None or age >= SPARE_SECONDS or (age >= LEAST_SPARE_SECONDS and spare.empty(now)):
            spare = self._spare = ReleasableJobs(self, now)
        return spare

    def waiting(self, user: str) -> list[HeldJob]:
        """Give those of a user's jobs that could be given back, in their order."""
        return [held for held in self._users.get(user, {}).values() if held.waits]

    def far_users(self, now: float) -> list[str]:
        """Name the users whose turn is far off, the furthest last."""
        far = [user for user in self._users if self.is_far(user, now)]
        return sorted(far, key=lambda user: self._free_at[user])

    def near_users(self, now: float) -> list[str]:
        """Name the others."""
        return [user for user in self._users if not self.is_far(user, now)]

    def is_far(self, user: str, now: float) -> bool:
        """Tell whether a user's turn is far off."""
        return self._free_at.get(user, now) > now + SOON_SECONDS


class ReleasableJobs:
    """The jobs that could be given back, as they stood at one moment; what became of them since is seen when they are chosen."""

    def __init__(self, holdings: HeldJobs, now: float) -> None:
        self.made_at = now
        self._holdings = holdings
        self._far = [held for user in holdings.far_users(now) for held in holdings.waiting(user)]
        self._near = {user: line for user in holdings.near_users(now) if len(line := holdings.waiting(user)) > 1}
        self._longest = [(-len(line), user) for user, line in self._near.items()]
        heapq.heapify(self._longest)

    def choose(self, user: str, count: int, now: float) -> list[HeldJob]:
        """Take out at most so many jobs of others that should make room for jobs of this user, the least urgent first.

        These are any whose turn is far off. If there is none, it is one of whoever has most, for a user who has none waiting.
        """
        chosen: list[HeldJob] = []
        own: list[HeldJob] = []
        while self._far and len(chosen) < count:
            held = self._far.pop()
            if held.user == user:
                own.append(held)
            elif held.waits and self._holdings.is_far(held.user, now):
                chosen.append(held)
        self._far += reversed(own)
        if not chosen and not self._holdings.waiting(user):
            chosen += self._last_of_longest()
        return chosen

    def empty(self, now: float) -> bool:
        """Tell whether nothing could be given back for anybody."""
        found = self.choose(NOBODY, 1, now)
        for held in found:
            self._near.get(held.user, self._far).append(held)
        return not found

    def _last_of_longest(self) -> list[HeldJob]:
        while self._longest:
            length, user = self._longest[0]
            line = self._near[user] = [held for held in self._near[user] if held.waits]
            if len(line) < 2:
                heapq.heappop(self._longest)
            elif len(line) < -length:  # some are being sent or were given back since
                heapq.heapreplace(self._longest, (-len(line), user))
            else:
                return [line.pop()]
        return []
