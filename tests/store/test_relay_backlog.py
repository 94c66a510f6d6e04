"""Many jobs: nobody's backlog is in anybody else's way, and everybody is told the truth about their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import cast

import pytest

from headgate.kit.problems import DeadlineExceeded
from headgate.relay import job_queue as jobs_module
from headgate.relay.jobs import RelaySweep
from headgate.relay.model import JobState, Kind, Limit, Order, Outcome, Per
from headgate.relay.problems import LineFull
from headgate.relay.relay import Relay
from headgate.relay.settings import RelaySettings
from headgate.store import StoreSettings, open_store
from tests.store.relay_world import OK, PATIENT_MS, Patient, Scripted, running, window
from tests.topology import Stopwatch, Topology, eventually

MANY = 3000


@pytest.fixture
async def relay(server: Topology, prefix: str) -> AsyncIterator[Relay]:
    settings = StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)
    async with open_store(settings) as store, Relay(store, RelaySettings(held_jobs=200)) as made:
        await made.upstreams.note_new_store()
        yield made


def order(user: str, *, units: int = 1, wait_ms: int = 365 * 86_400_000) -> Order:
    return Order("POST", "/x", "", [("x-user-id", user)], b"b", user, units, wait_ms)


async def submit(relay: Relay, upstream: str, user: str, count: int = 1, **more: int) -> list[str]:
    """Leave jobs one after the other; give their ids in the order of their places."""
    return [await relay.jobs.submit(upstream, order(user, **more)) for _ in range(count)]


async def is_in(relay: Relay, id: str, state: JobState) -> bool:
    return (await relay.jobs.get(id)).state is state


async def eta_seconds(relay: Relay, id: str) -> float:
    eta = (await relay.jobs.get(id)).eta
    assert eta is not None
    return (datetime.fromisoformat(eta) - datetime.now(UTC)).total_seconds()


async def test_thousands_of_jobs_of_one_user_hold_up_nobody_else(relay: Relay) -> None:
    async with Scripted(lambda number: OK).open() as upstream:
        await relay.upstreams.put("slow", window(1, 3600, base_url=upstream.url))
        await relay.upstreams.put("idle", window(100, 1, base_url=upstream.url))
        for _ in range(MANY // 100):
            await asyncio.gather(*(relay.jobs.submit("slow", order("greedy")) for _ in range(100)))
        async with running(relay.runner()):
            await eventually(lambda: len(upstream.arrivals) >= 1)
            others = [
                *await submit(relay, "slow", "modest"),
                *await submit(relay, "idle", "greedy", 3),
                *await submit(relay, "idle", "other", 3),
            ]
            for id in others:
                await eventually(partial(is_in, relay, id, JobState.DONE), 20)
            assert len(upstream.arrivals) == 1 + len(others)
            waiting = (await relay.upstreams.status("slow")).jobs
            assert waiting == MANY - 1


@asynccontextmanager
async def relay_holding(server: Topology, prefix: str, held_jobs: int) -> AsyncIterator[Relay]:
    """A relay of which one process holds so many jobs at most."""
    settings = StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)
    async with open_store(settings) as store, Relay(store, RelaySettings(held_jobs=held_jobs)) as made:
        await made.upstreams.note_new_store()
        yield made


async def all_in(relay: Relay, ids: list[str], state: JobState) -> bool:
    return {(await relay.jobs.get(id)).state for id in ids} == {state}


async def holders(relay: Relay, upstream: str) -> int:
    """Count the jobs that are in somebody's hands."""
    thing = relay.upstreams.thing(upstream)
    fields = await relay.store.read(thing, "HKEYS", thing.key("orders"))
    return sum(field.endswith(b":holder") for field in cast("list[bytes]", fields))


async def test_backlogs_of_several_users_hold_up_nobody_else(relay: Relay) -> None:
    """Eight users have more jobs than a process holds, and each may send one an hour."""
    async with Scripted(lambda number: OK).open() as upstream:
        await relay.upstreams.put("a", window(1, 3600, base_url=upstream.url))
        firsts = []
        for number in range(8):
            firsts += (await submit(relay, "a", f"greedy{number}", 60))[:1]
        async with running(relay.runner()):
            await eventually(partial(all_in, relay, firsts, JobState.DONE), 10)
            modest = await submit(relay, "a", "modest")
            await eventually(partial(all_in, relay, modest, JobState.DONE), 5)
        assert len(upstream.arrivals) == 9


