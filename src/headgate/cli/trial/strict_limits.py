"""The limiters of a strict upstream, and the count of arrivals in the fullest window.

`headgate relay prove`, the demo upstream, the tests and the benchmark share them, so that all measure the same limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Protocol


class ArrivalLimiter(Protocol):
    """Counts arrivals, whose times never decrease, and allows or refuses each."""

    def arrive(self, moment: float) -> bool:
        """Count one arrival; tell whether it is allowed."""

    def wait(self, moment: float) -> float:
        """Give the seconds until the next arrival can be allowed."""


class SlidingLog:
    """Exactly N in any window of W; with `strict`, refused arrivals count as well."""

    def __init__(self, count: int, seconds: float, *, strict: bool = False) -> None:
        self._count, self._seconds, self._strict = count, seconds, strict
        self._log: deque[float] = deque()

    def arrive(self, moment: float) -> bool:
        self._forget(moment)
        allowed = len(self._log) < self._count
        if allowed or self._strict:
            self._log.append(moment)
        return allowed

    def wait(self, moment: float) -> float:
        self._forget(moment)
        if len(self._log) < self._count:
            return 0.0
        return self._log[len(self._log) - self._count] + self._seconds - moment

    def _forget(self, moment: float) -> None:
        while self._log and moment - self._log[0] >= self._seconds:
            self._log.popleft()


class FixedWindow:
    """N in each window of the wall clock; `phase` shifts the edges."""

    def __init__(self, count: int, seconds: float, *, phase: float = 0.0) -> None:
        self._count, self._seconds, self._phase = count, seconds, phase
        self._window, self._seen = -1, 0

    def arrive(self, moment: float) -> bool:
        window = int((moment + self._phase) // self._seconds)
        if window != self._window:
            self._window, self._seen = window, 0
        self._seen += 1
        return self._seen <= self._count

    def wait(self, moment: float) -> float:
        return self._seconds - (moment + self._phase) % self._seconds


class TokenBucket:
    """A bucket of `burst` tokens that is refilled at the rate count / seconds."""

    def __init__(self, count: int, seconds: float, *, burst: int | None = None) -> None:
        self._rate, self._burst = count / seconds, burst or count
        self._tokens, self._at = float(self._burst), 0.0

    def arrive(self, moment: float) -> bool:
        self._fill(moment)
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True

    def wait(self, moment: float) -> float:
        self._fill(moment)
        return max(0.0, (1 - self._tokens) / self._rate)

    def _fill(self, moment: float) -> None:
        self._tokens = min(self._burst, self._tokens + (moment - self._at) * self._rate) if self._at else self._tokens
        self._at = moment


class SlidingCounter:
    """Two fixed windows, the older one weighted by its share of the sliding window."""

    def __init__(self, count: int, seconds: float, *, phase: float = 0.0) -> None:
        self._count, self._seconds, self._phase = count, seconds, phase
        self._window, self._now, self._before = -1, 0, 0

    def arrive(self, moment: float) -> bool:
        window, inside = divmod(moment + self._phase, self._seconds)
        if window != self._window:
            self._before = self._now if window == self._window + 1 else 0
            self._window, self._now = int(window), 0
        if self._before * (1 - inside / self._seconds) + self._now + 1 > self._count + 1e-9:
            return False
        self._now += 1
        return True

    def wait(self, moment: float) -> float:
        return self._seconds / self._count


def largest_window(arrivals: Iterable[float], seconds: float) -> int:
    """Give the most arrivals in any half-open window of this length."""
    moments = sorted(arrivals)
    return max((bisect_left(moments, moment + seconds) - index for index, moment in enumerate(moments)), default=0)
