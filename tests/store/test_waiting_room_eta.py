"""Estimated waits compared with real ones: openings, long stays, and the two paces of a queue."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import struct
from contextlib import aclosing
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.store import Store
from headgate.waiting_room.model import EntryArguments, Eta, Forecast, poll_after_ms
from headgate.waiting_room.promotion import PROMOTE
from tests.store.waiting_world import World

NIGHTS = 5
TICKET_SECONDS = 60


class Stay:
    """How long people take to come in after they were called, how many of them never do, and how long they stay."""

    def __init__(self, kind: str, mean_seconds: float, coming_seconds: float, absent: float, seed: int) -> None:
        self._chance = random.Random(seed)
        self._kind = kind
        self._mean = mean_seconds
        self._coming = coming_seconds
        self._absent = absent

    def coming(self) -> float:
        """Draw the time from the call to the entrance."""
        return math.inf if self._chance.random() < self._absent else self._chance.uniform(0, self._coming)

    def inside(self) -> float:
        """Draw the time from the entrance to the departure."""
        if self._kind == "even":
            return self._mean * self._chance.uniform(0.9, 1.1)
        if self._kind == "lognormal":
            return self._mean * self._chance.lognormvariate(-0.32, 0.8)
        return self._chance.expovariate(1 / self._mean)


class OpeningNight:
    """Everybody is there when the doors open, and asks when told to; those called come in and stay as chance has it.

    Some may `arrive` later, so many a second.
    """

    def __init__(self, world: World, people: int, stay: Stay, *, later: int = 0, arrive: int = 1) -> None:
        self._world = world
        self._asks_at: dict[str, float] = {f"u{number}": number % 3 for number in range(people)}
        self._later = [f"v{number}" for number in range(later)]
        self._arrive = arrive
        self._coming: dict[str, tuple[float, str]] = {}
        self._inside: dict[str, float] = {}
        self._stay = stay
        self._now = 0.0
        self.told: dict[str, tuple[float, Eta]] = {}
        self.called: dict[str, float] = {}

    async def run(self, seconds: int) -> None:
        """Let it go on, second by second."""
        world = self._world
        await asyncio.gather(*(world.enter(user) for user in self._asks_at))
        for second in range(1, seconds + 1):
            # Between two steps: people come and go at any time.
            world.wait(500)
            self._now = second - 0.5
            await self._come_and_go()
            world.wait(500)
            self._now = second
            arriving, self._later = self._later[: self._arrive], self._later[self._arrive :]
            await asyncio.gather(*(world.enter(user) for user in arriving))
            self._asks_at |= dict.fromkeys(arriving, self._now)
            await world.tick()
            asking = [user for user, at in self._asks_at.items() if at <= self._now]
            told = await asyncio.gather(
                *(world.room.status("default", world.queue, user, trusted=True) for user in asking)
            )
            for user, status in zip(asking, told, strict=True):
                self._asks_at[user] = self._now + status.poll_after_ms / 1000
                if status.eta is not None and user not in self.told:
                    self.told[user] = (self._now, status.eta)
                if isinstance(status.ticket_id, str):
                    del self._asks_at[user]
                    self.called[user] = self._now
                    self._coming[user] = (self._now + self._stay.coming(), status.ticket_id)

    async def _come_and_go(self) -> None:
        for user in [user for user, until in self._inside.items() if until <= self._now]:
            del self._inside[user]
            await self._world.room.end("default", self._world.queue, f"s-{user}")
        for user in [user for user, (at, _) in self._coming.items() if at <= self._now]:
            _, ticket = self._coming.pop(user)
            self._inside[user] = self._now + self._stay.inside()
            await self._world.redeem(ticket, f"s-{user}")


@pytest.mark.topology("standalone", least_rights=False)
@pytest.mark.parametrize(
    ("kind", "mean_seconds", "coming_seconds"),
    [
        ("exponential", 5, 0),
        pytest.param("exponential", 20, 3, marks=pytest.mark.release),
        pytest.param("lognormal", 20, 3, marks=pytest.mark.release),
        ("even", 8, 1),
    ],
)
async def test_on_opening_night_nine_in_ten_waits_fall_inside_the_first_range(
    store: Store, kind: str, mean_seconds: float, coming_seconds: float
) -> None:
    waits: list[tuple[Eta, float]] = []
    for seed in range(NIGHTS):  # in one alone, those who happen to leave first make a pace
        world = World(store, f"night-{seed}")
        await world.configure(capacity=40, grace_seconds=3000, ticket_ttl_seconds=TICKET_SECONDS)
        night = OpeningNight(world, 260, Stay(kind, mean_seconds, coming_seconds, 0.0, seed))
        await night.run(int(260 * (mean_seconds + coming_seconds) / 40 * 1.6))
        waits += [
            (eta, night.called[user] - at)
            for user, (at, eta) in night.told.items()
            if user in night.called and night.called[user] > at
        ]
    assert len(waits) > 150 * NIGHTS
    within = [eta.low <= waited <= eta.high for eta, waited in waits]
    assert statistics.mean(within) >= 0.9
    assert 0.6 < statistics.median(eta.seconds / waited for eta, waited in waits) < 1.6
    # A range that says anything would always hold: this is how wide it is, in waits.
    assert statistics.median((eta.high - eta.low) / waited for eta, waited in waits) < 7.5


@pytest.mark.topology("standalone", least_rights=False)
@pytest.mark.parametrize(
    ("absent", "coming_seconds"),
    [
        pytest.param(0.0, 1, marks=pytest.mark.release),
        (0.06, 1),
        pytest.param(0.06, 8, marks=pytest.mark.release),
        (0.2, 1),
    ],
)
async def test_seats_of_those_who_do_not_come_are_foreseen(store: Store, absent: float, coming_seconds: float) -> None:
    """In a big house many departures are seen before the first ticket runs out, and who misses it ties up a seat that long."""
    world = World(store)
    await world.configure(capacity=100, grace_seconds=3000, ticket_ttl_seconds=TICKET_SECONDS)
    night = OpeningNight(world, 300, Stay("exponential", 5, coming_seconds, absent, 1), later=700, arrive=70)
    await night.run(int(1000 * (5 + coming_seconds / 2 + absent * TICKET_SECONDS) / 100 * 1.2))
    waits = [
        (eta, night.called[user] - at)
        for user, (at, eta) in night.told.items()
        if user in night.called and night.called[user] > at
    ]
    assert len(waits) > 700
    assert statistics.mean(eta.low <= waited <= eta.high for eta, waited in waits) >= 0.9
    assert 0.75 < statistics.median(eta.seconds / waited for eta, waited in waits) < 1.35
    assert statistics.median((eta.high - eta.low) / waited for eta, waited in waits) < 2


@given(
    rank=st.integers(1, 5000), first=st.floats(0.5, 50), share=st.floats(0.2, 1.5), slowing_seconds=st.floats(1, 500)
)
def test_a_pace_that_slows_down_is_added_up(rank: int, first: float, share: float, slowing_seconds: float) -> None:
    turnover = first * share
    flow = Forecast(
        100, 1000, turnover=turnover, freed=1000, first_turnover=first, slowing_seconds=slowing_seconds, late_seconds=60
    )
    eta = flow.eta(rank)
    assert eta is not None
    served, seconds, step = 0.0, 0.0, rank / turnover / 2000
    while served < rank:
        served += step * max(turnover, first * math.exp(-seconds / slowing_seconds))
        seconds += step
    assert eta.seconds == pytest.approx(seconds, rel=0.02, abs=0.2)


@pytest.mark.topology("standalone")
async def test_what_is_written_down_at_the_entrance_is_what_was_told(store: Store) -> None:
    """The error of an estimate is measured against what the store foresaw itself, by the same sum."""
    world = World(store)
    await world.configure(capacity=0, grace_seconds=3000)
    # 3 free seats, later 0.5 a second instead of 4, slowing down over 10 s: 35 come in quickly.
    foreseen = struct.pack("<I10d", 3, 0.5, 1000, 5, 10, 50, 1, 4, 10, 0, 60)
    await store.write(world.thing, "HSET", world.thing.key("meta"), "forecast", foreseen)
    told = {}
    for number in range(60):
        entry = await world.room.entry("default", "main", EntryArguments("x", user_id=f"u{number}", trusted=True))
        assert entry.eta is not None
        told[f"u{number}"] = entry.eta.seconds
    assert told["u59"] > 60
    await world.configure(capacity=100)
    reply = cast("list[Any]", await store.run(PROMOTE, world.thing, 1000, 1000, "seed"))
    written = {user.decode(): predicted for user, predicted in zip(reply[2::4], reply[4::4], strict=True)}
    assert len(written) == 60
    assert written == pytest.approx(told, abs=1)


async def test_while_free_seats_are_filled_those_far_behind_are_told_only_what_is_certain(store: Store) -> None:
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
    assert near.least_seconds is None
    assert far.eta is None
    assert isinstance(far.least_seconds, float)
    assert 20 < far.least_seconds < 30, "fifty are before them, and two a second come in at most"


async def test_who_finds_a_seat_free_is_told_so_from_the_first_moment(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=100, rate_per_second=2, burst=2)
    await world.enter("first")
    await world.tick()
    await asyncio.gather(*(world.enter(f"u{number}") for number in range(10)))
    last = await world.room.status("default", "main", (await world.look()).line[-1], trusted=True)
    assert last.eta is not None
    assert last.eta.low <= 5 <= last.eta.high


async def test_the_longer_nobody_leaves_the_longer_it_takes_at_least(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=4, grace_seconds=3000, session_ttl_seconds=3000)
    for number in range(12):
        await world.enter(f"u{number}")
    await world.tick()
    for user in ("u0", "u1", "u2", "u3"):
        await world.redeem(await world.ticket(user), f"s-{user}")
    told: list[float] = []
    for _ in range(3):
        await world.live(20)
        status = await world.room.status("default", "main", "u11", trusted=True)
        assert status.eta is None, "nobody has left yet"
        assert isinstance(status.least_seconds, float)
        told.append(status.least_seconds)
    assert told[0] < told[1] < told[2]
    await world.operate("pause")
    await world.live(1)
    status = await world.room.status("default", "main", "u11", trusted=True)
    assert (status.eta, status.least_seconds) == (None, None), "of a pause nobody knows the end"


async def test_who_waits_is_told_of_a_pause_at_once_and_of_its_end(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=100, rate_per_second=2, burst=2)
    for number in range(10):
        await world.enter(f"u{number}")
    await world.tick()
    last = (await world.look()).line[-1]
    before = await world.room.status("default", "main", last, trusted=True)
    assert before.eta is not None
    assert before.paused is False
    await world.operate("pause")
    status = await world.room.status("default", "main", last, trusted=True)
    assert (status.paused, status.eta, status.least_seconds) == (True, None, None), "no step of the worker is needed"
    entry = await world.room.entry("default", "main", EntryArguments("new", user_id="new", trusted=True))
    assert (entry.paused, entry.eta) == (True, None)
    await world.operate("resume")
    await world.tick()
    status = await world.room.status("default", "main", last, trusted=True)
    assert status.paused is False
    assert status.eta is not None


async def test_a_stream_tells_of_a_pause(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=0)
    await world.enter("a")
    statuses = world.room.watch("default", "main", "a", trusted=True)
    async with aclosing(statuses):
        assert (await anext(statuses)).paused is False
        await world.operate("pause")
        assert (await anext(statuses)).paused is True


def test_the_range_narrows_with_what_was_seen() -> None:
    young = Forecast(100, seconds=6, turnover=10, freed=30, cycle_seconds=6).eta(300)
    old = Forecast(100, seconds=600, turnover=10, freed=600, cycle_seconds=6).eta(300)
    assert young is not None
    assert old is not None
    assert young.seconds == old.seconds == 30
    assert young.low < old.low < 30 < old.high < young.high
    assert Forecast(0, 0).eta(1) is None


def test_who_is_near_the_front_asks_often_and_who_is_far_behind_seldom() -> None:
    soon, late = Eta(2, 1, 4), Eta(300, 200, 400)
    assert max(poll_after_ms(5, soon) for _ in range(100)) <= 600
    assert max(poll_after_ms(200, None, free=300) for _ in range(100)) <= 1200
    assert min(poll_after_ms(5000, late) for _ in range(100)) >= 24_000
    assert min(poll_after_ms(200, None) for _ in range(100)) > 3000


class House:
    """Servers whose players leave one after the other, at an even pace."""

    def __init__(self, world: World, servers: list[str], seats: int, every_seconds: int) -> None:
        self._world = world
        self._seats = seats
        self._every = every_seconds
        self._inside: list[tuple[str, str]] = []
        self.servers = servers

    async def run(self, seconds: int) -> None:
        """Let it go on: those called come in at once, and every so often the one who came first leaves."""
        world = self._world
        for second in range(seconds):
            for server in self.servers:
                await world.beat(server, self._seats, sessions=None if self._inside else [])
            for user, person in (await world.look()).people.items():
                if person.state == "P":
                    await world.redeem(await world.ticket(user), f"x-{user}", person.server or None)
                    self._inside.append((f"x-{user}", person.server))
            self._inside = [(session, server) for session, server in self._inside if server in ("", *self.servers)]
            if second % self._every == 0 and self._inside:
                await world.room.end("default", "main", self._inside.pop(0)[0])
            await world.live(1)

    async def estimate(self, user: str) -> tuple[Eta | None, int]:
        """Ask what somebody is told."""
        status = await self._world.room.status("default", "main", user, trusted=True)
        return status.eta, status.rank


async def test_players_who_vanish_with_a_dead_server_make_nobody_hope(store: Store) -> None:
    world = World(store)
    await world.configure(grace_seconds=10_000)
    await asyncio.gather(*(world.enter(f"u{number}") for number in range(200)))
    house = House(world, ["s1", "s2"], seats=30, every_seconds=2)
    await house.run(60)
    before, _ = await house.estimate("u199")
    assert before is not None
    house.servers = ["s1"]
    await house.run(14)
    assert len((await world.look()).seats) <= 30
    after, rank = await house.estimate("u199")
    assert after is not None
    assert after.seconds > before.seconds, "half of the seats are gone"
    assert after.seconds > rank * 60 / 30, "a seat was taken for two minutes; nobody leaves earlier for that"


@pytest.mark.parametrize("action", ["reset", "delete"])
async def test_a_queue_that_begins_anew_promises_nothing_from_before(store: Store, action: str) -> None:
    world = World(store)
    await world.configure(capacity=60, grace_seconds=10_000)
    await asyncio.gather(*(world.enter(f"u{number}") for number in range(200)))
    await House(world, [], seats=0, every_seconds=2).run(60)
    await world.operate(action)
    await world.configure(capacity=60, grace_seconds=10_000)
    await asyncio.gather(*(world.enter(f"v{number}") for number in range(200)))
    house = House(world, [], seats=0, every_seconds=2)
    await house.run(5)
    assert len((await world.look()).sessions) > 50
    eta, _ = await house.estimate("v199")
    assert eta is None, "those who were sent away did not leave by themselves"
