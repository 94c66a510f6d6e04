"""What people are told of their wait, against what becomes of it: openings, long stays, and the two paces of a line."""

from __future__ import annotations

import asyncio
import random
import statistics

import pytest

from headgate.store import Store
from headgate.waiting_room import Eta
from headgate.waiting_room.model import Flow, poll_after_ms
from tests.store.waiting_world import World


class OpeningNight:
    """Everybody is there when the doors open; those called come in at once and stay as long as chance has it."""

    def __init__(self, world: World, people: int, stay_seconds: float) -> None:
        self._world = world
        self._waiting = [f"u{number}" for number in range(people)]
        self._inside: dict[str, float] = {}
        self._chance = random.Random(7)
        self._stay_seconds = stay_seconds
        self._now = 0.0
        self.told: dict[str, tuple[float, Eta]] = {}
        self.called: dict[str, float] = {}

    async def run(self, seconds: int) -> None:
        """Let it go on, second by second."""
        world = self._world
        await asyncio.gather(*(world.enter(user) for user in self._waiting))
        for _ in range(seconds):
            for user in [user for user, until in self._inside.items() if until <= self._now]:
                del self._inside[user]
                await world.room.end("default", "main", f"s-{user}")
            world.wait(1000)
            self._now += 1
            await world.tick()
            asking = await asyncio.gather(
                *(world.room.status("default", "main", user, trusted=True) for user in self._waiting)
            )
            for user, status in zip(list(self._waiting), asking, strict=True):
                if status.eta is not None and user not in self.told:
                    self.told[user] = (self._now, status.eta)
                if isinstance(status.ticket_id, str):
                    self._waiting.remove(user)
                    self.called[user] = self._now
                    self._inside[user] = self._now + self._chance.expovariate(1 / self._stay_seconds)
                    await world.redeem(status.ticket_id, f"s-{user}")


@pytest.mark.parametrize("stay_seconds", [5, 20])
async def test_on_opening_night_the_first_estimate_is_not_taken_from_the_filling_of_the_house(
    store: Store, stay_seconds: int
) -> None:
    world = World(store)
    await world.configure(capacity=40, grace_seconds=3000)
    night = OpeningNight(world, 260, stay_seconds)
    await night.run(int(260 * stay_seconds / 40 * 1.6))
    waits = [
        (eta, night.called[user] - at)
        for user, (at, eta) in night.told.items()
        if user in night.called and night.called[user] > at
    ]
    assert len(waits) > 150
    within = [eta.low <= waited <= eta.high for eta, waited in waits]
    assert statistics.mean(within) > 0.75
    assert 0.5 < statistics.median(eta.seconds / waited for eta, waited in waits) < 2


async def test_while_free_seats_are_filled_those_far_behind_are_told_nothing_they_cannot_count_on(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=20, rate_per_second=2, burst=2, grace_seconds=3000)
    await asyncio.gather(*(world.enter(f"u{number}") for number in range(60)))
    await world.live(5)
    line = (await world.look()).line
    near, far = (
        await world.room.status("default", "main", line[5], trusted=True),
        await world.room.status("default", "main", line[-1], trusted=True),
    )
    assert near.eta is not None
    assert abs(near.eta.seconds - 3) < 1.5
    assert far.eta is None


def test_the_range_narrows_with_what_was_seen() -> None:
    young = Flow(0, 0, seconds=6, turnover=10, freed=30, stay_seconds=6).eta(300)
    old = Flow(0, 0, seconds=600, turnover=10, freed=600, stay_seconds=6).eta(300)
    assert young is not None
    assert old is not None
    assert young.seconds == old.seconds == 30
    assert young.low < old.low < 30 < old.high < young.high
    assert Flow(0, 0, 0).eta(1) is None


def test_who_is_near_the_front_asks_often_and_who_is_far_behind_seldom() -> None:
    soon, late = Eta(2, 1, 4), Eta(300, 200, 400)
    assert max(poll_after_ms(5, soon) for _ in range(100)) <= 600
    assert max(poll_after_ms(200, None, free=300) for _ in range(100)) <= 1200
    assert min(poll_after_ms(5000, late) for _ in range(100)) >= 24_000
    assert min(poll_after_ms(200, None) for _ in range(100)) > 3000