async def test_more_users_than_a_process_holds_jobs_hold_up_nobody_else(server: Topology, prefix: str) -> None:
    async with relay_holding(server, prefix, 10) as relay, Scripted(lambda number: OK).open() as upstream:
        await relay.upstreams.put("a", window(3, 3600, base_url=upstream.url))
        firsts = []
        for number in range(40):
            firsts += (await submit(relay, "a", f"greedy{number}", 5))[:3]
        async with running(relay.runner()):
            await eventually(partial(all_in, relay, firsts, JobState.DONE), 20)
            modest = await submit(relay, "a", "modest", 3)
            await eventually(partial(all_in, relay, modest, JobState.DONE), 5)
            assert await holders(relay, "a") <= 10
        assert len(upstream.arrivals) == 123


async def test_jobs_that_were_given_back_go_when_their_turn_comes(server: Topology, prefix: str) -> None:
    """Twelve users in need of four hands, each with one job every three seconds, which is not soon."""
    async with relay_holding(server, prefix, 4) as relay, Scripted(lambda number: OK).open() as upstream:
        await relay.upstreams.put("a", window(1, 3, base_url=upstream.url))
        ids = [id for number in range(12) for id in await submit(relay, "a", f"u{number}", 4)]
        watch = Stopwatch()
        async with running(relay.runner()):
            await eventually(partial(all_in, relay, ids, JobState.DONE), 40)
        assert watch.seconds < 9 + 6  # three windows between four jobs, and a second or two before each


async def test_backlogs_behind_answers_that_do_not_come_hold_up_nobody_else(server: Topology, prefix: str) -> None:
    """Nobody knows when their turn comes: as soon as the upstream answers what it has."""
    async with relay_holding(server, prefix, 8) as relay, Patient().open() as upstream:
        limits = (Limit(kind=Kind.CONCURRENT, count=1),)
        await relay.upstreams.put("a", window(1, 1, base_url=upstream.url, limits=limits, timeout_seconds=60))
        for number in range(2):
            await submit(relay, "a", f"greedy{number}", 10)
        async with running(relay.runner()):
            await eventually(lambda: upstream.arrived == 2)
            await submit(relay, "a", "modest")
            await eventually(lambda: upstream.arrived == 3)
            upstream.answer.set()
            await eventually(lambda: upstream.arrived == 21, 20)


async def test_users_with_long_backlogs_share_what_a_process_holds(server: Topology, prefix: str) -> None:
    """Nobody's own limit is in the way, only the one that all share: so the hands must be shared too."""
    async with relay_holding(server, prefix, 8) as relay, Scripted(lambda number: OK).open() as upstream:
        shared = (Limit(count=1, seconds=0.1, per=Per.UPSTREAM),)
        await relay.upstreams.put("a", window(1, 1, base_url=upstream.url, limits=shared))
        greedy = [await submit(relay, "a", f"a{number}", 150) for number in range(3)]
        async with running(relay.runner()):
            await eventually(lambda: len(upstream.arrivals) >= 20)
            modest = await submit(relay, "a", "z", 3)
            await eventually(partial(all_in, relay, modest, JobState.DONE), 20)
            done = [[(await relay.jobs.get(id)).state for id in ids].count(JobState.DONE) for ids in greedy]
            assert min(done) > 0
            assert max(done) < 100


@pytest.mark.parametrize("sending", [True, False], ids=["with a runner", "without a runner"])
async def test_every_waiting_job_has_its_own_position_and_a_true_eta(relay: Relay, sending: bool) -> None:
    async with Scripted(lambda number: OK).open() as upstream:
        await relay.upstreams.put("a", window(2, 100, base_url=upstream.url))
        ids = await submit(relay, "a", "u1", 102)
        if not sending:
            await check_turns(relay, ids, 0)
            return
        async with running(relay.runner()):
            await eventually(partial(is_in, relay, ids[1], JobState.DONE), 20)
            await check_turns(relay, ids[2:], 100)


async def check_turns(relay: Relay, ids: list[str], free_in: float) -> None:
    views = [await relay.jobs.get(id) for id in ids]
    assert [view.position for view in views] == list(range(1, len(ids) + 1))
    for number in (0, 1, 2, 17, 63, 64, 65, 99):
        rounds = number // 2 * 100
        assert free_in - 30 + rounds <= await eta_seconds(relay, ids[number]) <= free_in + rounds * 1.02 + 5


async def test_the_eta_counts_what_the_jobs_ahead_cost(relay: Relay) -> None:
    await relay.upstreams.put("a", window(4, 100))
    await submit(relay, "a", "u1", 100, units=4)
    last = (await submit(relay, "a", "u1", 1, units=1))[0]
    assert (await relay.jobs.get(last)).position == 101
    assert 9_900 <= await eta_seconds(relay, last) <= 10_005


