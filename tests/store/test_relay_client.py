"""`hg.relay` beside the store: what it holds it gives back, however late an answer comes and whenever it closes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headgate.kit.problems import Closed, DeadlineExceeded
from headgate.relay import relay as relay_module
from headgate.relay.model import SEND_MS, Kind, Limit
from headgate.relay.permits import Permit, Permits
from headgate.relay.upstreams import Upstreams
from headgate.sdk.backends.relay import StoreRelayBackend
from headgate.sdk.relay import Relay
from headgate.store import Store
from tests.store.relay_world import Patient, window
from tests.topology import eventually


@pytest.fixture
async def relay(store: Store) -> AsyncIterator[Relay]:
    """A client's relay, which its test may close earlier."""
    await Upstreams(store).note_new_store()
    made = Relay(StoreRelayBackend(store))
    yield made
    await made.close()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first permit comes when it is too late to use it."""
    acquire, late = Permits.acquire, True

    async def paused(self: Permits, *given: Any, **options: Any) -> Permit:
        nonlocal late
        permit = await acquire(self, *given, **options)
        if late:
            late = False
            time.sleep(SEND_MS / 1000 + 0.05)  # as SIGSTOP would: nothing here runs
        return permit

    monkeypatch.setattr(Permits, "acquire", paused)


@pytest.mark.usefixtures("late")
async def test_a_permit_that_came_too_late_is_given_back_and_asked_for_again(relay: Relay) -> None:
    await relay.put_upstream("a", window(1, 1.0, limits=(Limit(kind=Kind.CONCURRENT, count=1),), timeout_seconds=300))
    async with relay.permit("a", "u1", wait=60):
        assert (await relay.status("a")).in_flight == 1
    await eventually(lambda: _nothing_in_flight(relay))


@pytest.mark.usefixtures("late")
async def test_a_permit_that_came_after_the_deadline_is_given_back(relay: Relay) -> None:
    await relay.put_upstream("a", window(1, 1.0, limits=(Limit(kind=Kind.CONCURRENT, count=1),), timeout_seconds=300))
    with pytest.raises(DeadlineExceeded):
        async with relay.permit("a", "u1", wait=SEND_MS / 1000):
            raise AssertionError("it may not begin")
    await eventually(lambda: _nothing_in_flight(relay))


async def test_connections_of_an_old_policy_end_with_their_requests(relay: Relay) -> None:
    async with Patient().open() as upstream:
        policy = window(10, 1.0, base_url=upstream.url, timeout_seconds=300)
        await relay.put_upstream("a", policy)
        old = asyncio.create_task(relay.request("GET", "a", "/x", user="u1"))
        await eventually(lambda: upstream.arrived == 1)
        await relay.put_upstream("a", msgspec.structs.replace(policy, max_connections=policy.max_connections + 1))
        new = asyncio.create_task(relay.request("GET", "a", "/x", user="u1"))
        await eventually(lambda: upstream.arrived == 2)
        assert len(upstream.connections) == 2
        upstream.answer.set()
        assert [answer.status for answer in await asyncio.gather(old, new)] == [200, 200]
        await eventually(lambda: len(upstream.connections) == 1)


async def test_a_client_that_closes_lets_its_requests_end_and_tells_of_them(relay: Relay, store: Store) -> None:
    async with Patient().open() as upstream:
        await relay.put_upstream("a", window(10, 100.0, base_url=upstream.url, timeout_seconds=300))
        requests = [asyncio.create_task(relay.request("GET", "a", "/x", user="u1")) for _ in range(3)]
        await eventually(lambda: upstream.arrived == 3)
        closing = asyncio.create_task(relay.close())
        for _ in range(100):  # beats of the loop: it is in no hurry
            await asyncio.sleep(0)
        assert not closing.done()
        with pytest.raises(Closed):
            await relay.request("GET", "a", "/x", user="u1")
        upstream.answer.set()
        await closing
        assert [request.result().status for request in requests] == [200] * 3
        figures, _, _ = await Upstreams(store).figures("a", "u1")
        assert (figures.in_flight, figures.cooling) == (0, 3)
        await eventually(lambda: not upstream.connections)


async def test_connections_of_requests_that_outlive_their_client_end_with_them(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "REQUEST_SECONDS", 0.05)
    async with Patient().open() as upstream:
        await relay.put_upstream("a", window(10, 1.0, base_url=upstream.url, timeout_seconds=300))
        request = asyncio.create_task(relay.request("GET", "a", "/x", user="u1"))
        await eventually(lambda: upstream.arrived == 1)
        await relay.close()
        upstream.answer.set()
        assert (await request).status == 200
        await eventually(lambda: not upstream.connections)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_block_that_outlives_its_client_is_told_unless_it_has_more_to_say(
    relay: Relay, store: Store, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    await relay.put_upstream("a", window(1, 1.0, timeout_seconds=300))

    async def closed(*_: object, **__: object) -> None:
        raise Closed

    async def use() -> None:
        async with relay.permit("a", "u1"):
            monkeypatch.setattr(store, "run", closed)
            if fails:
                raise ZeroDivisionError

    async with asyncio.timeout(60):  # and not when its lease of 302 s has ended
        with pytest.raises(ZeroDivisionError if fails else Closed):
            await use()
    monkeypatch.undo()


async def _nothing_in_flight(relay: Relay) -> bool:
    return (await relay.status("a")).in_flight == 0
