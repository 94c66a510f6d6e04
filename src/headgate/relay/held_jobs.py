"""The jobs of one upstream that a runner holds, and which of them it gives back when it has no room for another.

A runner holds some jobs in advance, so that they wait in line and are sent as soon as they may. It holds a bounded number,
and many users with long backlogs could fill that with jobs whose turn is hours away. So a job that can be sent soon takes
the room of one that cannot: first from users whose turn is furthest off, then from the user with most jobs waiting. A job
that is given back keeps its place in line and waits in the store.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

from headgate.kit.ids import new_ulid

SOON_SECONDS: Final = 2.0  # twice the interval of a runner's rounds
REUSE_SECONDS: Final = 1.0  # how long a list of releasable jobs is used,
REUSE_EMPTY_SECONDS: Final = 0.1  # and how long an empty one is: making a list costs a look at every job
NO_USER: Final = ""


class HeldJob:
    """A job that this runner holds; `attempt` is the id that it is marked with before it is sent, the same in every retry.

    `waits` means that it waits in line and is not marked as being sent: only then can it be given back.
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
    """The jobs of one upstream that this runner holds, by user and in the order of each user's line."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._users: dict[str, dict[str, HeldJob]] = {}
        self._free_at: dict[str, float] = {}
        self._releasable: ReleasableJobs | None = None

    @property
    def room(self) -> int:
        """How many more jobs may be held."""
        return self._most - self._count

    def add(self, held: HeldJob) -> None:
        """Add a job."""
        self._users.setdefault(held.user, {})[held.id] = held
        self._count += 1

    def remove(self, held: HeldJob) -> None:
        """Remove a job."""
        jobs = self._users[held.user]
        del jobs[held.id]
        self._count -= 1
        if not jobs:
            del self._users[held.user]
            self._free_at.pop(held.user, None)

    def learn(self, user: str, free_at: float) -> None:
        """Record the earliest time at which a user's next job can be sent."""
        if user in self._users:
            self._free_at[user] = free_at

    def releasable(self, now: float) -> ReleasableJobs:
        """Return the jobs that could be given back now; a recent list is reused."""
        found = self._releasable
        age = now - found.made_at if found is not None else REUSE_SECONDS
        if found is None or age >= REUSE_SECONDS or (age >= REUSE_EMPTY_SECONDS and found.empty(now)):
            found = self._releasable = ReleasableJobs(self, now)
        return found

    def waiting(self, user: str) -> list[HeldJob]:
        """List those of a user's jobs that could be given back, in their order."""
        return [held for held in self._users.get(user, {}).values() if held.waits]

    def far_users(self, now: float) -> list[str]:
        """List the users whose turn is far off, the furthest last."""
        far = [user for user in self._users if self.is_far(user, now)]
        return sorted(far, key=lambda user: self._free_at[user])

    def near_users(self, now: float) -> list[str]:
        """List the users whose turn is not far off."""
        return [user for user in self._users if not self.is_far(user, now)]

    def is_far(self, user: str, now: float) -> bool:
        """Whether a user's turn is far off."""
        return self._free_at.get(user, now) > now + SOON_SECONDS


class ReleasableJobs:
    """The jobs that could be given back at one moment; each is checked again when it is chosen."""

    def __init__(self, held_jobs: HeldJobs, now: float) -> None:
        self.made_at = now
        self._held_jobs = held_jobs
        self._far = [held for user in held_jobs.far_users(now) for held in held_jobs.waiting(user)]
        self._near = {user: line for user in held_jobs.near_users(now) if len(line := held_jobs.waiting(user)) > 1}
        self._longest = [(-len(line), user) for user, line in self._near.items()]
        heapq.heapify(self._longest)

    def choose(self, user: str, count: int, now: float) -> list[HeldJob]:
        """Remove and return at most `count` jobs of other users to make room for this user, the least urgent first.

        They are jobs whose turn is far off. Without any, it is one of the user with most jobs, for a user with none waiting.
        """
        chosen: list[HeldJob] = []
        own: list[HeldJob] = []
        while self._far and len(chosen) < count:
            held = self._far.pop()
            if held.user == user:
                own.append(held)
            elif held.waits and self._held_jobs.is_far(held.user, now):
                chosen.append(held)
        self._far += reversed(own)
        if not chosen and not self._held_jobs.waiting(user):
            chosen += self._last_of_longest()
        return chosen

    def empty(self, now: float) -> bool:
        """Whether no job could be given back for any user."""
        found = self.choose(NO_USER, 1, now)
        for held in found:
            self._near.get(held.user, self._far).append(held)
        return not found

    def _last_of_longest(self) -> list[HeldJob]:
        while self._longest:
            length, user = self._longest[0]
            line = self._near[user] = [held for held in self._near[user] if held.waits]
            if len(line) < 2:
                heapq.heappop(self._longest)
            elif len(line) < -length:  # some are being sent or were given back meanwhile
                heapq.heapreplace(self._longest, (-len(line), user))
            else:
                return [line.pop()]
        return []
