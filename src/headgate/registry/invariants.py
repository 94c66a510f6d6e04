"""Looks for contradictions in a service: its parts must know of the same instances. Nothing is changed."""

from __future__ import annotations

from typing import Final, cast

from headgate.store import Store, Thing, script

INSPECT = script("headgate.registry", "inspect")

MOST_EACH: Final = 1000


async def inspect(store: Store, thing: Thing) -> tuple[int, list[str]]:
    """Give the number of instances, and what does not agree."""
    members, *words = cast("list[int | bytes]", await store.run(INSPECT, thing, MOST_EACH))
    return cast("int", members), [cast("bytes", each).decode() for each in words]
