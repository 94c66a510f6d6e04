"""Looks for contradictions in a queue: sets that must agree, sums, and members that belong to nobody. Nothing is changed.

A queue is looked at in steps, each of them one script that compares some members of one key with the rest of the queue. So
a long line is no long call of the store, and what changes between two steps is not taken for a contradiction.
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
    """The contradictions found in a queue, and whether all of it was looked at."""

    members: int
    contradictions: list[str]
    complete: bool


async def inspect(store: Store, thing: Thing, most_members: int = MOST_MEMBERS) -> Inspection:
    """Look at so many members of a queue at most."""
    members = 0
    found: list[str] = []
    for part in PARTS:
        cursor = b"0"
        while True:
            reply = await store.run(INSPECT, thing, part, cursor, STEP)
            cursor, looked, *words = cast("tuple[bytes, int, *tuple[bytes, ...]]", tuple(cast("list[object]", reply)))
            members += looked
            found += [each.decode(errors="replace") for each in words]
            if cursor == b"0":
                break
            if members >= most_members or len(found) >= MOST_FOUND:
                return Inspection(members, _once(found), False)
    return Inspection(members, _once(found), True)


def _once(found: list[str]) -> list[str]:
    """Leave out what was found twice: a scan may come by a member again."""
    return list(dict.fromkeys(found))[:MOST_FOUND]
