"""What this process remembers of each queue, so that it can be written back if the store loses it."""

from __future__ import annotations

import msgspec

from headgate.store import Thing
from headgate.waiting_room.model import Flow


class Common(msgspec.Struct, frozen=True):
    """What all of a queue are told alike: as it came, and taken apart."""

    packed: bytes
    generation: int
    wake: bool
    grace_seconds: float
    free: int
    flow: Flow | None
    paused: bool


class Remembered(msgspec.Struct):
    """The last that was seen of a queue."""

    policy: bytes = b""
    generation: int = 1
    serving: int = 0
    stale: bool = True
    common: Common | None = None


class Memory:
    """Remembered queues; bounded, since whoever asks chooses the names but only real queues get in."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._queues: dict[Thing, Remembered] = {}

    def of(self, thing: Thing) -> Remembered | None:
        """Give what is remembered of a queue."""
        return self._queues.get(thing)

    def serving(self, thing: Thing) -> int:
        """Give the last place called that we heard of."""
        known = self._queues.get(thing)
        return known.serving if known else 0

    def note(self, thing: Thing, generation: int, serving: int) -> Remembered:
        """Take in what an answer said."""
        known = self._queues.get(thing)
        if known is None:
            if len(self._queues) >= self._most:
                self._queues.pop(next(iter(self._queues)))
            known = self._queues[thing] = Remembered()
        if generation > known.generation:
            known.generation = generation
        if serving > known.serving:
            known.serving = serving
        return known

    def forget(self, thing: Thing) -> None:
        """A queue was deleted: it must not come back by our memory."""
        self._queues.pop(thing, None)
