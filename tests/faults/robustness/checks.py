"""Checks over the history of a run. Each gives the violations of one promise, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from tests.faults.robustness.history import Event, History
from tests.faults.robustness.plan import Fault

# Faults after which acknowledged writes may be missing: of such a moment some promises say less.
_LOSING = {Fault.FLUSH, Fault.FAILOVER, Fault.FAILED_OVER}

# How long an answer may be on its way: what it tells of may have been lost meanwhile.
_IN_FLIGHT_SECONDS = 2.0


class Losses:
    """When data may have been lost: each from the beginning of a fault until answers from before it have arrived."""

    def __init__(self, history: History) -> None:
        faults = history.of("fault")
        self._spans = [
            (event.began, event.at + _IN_FLIGHT_SECONDS) for event in faults if event.facts["fault"] in _LOSING
        ]
        self._flushes = [event.began for event in faults if event.facts["fault"] == Fault.FLUSH]
        self._steps = [event.began for event in faults if event.facts["fault"] == Fault.CLOCK_STEP]

    def between(self, since: float, until: float) -> bool:
        """Tell whether data may have been lost in this time."""
        return any(begin <= until and end >= since for begin, end in self._spans)

    def with_another_clock(self, at: float) -> bool:
        """Tell whether everything was lost before this moment, and the store's clock had been set before that."""
        return any(step < flush <= at for flush in self._flushes for step in self._steps)


def admitted_once(history: History) -> list[str]:
    """One ticket opens one session, whatever happens."""
    counts = Counter(event.facts["ticket"] for event in history.of("admitted"))
    return [f"ticket {ticket} let {count} in" for ticket, count in counts.items() if count > 1]


def never_over_capacity(history: History, seats: int, ends: Mapping[str, Sequence[float]]) -> list[str]:
    """No arena ever has more people inside than seats; `ends` says when the process at an address was killed."""
    left = {(event.who, event.facts["ticket"]): event.began for event in history.of("left")}
    moves: dict[str, list[tuple[float, int, str]]] = {}
    for event in history.of("admitted"):
        arena = event.facts["arena"]
        end = left.get((event.who, event.facts["ticket"]), event.at)
        end = min([end, *(at for at in ends.get(arena, ()) if at >= event.began)])
        if end > event.at:
            moves.setdefault(arena, []).extend([(event.at, 1, event.who), (end, -1, event.who)])
    found = []
    for arena, changes in moves.items():
        inside = 0
        for at, by, who in sorted(changes):
            inside += by
            if inside > seats:
                found.append(f"{inside} inside {arena} at {at - history.started:.3f} when {who} entered")
    return found


def in_order(history: History) -> list[str]:
    """Nobody is called while somebody who came before them still waits, unless data was lost meanwhile."""
    entered = {event.who: event for event in history.of("entered")}
    losses = Losses(history)
    called: dict[str, float] = {}
    waiting: dict[str, float] = {}  # when the last question was sent that was answered with "still waiting"
    for event in history.of("status"):
        if event.facts["status"] == "PROMOTED":
            called.setdefault(event.who, event.at)
        elif event.facts["status"] == "WAITING" and event.who not in called:
            waiting[event.who] = event.began
    found = []
    for later, called_at in called.items():
        if later not in entered:
            continue
        for earlier, asked in waiting.items():
            if asked <= called_at or earlier not in entered:
                continue
            mine, theirs = entered[earlier], entered[later]
            if mine.at <= theirs.began and not losses.between(mine.began, asked):
                found.append(f"{later} was called {asked - called_at:.3f} s before {earlier}, who came first")
    return found


def ranks_never_rise(history: History) -> list[str]:
    """A shown rank never rises, unless data was lost meanwhile."""
    last: dict[str, Event] = {}
    losses = Losses(history)
    found = []
    for event in history.of("status"):
        if event.facts["status"] == "WAITING":
            before = last.get(event.who, event)
            rises = event.facts["rank"] > before.facts["rank"]
            if rises and not losses.between(before.began, event.at):
                found.append(f"{event.who} was shown rank {before.facts['rank']}, then {event.facts['rank']}")
            last[event.who] = event
        else:
            last.pop(event.who, None)
    return found


def nobody_lost(history: History, unfinished: Iterable[str]) -> list[str]:
    """Everybody gets in or is told why not, and what they are told is true."""
    found = [f"{name} still waits at the end" for name in unfinished]
    entered = {event.who: event for event in history.of("entered")}
    losses = Losses(history)
    for event in history.of("told"):
        code = event.facts["code"]
        began = entered[event.who].began if event.who in entered else event.began
        lost = losses.between(began, event.at)
        if code in ("queue_reset", "not_in_line") and not lost:
            found.append(f"{event.who} was told {code}, and nothing was lost")
        if code == "ABANDONED" or (code == "FINISHED" and not event.facts["admitted"]):
            found.append(f"{event.who} was told {code} although they were there and never inside")
        if code not in ("queue_reset", "not_in_line", "EXPIRED", "FINISHED", "ABANDONED"):
            found.append(f"{event.who} got an unexpected answer: {event.facts['status']} {code}")
    return found


def one_holder(history: History) -> list[str]:
    """One holder at a time, unless data was lost while the first held it; fences grow as long as clocks agree (decision 0007)."""
    found = []
    losses = Losses(history)
    in_turn = sorted(history.of("held"), key=lambda event: event.began)
    for before, after in pairwise(in_turn):
        if before.facts["fence"] >= after.facts["fence"] and not losses.with_another_clock(after.began):
            found.append(f"fence {before.facts['fence']} was followed by {after.facts['fence']}")
        overlap = before.facts["end"] - after.began
        if overlap > 0 and not losses.between(before.began, after.began):
            found.append(
                f"fences {before.facts['fence']} and {after.facts['fence']} held it together for {overlap:.3f} s"
            )
    return found


def the_living_stay(history: History) -> list[str]:
    """No instance is removed while it lives; each has one lease after any outage."""
    alive: dict[str, bool] = {}
    found = []
    for event in history.events:
        if event.what in ("alive", "leaves"):
            alive[event.who] = event.what == "alive"
        elif event.what == "change" and event.facts["kind"] == "removed" and alive.get(event.facts["instance"]):
            found.append(
                f"{event.who} heard at {event.at - history.started:.1f} that {event.facts['instance']} is gone"
            )
    return found


def sent_once(bodies: Iterable[bytes]) -> list[str]:
    """The relay sends a request that is not repeatable at most once."""
    return [f"{body!r} arrived {count} times" for body, count in Counter(bodies).items() if count > 1]
