"""Rate limits as token buckets: a burst at once, refilled steadily."""

from __future__ import annotations

from time import monotonic
from typing import Final

FORGET_ABOVE: Final = 10_000


class Allowance:
    """The token bucket of one player; the count may go below zero, which tells a flood from a slip."""

    __slots__ = ("_at", "_left", "_most", "_per_second")

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._most = float(burst)
        self._left = float(burst)
        self._at = monotonic()

    def take(self) -> float:
        """Take one token and return how many are left; a refused message takes one as well."""
        now = monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second) - 1
        self._at = now
        return self._left

    def peek(self) -> float:
        """Give the number of tokens left."""
        return min(self._most, self._left + (monotonic() - self._at) * self._per_second)


class HandshakeFailures:
    """Counts refused handshakes by client address, in bounded memory; one is forgiven every second."""

    def __init__(self, burst: int) -> None:
        self._burst = burst
        self._addresses: dict[str, Allowance] = {}

    def exhausted(self, address: str) -> bool:
        """Whether this address has failed too often lately."""
        known = self._addresses.get(address)
        return known is not None and known.peek() < 1

    def add(self, address: str) -> None:
        """Count one failure."""
        if len(self._addresses) >= FORGET_ABOVE and address not in self._addresses:
            recovered = [name for name, one in self._addresses.items() if one.peek() >= self._burst - 1]
            for name in recovered or list(self._addresses)[: FORGET_ABOVE // 2]:
                del self._addresses[name]
        known = self._addresses.setdefault(address, Allowance(1.0, self._burst))
        if known.peek() >= 1:
            known.take()
