"""`hg.relay` beside the store: what it holds it gives back, however late an answer comes and whenever it closes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate.kit.problems import DeadlineExceeded
from headgate.relay.model import SEND_MS, Kind, Limit
from headgate.relay.permits import Permit, Permits
from headgate.relay.relay import Relay as Feature
from headgate.sdk.relay import StoreRelay
from headgate.store import Store
from tests.store.relay_world import window
from tests.topology import eventually


@pytest.fixture
async def relay(store: Store) -> AsyncIterator[StoreRelay]:
    """A client's relay, which its test may close earlier."""
    made = StoreRelay(Feature(store))
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
async def test_a_permit_that_came_too_late_is_given_back_and_asked_for_again(relay: StoreRelay) -> None:
    await relay.put_upstream("a", window(1, 1.0, limits=(Limit(kind=Kind.CONCURRENT, count=1),), timeout_seconds=300))
    async with relay.permit("a", "u1", wait=60):
        assert (await relay.status("a")).in_flight == 1
    await eventually(lambda: _nothing_in_flight(relay))


@pytest.mark.usefixtures("late")
async def test_a_permit_that_came_after_the_deadline_is_given_back(relay: StoreRelay) -> None:
    await relay.put_upstream("a", window(1, 1.0, limits=(Limit(kind=Kind.CONCURRENT, count=1),), timeout_seconds=300))
    with pytest.raises(DeadlineExceeded):
        async with relay.permit("a", "u1", wait=SEND_MS / 1000):
            raise AssertionError("it may not begin")
    await eventually(lambda: _nothing_in_flight(relay))


async def _nothing_in_flight(relay: StoreRelay) -> bool:
    return (await relay.status("a")).in_flight == 0
