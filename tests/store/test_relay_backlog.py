"""Many jobs: nobody's backlog is in anybody else's way, and everybody is told the truth about their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial

import pytest

from headgate.kit.problems import DeadlineExceeded
from headgate.relay import jobs as jobs_module
from headgate.relay.model import JobState, Kind, Limit, Order, Outcome, Per
from headgate.relay.problems import LineFull
from headgate.relay.relay import Relay
from headgate.relay.settings import RelaySettings
from headgate.store import StoreSettings, open_store
from tests.store.relay_world import OK, PATIENT_MS, Patient, Scripted, running, window
from tests.topology import Topology, eventually

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
            await relay.sweep.visit("a")
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
        assert len(await relay.jobs.next("a", "u1", "rdead", 100)) == 32
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
        await relay.sweep.visit("a")
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
