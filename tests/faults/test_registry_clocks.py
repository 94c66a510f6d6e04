"""Clients whose clocks are ten minutes off: nobody dies of it, and nobody lives for ever."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper
from headgate.store import StoreSettings, open_store
from tests.faults.registry_world import Process
from tests.topology import FakeClock, Topology, eventually

pytestmark = pytest.mark.topology("standalone")
TTL, INTERVAL_MS = 3.0, 500
OFF = {"early": -600, "late": 600, "right": 0}


async def test_clients_with_clocks_ten_minutes_off_live_and_die_like_the_others(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        registry = Registry(store, RegistrySettings(protect_share=1.0))
        sweeper, thing = Sweeper(registry), registry.service("default", "game", "g")
        with ExitStack() as stack:
            clients = {}
            for name, seconds in OFF.items():
                clock = FakeClock()
                clock._seconds = seconds
                clock._write()
                command = ["tests.faults.registry_client", server.url, prefix, name, str(TTL), str(INTERVAL_MS)]
                clients[name] = Process("client", command, clock.environment)
                stack.callback(clients[name].end)

            async def names() -> set[str]:
                await sweeper.sweep(thing)
                return {each.instance_id for each in (await registry.discover("default", "game", "g")).instances}

            async def are(wanted: set[str]) -> bool:
                return await names() == wanted

            await eventually(lambda: are(set(OFF)), 30, "all are there")
            start = (await registry.discover("default", "game", "g")).revision
            end = store._loop.time() + 2 * TTL

            async def lived_on() -> bool:
                assert await names() == set(OFF)
                return store._loop.time() >= end

            await eventually(lived_on, 4 * TTL)
            assert (await registry.feed.read(thing, start)).changes == [], "no wrong death"
            for client in clients.values():
                client.kill()
            await eventually(lambda: are(set()), TTL + 3, "all are gone at their time")

            async def told() -> bool:
                """A read hides the dead at once; their events come with the next sweep."""
                await sweeper.sweep(thing)
                return len((await registry.feed.read(thing, start)).changes) >= len(OFF)

            await eventually(told, 5, "an event for each")
            await sweeper.sweep(thing)
            changes = (await registry.feed.read(thing, start)).changes
            assert sorted(change.member for change in changes) == sorted(OFF), "one event each"
