"""A store's clock that stands still until it is set: however long a machine takes over a step, no time passes in it."""

from __future__ import annotations

import time

from headgate.store import Store


class StoppedClock:
    """`clock = StoppedClock(store); …; clock.set(30_000)`: so many milliseconds have passed since it was made."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._base_ms = round(time.time() * 1000)
        self.set(0)
        self.tell_outage(-self._base_ms, -self._base_ms)

    def set(self, ms: int) -> None:
        """Have so much time passed in all, as if we had waited."""
        self._store.stop_clock(self._base_ms + ms)

    def tell_outage(self, from_ms: int, until_ms: int) -> None:
        """Have this client know that the store did not answer between two moments."""
        for clock in self._store.route.clocks():
            clock.note_outage(self._base_ms + from_ms, self._base_ms + until_ms)
