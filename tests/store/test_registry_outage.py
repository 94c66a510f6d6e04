"""After any outage everybody has one lease of their own, whoever looks first, with or without workers and watchers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from secrets import token_hex
from typing import Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.registry.model import Instance, InstanceBeat, Record
from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper
from headgate.store import Store, Thing
from tests.store.beside import store_beside
from tests.store.stopped_clock import StoppedClock
from tests.topology import Topology

NS: Final = "default"
STEP_MS: Final = 500
LATE_MS: Final = 1000  # a sweep comes so much later at most


class World:
    """A service whose instances beat, or have died, on a clock that a test moves; it checks what it sees at each step."""

    def __init__(self, store: Store, worker: bool, watcher: bool, leases: list[int], dice: random.Random) -> None:
        self.store, self.dice, self.has_worker, self.has_watcher = store, dice, worker, watcher
        self.clock = StoppedClock(store)
        self.registry = Registry(store)
        self.sweeper = Sweeper(self.registry)
        self.thing: Thing = self.registry.service(NS, "game", "g")
        self.now = 0
        self.leases = {f"i{number}": lease for number, lease in enumerate(leases)}
        self.next_beat = dict.fromkeys(self.leases, 0)
        self.dead: dict[str, int] = {}
        self.expired: set[str] = set()

    async def start(self) -> None:
        for name, lease in self.leases.items():
            await self.registry.register(NS, self.record(name))
            self.next_beat[name] = self.dice.randrange(1, lease // 3)

    def record(self, name: str) -> Record:
        return Record(type="game", group="g", instance_id=name, ttl_seconds=self.leases[name] / 1000, hostname="h")

    async def run(self, until_ms: int) -> None:
        """Let time pass as in a running system: beats come at a third of a lease, a worker looks every two seconds."""
        while self.now < until_ms:
            self.now += STEP_MS
            self.clock.set(self.now)
            for name, at in self.next_beat.items():
                if name not in self.dead and at <= self.now:
                    await self.beat(name)
            if self.has_worker and self.now % 2000 == 0:
                await self.sweep()
            if self.has_watcher and self.dice.random() < 0.3:
                await self.registry.feed.read(self.thing, 0, 1)

    async def beat(self, name: str) -> None:
        await self.registry.heartbeat(NS, "game", "g", InstanceBeat(name))
        self.next_beat[name] = self.now + self.leases[name] // 3

    async def sweep(self) -> None:
        self.expired |= set((await self.sweeper.sweep(self.thing)).removed)

    async def look(self) -> dict[str, Instance]:
        return {each.instance_id: each for each in (await self.registry.discover(NS, "game", "g")).instances}

    async def lose_replication_id(self) -> None:
        await self.store.write(self.thing, "HSET", self.thing.key("meta"), "replid", token_hex(20))


async def outage(
    store: Store,
    leases: list[int],
    deaths: set[int],
    away_ms: int,
    restarted: bool,
    unanswered: bool,
    worker: bool,
    watcher: bool,
    seed: int,
) -> None:
    dice = random.Random(seed)
    world = World(store, worker, watcher, leases, dice)
    await world.start()
    await world.run(dice.randrange(2, 20) * 1000)
    world.dead = {f"i{number}": world.now for number in deaths if number < len(leases)}
    world.now += away_ms
    back = world.now
    world.clock.set(back)
    if unanswered:
        world.clock.tell_outage(back - away_ms, back)
    if restarted:
        await world.lose_replication_id()
    for name, lease in world.leases.items():  # the living are heard of again at any time within one lease
        world.next_beat[name] = back + dice.randrange(0, max(1, lease - STEP_MS))
    firsts = ["look", "filtered look", "beat", "register", "watch"] + ["sweep"] * worker
    dice.shuffle(firsts)
    for what in firsts[: dice.randrange(1, len(firsts) + 1)]:
        living = [name for name in world.leases if name not in world.dead]
        match what:
            case "look":
                assert set(await world.look()) == set(world.leases)
            case "filtered look":
                found = await Registry(store).discover(NS, "game", "g", healthy=True)
                assert {each.instance_id for each in found.instances} == set(world.leases)
            case "beat" if living:
                await world.beat(living[0])
            case "register" if living:
                await world.registry.register(NS, world.record(living[-1]))
            case "watch":
                await world.registry.feed.read(world.thing, 0, 1)
            case "sweep":
                await world.sweep()
    while world.now < back + max(leases) + LATE_MS + STEP_MS:
        await world.run(world.now + STEP_MS)
        there, since = await world.look(), world.now - back
        for name, lease in world.leases.items():
            if name not in world.dead:
                assert name in there, f"{name} lives and is not listed {since} ms after the return"
            elif since < lease:
                assert name in there, f"{name} had a lease of {lease} ms and is gone after {since} ms"
            elif since > lease + LATE_MS:
                assert name not in there, f"{name} is dead and still listed {since} ms after the return, lease {lease}"
        assert not world.expired - set(world.dead), "somebody living has expired"


def test_after_any_outage_everybody_has_one_lease_of_their_own(
    server: Topology, examples: Callable[[int], int]
) -> None:
    with store_beside(server.url) as (run, store):

        @settings(max_examples=examples(40), deadline=None)
        @given(
            leases=st.lists(st.sampled_from([3000, 6000, 9000, 30_000, 100_000]), min_size=1, max_size=6),
            deaths=st.sets(st.integers(0, 5)),
            away_ms=st.sampled_from([1000, 7000, 20_000, 102_000, 700_000]),
            restarted=st.booleans(),
            unanswered=st.booleans(),
            worker=st.booleans(),
            watcher=st.booleans(),
            seed=st.integers(0, 2**32),
        )
        def any_outage(
            leases: list[int],
            deaths: set[int],
            away_ms: int,
            restarted: bool,
            unanswered: bool,
            worker: bool,
            watcher: bool,
            seed: int,
        ) -> None:
            store.prefix = f"t{token_hex(4)}"
            # An absence that neither the store nor a client knows of is noticed by the workers' visits; where none ran, by nobody.
            if not restarted and not unanswered:
                worker, away_ms = True, max(away_ms, 7000)
            run(outage(store, leases, deaths, away_ms, restarted, unanswered, worker, watcher, seed))

        any_outage()


@pytest.mark.anyio
async def test_whoever_died_before_an_outage_stays_dead(store: Store) -> None:
    world = await a_world(store, 3000, 30_000)
    world.clock.set(4000)
    assert set(await world.look()) == {"i1"}
    world.clock.set(12_000)
    world.clock.tell_outage(5000, 12_000)
    assert set(await world.look()) == {"i1"}


@pytest.mark.anyio
async def test_an_outage_that_several_clients_tell_of_counts_once(store: Store) -> None:
    world = await a_world(store, 10_000)
    seen = {}
    for ms in range(14_000, 40_000, 500):
        world.clock.set(ms)
        world.clock.tell_outage(5000 + ms % 1500, 14_000 - ms % 1500)
        seen[ms] = bool(await world.look())
    assert max(ms for ms, there in seen.items() if there) == 23_500


@pytest.mark.anyio
@pytest.mark.parametrize("each_ms", [400, 3000])
async def test_a_client_that_alone_had_no_answer_is_not_believed(store: Store, each_ms: int) -> None:
    world = await a_world(store, 10_000, 10_000)
    for ms in range(0, 15_000, each_ms):
        world.clock.set(ms)
        if ms >= 9000:
            world.clock.tell_outage(4000, 9000)
        await world.beat("i1")
        assert set(await world.look()) == ({"i0", "i1"} if ms < 10_000 else {"i1"})


@pytest.mark.anyio
async def test_a_client_that_did_not_notice_an_outage_does_not_hide_it_from_others(store: Store) -> None:
    world = await a_world(store, 10_000, 10_000, 30_000)
    world.clock.set(14_000)
    await world.beat("i1")
    world.clock.set(15_000)
    world.clock.tell_outage(5000, 14_000)
    assert set(await world.look()) == {"i0", "i1", "i2"}
    world.clock.set(24_500)
    assert set(await world.look()) == {"i2"}, "one lease from the first visit after it"


@pytest.mark.anyio
@pytest.mark.parametrize("worker", [True, False])
async def test_a_client_with_a_bad_line_cannot_keep_the_dead(store: Store, worker: bool) -> None:
    world = await a_world(store, 10_000)
    seen = {}
    for ms in range(0, 60_000, 500):
        world.clock.set(ms)
        if ms % 3000 == 0 and ms:  # it gets through for half of the time
            world.clock.tell_outage(ms - 1500, ms)
        if ms % 3000 < 1500:
            seen[ms] = bool(await world.look())
            if worker:
                await world.sweep()
    assert max(ms for ms, there in seen.items() if there) <= 25_000


@pytest.mark.anyio
async def test_an_outage_that_ended_more_than_a_lease_ago_gives_none(store: Store) -> None:
    world = await a_world(store, 10_000)
    world.clock.set(30_000)
    world.clock.tell_outage(5000, 15_000)
    assert not await world.look()


@pytest.mark.anyio
async def test_a_lone_instance_that_dies_without_an_outage_is_gone_at_the_end_of_its_lease(store: Store) -> None:
    world = await a_world(store, 10_000)
    world.clock.set(9999)
    assert await world.look()
    world.clock.set(10_000)
    assert not await world.look()


async def a_world(store: Store, *leases: int) -> World:
    world = World(store, True, False, list(leases), random.Random(1))
    await world.start()
    return world


async def register_many(world: World, count: int, lease_ms: int) -> None:
    world.leases = {f"i{number}": lease_ms for number in range(count)}
    await asyncio.gather(*(world.registry.register(NS, world.record(name)) for name in world.leases))


@pytest.mark.anyio
async def test_whoever_was_hidden_before_a_worker_was_away_never_comes_back_as_a_suspect(store: Store) -> None:
    world = await a_world(store, 3000, 30_000)
    await world.sweep()
    world.clock.set(3500)
    assert set(await world.look()) == {"i1"}, "the dead are hidden at once"
    for ms in (7000, 9000, 20_000):  # no worker runs
        world.clock.set(ms)
        assert set(await world.look()) == {"i1"}
    await world.sweep()
    assert world.expired == {"i0"}
    assert set(await world.look()) == {"i1"}


@pytest.mark.anyio
async def test_an_absence_of_the_workers_gives_one_lease_more_and_not_another(store: Store) -> None:
    world = await a_world(store, 10_000)
    await world.sweep()
    seen = {}
    for ms in range(0, 90_000, 1000):  # readers look, and no worker ever comes back
        world.clock.set(ms)
        seen[ms] = bool(await world.look())
    assert max(ms for ms, there in seen.items() if there) <= 27_000


@pytest.mark.anyio
async def test_a_suspect_keeps_the_time_of_its_last_heartbeat(store: Store) -> None:
    world = await a_world(store, 10_000, 10_000)
    before = await world.look()
    world.clock.set(60_000)
    await world.lose_replication_id()
    for _ in range(2):
        after = await world.look()
        assert all(each.suspect and each.healthy for each in after.values())
        assert [each.last_heartbeat for each in after.values()] == [each.last_heartbeat for each in before.values()]
    await world.beat("i0")
    after = await world.look()
    assert {name: each.suspect for name, each in after.items()} == {"i0": False, "i1": True}
    assert after["i0"].last_heartbeat > before["i0"].last_heartbeat


@pytest.mark.anyio
async def test_a_large_service_is_given_its_leases_in_steps(store: Store) -> None:
    world = await a_world(store)
    await register_many(world, 1500, 10_000)
    world.clock.set(60_000)
    await world.lose_replication_id()
    first = await world.sweeper.sweep(world.thing)
    assert (first.word, first.next_ms) == ("held", 0), "one call does not move everybody"
    assert len(await world.look()) == 1500, "a reader does the rest"
    world.clock.set(64_000)
    assert (await world.sweeper.sweep(world.thing)).suspects == 1500


@pytest.mark.anyio
async def test_of_thousands_that_die_at_once_a_tenth_goes_each_second(store: Store) -> None:
    world = await a_world(store)
    await register_many(world, 6000, 4000)

    async def left(at_ms: int) -> int:
        world.clock.set(at_ms)
        await world.sweeper.step()
        return cast("int", await store.read(world.thing, "HLEN", world.thing.key("states")))

    for ms in range(500, 8000, 500):
        assert await left(ms) == 6000, "held for one lease"
    there = [await left(ms) for ms in range(8000, 22_000, 500)]
    gone = [more - less for more, less in pairwise(there) if less]
    assert there[-1] == 0
    assert sum(each > 0 for each in there) <= 24, f"ten seconds and a little: {gone}"
    assert max(gone[2:]) <= 600, f"not more than a tenth a second: {gone}"


@pytest.mark.anyio
async def test_no_look_is_empty_while_many_die_one_after_the_other(store: Store) -> None:
    registry = Registry(store)
    thing = registry.service(NS, "game", "g")

    def record(name: str, ttl_seconds: float) -> Record:
        return Record(type="game", group="g", instance_id=name, hostname="h", ttl_seconds=ttl_seconds)

    await asyncio.gather(*(registry.register(NS, record(f"long{n}", 3600)) for n in range(900)))
    await Sweeper(registry).sweep(thing)
    await asyncio.gather(*(registry.register(NS, record(f"short{n}", 1 + n / 1000)) for n in range(600)))
    there = 1500
    while there > 900:  # no worker: readers alone note who is dead
        looks = await asyncio.gather(*(registry.read_service(thing) for _ in range(4)))
        seen = {len(look.instances) for look in looks}
        assert 900 <= min(seen) <= max(seen) <= there
        there = min(seen)
