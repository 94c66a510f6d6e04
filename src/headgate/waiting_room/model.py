"""People, tickets and seats: what the line says of them, and the rules that need no store."""

from __future__ import annotations

import math
from enum import StrEnum
from random import random
from typing import Final

import msgspec

from headgate.kit.wire import Wire

DEFAULT_QUEUE: Final = "main"
MOST_POLL_MS: Final = 30_000
LEAST_POLL_MS: Final = 1_000
NEAR_POLL_MS: Final = 500
MOST_DOUBT: Final = 0.8
FILLING_DOUBT: Final = 0.3
FILLING_SECONDS: Final = 3.5
STEADY_DOUBT: Final = 0.04
LEAST_FREED: Final = 8
# A call comes with a tick, and is heard of with the next question.
HEARING_SECONDS: Final = 0.5
LEASE_MS: Final = 10_000
BEAT_SECONDS: Final = 3.0
# A report of who is inside is one step of the store, so it is bounded, and with it the seats of a server.
# A report of ten times as many takes the store twelve times as long, too long for one step.
MOST_SESSIONS: Final = 10_000


class State(StrEnum):
    """Where somebody is between entering the line and being done."""

    WAITING = "WAITING"
    PROMOTED = "PROMOTED"
    ACTIVE = "ACTIVE"
    FINISHED = "FINISHED"
    EXPIRED = "EXPIRED"
    AWAY = "AWAY"
    LEFT = "LEFT"
    ABANDONED = "ABANDONED"


class Reason(StrEnum):
    """Why a session ended: its owner left, or was dropped and may come back to the same seat for a while."""

    LEFT = "left"
    DROPPED = "dropped"


class Eta(Wire):
    """How long the wait will be, from the admissions measured lately; `low` to `high` is what to expect."""

    seconds: float
    low: float
    high: float


class Flow(msgspec.Struct, frozen=True):
    """How people come in: at the policy's pace while seats are free, and after that as fast as seats are given up.

    Filling the house on opening night is quick, and says nothing of those who wait for somebody to leave. Nor does the pace
    of its first minute: whoever is called and does not come holds a seat until the ticket ends, so from `first_turnover` it
    slows down to `turnover`.
    """

    pace: float
    seconds: float
    free: int = 0
    turnover: float = 0.0
    freed: float = 0.0
    cycle_seconds: float = 0.0
    fastest: float = 0.0
    tick_seconds: float = 1.0
    first_turnover: float = 0.0
    slowing_seconds: float = 0.0
    late_doubt: float = 0.0
    late_seconds: float = 0.0

    def says_nothing(self) -> bool:
        """Tell whether nothing can be said to anybody: no seat is free, and nobody was seen to give one up."""
        unknown = self.turnover <= 0 or self.freed < LEAST_FREED
        return self.pace <= 0 or (self.free <= 0 and unknown and self.fastest <= 0)

    def eta(self, rank: int) -> Eta | None:
        """Tell how long somebody at this rank waits, or None while that cannot be known."""
        if rank <= 0 or self.pace <= 0:
            return None
        first, behind = min(rank, self.free), max(0, rank - self.free)
        seconds = first / self.pace
        doubt = FILLING_DOUBT
        if behind:
            if self.turnover <= 0 or self.freed < LEAST_FREED:
                return None
            seconds += self._behind(behind)
            # Those who stay long have not left yet: until the house was seen to turn over, its pace is a guess.
            youth = self.cycle_seconds / 4 / max(self.seconds, 1.0)
            # About nine in ten waits fall inside: the spread of a count is its root, of those seen and of those ahead.
            late = self.late_doubt * min(1.0, seconds / self.late_seconds) if self.late_seconds else 0.0
            spread = 1 / self.freed + 1 / behind + late * late
            doubt = min(MOST_DOUBT, math.sqrt(STEADY_DOUBT + 2.7 * spread + youth * youth))
        slack = max(1.0, self.tick_seconds) + HEARING_SECONDS
        if not behind:
            slack += FILLING_SECONDS  # nobody was seen to hear of a call yet, and everybody asks at once
        low = max(0.0, seconds * (1 - doubt) - slack)
        return Eta(round(seconds, 1), round(low, 1), round(seconds / (1 - doubt) + slack, 1))

    def _behind(self, rank: int) -> float:
        """Tell how long it takes until so many seats were given up."""
        quick = max(0.0, self.first_turnover - self.turnover) * self.slowing_seconds
        if rank < quick:
            return -self.slowing_seconds * math.log(1 - rank / (self.first_turnover * self.slowing_seconds))
        slowing = self.slowing_seconds * math.log(self.first_turnover / self.turnover) if quick else 0.0
        return slowing + (rank - quick) / self.turnover

    def least(self, rank: int) -> float | None:
        """Tell how long somebody at this rank waits at least, which is known earlier; None if nothing can be said."""
        first, behind = min(rank, self.free), max(0, rank - self.free)
        if self.pace <= 0 or (behind and self.fastest <= 0):
            return None
        return round(first / self.pace + (behind / self.fastest if behind else 0.0), 1)


def poll_after_ms(rank: int, eta: Eta | None, grace_seconds: float = 120.0, free: int = 0) -> int:
    """Say when to ask again: soon near the front, seldom far behind, never all together."""
    base: float = LEAST_POLL_MS
    behind = rank - free - 20
    if behind > 0:
        base += 20 * behind
    if eta is not None:
        base = min(base, max(NEAR_POLL_MS, eta.low * 500))
    # Everybody who asks comes by here, and comparing costs less than min() and max().
    most = grace_seconds * 400
    if most > MOST_POLL_MS:
        most = MOST_POLL_MS
    if base > most:
        base = most
    after = base * (0.8 + 0.4 * random())
    if after < NEAR_POLL_MS:
        return NEAR_POLL_MS
    return MOST_POLL_MS if after > MOST_POLL_MS else int(after)
