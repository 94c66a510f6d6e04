"""Arrival times of players, in the shapes that launches have."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from enum import StrEnum
from typing import Final


class Curve(StrEnum):
    """The shape of arrivals."""

    STEADY = "steady"
    BURST = "burst"
    RAMP = "ramp"
    WAVE = "wave"
    OPENING = "opening"


def arrivals(curve: Curve, players: int, seconds: float, chance: random.Random) -> list[float]:
    """Give the second at which each player arrives, in order."""
    shape = _SHAPES[curve]
    return sorted(shape(chance) * seconds for _ in range(players))


def _wave(chance: random.Random) -> float:
    """Give a time from three waves, by rejection sampling."""
    while True:
        at = chance.random()
        if chance.random() < 0.5 - 0.45 * math.cos(at * 3 * 2 * math.pi):
            return at


def _opening(chance: random.Random) -> float:
    """Give a time from a distribution with most arrivals at the beginning."""
    return min(chance.expovariate(8.0), chance.random() if chance.random() < 0.1 else 1.0)


_SHAPES: Final[dict[Curve, Callable[[random.Random], float]]] = {
    Curve.STEADY: lambda chance: chance.random(),
    Curve.BURST: lambda chance: chance.random() * 0.02,
    Curve.RAMP: lambda chance: math.sqrt(chance.random()),
    Curve.WAVE: _wave,
    Curve.OPENING: _opening,
}
