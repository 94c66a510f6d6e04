"""Rate limits: a token bucket for each client address and each user, in bounded memory.

A bucket is stored as one number, the time at which it will be full again. A time in the past means a full bucket, which may be
forgotten. Two generations bound the memory: when the new one is full it becomes the old one, and the old one is dropped.
Each gateway process counts by itself, except entries, which the processes of a machine count together (`shared_buckets`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from time import monotonic

from headgate.gateway.settings import ENTRY, LIMITS, RateLimit
from headgate.http.client_addresses import client_network
from headgate.kit.problems import RateLimited

MOST_KEYS = 50_000


MakeBuckets = Callable[[str, float, float], "Buckets"]


class Buckets:
    """The buckets of one class of requests, by key."""

    __slots__ = ("_most", "_new", "_old", "_room", "_step", "burst", "name")

    def __init__(self, name: str, per_second: float, burst: float, most: int = MOST_KEYS) -> None:
        self.name = name
        self._most = most
        self.change(per_second, burst)

    def change(self, per_second: float, burst: float) -> None:
        """Change the rate, and start again with full buckets."""
        self.burst = burst
        self._step = 1.0 / per_second
        self._room = (burst - 1.0) / per_second
        self._new: dict[str, float] = {}
        self._old: dict[str, float] = {}

    def take(self, key: str) -> None:
        """Count one request, or raise RateLimited with the time until the next is allowed."""
        now = monotonic()
        new = self._new
        full_at = new.get(key)
        if full_at is None:
            full_at = self._old.get(key, now)
            if len(new) >= self._most:
                self._old, self._new = new, {}
                new = self._new
        if full_at < now:
            full_at = now
        wait = full_at - now - self._room
        if wait > 0:
            new[key] = full_at  # keeps the key in the new generation
            raise self._refusal(wait)
        new[key] = full_at + self._step

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def _refusal(self, wait: float) -> RateLimited:
        policy = f'"{self.name}";q={self.burst:.0f};w={ceil(self.burst * self._step)}'
        return RateLimited(retry_after=ceil(wait), policy=policy)


class RequestLimiter:
    """One class of limits: per client address, and per user where the class says so."""

    __slots__ = ("_limit", "addresses", "users")

    def __init__(self, name: str, limit: RateLimit, addresses: Buckets | None = None) -> None:
        self._limit = limit
        self.addresses = Buckets(name, limit.per_second, limit.burst) if addresses is None else addresses
        self.users = (
            Buckets(f"{name} by user", limit.user_per_second, limit.user_burst) if limit.user_per_second else None
        )

    def change(self, per_second: float | None) -> None:
        """Change the rate per address, with its burst in proportion; None restores the configured rate."""
        rate = per_second or self._limit.per_second
        burst = max(1.0, self._limit.burst * rate / self._limit.per_second)
        self.addresses.change(rate, burst)

    def take_address(self, address: str) -> None:
        """Count a request of this address; raises RateLimited."""
        self.addresses.take(client_network(address))


def limiters(changed: Mapping[str, RateLimit], shared: MakeBuckets | None = None) -> dict[str, RequestLimiter]:
    """Make all classes of limits: the built-in ones, and those that the settings change or add.

    `shared` makes the buckets of entries, if they are counted together with other processes.
    """
    made = {name: RequestLimiter(name, limit) for name, limit in {**LIMITS, **changed}.items()}
    if shared is not None:
        entry = {**LIMITS, **changed}[ENTRY]
        made[ENTRY] = RequestLimiter(ENTRY, entry, shared(ENTRY, entry.per_second, entry.burst))
    return made
