"""Checks the invariants of a service without changing it: all its keys must list the same instances."""

from __future__ import annotations

from typing import Final, cast

from headgate.store import Store, Thing, script

INSPECT = script("headgate.registry", "inspect")

MOST_EACH: Final = 1000


async def inspect(store: Store, thing: Thing) -> tuple[int, list[str]]:
    """Give the number of instances, and the violations."""
    members, *words = cast("list[int | bytes]", await store.run(INSPECT, thing, MOST_EACH))
    return cast("int", members), [cast("bytes", each).decode() for each in words]
