"""An instance whose registration was answered to nobody: it is not superseded by itself, and leaves no ghost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.registry.model import Record, Registered
from headgate.registry.problems import Evicted, Superseded
from headgate.sdk import Headgate
from headgate.sdk.heartbeats import OwnInstance
from headgate.sdk.seat_registration import SeatRegistration
from headgate.waiting_room.policy import PolicyChange
from tests.http.two_modes import Make
from tests.topology import eventually

pytestmark = pytest.mark.anyio
Meanwhile = Callable[[], Awaitable[object]]


async def nothing() -> None:
    """Nothing happens meanwhile."""


class Loss:
    """Loses the answer of the client's next registration: sent or not, nobody hears how it ended."""

    def __init__(self, hg: Headgate, meanwhile: Meanwhile = nothing, *, sent: bool = True) -> None:
        mode = hg.registry._backend
        self.happened = asyncio.Event()
        self._register: Callable[..., Awaitable[Registered]] = mode.register
        self._meanwhile, self._sent, self._due = meanwhile, sent, True
        mode.register = self._lossy  # type: ignore[assignment,method-assign]

    async def _lossy(self, *given: Any) -> Registered:
        if not self._due:
            return await self._register(*given)
        self._due = False
        if self._sent:
            await self._register(*given)
        await self._meanwhile()
        self.happened.set()
        raise StoreUnavailable


@pytest.fixture
async def other(make: Make) -> AsyncIterator[Headgate]:
    """Another process."""
    async with make() as client:
        yield client


async def present(hg: Headgate) -> OwnInstance:
    """Register an instance that beats."""
    await hg.registry.register(type="game", group="g", instance_id="a", hostname="old")
    hg.registry.start_auto_heartbeat("a")
    own = hg.registry._heartbeats.find("a")
    assert own is not None
    return own


async def numbers(other: Headgate) -> list[int]:
    return [each.registration for each in await other.registry.discover("game", "g")]


async def goes_on(hg: Headgate, other: Headgate, own: OwnInstance) -> None:
    """Wait until both sides agree on its number; then beats keep arriving."""

    async def agreed() -> bool:
        return await numbers(other) == [own.registration] and own.nonce is None

    await eventually(agreed)
    await hg.registry.heartbeat("a", metadata={"heard": True})
    assert not own.superseded
    assert not hg.registry._heartbeats._beating["a"].done()


async def test_an_instance_whose_return_was_answered_to_nobody_is_not_superseded_by_itself(
    hg: Headgate, other: Headgate
) -> None:
    own = await present(hg)
    loss = Loss(hg)
    await other.registry.remove("a", "game", "g")
    await loss.happened.wait()
    await goes_on(hg, other, own)


async def test_an_instance_whose_return_never_arrived_comes_back(hg: Headgate, other: Headgate) -> None:
    own = await present(hg)
    loss = Loss(hg, sent=False)
    await other.registry.remove("a", "game", "g")
    await loss.happened.wait()
    await goes_on(hg, other, own)


@pytest.mark.parametrize("sent", [True, False])
async def test_whoever_registers_after_a_return_that_nobody_answered_has_the_id(
    hg: Headgate, other: Headgate, sent: bool
) -> None:
    own = await present(hg)

    async def taken_over() -> None:
        await other.registry.register(type="game", group="g", instance_id="a", hostname="new")

    Loss(hg, taken_over, sent=sent)
    await other.registry.remove("a", "game", "g")
    await eventually(lambda: own.superseded)
    (found,) = await other.registry.discover("game", "g")
    assert found.hostname == "new"
    await other.registry.heartbeat("a")  # it is not superseded itself
    with pytest.raises(Superseded):
        await hg.registry.remove("a")
    assert await numbers(other) == [found.registration]


