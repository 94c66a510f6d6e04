"""Pins each program of a benchmark to its cores.

The server under test has the first core to itself. The load and the store share the second on a machine with two; with
three or more the store has the third. That is the same for every contestant, and what the server's own process spends per
request does not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec


class Cores(msgspec.Struct, frozen=True):
    """The cores of the three parties; empty sets where the system cannot pin."""

    server: set[int]
    load: set[int]
    store: set[int]

    def words(self) -> str:
        """Say it for the report."""
        if not self.server:
            return "this system cannot pin processes to cores: read the ratios of CPU time, not of speed"
        shared = " (shared)" if self.load == self.store else ""
        return f"server on core {_one(self.server)}, load on core {_one(self.load)}, store on core {_one(self.store)}{shared}"


def _one(cores: set[int]) -> str:
    return ", ".join(map(str, sorted(cores)))


def divide() -> Cores:
    """Give each party its cores."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(set(), set(), set())
    own = sorted(os.sched_getaffinity(0))
    return Cores({own[0]}, {own[1 % len(own)]}, {own[2] if len(own) > 2 else own[1 % len(own)]})


def pinned(cores: set[int]) -> Callable[[], None] | None:
    """Give what a new process does first to stay on these cores."""
    return (lambda: os.sched_setaffinity(0, cores)) if cores else None


def pin(pid: int, cores: set[int]) -> None:
    """Move a running process, with all its threads, to these cores."""
    if not cores:
        return
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


CORES: Final = divide()
