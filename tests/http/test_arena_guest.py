"""An arena that has no store of its own and speaks to a gateway."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest

from headgate.store import StoreSettings, open_store
from headgate.waiting_room import State
from tests.faults.arena_process import ArenaProcess
from tests.http.arena_world import open_world, visiting
from tests.processes import GatewayProcess
from tests.topology import Topology

pytestmark = pytest.mark.topology("standalone")


async def test_an_arena_offers_its_seats_through_a_gateway(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    gateway = fresh_gateway(server.url)
    async with open_store(StoreSettings(url=server.url, prefix=gateway.prefix)) as store, open_world(store) as world:
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
