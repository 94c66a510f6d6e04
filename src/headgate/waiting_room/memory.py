"""What this process remembers of each queue, so that it can be written back if the store loses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from headgate.store import Thing
from headgate.waiting_room.model import Flow

# Of one queue; as many as there are seats on hold, as a rule.
MOST_CALLED: Final = 5_000


class QueueFacts(msgspec.Struct, frozen=True):
    """What all of a queue are told alike: as it came, and taken apart."""

    packed: bytes
    generation: int
    wake: bool
    grace_seconds: float
    free: int
    flow: Flow | None
    paused: bool


class RememberedQueue(msgspec.Struct):
    """The last that was heard of a queue: its policy, how far it was called, and who was called and has not entered.

    `serving` was heard in `epoch`, and `served` in epochs before it. `doubtful` are those of the called of whom a hint may
    have been missed: they count again if the next answer tells of a new epoch, since then the store was away meanwhile.
    """

    policy: bytes = b""
    generation: int = 1
    epoch: int = 0
    serving: int = 0
    served: int = 0
    called: dict[str, None] = {}
    doubtful: dict[str, None] = {}
    stale: bool = True
    common: QueueFacts | None = None

    def note(self, generation: int, epoch: int, serving: int) -> None:
        """Take in what an answer said."""
        self.generation = max(self.generation, generation)
        if epoch == self.epoch:
            self.serving = max(self.serving, serving)
        else:
            self.served = max(self.served, self.serving)
            self.epoch, self.serving, self.stale = epoch, serving, True
            self.called = self.doubtful | self.called
        if self.doubtful:
            self.doubtful = {}

    def change(self, changed: Iterable[str]) -> None:
        """Take in whose state changed, as hints name them.

        `+` and an id is somebody who was called and has not entered; `=` is the epoch and the last place called.
        """
        for word in changed:
            if word.startswith("="):
                epoch, _, serving = word[1:].partition(":")
                self.note(self.generation, int(epoch), int(serving))
                continue
            user_id = word.removeprefix("+")
            self.called.pop(user_id, None)
            self.doubtful.pop(user_id, None)
            if user_id is not word:
                self.called[user_id] = None
                if len(self.called) > MOST_CALLED:
                    del self.called[next(iter(self.called))]

    def doubt(self) -> None:
        """Note that hints may have been missed."""
        self.doubtful = self.doubtful | self.called
        self.called = {}

    def recalled(self) -> str:
        """Name who was called and has not entered, for the script that writes a lost queue back."""
        return f" {' '.join(self.doubtful | self.called)} "


class QueueMemory:
    """Remembered queues; bounded, since whoever asks chooses the names but only real queues get in."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._queues: dict[Thing, RememberedQueue] = {}

    def of(self, thing: Thing) -> RememberedQueue | None:
        """Give what is remembered of a queue."""
        return self._queues.get(thing)

    def serving(self, thing: Thing) -> str:
        """Give the epoch that we know, the last place called in it, and the last one called before it."""
        known = self._queues.get(thing)
        return f"{known.epoch} {known.serving} {known.served}" if known else "0 0 0"

    def was_called(self, thing: Thing, user_id: str) -> bool:
        """Tell whether somebody was called and, as far as we heard, has not entered."""
        known = self._queues.get(thing)
        return known is not None and (user_id in known.called or user_id in known.doubtful)

    def note(self, thing: Thing, generation: int, epoch: int, serving: int) -> RememberedQueue:
        """Take in what an answer said."""
        known = self._queues.get(thing)
        if known is None:
            if len(self._queues) >= self._most:
                self._queues.pop(next(iter(self._queues)))
            known = self._queues[thing] = RememberedQueue()
        known.note(generation, epoch, serving)
        return known

    def entered(self, thing: Thing, user_id: str) -> None:
        """Take in that somebody entered by a call of our own."""
        known = self._queues.get(thing)
        if known is not None:
            known.change((user_id,))

    def forget(self, thing: Thing) -> None:
        """A queue was deleted: it must not come back by our memory."""
        self._queues.pop(thing, None)
