"""Choosing one instance of many: random, round robin, weighted, least loaded of two, consistent hash."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Final

from headgate.kit.problems import HeadgateError
from headgate.registry.model import Instance

POINTS: Final = 100


class NobodyAvailable(HeadgateError):
    """There is no instance that traffic may go to."""

    code, status = "nobody_available", 503


class Random:
    """Chooses any instance, with equal chance."""

    def choose(self, instances: Sequence[Instance], key: str = "") -> Instance:
        """Give one at random."""
        return random.choice(_available(instances))


class RoundRobin:
    """Chooses one instance after the other, in the order of their ids."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, instances: Sequence[Instance], key: str = "") -> Instance:
        """Give the next."""
        able = sorted(_available(instances), key=lambda each: each.instance_id)
        chosen = next((each for each in able if each.instance_id > self._last), able[0])
        self._last = chosen.instance_id
        return chosen


class Weighted:
    """Chooses at random, in proportion to the weights; a weight of 0 only when all are 0."""

    def choose(self, instances: Sequence[Instance], key: str = "") -> Instance:
        """Give one by weight."""
        able = _available(instances)
        sums = list(accumulate(each.weight for each in able))
        if sums[-1] <= 0:
            return random.choice(able)
        return able[min(bisect(sums, random.random() * sums[-1]), len(able) - 1)]


class LeastLoaded:
    """Chooses the less loaded of two taken at random: nearly as good as the best of all, without overloading one."""

    def __init__(self, metric: str = "load") -> None:
        self._metric = metric

    def choose(self, instances: Sequence[Instance], key: str = "") -> Instance:
        """Give the less loaded of two; one that reports no number counts as the most loaded."""
        able = _available(instances)
        if len(able) == 1:
            return able[0]
        return min(random.sample(able, 2), key=self._load)

    def _load(self, instance: Instance) -> float:
        value = instance.metrics.get(self._metric)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("inf")


class ConsistentHash:
    """Chooses the same instance for the same key; when an instance comes or goes, only its share of the keys moves."""

    def __init__(self) -> None:
        self._members: tuple[str, ...] = ()
        self._ring: list[tuple[int, str]] = []

    def choose(self, instances: Sequence[Instance], key: str = "") -> Instance:
        """Give the instance that a key belongs to."""
        able = {each.instance_id: each for each in _available(instances)}
        members = tuple(sorted(able))
        if members != self._members:
            self._members = members
            self._ring = sorted((_point(f"{name}#{turn}"), name) for name in members for turn in range(POINTS))
        position = bisect(self._ring, (_point(key), "")) % len(self._ring)
        return able[self._ring[position][1]]


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _available(instances: Sequence[Instance]) -> list[Instance]:
    able = [each for each in instances if each.available]
    if not able:
        raise NobodyAvailable
    return able
