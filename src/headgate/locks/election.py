"""Elections: the holder of a lock is the leader, and anybody may observe the changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from headgate.locks.lock_source import Lock, LockSource
from headgate.locks.model import LockState, election_name


class Leader(msgspec.Struct, frozen=True):
    """The name that the leader gave itself, and the number of its term, which only grows."""

    name: str
    fence: int


class Election:
    """An election with at most one leader at any time."""

    def __init__(
        self,
        source: LockSource,
        name: str,
        ttl: float = 10.0,
        *,
        candidate: str = "",
        delay: float = 0.0,
        namespace: str | None = None,
    ) -> None:
        self.name = name
        self._source = source
        self._lock_name = election_name(name)
        self._ttl = ttl
        self._candidate = candidate
        self._delay = delay
        self._namespace = namespace

    def campaign(self, candidate: str | None = None, *, wait: float | None = None) -> Lock:
        """Become a candidate: `async with election.campaign() as term:` is entered once elected.

        Leaving the block, or `await term.release()`, is resigning; the next candidate follows at once.
        """
        label = self._candidate if candidate is None else candidate
        return self._source.lock(
            self._lock_name, self._ttl, wait, delay=self._delay, label=label, namespace=self._namespace
        )

    async def leader(self) -> Leader | None:
        """Give the current leader, or None."""
        return _leader(await self._source.show(self._lock_name, self._namespace))

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        """Yield the current leader, and again after each change; None while there is no leader."""
        last: Leader | None = None
        first = True
        async with aclosing(self._source.watch(self._lock_name, self._namespace)) as states:
            async for state in states:
                leader = _leader(state)
                if first or leader != last:
                    first, last = False, leader
                    yield leader


def _leader(state: LockState) -> Leader | None:
    return Leader(state.label, state.fence) if state.held else None
