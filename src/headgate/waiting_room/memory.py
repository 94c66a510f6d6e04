"""Remembers enough of each queue in this process to restore the queue if the store loses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from headgate.store import Thing
from headgate.waiting_room.model import Forecast

# Of one queue; usually no more users than that hold seats at once.
MOST_PROMOTED: Final = 5_000


class QueueFacts(msgspec.Struct, frozen=True):
    """The part of a script's reply that is the same for all users of a queue: packed, and decoded."""

    packed: bytes
    generation: int
    needs_visit: bool
    grace_seconds: float
    free: int
    forecast: Forecast | None
    paused: bool


class RememberedQueue(msgspec.Struct):
    """The latest known state of a queue: its policy, the last place promoted, and the promoted users.

    `serving` is the last place promoted in `epoch`, and `served` the last one in epochs before it. `unconfirmed` are
    promoted users of whom a hint may have been missed. They count again if the next reply has a new epoch, because then
    the store was away in between.
    """

    snapshot: bytes = b""
    generation: int = 1
    epoch: int = 0
    serving: int = 0
    served: int = 0
    promoted: dict[str, None] = {}
    unconfirmed: dict[str, None] = {}
    stale: bool = True
    facts: QueueFacts | None = None

    def update(self, generation: int, epoch: int, serving: int) -> None:
        """Record the numbers of a reply."""
        self.generation = max(self.generation, generation)
        if epoch == self.epoch:
            self.serving = max(self.serving, serving)
        else:
            self.served = max(self.served, self.serving)
            self.epoch, self.serving, self.stale = epoch, serving, True
            self.promoted = self.unconfirmed | self.promoted
        if self.unconfirmed:
            self.unconfirmed = {}

    def apply_changes(self, changes: Iterable[str]) -> None:
        """Record the changes that a hint lists.

        `+` and an id is a user who was promoted and has not entered, a bare id is any other change of a user, and `=` is
        the epoch and the last place promoted.
        """
        for change in changes:
            if change.startswith("="):
                epoch, _, serving = change[1:].partition(":")
                self.update(self.generation, int(epoch), int(serving))
                continue
            user_id = change.removeprefix("+")
            self.promoted.pop(user_id, None)
            self.unconfirmed.pop(user_id, None)
            if user_id is not change:
                self.promoted[user_id] = None
                if len(self.promoted) > MOST_PROMOTED:
                    del self.promoted[next(iter(self.promoted))]

    def mark_unconfirmed(self) -> None:
        """Record that hints may have been missed."""
        self.unconfirmed = self.unconfirmed | self.promoted
        self.promoted = {}

    def promoted_users(self) -> str:
        """List the users who were promoted and have not entered, for the script that restores a lost queue."""
        return f" {' '.join(self.unconfirmed | self.promoted)} "


class QueueMemory:
    """Remembered queues; bounded, and only existing queues are added, since callers choose the names."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._queues: dict[Thing, RememberedQueue] = {}

    def get(self, thing: Thing) -> RememberedQueue | None:
        """Give the memory of a queue."""
        return self._queues.get(thing)

    def serving(self, thing: Thing) -> str:
        """Give the known epoch, the last place promoted in it, and the last one promoted before it."""
        known = self._queues.get(thing)
        return f"{known.epoch} {known.serving} {known.served}" if known else "0 0 0"

    def was_promoted(self, thing: Thing, user_id: str) -> bool:
        """Tell whether a user was promoted and, as far as we know, has not entered."""
        known = self._queues.get(thing)
        return known is not None and (user_id in known.promoted or user_id in known.unconfirmed)

    def update(self, thing: Thing, generation: int, epoch: int, serving: int) -> RememberedQueue:
        """Record the numbers of a reply."""
        known = self._queues.get(thing)
        if known is None:
            if len(self._queues) >= self._most:
                self._queues.pop(next(iter(self._queues)))
            known = self._queues[thing] = RememberedQueue()
        known.update(generation, epoch, serving)
        return known

    def user_entered(self, thing: Thing, user_id: str) -> None:
        """Record that a user entered by a call of this process."""
        known = self._queues.get(thing)
        if known is not None:
            known.apply_changes((user_id,))

    def forget(self, thing: Thing) -> None:
        """Drop a queue that was deleted, so that it is not restored."""
        self._queues.pop(thing, None)
