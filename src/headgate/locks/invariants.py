"""Looks for contradictions in a lock: whoever waits in line must be known, with a process. Nothing is changed."""

from __future__ import annotations

from typing import Final, cast

from headgate.store import Store, Thing, script

INSPECT = script("headgate.locks", "inspect")

MOST_PROCESSES: Final = 1000


async def inspect(store: Store, thing: Thing) -> tuple[int, list[str]]:
    """Give how many wait, and what does not agree."""
    members, *words = cast("list[int | bytes]", await store.run(INSPECT, thing, MOST_PROCESSES))
    return cast("int", members), [cast("bytes", each).decode() for each in words]
