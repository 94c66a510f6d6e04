"""A history of holdings, and the check that it is one that a lock may have."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

from headgate.locks import Locks
from headgate.locks.locks import AcquireReply
from headgate.locks.model import Grant, LockRequest
from headgate.locks.waiters import WaiterList


@dataclass
class Holding:
    """One holding as its holder saw it: `end` is when it began to give it back or was told that it is lost."""

    fence: int
    begin: float
    end: float = float("inf")
    place: int = 0
    passed: bool = False


@dataclass
class History:
    """Holdings of one lock by any number of clients that share this machine's monotonic clock."""

    holdings: list[Holding] = field(default_factory=list)

    def begin(self, fence: int, place: int = 0) -> Holding:
        holding = Holding(fence, time.monotonic(), place=place)
        self.holdings.append(holding)
        return holding

    def check(self, *, fifo: bool = True, exclusive: bool = True) -> None:
        """Refuse a fence that does not grow, two holders at a time, and a place that overtakes another."""
        in_order = sorted(self.holdings, key=lambda one: one.begin)
        for before, after in pairwise(in_order):
            assert before.fence < after.fence, f"fences go back: {before} {after}"
            assert not exclusive or before.end <= after.begin, f"two holders: {before} {after}"
        if fifo:
            places = [one.place for one in in_order if one.place]
            assert places == sorted(places), "somebody overtook another in line"


class WatchedLocks(Locks):
    """Locks that remember which place each holder had in line."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.places: dict[str, int] = {}

    async def _wait(
        self, line: WaiterList, want: LockRequest, holder: str, turn: AcquireReply, limit: float | None
    ) -> Grant:
        self.places[holder] = turn.place
        return await super()._wait(line, want, holder, turn, limit)
