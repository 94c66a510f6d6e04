"""Domain types of the waiting room, and the rules that need no store: the estimate of a wait, and when to poll."""

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
# A user learns of a promotion with the next poll after the tick.
POLL_SLACK_SECONDS: Final = 0.5
LEASE_MS: Final = 10_000
BEAT_SECONDS: Final = 3.0
# A report of all sessions is one script call, so it is bounded, and with it the seats of a server: ten times as many
# sessions take the store twelve times as long.
MOST_SESSIONS: Final = 10_000


class State(StrEnum):
    """The state of a user in a queue."""

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


class EntryArguments(msgspec.Struct, frozen=True, gc=False):
    """Everything that a caller sends to join a queue; `trusted` marks a caller who may act for any account."""

    nickname: str
    user_id: str | None = None
    proof: str | None = None
    place_token: str | None = None
    idempotency_key: str | None = None
    trusted: bool = False


class Eta(Wire):
    """The estimated wait, from the admissions measured lately; about nine in ten waits end between `low` and `high`."""

    seconds: float
    low: float
    high: float


class Forecast(msgspec.Struct, frozen=True):
    """The numbers from which a wait is estimated.

    Users are promoted at the policy's pace while seats are free, then as fast as seats are given up (`turnover` a
    second). A queue that fills free seats is fast, which says nothing about a user who waits for somebody to leave.
    Turnover is also higher at first: promoted users who do not come hold their seats until their tickets expire, so it
    slows down from `first_turnover` to `turnover`.
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

    @property
    def measured(self) -> bool:
        """Tell whether enough seats were given up to know the turnover."""
        return self.turnover > 0 and self.freed >= LEAST_FREED

    def empty(self) -> bool:
        """Tell whether there is no estimate for any rank: no seat is free, and nobody was seen to give one up."""
        return self.pace <= 0 or (self.free <= 0 and not self.measured and self.fastest <= 0)

    def eta(self, rank: int) -> Eta | None:
        """Estimate the wait of a user at this rank; None while that is not known."""
        if rank <= 0 or self.pace <= 0:
            return None
        seconds = min(rank, self.free) / self.pace
        doubt = FILLING_DOUBT
        behind = rank - self.free
        if behind > 0:
            if not self.measured:
                return None
            seconds += self._turnover_seconds(behind)
            # Users who stay long have not left yet, so the turnover is a guess until most seats changed hands once.
            youth = self.cycle_seconds / 4 / max(self.seconds, 1.0)
            # About nine in ten waits are in this range: the spread of a count is its root.
            late = self.late_doubt * min(1.0, seconds / self.late_seconds) if self.late_seconds else 0.0
            spread = 1 / self.freed + 1 / behind + late * late
            doubt = min(MOST_DOUBT, math.sqrt(STEADY_DOUBT + 2.7 * spread + youth * youth))
        slack = max(1.0, self.tick_seconds) + POLL_SLACK_SECONDS
        if behind <= 0:
            slack += FILLING_SECONDS  # nobody was promoted yet, and all users poll at once
        low = max(0.0, seconds * (1 - doubt) - slack)
        return Eta(round(seconds, 1), round(low, 1), round(seconds / (1 - doubt) + slack, 1))

    def least(self, rank: int) -> float | None:
        """Give the shortest possible wait at this rank, which is known before the estimate; None if it is not known."""
        behind = rank - self.free
        if self.pace <= 0 or (behind > 0 and self.fastest <= 0):
            return None
        return round(min(rank, self.free) / self.pace + (behind / self.fastest if behind > 0 else 0.0), 1)

    def _turnover_seconds(self, seats: int) -> float:
        """Estimate how long it takes until this many seats are given up."""
        quick = max(0.0, self.first_turnover - self.turnover) * self.slowing_seconds
        if seats < quick:
            return -self.slowing_seconds * math.log(1 - seats / (self.first_turnover * self.slowing_seconds))
        slowing = self.slowing_seconds * math.log(self.first_turnover / self.turnover) if quick else 0.0
        return slowing + (seats - quick) / self.turnover


def poll_after_ms(rank: int, eta: Eta | None, grace_seconds: float = 120.0, free: int = 0) -> int:
    """Choose when a user polls again: soon near the front, seldom far behind, with jitter."""
    base: float = LEAST_POLL_MS
    behind = rank - free - 20
    if behind > 0:
        base += 20 * behind
    if eta is not None:
        base = min(base, max(NEAR_POLL_MS, eta.low * 500))
    # A hot path: comparisons cost less than min() and max().
    most = grace_seconds * 400
    if most > MOST_POLL_MS:
        most = MOST_POLL_MS
    if base > most:
        base = most
    after = base * (0.8 + 0.4 * random())
    if after < NEAR_POLL_MS:
        return NEAR_POLL_MS
    return MOST_POLL_MS if after > MOST_POLL_MS else int(after)
