"""Request limits: a steadily refilling bucket for each client address and each user, in bounded memory.

A bucket is one number, the moment at which it will be full again, so an entry that is in the past says nothing and may
be forgotten. Two generations bound the memory: when the young one is full it becomes the old one, and what nobody has asked
for since then is gone. Each gateway process counts by itself; entries are counted together (`shared_buckets`).
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

    __slots__ = ("_most", "_old", "_room", "_step", "_young", "burst", "name")

    def __init__(self, name: str, per_second: float, burst: float, most: int = MOST_KEYS) -> None:
        self.name = name
        self._most = most
        self.change(per_second, burst)

    def change(self, per_second: float, burst: float) -> None:
        """Take another rate and begin with full buckets."""
        self.burst = burst
        self._step = 1.0 / per_second
        self._room = (burst - 1.0) / per_second
        self._young: dict[str, float] = {}
        self._old: dict[str, float] = {}

    def take(self, key: str) -> None:
        """Count one request, or raise RateLimited with the time until the next is allowed."""
        now = monotonic()
        young = self._young
        full_at = young.get(key)
        if full_at is None:
            full_at = self._old.get(key, now)
            if len(young) >= self._most:
                self._old, self._young = young, {}
                young = self._young
        if full_at < now:
            full_at = now
        wait = full_at - now - self._room
        if wait > 0:
            young[key] = full_at  # who goes on asking is not forgotten
            raise self._refusal(wait)
        young[key] = full_at + self._step

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

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
        """Take another rate per address, with its burst in proportion; None: as configured."""
        rate = per_second or self._limit.per_second
        burst = max(1.0, self._limit.burst * rate / self._limit.per_second)
        self.addresses.change(rate, burst)

    def take_address(self, address: str) -> None:
        """Count a request of this address."""
        self.addresses.take(client_network(address))


def limiters(changed: Mapping[str, RateLimit], shared: MakeBuckets | None = None) -> dict[str, RequestLimiter]:
    """Make every class of limits: the built-in ones, and those that the settings change or add.

    `shared` makes the buckets of entries, if they are counted together with other processes.
    """
    made = {name: RequestLimiter(name, limit) for name, limit in {**LIMITS, **changed}.items()}
    if shared is not None:
        entry = {**LIMITS, **changed}[ENTRY]
        made[ENTRY] = RequestLimiter(ENTRY, entry, shared(ENTRY, entry.per_second, entry.burst))
    return made
