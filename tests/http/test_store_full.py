"""Responses of a gateway whose store is out of memory."""

from __future__ import annotations

import asyncio
import time
from secrets import token_hex

import pytest

from headgate.kit.problems import StoreFull
from headgate.relay.model import Limit, Upstream
from headgate.sdk import Headgate, JobState
from tests.http.echo import Echo
from tests.http.relays import RelayProcess, client_of
from tests.processes import Gateway
from tests.store.full import full
from tests.topology import Topology, eventually

pytestmark = pytest.mark.anyio


async def test_an_entry_is_507_store_full_and_whoever_is_there_can_leave(gateway: Gateway, server: Topology) -> None:
    http = gateway.client
    assert (await http.put("/api/admin/queues/full", json={"seats": "fixed", "capacity": 0})).is_success
    entry = (await http.post("/api/queue/entry", json={"nickname": "a", "queue": "full"})).json()
    who = {"queue": "full", "userId": entry["userId"]}
    with full(server):
        refused = await http.post("/api/queue/entry", json={"nickname": "b", "queue": "full"})
        assert (refused.status_code, refused.json()["code"]) == (507, "store_full")
        assert refused.headers["retry-after"] == "5"
        async with Headgate(gateway.url, token=gateway.process.token) as hg:
            with pytest.raises(StoreFull):
                await hg.queue.entry("c", queue="full")
        assert (await http.get("/api/queue/status", params=who)).json()["status"] == "WAITING"
        assert (await http.delete("/api/queue/entry", params=who)).status_code == 204
        for lever in ("pause", "resume", "drain", "reset"):
            assert (await http.post(f"/api/admin/queues/full/{lever}")).is_success, lever
        assert (await http.delete("/api/admin/queues/full")).is_success
        problems = (await http.get("/openapi.json")).json()["paths"]["/api/queue/entry"]["post"]["responses"]
        assert "507" in problems


async def test_a_relay_refuses_new_requests_and_jobs_at_once_and_serves_those_in_line(server: Topology) -> None:
    name = f"up-{token_hex(4)}"
    user = {"X-User-Id": "u1"}
    with RelayProcess(server.url) as relay:
        async with Echo().open() as echo, client_of(relay) as http, Headgate(relay.url, token=relay.token) as hg:
            policy = {"baseUrl": echo.url, "limits": [{"count": 1, "seconds": 1}], "deliverySeconds": 0.2}
            assert (await http.put(f"/api/admin/upstreams/{name}", json=policy)).is_success

            async def waiting() -> bool:
                return (await hg.relay.status(name)).waiting >= 3

            async with asyncio.TaskGroup() as tasks:
                job = await hg.relay.submit("GET", name, "/job", user="u1")
                in_line = [tasks.create_task(http.get(f"/relay/{name}/x", headers=user)) for _ in range(4)]
                await eventually(waiting, 10)
                with full(server):
                    for more in ({}, {"Prefer": "respond-async"}):
                        began = time.monotonic()
                        refused = await http.get(f"/relay/{name}/x", headers={"X-User-Id": "u2"} | more)
                        assert (refused.status_code, refused.json()["code"]) == (507, "store_full")
                        assert refused.headers["retry-after"] == "5"
                        assert time.monotonic() - began < 5, "it is told at once, not at its deadline"
                    await asyncio.wait(in_line, timeout=20)
                    assert [task.result().status_code for task in in_line] == [200] * 4
                    assert (await hg.relay.wait_for(job)).state is JobState.DONE


@pytest.mark.parametrize("mode", ["store", "http"])
async def test_permits_requests_and_jobs_of_the_sdk_raise_store_full_at_once(
    gateway: Gateway, server: Topology, mode: str
) -> None:
    name = f"up-{token_hex(4)}"
    prefix = gateway.process.prefix
    client = Headgate(server.url, prefix=prefix) if mode == "store" else Headgate(gateway.url, token=gateway.token)
    async with client as hg:
        await hg.relay.put_upstream(name, Upstream("http://127.0.0.1:9", (Limit(count=9, seconds=1.0),)))
        with full(server):
            began = time.monotonic()
            with pytest.raises(StoreFull):
                async with hg.relay.permit(name, "u1"):
                    pass
            with pytest.raises(StoreFull):
                await hg.relay.submit("GET", name, "/x", user="u1")
            with pytest.raises(StoreFull):
                await hg.relay.request("GET", name, "/x", user="u1")
            assert time.monotonic() - began < 10
