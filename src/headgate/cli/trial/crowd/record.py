"""Records a run: samples over time, waits, refusals, and the promises that were checked."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec


class Behaviour(StrEnum):
    """How a player behaves."""

    PATIENT = "patient"
    REFRESHING = "refreshing"
    ABANDONING = "abandoning"
    SHARING = "sharing"
    CRASHING = "crashing"


class Promise(StrEnum):
    """The promises of Headgate to its players."""

    RANK_NEVER_RISES = "a shown rank never rises"
    REFRESH_KEEPS_THE_PLACE = "a refresh keeps the place"
    ONE_TICKET_ONE_ENTRY = "one ticket lets exactly one in"
    CALLED_MEANS_ENTERED = "who is called gets in"
    NEVER_OVER_CAPACITY = "sessions and holds never pass the capacity"
    NOBODY_LOST = "nobody who waits is lost"


class Sample(msgspec.Struct, frozen=True):
    """The state at one moment; `seats_taken` and `capacity` come from the gateway, if it gives them."""

    at: float
    arrived: int
    waiting: int
    admitted: int
    inside: int
    done: int
    seats_taken: int | None = None
    capacity: int | None = None


class Wait(msgspec.Struct, frozen=True):
    """The wait of one player: its start, its length, and the first estimate."""

    arrived_at: float
    seconds: float
    first_eta: float | None
    low: float | None
    high: float | None


class CrowdFigures(msgspec.Struct, frozen=True):
    """The figures of a finished run."""

    players: int
    seconds: float
    requests: int
    entered: int
    abandoned: int
    came_back: int
    wait_p50: float
    wait_p90: float
    wait_p99: float
    eta_error_p50: float | None
    eta_within_range: float | None
    eta_range_p50: float | None
    answer_p50_ms: float
    answer_p99_ms: float
    promises: dict[str, int]
    broken: dict[str, int]
    refusals: dict[str, int]
    lost: int
    unfinished: int


class CrowdRecord:
    """The counters of a run in progress."""

    def __init__(self, players: int) -> None:
        self.players = players
        self.arrived = self.waiting = self.admitted = self.inside = self.done = 0
        self.abandoned = self.came_back = self.requests = 0
        self.seats_taken: int | None = None
        self.capacity: int | None = None
        self.samples: list[Sample] = []
        self.waits: list[Wait] = []
        self.answers_ms: list[float] = []
        self.refusals: Counter[str] = Counter()
        self.kept: Counter[Promise] = Counter()
        self.broken: Counter[Promise] = Counter()
        self.behaviours: Counter[Behaviour] = Counter()
        self.lost = self.unfinished = 0

    def check(self, promise: Promise, kept: bool) -> None:
        """Count a check of a promise."""
        (self.kept if kept else self.broken)[promise] += 1

    def take_sample(self, at: float) -> None:
        """Record the current counters."""
        self.samples.append(
            Sample(
                at=round(at, 2),
                arrived=self.arrived,
                waiting=self.waiting,
                admitted=self.admitted,
                inside=self.inside,
                done=self.done,
                seats_taken=self.seats_taken,
                capacity=self.capacity,
            )
        )

    def figures(self, seconds: float) -> CrowdFigures:
        """Compute the figures of the run."""
        waits = sorted(wait.seconds for wait in self.waits)
        estimated = [wait for wait in self.waits if wait.first_eta is not None]
        errors = sorted(abs((wait.first_eta or 0) - wait.seconds) for wait in estimated)
        within = [wait for wait in estimated if (wait.low or 0) <= wait.seconds <= (wait.high or 0)]
        widths = sorted(((wait.high or 0) - (wait.low or 0)) / max(wait.seconds, 1.0) for wait in estimated)
        answers = sorted(self.answers_ms)
        return CrowdFigures(
            players=self.players,
            seconds=round(seconds, 1),
            requests=self.requests,
            entered=self.admitted,
            abandoned=self.abandoned,
            came_back=self.came_back,
            wait_p50=percentile(waits, 50),
            wait_p90=percentile(waits, 90),
            wait_p99=percentile(waits, 99),
            eta_error_p50=percentile(errors, 50) if errors else None,
            eta_within_range=round(len(within) / len(estimated), 3) if estimated else None,
            eta_range_p50=percentile(widths, 50) if estimated else None,
            answer_p50_ms=percentile(answers, 50),
            answer_p99_ms=percentile(answers, 99),
            promises={str(promise): self.kept[promise] + self.broken[promise] for promise in Promise},
            broken={str(promise): self.broken[promise] for promise in Promise if self.broken[promise]},
            refusals=dict(self.refusals),
            lost=self.lost,
            unfinished=self.unfinished,
        )


def percentile(ordered: list[float], percent: float) -> float:
    """Give a percentile of sorted numbers; 0 if there are none."""
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))], 2)


def duration(ms: float) -> str:
    """Format a duration as ms or s."""
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:,.1f} s"
