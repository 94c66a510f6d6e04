"""Jobs outlive the store's restart, and one that keeps ending its relay is parked where people see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.cli.trial.strict_upstream import StrictUpstream
from headgate.relay.jobs import RelaySweep
from headgate.relay.model import JobState, Limit, Order, Upstream
from headgate.relay.problems import JobTaken
from headgate.relay.relay import Relay
from headgate.store import StoreSettings, open_store
from tests.topology import Standalone, Topology, eventually

Fresh = Callable[..., Topology]


@asynccontextmanager
async def relay_on(url: str, prefix: str, *, sending: bool) -> AsyncIterator[Relay]:
    """A relay in this process, with or without what sends jobs."""
    async with open_store(StoreSettings(url=url, prefix=prefix)) as store, Relay(store) as relay:
        await relay.upstreams.note_new_store()
        runner = asyncio.ensure_future(relay.runner().run()) if sending else None
        try:
            yield relay
        finally:
            if runner is not None:
                runner.cancel()
                with suppress(asyncio.CancelledError):
                    await runner


def policy(url: str, count: int = 3) -> Upstream:
    limits = (Limit(count=count, seconds=1.0),)
    return Upstream(base_url=url, limits=limits, forward_user=True, timeout_seconds=2, delivery_seconds=0.2)


def order(method: str = "POST") -> Order:
    return Order(method, "/x", "", [("x-user-id", "u1")], b"b", "u1", 1, 60_000)


async def ended(relay: Relay, ids: list[str]) -> bool:
    states = [(await relay.jobs.get(id)).state for id in ids]
    return all(state not in (JobState.WAITING, JobState.SENDING) for state in states)


@pytest.mark.topology("standalone", "redis")
async def test_jobs_survive_a_crash_of_the_store(fresh_server: Fresh, prefix: str) -> None:
    server = cast("Standalone", fresh_server())
    server.node.command("CONFIG", "SET", "appendfsync", "always")
    async with (
        StrictUpstream(lambda: SlidingLog(3, 1.0, strict=True)).open() as upstream,
        relay_on(server.url, prefix, sending=True) as relay,
    ):
        await relay.upstreams.put("a", policy(upstream.url))
        ids = [await relay.jobs.submit("a", order()) for _ in range(9)]
        await eventually(lambda: upstream.seen(3))
        await server.node.restart()

        async def all_ended() -> bool:
            return await ended(relay, ids)

        await eventually(all_ended, 40, every=0.2)
        assert upstream.refused == 0
        states = [(await relay.jobs.get(id)).state for id in ids]
        assert states.count(JobState.DONE) >= 6
        assert set(states) <= {JobState.DONE, JobState.UNKNOWN}
        assert upstream.count <= 9


async def test_job_that_ended_several_relays_is_parked(server: Topology, prefix: str) -> None:
    async with relay_on(server.url, prefix, sending=False) as dying:
        await dying.upstreams.put("a", policy("http://127.0.0.1:1"))
        id = await dying.jobs.submit("a", order("GET"))
        for number in range(3):
            assert await dying.jobs.take(id, f"relay-{number}") is not None
            assert await dying.jobs.mark_sending(id, f"relay-{number}", f"attempt-{number}") == number + 1
        with pytest.raises(JobTaken):
            await dying.jobs.mark_sending(id, "relay-0", "too late")
    async with relay_on(server.url, prefix, sending=True) as relay:

        async def parked() -> bool:
            return await ended(relay, [id])

        await eventually(parked, 20, every=0.1)
        view = await relay.jobs.get(id)
        assert view.state is JobState.FAILED
        assert "parked" in (view.reason or "")
        assert [job.id for job in await relay.jobs.list("a", JobState.FAILED)] == [id]


async def test_jobs_of_a_removed_upstream_end(server: Topology, prefix: str) -> None:
    async with relay_on(server.url, prefix, sending=False) as relay:
        await relay.upstreams.put("a", policy("http://127.0.0.1:1"))
        id = await relay.jobs.submit("a", order())
        await relay.upstreams.remove("a")
        assert not await RelaySweep(relay.store, relay.upstreams, relay.jobs).visit("a")
        view = await relay.jobs.get(id)
        assert (view.state, view.reason) == (JobState.FAILED, "its upstream was taken out of service")


async def test_results_are_forgotten_after_a_while(server: Topology, prefix: str) -> None:
    async with relay_on(server.url, prefix, sending=False) as relay:
        await relay.upstreams.put("a", policy("http://127.0.0.1:1"))
        id = await relay.jobs.submit("a", order())
        assert await relay.jobs.cancel(id) is JobState.CANCELLED
        relay.store.advance_clock(3_700_000)
        await relay.jobs.sweep("a")
        assert await relay.jobs.list("a") == []


async def test_job_that_ends_does_not_use_up_the_hold(server: Topology, prefix: str) -> None:
    """The first caller to notice that the clock stepped, or that history was lost, holds for all."""
    async with relay_on(server.url, prefix, sending=False) as relay:
        await relay.upstreams.put("a", policy("http://127.0.0.1:1"))
        id = await relay.jobs.submit("a", order())
        relay.store.step_clock(3_600_000)
        await relay.jobs.cancel(id)
        figures, _, _ = await relay.upstreams.figures("a", "u1")
        assert (figures.room, figures.held_ms > 500) == (0, True)
