"""Finds contradictions in a queue: sets that must agree, sums, and members without an owner. Nothing is changed.

A queue is inspected in steps. Each step is one script call that compares some members of one key with the rest of the
queue, so a long queue needs no long call, and a change between two steps is not taken for a contradiction.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from headgate.store import Store, Thing, script

INSPECT = script("headgate.waiting_room", "inspect")

PARTS: Final = ("sums", "users", "waiting", "away", "kept", "finished", "holds", "tickets", "seats", "sessions")
STEP: Final = 500
MOST_MEMBERS: Final = 200_000
MOST_FOUND: Final = 100


class Inspection(msgspec.Struct, frozen=True):
    """The contradictions found in a queue, and whether all of it was inspected."""

    members: int
    contradictions: list[str]
    complete: bool


async def inspect(store: Store, thing: Thing, most_members: int = MOST_MEMBERS) -> Inspection:
    """Inspect a queue, up to so many members."""
    members = 0
    found: list[str] = []
    for part in PARTS:
        cursor = b"0"
        while True:
            reply = await store.run(INSPECT, thing, part, cursor, STEP)
            cursor, inspected, *texts = cast(
                "tuple[bytes, int, *tuple[bytes, ...]]", tuple(cast("list[object]", reply))
            )
            members += inspected
            found += [each.decode(errors="replace") for each in texts]
            if cursor == b"0":
                break
            if members >= most_members or len(found) >= MOST_FOUND:
                return Inspection(members, _unique(found), False)
    return Inspection(members, _unique(found), True)


def _unique(found: list[str]) -> list[str]:
    """Remove duplicates, since a scan may return a member twice."""
    return list(dict.fromkeys(found))[:MOST_FOUND]
