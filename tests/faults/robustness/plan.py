"""The faults of a run, drawn from its seed before it begins: the same seed, topology and length give the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    """The faults that hit a process or the store."""

    KILL = "kill"
    PAUSE = "pause"
    PARTITION = "partition"
    LOST_REPLIES = "lost replies"
    STORE_PAUSE = "store pause"
    STORE_FULL = "store full"
    SLOW_DISK = "slow disk"
    CUT = "connections cut"
    CLOCK_STEP = "clock step"
    FAILOVER = "failover"
    FLUSH = "flush"
    FAILED_OVER = "failed over"  # a pause that was long enough for a replica to take over; it is not drawn itself


_Odds = dict[Fault, tuple[int, float, float]]

# How often each is drawn, and how long it lasts in seconds (for a clock step: by how much the clock jumps).
_OF_PROCESSES: _Odds = {Fault.KILL: (4, 0.5, 4), Fault.PAUSE: (5, 0.3, 6)}
_BEHIND_A_PROXY: _Odds = {Fault.PARTITION: (3, 0.5, 5), Fault.LOST_REPLIES: (3, 0.1, 1)}
_OF_THE_STORE: _Odds = {
    Fault.STORE_PAUSE: (4, 0.2, 3),
    Fault.STORE_FULL: (2, 0.5, 3),
    Fault.SLOW_DISK: (2, 1, 4),
    Fault.CUT: (3, 0, 0),
    Fault.FAILOVER: (2, 0, 0),
    Fault.FLUSH: (1, 0, 0),
}
_OF_THE_CLOCK: _Odds = {Fault.CLOCK_STEP: (2, 6, 40)}  # smaller steps are not noticed, as the documents say


class Step(NamedTuple):
    """One fault: when it begins after the start of the run, what it hits, and how long it lasts."""

    at: float
    fault: Fault
    target: str  # a process by name, "" for the store
    seconds: float


def draw(seed: int, seconds: float, processes: Sequence[str], *, proxied: bool, clock: bool) -> list[Step]:
    """Draw two streams of faults that overlap: one hits processes, the other the store."""
    choice = random.Random(seed)
    of_processes = _OF_PROCESSES | (_BEHIND_A_PROXY if proxied else {})
    of_the_store = _OF_THE_STORE | (_OF_THE_CLOCK if clock else {})
    return sorted([*_stream(choice, seconds, of_processes, processes), *_stream(choice, seconds, of_the_store, [""])])


def _stream(choice: random.Random, seconds: float, faults: _Odds, targets: Sequence[str]) -> list[Step]:
    steps = []
    at = choice.uniform(1, 4)
    while at < seconds:
        fault = choice.choices(list(faults), [weight for weight, _, _ in faults.values()])[0]
        _, least, most = faults[fault]
        lasts = round(choice.uniform(least, most), 2)
        back = fault is Fault.CLOCK_STEP and choice.random() < 0.5
        steps.append(Step(round(at, 2), fault, choice.choice(targets), -lasts if back else lasts))
        at += (0 if fault is Fault.CLOCK_STEP else lasts) + choice.uniform(1, 6)
    return steps
