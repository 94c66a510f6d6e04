"""Checks the invariants of a lock without changing it: every waiter must be known, with its process."""

from __future__ import annotations

from typing import Final, cast

from headgate.store import Store, Thing, script

INSPECT = script("headgate.locks", "inspect")

MOST_PROCESSES: Final = 1000


async def inspect(store: Store, thing: Thing) -> tuple[int, list[str]]:
    """Give the number of waiters, and the violations."""
    members, *words = cast("list[int | bytes]", await store.run(INSPECT, thing, MOST_PROCESSES))
    return cast("int", members), [cast("bytes", each).decode() for each in words]
