"""An arena that has no store of its own and speaks to a gateway."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest

from headgate.store import StoreSettings, open_store
from headgate.waiting_room.model import State
from tests.faults.arena_process import ArenaProcess
from tests.http.arena_world import open_world, visiting
from tests.processes import GatewayProcess
from tests.topology import FaultyProxy, Topology

pytestmark = pytest.mark.topology("standalone")


async def test_an_arena_offers_its_seats_through_a_gateway(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    gateway = fresh_gateway(server.url)
    async with (
        open_store(StoreSettings(url=server.url, prefix=gateway.prefix, deadline_ms=10_000)) as store,
        open_world(store) as world,
    ):
        with ArenaProcess(gateway.url, token=gateway.token) as arena:
            ryan, muzi = await world.promoted("Ryan"), await world.promoted("Muzi")
            async with visiting(arena.url, str(ryan.ticket_id)) as first:
                # The signed form, by the gateway's own key, which the arena fetches from it.
                async with httpx2.AsyncClient(base_url=gateway.url) as client:
                    status = (await client.get("/api/queue/status", params={"userId": muzi.user_id})).json()
                async with visiting(arena.url, status["ticket"]) as second:
                    assert "Muzi" in (await first.next())["payload"]["message"]
                    assert await second.count() == 2
                await world.status_until(muzi.user_id, State.FINISHED)


async def test_whoever_is_called_by_the_first_heartbeat_may_come_before_its_answer(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    gateway = fresh_gateway(server.url)
    async with (
        open_store(StoreSettings(url=server.url, prefix=gateway.prefix, deadline_ms=10_000)) as store,
        open_world(store) as world,
        FaultyProxy(gateway.port) as far,
    ):
        far.delay(0.5)
        with ArenaProcess(f"http://127.0.0.1:{far.port}", token=gateway.token) as arena:
            ryan = await world.promoted("Ryan")
            async with visiting(arena.url, str(ryan.ticket_id)) as guest:
                assert await guest.count() == 1
