"""Blocks that are cancelled, or fail, while they are entered or left: nothing of theirs stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate.cli.processes import registration
from headgate.kit.problems import Closed, StoreUnavailable
from headgate.registry.model import Record, Registered
from headgate.registry.probes import prober_for
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.sdk import Headgate
from headgate.sdk.seat_registration import SeatRegistration
from headgate.store import Store
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.wire import Beat
from tests.http.two_modes import Make
from tests.store.cancelling import inject
from tests.topology import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def other(make: Make) -> AsyncIterator[Headgate]:
    """Another process, which sees what is left."""
    async with make() as client:
        await client.queues.configure("q", PolicyChange())
        yield client


async def nobody(other: Headgate) -> bool:
    return not await other.registry.discover("game", "g") and not (await other.queue.servers("q")).servers


async def test_a_registered_block_that_is_cancelled_at_any_moment_leaves_no_ghost(
    hg: Headgate, other: Headgate
) -> None:
    async def work() -> None:
        async with hg.registry.registered(hostname="h", type="game", group="g"):
            pass

    assert await inject(work, lambda: eventually(lambda: nobody(other))) >= 2


@pytest.mark.parametrize("name", [None, "srv"])
async def test_an_offer_that_is_cancelled_at_any_moment_leaves_no_seats(
    hg: Headgate, other: Headgate, name: str | None
) -> None:
    async def work() -> None:
        offer = hg.queue.offer_seats(capacity=5, address="ws://here", queue="q", instance_id=name)
        offer.registration = SeatRegistration(hg.registry, Record(hostname="h", type="game", group="g"))
        async with offer:
            pass

    assert await inject(work, lambda: eventually(lambda: nobody(other))) >= 2


async def test_a_client_that_closes_after_a_cancelled_entry_leaves_no_ghost(make: Make, other: Headgate) -> None:
    async def work() -> None:
        async with make() as hg, hg.registry.registered(hostname="h", type="game", group="g"):
            await asyncio.Event().wait()

    for turns in range(0, 60, 3):
        task = asyncio.ensure_future(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert await nobody(other), turns


async def test_a_registration_whose_answer_was_lost_is_taken_out(hg: Headgate, other: Headgate) -> None:
    mode = hg.registry._backend
    register = mode.register

    async def lossy(*given: Any) -> Registered:
        await register(*given)
        raise StoreUnavailable

    mode.register = lossy  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreUnavailable):
        async with hg.registry.registered(hostname="h", type="game", group="g", instance_id="a"):
            raise AssertionError("nobody said that it is registered")
    await eventually(lambda: nobody(other))


async def test_a_lost_registration_is_not_taken_out_in_the_place_of_a_later_one(hg: Headgate, other: Headgate) -> None:
    mode = hg.registry._backend
    register, removed = mode.register, asyncio.Event()
    remove = mode.remove

    async def lossy(*given: Any) -> Registered:
        await register(*given)
        await other.registry.register(type="game", group="g", instance_id="a", hostname="later")
        raise StoreUnavailable

    async def noted(*given: Any) -> None:
        await remove(*given)
        removed.set()

    mode.register, mode.remove = lossy, noted  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreUnavailable):
        await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
    await removed.wait()
    assert [each.hostname for each in await other.registry.discover("game", "g")] == ["later"]


async def test_seats_whose_first_answer_was_lost_are_taken_back(hg: Headgate, other: Headgate) -> None:
    line = hg.queue._backend
    heartbeat = line.heartbeat

    async def lossy(*words: Any, **more: Any) -> Beat:
        await heartbeat(*words, **more)
        raise StoreUnavailable

    line.heartbeat = lossy  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        async with hg.queue.offer_seats(capacity=5, address="ws://here", queue="q"):
            raise AssertionError("nobody said that they are on offer")
    await eventually(lambda: nobody(other))


async def test_seats_of_a_server_that_cannot_be_registered_are_taken_back(hg: Headgate, other: Headgate) -> None:
    await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
    await hg.registry.remove("a")
    offer = hg.queue.offer_seats(capacity=5, address="ws://here", queue="q")
    offer.registration = SeatRegistration(hg.registry, Record(hostname="h", type="not a name", group="g"))
    with pytest.raises(Exception, match="type"):
        async with offer:
            raise AssertionError("it is not registered")
    assert await nobody(other)


async def test_seats_that_are_refused_are_not_waited_for(hg: Headgate) -> None:
    offer = hg.queue.offer_seats(capacity=5, address="ws://here", queue="nobody-knows")
    with pytest.raises(QueueUnknown):
        async with offer:
            raise AssertionError("there is no such queue")
    assert not offer._tasks._tasks, "nothing is tried again"


async def test_a_process_tries_under_one_id_until_it_is_registered_or_its_store_closes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.0)
    registry, tried = Registry(store), list[str]()

    async def away(namespace: str, record: Record, **_: Any) -> Registered:
        tried.append(record.instance_id)
        raise StoreUnavailable if len(tried) < 3 else Closed

    registry.register = away  # type: ignore[method-assign]
    record = registration.process_record("worker", "", None)
    await registration.announce(registry, prober_for(store, RegistrySettings()), record)
    assert len(tried) == 3
    assert len(set(tried)) == 1