async def test_the_eta_counts_how_long_answers_take(relay: Relay) -> None:
    """One at once, and each takes a while: nothing cools, and yet the tenth waits for nine answers."""
    limits = (Limit(kind=Kind.CONCURRENT, count=1),)
    await relay.upstreams.put("a", window(1, 1, limits=limits, timeout_seconds=600))
    ids = await submit(relay, "a", "u1", 10)
    policy = (await relay.upstreams.get("a")).policy
    permit = await relay.permits.acquire("a", policy, "u1", deadline=asyncio.get_running_loop().time() + 5)
    permit.sending()
    relay.store.advance_clock(20_000)
    told = permit.settle(Outcome.ENDED)
    assert told is not None
    await told
    assert 150 <= await eta_seconds(relay, ids[-1]) <= 220


@pytest.mark.parametrize("held_jobs", [200, 4, 0], ids=["all held", "few held", "without a runner"])
async def test_the_eta_counts_the_users_whose_turn_comes_before(server: Topology, prefix: str, held_jobs: int) -> None:
    """All share one permit in a hundred seconds, so the last of ten users waits for nine others."""
    async with (
        relay_holding(server, prefix, held_jobs or 1) as relay,
        Scripted(lambda number: OK).open() as upstream,
        AsyncExitStack() as stack,
    ):
        shared = (Limit(count=1, seconds=100, per=Per.UPSTREAM),)
        await relay.upstreams.put("a", window(1, 1, base_url=upstream.url, limits=shared))
        ids = [(await submit(relay, "a", f"u{number}"))[0] for number in range(10)]
        seconds = [100.0 * number for number in range(10)]
        if held_jobs:
            await stack.enter_async_context(running(relay.runner()))
            await eventually(lambda: len(upstream.arrivals) == 1)
            await eventually(partial(all_in, relay, ids[:1], JobState.DONE))
            ids, seconds = ids[1:], seconds[1:]

        async def true() -> bool:
            """The users stand in the round in any order, once all that can be held are."""
            etas = sorted([await eta_seconds(relay, id) for id in ids])
            return all(right - 30 <= eta <= right + 10 for eta, right in zip(etas, seconds, strict=True))

        await eventually(true, 15)


async def test_jobs_and_requests_of_a_user_share_one_line(relay: Relay) -> None:
    """A request that comes after fifty jobs waits for all of them, also for those that no runner holds yet."""
    async with Scripted(lambda number: OK).open() as upstream:
        await relay.upstreams.put("a", window(10, 1.0, base_url=upstream.url))
        ids = await submit(relay, "a", "u1", 50)
        async with running(relay.runner()):
            await eventually(lambda: len(upstream.arrivals) >= 10)
            policy = (await relay.upstreams.get("a")).policy
            before = len(upstream.arrivals)
            permit = await relay.permits.acquire("a", policy, "u1", deadline=asyncio.get_running_loop().time() + 60)
            assert permit.position >= 51 - before - 10
            assert len(upstream.arrivals) + await sending(relay, ids) >= 50
            permit.give_back()
            for id in ids:
                await eventually(partial(is_in, relay, id, JobState.DONE), 20)


async def sending(relay: Relay, ids: list[str]) -> int:
    return [(await relay.jobs.get(id)).state for id in ids].count(JobState.SENDING)


async def test_jobs_that_nobody_sends_hold_up_no_request(relay: Relay) -> None:
    await relay.upstreams.put("a", window(10, 1.0))
    await submit(relay, "a", "u1", 50)
    policy = (await relay.upstreams.get("a")).policy
    permit = await relay.permits.acquire("a", policy, "u1", deadline=asyncio.get_running_loop().time() + 5)
    assert permit.position == 0
    permit.give_back()


async def test_jobs_count_as_waiting(relay: Relay) -> None:
    async with Patient().open() as upstream:
        limits = (Limit(count=1, seconds=3600),)
        await relay.upstreams.put("a", window(1, 1, base_url=upstream.url, limits=limits, max_waiting=40))
        async with running(relay.runner()):
            await submit(relay, "a", "u1")
            await eventually(lambda: upstream.arrived == 1)
            await submit(relay, "a", "u1", 40)  # more than a runner holds
            with pytest.raises(LineFull):
                await submit(relay, "a", "u1")
            policy = (await relay.upstreams.get("a")).policy
            with pytest.raises(LineFull):
                await relay.permits.acquire("a", policy, "u1", deadline=asyncio.get_running_loop().time() + 9000)
            await submit(relay, "a", "u2")


