"""Lists of things are hints, and due work is claimed by one worker at a time."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from headgate.store import Claim, Index, Store
from tests.store.beside import Run, store_beside
from tests.store.stopped_clock import StoppedClock
from tests.topology import Topology

# The model's unit of time: longer than a claim.
UNIT_MS = 5000


@pytest.fixture
async def clock(store: Store) -> StoppedClock:
    return StoppedClock(store)


@pytest.fixture
async def index(store: Store, clock: StoppedClock) -> Index:
    return Index(store, "queue")


def names(claims: object) -> list[str]:
    assert isinstance(claims, list)
    return [claim.thing.name for claim in claims]


async def test_a_list_is_by_namespace_and_in_order(index: Index, store: Store) -> None:
    for namespace, name in (("b", "z"), ("a", "two"), ("a", "one"), ("a/b", "x"), ("ab", "y"), ("a", "a:b.c-d_e")):
        await index.put(store.thing("queue", namespace, name))
    assert [thing.name for thing in await index.list("a")] == ["a:b.c-d_e", "one", "two"]
    assert [thing.name for thing in await index.list("a/b")] == ["x"]
    assert len(await index.list()) == 6
    assert (await index.list("b"))[0] == store.thing("queue", "b", "z")


async def test_a_list_of_many_pages_is_whole(index: Index, store: Store) -> None:
    things = {store.thing("queue", "default", f"q{n}") for n in range(2_500)}
    await asyncio.gather(*(index.put(thing) for thing in things))
    listed = await index.list("default")
    assert len(listed) == 2_500
    assert set(listed) == things


async def test_parts_do_not_mix(index: Index, store: Store) -> None:
    await index.put(store.thing("queue", "default", "x"), 0)
    other = Index(store, "service")
    assert list(await other.list()) == []
    assert list(await other.claim()) == []


async def test_what_is_due_is_claimed_once(index: Index, store: Store) -> None:
    await asyncio.gather(*(index.put(store.thing("queue", "default", f"q{n}"), 0) for n in range(100)))
    workers = [Index(store, "queue") for _ in range(8)]
    taken = await asyncio.gather(*(worker.claim(limit=16) for worker in workers))
    claimed = [name for claims in taken for name in names(claims)]
    assert len(claimed) == 100
    assert len(set(claimed)) == 100
    assert max(len(claims) for claims in taken) == 16


async def test_the_most_overdue_comes_first(index: Index, store: Store, clock: StoppedClock) -> None:
    for name, due_in_ms in (("later", 200), ("soon", 100), ("now", 0), ("tomorrow", 86_400_000)):
        await index.put(store.thing("queue", "default", name), due_in_ms)
    clock.set(1000)
    assert names(await index.claim(limit=2)) == ["now", "soon"]
    assert names(await index.claim(limit=2)) == ["later"]


async def test_a_dead_workers_claim_lapses(index: Index, store: Store, clock: StoppedClock) -> None:
    await index.put(store.thing("queue", "default", "q"), 0)
    assert names(await index.claim()) == ["q"]
    clock.set(1900)
    assert names(await index.claim()) == []
    clock.set(2500)
    assert names(await index.claim()) == ["q"]


async def test_done_says_when_it_is_due_again(index: Index, store: Store, clock: StoppedClock) -> None:
    await index.put(store.thing("queue", "default", "q"), 0)
    (claim,) = await index.claim()
    await index.done(claim, due_in_ms=5000)
    clock.set(4000)
    assert names(await index.claim()) == []
    clock.set(6000)
    (claim,) = await index.claim()
    await index.done(claim, due_in_ms=None)
    clock.set(600_000)
    assert names(await index.claim()) == []
    assert len(await index.list()) == 1


async def test_what_is_due_is_claimed_in_time_after_the_clock_was_put_back(index: Index, store: Store) -> None:
    await index.put(store.thing("queue", "default", "q"), 0)
    (claim,) = await index.claim()
    await index.done(claim, due_in_ms=2000)
    waited = 0
    while not await index.claim():  # workers look, and nothing else is written
        waited += 500
        assert waited <= 3000, "time stands still until the clock is where it was"
        store.step_clock(waited - 3_600_000)


async def test_a_put_during_the_visit_is_not_lost(index: Index, store: Store) -> None:
    thing = store.thing("queue", "default", "q")
    for due_in_ms in (None, 600_000):
        await index.put(thing, 0)
        (claim,) = await index.claim()
        await index.put(thing, 0)
        await index.done(claim, due_in_ms)
        claims = await index.claim()
        assert names(claims) == ["q"]
        await index.done(claims[0], None)


async def test_forget_strikes_only_what_nobody_put_meanwhile(index: Index, store: Store, clock: StoppedClock) -> None:
    thing = store.thing("queue", "default", "q")
    await index.put(thing, 0)
    (claim,) = await index.claim()
    await index.put(thing)
    assert not await index.forget(claim)
    assert list(await index.list()) == [thing]
    clock.set(3000)
    (claim,) = await index.claim()
    assert await index.forget(claim)
    assert await index.forget(claim)
    assert list(await index.list()) == []
    clock.set(60_000)
    assert list(await index.claim()) == []


async def test_an_earlier_time_stands(index: Index, store: Store, clock: StoppedClock) -> None:
    thing = store.thing("queue", "default", "q")
    await index.put(thing, 1000)
    await index.put(thing, 50_000)
    await index.put(thing)
    clock.set(1500)
    assert names(await index.claim()) == ["q"]


class IndexMachine(RuleBasedStateMachine):
    """Any order of puts, claims, visits and waits, against a dictionary."""

    run: Run
    store: Store
    NAMES = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        self.store.prefix = f"t{secrets.token_hex(4)}"
        self.clock = StoppedClock(self.store)
        self.index = self.run(self._make())
        self.now = 0
        self.due: dict[str, int] = {}
        self.stamps: dict[str, int] = {}
        self.puts = 0
        self.claims: list[tuple[Claim, int]] = []

    async def _make(self) -> Index:
        return Index(self.store, "queue")

    @rule(name=NAMES, waits=st.none() | st.integers(0, 5))
    def put(self, name: str, waits: int | None) -> None:
        due_in_ms = None if waits is None else waits * UNIT_MS
        self.run(self.index.put(self.store.thing("queue", "default", name), due_in_ms))
        self.puts += 1
        self.stamps[name] = self.puts
        if due_in_ms is not None:
            self.due[name] = min(self.due.get(name, 1 << 60), self.now + due_in_ms)

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        claims = self.run(self.index.claim(limit))
        taken = [claim.thing.name for claim in claims]
        ready = sorted((at, name) for name, at in self.due.items() if at <= self.now)
        assert len(taken) == min(limit, len(ready))
        assert set(taken) <= {name for _, name in ready}
        for claim in claims:
            self.due[claim.thing.name] = self.now + 2000
            self.claims.append((claim, self.stamps[claim.thing.name]))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), waits=st.none() | st.integers(1, 5))
    def done(self, data: st.DataObject, waits: int | None) -> None:
        claim, stamp = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        name = claim.thing.name
        self.run(self.index.done(claim, None if waits is None else waits * UNIT_MS))
        if name not in self.due:
            return
        if self.stamps.get(name) != stamp:
            self.due[name] = self.now
        elif waits is None:
            del self.due[name]
        else:
            self.due[name] = self.now + waits * UNIT_MS

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        claim, stamp = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        name = claim.thing.name
        struck = self.run(self.index.forget(claim))
        assert struck == (name not in self.stamps or self.stamps[name] == stamp)
        if struck:
            self.due.pop(name, None)
            self.stamps.pop(name, None)

    @rule(units=st.integers(1, 4))
    def wait(self, units: int) -> None:
        self.now += units * UNIT_MS
        self.clock.set(self.now)

    @invariant()
    def lists_what_was_put(self) -> None:
        assert [thing.name for thing in self.run(self.index.list("default"))] == sorted(self.stamps)


def test_any_order_of_puts_claims_and_visits_fits_the_model(server: Topology) -> None:
    with store_beside(server.url) as (run, store):
        machine = type("Machine", (IndexMachine,), {"run": staticmethod(run), "store": store})
        run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=25, deadline=None))
