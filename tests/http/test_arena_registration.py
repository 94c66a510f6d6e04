"""An arena's seats and its registration come from one heartbeat: they appear, drain and vanish together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate.cli.processes.registration import process_record
from headgate.registry.model import Instance
from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper
from headgate.sdk import offer as offer_module
from headgate.sdk.backends.registry import StoreRegistryBackend
from headgate.sdk.offer import Offer
from headgate.sdk.registry import Registry as RegistryClient
from headgate.sdk.seat_registration import SeatRegistration
from headgate.store import Store
from headgate.waiting_room.model import LEASE_MS
from tests.http.arena_world import World, open_world
from tests.topology import eventually

pytestmark = pytest.mark.anyio
TYPE = "headgate-arena"


class Both:
    """One server as the queue and the registry see it."""

    def __init__(self, store: Store, world: World) -> None:
        self.store, self.world = store, world
        self.client = RegistryClient(StoreRegistryBackend.on(store, "default", 30.0))
        self.registry = Registry(store)

    def offer(self) -> Offer:
        made = self.world.queue.offer_seats(capacity=20, address="ws://arena/gameserver")
        made.registration = SeatRegistration(self.client, process_record("arena", "10.0.0.7", 7000))
        return made

    async def registered(self, offer: Offer) -> Instance | None:
        found = await self.registry.discover("default", TYPE, "default")
        return next((each for each in found.instances if each.instance_id == offer.instance_id), None)

    async def state(self, offer: Offer) -> tuple[str, str]:
        """Give both as words: gone, there, draining."""
        server, instance = await self.world.server(offer), await self.registered(offer)
        seat = "gone" if server is None else "draining" if server.draining else "there"
        entry = "gone" if instance is None else "there" if instance.healthy else "draining"
        return seat, entry

    async def becomes(self, offer: Offer, word: str, seconds: float = 10) -> None:
        async def same() -> bool:
            return await self.state(offer) == (word, word)

        await eventually(same, seconds, f"both are {word}")


@asynccontextmanager
async def both(store: Store) -> AsyncIterator[Both]:
    async with open_world(store) as world:
        made = Both(store, world)
        try:
            yield made
        finally:
            await made.client.stop()


async def test_a_server_is_registered_with_its_seats_and_leaves_with_them(store: Store) -> None:
    async with both(store) as world:
        async with world.offer() as offer:
            assert await world.state(offer) == ("there", "there")
            instance = await world.registered(offer)
            assert instance is not None
            assert instance.metrics == {"seats": 20, "sessions": 0}
            assert instance.metadata["queue"] == "main"
            assert instance.ttl_seconds == LEASE_MS / 1000
            offer.capacity = 7
            offer.sessions.add("s1")
            offer.beat_soon()

            async def told() -> bool:
                instance, server = await world.registered(offer), await world.world.server(offer)
                assert instance is not None
                assert server is not None
                return instance.metrics == {"seats": 7, "sessions": 1} and server.capacity == 7

            await eventually(told)
        assert await world.state(offer) == ("gone", "gone")


async def test_one_timer_drives_both_and_both_are_gone_a_lease_after_it_stops(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_module, "BEAT_SECONDS", 0.1)
    async with both(store) as world:
        before = asyncio.all_tasks()
        async with world.offer() as offer:
            await eventually(lambda: offer._beating is not None)
            own = [task for task in asyncio.all_tasks() - before if "beat" in task.get_name().lower()]
            assert own == [offer._beating]
            assert offer._beating is not None
            offer._beating.cancel()
            store.advance_clock(LEASE_MS - 3000)  # and our own time comes on top
            assert await world.state(offer) == ("there", "there")
            store.advance_clock(LEASE_MS + 100)
            await Sweeper(world.registry).sweep(world.registry.service("default", TYPE, "default"))
            await world.becomes(offer, "gone")
            await offer.beat()
            await world.becomes(offer, "there")


async def test_draining_is_said_in_both(store: Store) -> None:
    async with both(store) as world, world.offer() as offer:
        await offer.drain()
        assert await world.state(offer) == ("draining", "draining")
        await offer.beat()
        assert await world.state(offer) == ("draining", "draining")


async def test_an_operators_drain_of_the_seats_reaches_the_registration(store: Store) -> None:
    async with both(store) as world, world.offer() as offer:
        await world.world.room.remove_server("default", "main", offer.instance_id, drain=True)
        offer.beat_soon()
        await world.becomes(offer, "draining")


async def test_an_operators_eviction_from_the_registry_drains_the_seats(store: Store) -> None:
    async with both(store) as world, world.offer() as offer:
        await world.client.evict(TYPE, "default", offer.instance_id, 60)
        offer.beat_soon()

        async def drained() -> bool:
            return await world.state(offer) == ("draining", "gone")

        await eventually(drained)
        assert offer.draining.is_set()


async def test_a_registration_that_was_lost_comes_back_with_the_next_beat(store: Store) -> None:
    async with both(store) as world, world.offer() as offer:
        await world.registry.remove("default", TYPE, "default", offer.instance_id)
        assert await world.state(offer) == ("there", "gone")
        offer.beat_soon()
        await world.becomes(offer, "there")
