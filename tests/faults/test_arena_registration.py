"""A paused arena: its seats and its registration go together and come back together, each once."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper
from headgate.store import StoreSettings, open_store
from headgate.store.watch.feed import FeedChange
from headgate.waiting_room.model import LEASE_MS
from tests.faults.arena_process import ArenaProcess
from tests.http.arena_world import World, open_world
from tests.topology import Topology, eventually

pytestmark = pytest.mark.topology("standalone")
TYPE = "headgate-arena"


async def known(world: World, registry: Registry, url: str) -> tuple[bool, bool]:
    """Tell whether the queue has its seats, and the registry its address."""
    servers = (await world.room.servers("default", "main")).servers
    listed = (await registry.discover("default", TYPE, "default")).instances
    return any(one.address == url for one in servers), any(one.metadata.get("address") == url for one in listed)


async def test_a_paused_arena_is_gone_from_both_within_its_lease_and_back_in_both_after(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store, open_world(store) as world:
        registry = Registry(store)
        service = registry.service("default", TYPE, "default")
        sweeper = Sweeper(registry)
        address = "ws://127.0.0.1:{}/gameserver"
        with ArenaProcess(server.url, prefix) as arena:
            url = address.format(arena.port)

            async def both(there: bool) -> bool:
                await sweeper.sweep(service)
                return await known(world, registry, url) == (there, there)

            await eventually(lambda: both(True), 20, "seats and registration are there")
            start = (await registry.discover("default", TYPE, "default")).revision
            arena.process.send_signal(signal.SIGSTOP)
            try:
                await eventually(lambda: both(False), LEASE_MS / 1000 + 3, "both are gone within the lease")
            finally:
                arena.process.send_signal(signal.SIGCONT)
            await eventually(lambda: both(True), 10, "both are back")
            changes: list[FeedChange] = (await registry.feed.read(service, start)).changes
            assert [change.kind for change in changes] == ["removed", "put"]
