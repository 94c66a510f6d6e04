"""The look at an upstream's invariants: a busy one has no contradiction at any moment, and each kind of damage is found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast

import pytest

from headgate.kit.problems import HeadgateError
from headgate.relay.invariants import MOST_FOUND, inspect
from headgate.relay.jobs import RelaySweep
from headgate.relay.model import Kind, Limit, Order, Outcome, Per, Upstream
from headgate.relay.permits import ACQUIRE, WAITING
from headgate.relay.problems import PermitExpired
from headgate.relay.relay import Relay
from headgate.relay.settings import RelaySettings
from headgate.store import Store, StoreSettings, Thing, open_store
from headgate.store.client.link import Reply
from tests.store.relay_world import OK, PATIENT_MS, Scripted, running, window
from tests.topology import Topology

FAR = 10**15
LOOKS = 20
SHARED = Limit(count=3, seconds=60, per=Per.UPSTREAM)


@asynccontextmanager
async def relays(url: str, prefix: str, count: int) -> AsyncIterator[list[Relay]]:
    """So many relays, each with connections of its own."""
    settings = StoreSettings(url=url, prefix=prefix, deadline_ms=PATIENT_MS)
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            store = await stack.enter_async_context(open_store(settings))
            made.append(await stack.enter_async_context(Relay(store, RelaySettings())))
        await made[0].upstreams.note_new_store()
        yield made


def order(user: str, wait_ms: int = 60_000) -> Order:
    return Order("POST", "/x", "", [("x-user-id", user)], b"b", user, 1, wait_ms)


@dataclass
class Busy:
    """An upstream with permits in flight, waiters with and without a turn, and jobs in nearly every state."""

    store: Store
    thing: Thing
    words: dict[str, str]

    async def damage(self, command: str, key: str, *words: str | int) -> None:
        filled = [word.format(**self.words) if isinstance(word, str) else word for word in words]
        await self.store.write(self.thing, command, self.thing.key(key), *filled)

    async def found(self) -> list[str]:
        return (await inspect(self.store, self.thing))[1]


@pytest.fixture
async def busy(server: Topology, prefix: str) -> AsyncIterator[Busy]:
    async with relays(server.url, prefix, 1) as (relay,), AsyncExitStack() as stack:
        policy = window(2, 60, limits=(Limit(count=2, seconds=60), SHARED), timeout_seconds=30.0)
        await relay.upstreams.put("a", policy)
        thing, store = relay.upstreams.thing("a"), relay.store
        deadline = asyncio.get_running_loop().time() + 60

        async def key(*command: str) -> list[str]:
            return [part.decode() for part in await store.read(thing, *command)]  # type: ignore[union-attr]

        begun, waits, ends = [await relay.jobs.submit("a", order("u3")) for _ in range(3)]
        place = int((await key("HMGET", thing.key("orders"), f"{begun}:place"))[0])
        held = [await relay.permits.acquire("a", policy, "u3", deadline=deadline, place=place)]
        held += [await relay.permits.acquire("a", policy, "u1", deadline=deadline) for _ in range(2)]
        for permit in held:
            stack.callback(permit.give_back)
        await relay.jobs.cancel(ends)
        # They ask once and not again, which would put some of the damage right.
        for number, user in enumerate(("u1", "u1", "u2")):
            waiter = f"{relay.permits.process}.{1000 + number}.1"
            how, *_ = cast(
                "list[Reply]",
                await store.run(ACQUIRE, thing, user, waiter, 0, 600_000, 100, policy.lease_ms, user=user),
            )
            assert how == WAITING
        assert await store.read(thing, "ZCARD", thing.key("turns")) == 1
        yield Busy(
            store, thing,
            {"process": relay.permits.process, "begun": begun, "waits": waits, "ends": ends, "unit": f"{held[1].id}/1",
             "waiter": (await key("ZRANGE", thing.key("line/u1"), "0", "0"))[0],
             "entry": (await key("HMGET", thing.key("orders"), f"{waits}:entry"))[0]},
        )  # fmt: skip


async def test_an_upstream_in_which_everything_agrees(busy: Busy) -> None:
    members, found, complete = await inspect(busy.store, busy.thing)
    assert (found, complete) == ([], True)
    assert members > 10
    assert not (await inspect(busy.store, busy.thing, most_members=1))[2]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (("ZREM", "line/u1", "{waiter}"), "user u1: 1 wait in line and 2 have a deadline"),
        (("ZREM", "line/u1", "{waiter}"), "user u1: process {process} has 1 waiters in line and 2 are counted"),
        (("ZREM", "patience/u1", "{waiter}"), "user u1: waiter {waiter} has no deadline"),
        (("ZADD", "line/new", 1, "r1.1.1"), "user new: there are keys, and the list of users has no such user"),
        (("HSET", "crowd", "r1 nobody", 2), "user nobody: process r1 has 0 waiters in line and 2 are counted"),
        (("HDEL", "crowd", "{process} u1"), "user u1: process {process} has 2 waiters in line and 0 are counted"),
        (("ZREM", "users", "u1"), "user u1: there are keys, and the list of users has no such user"),
        (("ZADD", "fly/u1", FAR, "{unit}"), "user u1: 1 permits are leased for longer than any lease"),
        (("ZADD", "open/u1", FAR, "{unit}"), "user u1: 1 permits are leased for longer than any lease"),
        (("ZADD", "done/u1", FAR, "r1.1.1/1"), "user u1: 1 permits were answered in the future"),
        (("ZADD", "flying", FAR, "r1.1.1/1"), "1 shared permits are leased for longer than any lease"),
        (("ZADD", "answered", FAR, "r1.1.1/1"), "1 shared permits were answered in the future"),
        (("ZREM", "flying", "{unit}"), "user u1: permit {unit} is in flight and does not count at the limits"),
        (("ZREM", "turns", "u2"), "user u2 has somebody who waits for a turn, and no turn"),
        (("HDEL", "heads", "u2"), "user u2 has a turn and nobody who takes it"),
        (("HDEL", "heads", "u2"), "1 users have a turn and 0 have somebody who takes it"),
        (("ZADD", "turns", 1, "ghost"), "user ghost has a turn and is not in the list of users"),
        (("HDEL", "policy", "shared"), "it counts what users share, and they share no limit"),
        (("HDEL", "policy", "document"), "it has a version and no policy"),
        (("ZREM", "deadlines", "{waits}"), "job {waits} waits and would never be overdue"),
        (("ZADD", "deadlines", 1, "{ends}"), "job {ends} has a deadline and does not wait"),
        (("ZREM", "ends", "{ends}"), "job {ends} has ended and would never be forgotten"),
        (("ZADD", "ends", FAR, "{waits}"), "job {waits} has a result to forget and has not ended"),
        (("XDEL", "jobs", "{entry}"), "job {waits} waits and is not in the stream of jobs"),
        (("HSET", "orders", "{waits}:entry", "nonsense"), "job {waits} waits and is not in the stream of jobs"),
        (("HDEL", "orders", "{waits}:order"), "job {waits} waits without an order"),
        (("HDEL", "orders", "{waits}:state"), "entry {entry} of the stream belongs to no job that waits"),
        (("HDEL", "orders", "{waits}:state"), "the field {waits}:place belongs to no job"),
        (("HSET", "orders", "lost:holder", "r1"), "the field lost:holder belongs to no job"),
        (("HSET", "orders", "{waits}:place", 7), "user u3: job {waits} is in its backlog and does not wait there"),
        (("ZREM", "backlog/u3", "1:{waits}"), "user u3: job {waits} waits and has no place: nobody would send it"),
        (("ZREM", "begun/u3", "1:{begun}"), "user u3: job {begun} waits and has no place: nobody would send it"),
        (("ZADD", "backlog/u3", 9, "1:{ends}"), "user u3: job {ends} is in its backlog and does not wait there"),
        (("ZADD", "begun/u3", 9, "1:{waits}"), "user u3: job {waits} is in its backlog and has begun"),
        (("ZREM", "owners", "u3"), "user u3: there are jobs, and the list of users with jobs has no such user"),
    ],
)  # fmt: skip
async def test_each_damage_is_found(busy: Busy, damage: tuple[str, ...], said: str) -> None:
    await busy.damage(*damage)
    found = (await inspect(busy.store, busy.thing, ["new"]))[1]
    assert any(each.startswith(said.format(**busy.words)) for each in found), found


async def test_an_order_that_cannot_be_read_is_found_with_a_job_that_has_no_place(busy: Busy) -> None:
    await busy.damage("HSET", "orders", "{waits}:order", "nonsense")
    assert await busy.found() == [], "as long as it has its place, nobody but its sender reads it"
    await busy.damage("ZREM", "backlog/u3", "1:{waits}")
    assert await busy.found() == [f"job {busy.words['waits']} has an order that cannot be read"]


async def test_a_long_list_is_looked_at_in_steps_and_up_to_a_limit(busy: Busy) -> None:
    ghosts = [word for number in range(3000) for word in (number, f"ghost-{number}")]
    await busy.damage("ZADD", "deadlines", *ghosts)
    members, found, complete = await inspect(busy.store, busy.thing)
    assert (len(found), complete) == (MOST_FOUND, False)
    assert members < 3000


async def test_a_shared_limit_that_comes_later_waits_for_permits_of_any_policy_before(
    server: Topology, prefix: str
) -> None:
    """Under the first policy a permit is leased for 32 s, under the second for 2.7 s; the third counts for all users."""
    async with relays(server.url, prefix, 1) as (relay,):
        slow, quick = window(5, 1, timeout_seconds=30.0), window(5, 1, timeout_seconds=0.5)
        await relay.upstreams.put("a", slow)
        deadline = asyncio.get_running_loop().time() + 10
        permit = await relay.permits.acquire("a", slow, "u1", deadline=deadline)
        await relay.upstreams.put("a", quick)
        await relay.upstreams.put("a", window(5, 1, limits=(SHARED,), timeout_seconds=0.5))
        assert (await relay.upstreams.status("a")).held_ms > 80_000, "a lease and then a window of 60 s"
        assert (await inspect(relay.store, relay.upstreams.thing("a")))[1] == []
        permit.give_back()


def _policy(chance: random.Random, url: str) -> Upstream:
    """Some policy: limits of any kind, for each user and sometimes for all of them."""
    own = [
        Limit(count=chance.randint(1, 4), seconds=chance.choice((0.2, 1.0))),
        Limit(kind=Kind.BUCKET, burst=3, count=5, seconds=1.0),
        Limit(kind=Kind.CONCURRENT, count=2),
        Limit(kind=Kind.PACED, every_ms=50),
    ]
    limits = chance.sample(own, 1)
    if chance.random() < 0.7:
        limits.append(Limit(count=chance.randint(3, 8), seconds=0.3, per=Per.UPSTREAM))
    return window(1, 1, base_url=url, limits=tuple(limits), timeout_seconds=chance.choice((0.5, 30.0)))


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_busy_upstream_never_contradicts_itself(server: Topology, prefix: str, seed: int) -> None:
    """Three relays send, give up, lose and are refused requests, send jobs, sweep and change the limits; all at random."""
    chance = random.Random(seed)
    users = [f"u{number}" for number in range(6)]
    looks: list[int] = []

    async with Scripted(lambda number: OK).open() as upstream, relays(server.url, prefix, 4) as (*busy, looker):
        await busy[0].upstreams.put("a", _policy(chance, upstream.url))
        thing = looker.upstreams.thing("a")
        async with asyncio.timeout(900), AsyncExitStack() as stack:
            for relay in busy:
                await stack.enter_async_context(running(relay.runner()))
            over = asyncio.Event()
            work = [asyncio.create_task(_use(relay, users, chance, over)) for relay in busy for _ in range(12)]
            work += [asyncio.create_task(_tend(busy[0], chance, upstream.url, over))]
            started = asyncio.get_running_loop().time()
            try:
                while len(looks) < LOOKS or asyncio.get_running_loop().time() < started + 3:
                    members, found, _ = await inspect(looker.store, thing, [*users, "stranger"])
                    assert found == []
                    looks.append(members)
            finally:
                over.set()
                await asyncio.gather(*work)
        assert (await inspect(looker.store, thing))[1] == []
    assert max(looks) > 30


async def _use(relay: Relay, users: list[str], chance: random.Random, over: asyncio.Event) -> None:
    """Send requests one after the other; some are given up, some lost, some refused, and some are jobs."""
    loop = asyncio.get_running_loop()
    while not over.is_set():
        user = chance.choice(users)
        with suppress(HeadgateError):
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() / 5)
                job = await relay.jobs.submit("a", order(user, chance.choice((200, 5000))))
                if chance.random() < 0.3:
                    await relay.jobs.cancel(job)
                continue
            policy = (await relay.upstreams.get("a")).policy
            deadline = loop.time() + chance.choice((0.05, 0.5, 3.0))
            permit = await relay.permits.acquire("a", policy, user, deadline=deadline)
            await asyncio.sleep(chance.random() / 50)
            try:
                permit.sending()
            except PermitExpired:
                permit.give_back()
                continue
            permit.settle(chance.choice([*Outcome, Outcome.ENDED, Outcome.ENDED]), pause_seconds=0.01)


async def _tend(relay: Relay, chance: random.Random, url: str, over: asyncio.Event) -> None:
    """Sweep like a worker, and now and then change the limits or take the upstream away for a moment."""
    while not over.is_set():
        await RelaySweep(relay.store, relay.upstreams, relay.jobs).step()
        if chance.random() < 0.2:
            await relay.upstreams.put("a", _policy(chance, url))
        elif chance.random() < 0.05:
            await relay.upstreams.remove("a")
            await asyncio.sleep(0.3)
            await relay.upstreams.put("a", _policy(chance, url))
        await asyncio.sleep(0.2)