async def test_a_job_that_is_cancelled_lets_a_request_behind_it_go_at_once(relay: Relay) -> None:
    async with Patient().open() as upstream:
        await relay.upstreams.put("a", window(1, 1, base_url=upstream.url, limits=(Limit(count=2, seconds=3600),)))
        async with running(relay.runner()):
            await submit(relay, "a", "u1")
            await eventually(lambda: upstream.arrived == 1)
            job = (await submit(relay, "a", "u1", units=2))[0]
            policy = (await relay.upstreams.get("a")).policy
            deadline = asyncio.get_running_loop().time() + 80_000
            asking = asyncio.ensure_future(relay.permits.acquire("a", policy, "u1", deadline=deadline))
            done, _ = await asyncio.wait((asking,), timeout=0.5)
            assert not done
            await relay.jobs.cancel(job)
            (await asking).give_back()


@pytest.mark.parametrize("held", [True, False], ids=["held by a runner", "of nobody"])
async def test_a_job_fails_when_its_deadline_passes(relay: Relay, held: bool) -> None:
    async with Patient().open() as upstream:
        await relay.upstreams.put("a", window(1, 3600, base_url=upstream.url))
        await submit(relay, "a", "u1", 40)
        id = (await submit(relay, "a", "u2" if held else "u1", 1, wait_ms=2_000_000))[0]
        if held:
            policy = (await relay.upstreams.get("a")).policy
            await relay.permits.acquire("a", policy, "u2", deadline=asyncio.get_running_loop().time() + 5)
        async with running(relay.runner()):
            await eventually(lambda: upstream.arrived >= 1)
            relay.store.advance_clock(2_000_001)
            await RelaySweep(relay.store, relay.upstreams, relay.jobs).visit("a")
            view = await relay.jobs.get(id)
        assert view.state is JobState.FAILED
        assert "deadline" in (view.reason or "")


async def test_jobs_of_a_dead_runner_are_taken_by_another(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, server: Topology, prefix: str
) -> None:
    monkeypatch.setattr(jobs_module, "AGAIN_MS", 500)
    async with Scripted(lambda number: OK).open() as upstream:
        await relay.upstreams.put("a", window(100, 1, base_url=upstream.url))
        ids = await submit(relay, "a", "u1", 40)
        assert len((await relay.jobs.next("a", "u1", "rdead", 100)).ids) == 32
        assert await relay.jobs.due("a", "rdead", 0) == []  # it was alive just now
        async with running(relay.runner()):
            for id in ids:
                await eventually(partial(is_in, relay, id, JobState.DONE), 30)
        assert len(upstream.arrivals) == 40


async def test_a_shared_limit_is_spent_on_users_in_turn_whatever_their_backlog(relay: Relay) -> None:
    async with Scripted(lambda number: OK).open() as upstream:
        shared = (Limit(count=2, seconds=0.3, per=Per.UPSTREAM),)
        await relay.upstreams.put("a", window(1, 1, base_url=upstream.url, limits=shared))
        greedy = await submit(relay, "a", "greedy", 300)
        async with running(relay.runner()):
            await eventually(lambda: len(upstream.arrivals) >= 2)
            modest = await submit(relay, "a", "modest", 4)
            for id in modest:
                await eventually(partial(is_in, relay, id, JobState.DONE), 20)
            done = [(await relay.jobs.get(id)).state for id in greedy].count(JobState.DONE)
            assert done < 60


async def test_nothing_is_left_of_a_backlog(relay: Relay) -> None:
    async with Scripted(lambda number: OK).open() as upstream:
        await relay.upstreams.put("a", window(100, 1, base_url=upstream.url))
        async with running(relay.runner()):
            for id in await submit(relay, "a", "u1", 10):
                await eventually(partial(is_in, relay, id, JobState.DONE), 20)
    await relay.upstreams.remove("a")
    for seconds in (30, 60, 3_700, 3_730):
        relay.store.advance_clock(seconds * 1000)
        await RelaySweep(relay.store, relay.upstreams, relay.jobs).visit("a")
    thing = relay.upstreams.thing("a")
    for key in ("owners", "deadlines", "orders", "jobs", "ends", "users", "backlog/u1", "begun/u1", "meta"):
        assert await relay.store.read(thing, "EXISTS", thing.key(key)) == 0, key


async def test_a_deadline_that_cannot_be_kept_counts_the_jobs_ahead(relay: Relay) -> None:
    async with Patient().open() as upstream:
        await relay.upstreams.put("a", window(1, 10, base_url=upstream.url))
        async with running(relay.runner()):
            await submit(relay, "a", "u1", 50)
            await eventually(lambda: upstream.arrived == 1)
            policy = (await relay.upstreams.get("a")).policy
            with pytest.raises(DeadlineExceeded):
                await relay.permits.acquire("a", policy, "u1", deadline=asyncio.get_running_loop().time() + 400)
