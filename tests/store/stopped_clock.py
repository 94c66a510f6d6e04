"""A store's clock that stands still until it is set: however long a machine takes over a step, no time passes in it."""

from __future__ import annotations

import time
from typing import Final

from headgate.store import Store

_TIME: Final = "local function server_time()\n  return TIME, TIME * 1000\nend\n"


class StoppedClock:
    """`clock = StoppedClock(store); …; clock.set(30_000)`: so many milliseconds have passed since it was made."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._base_ms = _now_ms()
        self.set(0)

    def set(self, ms: int) -> None:
        """Have so much time passed in all, as if we had waited."""
        self._store.advance_clock(self._base_ms + ms - _now_ms())  # what callers expect to find
        self._store._includes["server_time"] = _TIME.replace("TIME", str(self._base_ms + ms))


def _now_ms() -> int:
    return round(time.time() * 1000)
