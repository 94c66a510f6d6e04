"""Small operations that tests run through the store's door; the features' own are not needed to test it."""

from __future__ import annotations

from typing import NamedTuple, cast

from headgate.store import Store, Thing, script

TALLY = script("tests.store", "tally")
TALLY_ALL = script("tests.store", "tally_all")
NOTE = script("tests.store", "note")
NUMBER = script("tests.store", "number")
LOOK = script("tests.store", "look")
ECHO = script("tests.store", "echo")
TELL = script("tests.store", "tell")
REFUSE = script("tests.store", "refuse")


class Reading(NamedTuple):
    """The time that a thing's clock gave."""

    number: int
    state: str
    epoch: str
    now_ms: int
    holding: bool


async def take_number(store: Store, thing: Thing, lease_ms: int = 10_000) -> Reading:
    """Take the next number of a thing."""
    return _reading(cast("list[bytes]", await store.run(NUMBER, thing, lease_ms)))


async def look(store: Store, thing: Thing, lease_ms: int = 10_000) -> Reading:
    """Read a thing's clock without a write."""
    return _reading(cast("list[bytes]", await store.run(LOOK, thing, lease_ms)))


def _reading(reply: list[bytes]) -> Reading:
    number, state, epoch, now_ms, holding = reply
    return Reading(int(number), state.decode(), epoch.decode(), int(now_ms), bool(int(holding)))