async def test_beats_stopped_and_started_again_during_a_return_go_on(hg: Headgate, other: Headgate) -> None:
    own = await present(hg)
    mode = hg.registry._backend
    register, written, answer = mode.register, asyncio.Event(), asyncio.Event()

    async def late(*given: Any) -> Registered:
        made = await register(*given)
        written.set()
        await answer.wait()
        return made

    mode.register = late  # type: ignore[assignment,method-assign]
    await other.registry.remove("a", "game", "g")
    await written.wait()
    await hg.registry.stop_auto_heartbeat("a")
    hg.registry.start_auto_heartbeat("a")
    beating = asyncio.ensure_future(hg.registry.heartbeat("a"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not beating.done(), "it waits for its number"
    answer.set()
    await beating
    await goes_on(hg, other, own)


async def test_a_beat_that_was_overtaken_by_its_own_return_is_sent_again(hg: Headgate, other: Headgate) -> None:
    own = await present(hg)
    mode = hg.registry._backend
    heartbeat, overtaken = mode.heartbeat, False

    async def late(*given: Any) -> int:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            await hg.registry.register(type="game", group="g", instance_id="a", hostname="again")
        return await heartbeat(*given)

    mode.heartbeat = late  # type: ignore[assignment,method-assign]
    await hg.registry.heartbeat("a", metadata={"sent": "twice"})
    await goes_on(hg, other, own)
    (found,) = await other.registry.discover("game", "g")
    assert found.hostname == "again"


async def test_a_second_registration_that_nobody_answered_harms_no_beat(hg: Headgate, other: Headgate) -> None:
    own = await present(hg)
    Loss(hg)
    with pytest.raises(StoreUnavailable):
        await hg.registry.register(type="game", group="g", instance_id="a", hostname="again")
    assert (await hg.registry.batch_heartbeat(["a"])).renewed == 1
    await goes_on(hg, other, own)


async def test_whoever_leaves_after_a_return_that_nobody_answered_is_gone(hg: Headgate, other: Headgate) -> None:
    await present(hg)
    loss = Loss(hg)
    await other.registry.remove("a", "game", "g")
    await loss.happened.wait()
    await hg.registry.stop_auto_heartbeat("a")
    assert len(await numbers(other)) == 1
    await hg.registry.remove("a")
    assert await numbers(other) == []


async def test_a_server_whose_return_was_answered_to_nobody_goes_on_with_the_beat_of_its_seats(
    hg: Headgate, other: Headgate
) -> None:
    await other.queues.configure("q", PolicyChange())
    offer = hg.queue.offer_seats(capacity=5, address="ws://here", queue="q", instance_id="a")
    offer.registration = SeatRegistration(hg.registry, Record(hostname="h", type="game", group="g"))
    async with offer:
        loss = Loss(hg)
        await other.registry.remove("a", "game", "g")
        with suppress(StoreUnavailable):
            await offer.beat()
        await loss.happened.wait()
        (number,) = await numbers(other)
        await offer.beat()
        assert await numbers(other) == [number]
    assert await numbers(other) == []


async def test_a_server_that_was_lost_does_not_take_its_id_back_from_a_later_one(hg: Headgate, other: Headgate) -> None:
    await other.queues.configure("q", PolicyChange())
    offer = hg.queue.offer_seats(capacity=5, address="ws://here", queue="q", instance_id="a")
    offer.registration = SeatRegistration(hg.registry, Record(hostname="h", type="game", group="g"))
    async with offer:

        async def taken_over() -> None:
            await other.registry.register(type="game", group="g", instance_id="a", hostname="new")

        Loss(hg, taken_over)
        await other.registry.remove("a", "game", "g")
        with suppress(StoreUnavailable, Superseded):
            await offer.registration.beat(offer)
        with pytest.raises(Superseded):
            await offer.registration.beat(offer)
        (found,) = await other.registry.discover("game", "g")
        assert found.hostname == "new"


async def test_whoever_is_evicted_during_a_return_that_nobody_answered_is_told_so(
    hg: Headgate, other: Headgate
) -> None:
    await present(hg)
    loss = Loss(hg, lambda: other.registry.evict("game", "g", "a", 60))
    await other.registry.remove("a", "game", "g")
    await loss.happened.wait()
    await hg.registry.stop_auto_heartbeat("a")
    with suppress(StoreUnavailable, Evicted):
        await hg.registry.heartbeat("a")
    with pytest.raises(Evicted):
        await hg.registry.come_back("a")
    assert await numbers(other) == []
