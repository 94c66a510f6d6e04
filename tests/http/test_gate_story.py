"""A rush from beginning to end with a gateway and a worker: on, in order, off again; inflow turned to nothing; a reset; hostile names."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx2
import pytest

from tests.faults.worker_process import WorkerProcess
from tests.processes import PATIENT, GatewayProcess
from tests.topology import Stopwatch, Topology, eventually


@dataclass(frozen=True)
class World:
    """A gateway with a worker, and a client that may do everything."""

    gateway: GatewayProcess
    client: httpx2.AsyncClient

    async def check(self, resource: str, user: str) -> str:
        answer = await self.client.get("/api/gate/check", params={"resource": resource, "userId": user})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["decision"])

    async def configure(self, queue: str, **policy: object) -> None:
        answer = await self.client.put(f"/api/admin/queues/{queue}", json=policy)
        assert answer.status_code in (200, 201), answer.text

    async def view(self, queue: str) -> dict[str, int]:
        found: dict[str, int] = (await self.client.get(f"/api/admin/queues/{queue}")).json()
        return found

    async def enter(self, queue: str, nickname: str) -> httpx2.Response:
        return await self.client.post("/api/queue/entry", json={"queue": queue, "nickname": nickname})

    async def status(self, queue: str, user: str) -> httpx2.Response:
        return await self.client.get("/api/queue/status", params={"queue": queue, "userId": user})


@pytest.fixture(scope="module")
def processes(server: Topology) -> Iterator[GatewayProcess]:
    with GatewayProcess(server.url, environment=PATIENT) as gateway, WorkerProcess(server.url, gateway.prefix):
        yield gateway


@pytest.fixture
async def world(processes: GatewayProcess) -> AsyncIterator[World]:
    headers = {"X-API-Token": processes.token}
    async with httpx2.AsyncClient(base_url=processes.url, headers=headers, timeout=30) as client:
        yield World(processes, client)


async def test_when_traffic_falls_the_line_drains_in_order_and_the_queue_switches_off(world: World) -> None:
    stem = f"p{secrets.token_hex(4)}"
    product = f"{stem}-7"
    auto = {"resource": f"{stem}-*", "threshold": 20, "windowSeconds": 1, "cooldownSeconds": 1}
    await world.configure(stem, auto=auto, ratePerSecond=0)

    async def is_on() -> bool:
        await asyncio.gather(*(world.check(product, f"rush-{number}") for number in range(30)))
        return (await world.client.get(f"/api/admin/queues/{product}")).status_code == 200

    await eventually(is_on, 15, "the queue is on")
    people = [f"late-{number}" for number in range(5)]
    for person in people:
        assert await world.check(product, person) == "wait"
    # Only those five shall be left, so that the order in which they are called can be told.
    await asyncio.gather(
        *(
            world.client.delete("/api/queue/entry", params={"queue": product, "userId": f"rush-{number}"})
            for number in range(30)
        )
    )
    await world.configure(product, ratePerSecond=2, burst=1)
    called: list[str] = []

    async def all_called() -> bool:
        # From the end: whoever was called before one that we find called is found too, however long asking takes.
        found = [
            person
            for person in reversed(people)
            if person not in called and (await world.status(product, person)).json()["status"] == "PROMOTED"
        ]
        for person in reversed(found):
            called.append(person)
            assert await world.check(product, person) == "pass"
        return len(called) == len(people)

    await eventually(all_called, 20, "everybody was called", every=0.3)
    assert called == people

    async def is_off() -> bool:
        answer = await world.client.get("/api/gate/check", params={"resource": product, "userId": "new"})
        return bool(answer.json()["reason"] == "off")

    async def is_gone() -> bool:
        return (await world.client.get(f"/api/admin/queues/{product}")).status_code == 404

    await eventually(is_off, 20, "the queue has switched off", every=0.5)  # asking is traffic too
    # Who was called last may have passed without the ticket; it is honoured for its minute, and then the queue is gone.
    await eventually(is_gone, 80, "the queue is gone", every=0.2)


async def test_inflow_turned_to_nothing_stops_admission_within_a_second(world: World) -> None:
    queue = f"q{secrets.token_hex(4)}"
    await world.configure(queue, capacity=100_000, ratePerSecond=0, tickMs=100)
    await asyncio.gather(*(world.enter(queue, f"n{number}") for number in range(200)))
    await world.configure(queue, ratePerSecond=20)

    async def flows() -> bool:
        return (await world.view(queue))["admittedTotal"] >= 10

    await eventually(flows, 15, "people are called")
    await world.configure(queue, ratePerSecond=0)
    watch = Stopwatch()
    await eventually(lambda: watch.seconds >= 1)
    then = await world.view(queue)
    assert then["waiting"] > 0
    await asyncio.sleep(2)
    assert (await world.view(queue))["admittedTotal"] == then["admittedTotal"]


async def test_a_reset_refuses_old_passes_and_tickets_and_tells_those_who_wait(world: World) -> None:
    queue = f"q{secrets.token_hex(4)}"
    await world.configure(queue, capacity=2, paths=[f"/{queue}/**"])
    async with httpx2.AsyncClient(base_url=world.gateway.url) as visitor:

        async def ask() -> int:
            return (await visitor.get("/gate/nginx", headers={"X-Original-URI": f"/{queue}/a"})).status_code

        async def is_inside() -> bool:
            return await ask() == 200 and bool(visitor.cookies)

        await eventually(is_inside, 10, "the visitor is inside")
        called = (await world.enter(queue, "called")).json()

        tickets: list[str] = []

        async def has_ticket() -> bool:
            status = (await world.status(queue, called["userId"])).json()
            tickets.extend([status["ticketId"]] if "ticketId" in status else [])
            return bool(tickets)

        # One user may ask twenty times at once, then twice a second.
        await eventually(has_ticket, 10, "the next one has a ticket", every=0.5)
        ticket = tickets[0]
        waiting = (await world.enter(queue, "waiting")).json()
        assert waiting["status"] == "WAITING"
        watched = world.client.stream("GET", "/api/queue/stream", params={"queue": queue, "userId": waiting["userId"]})
        async with asyncio.timeout(15), watched as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "event: status"
            await world.configure(queue, capacity=0)
            reset = await world.client.post(f"/api/admin/queues/{queue}/reset")
            assert reset.status_code in (200, 204)
            told = ""
            async for line in lines:
                told += line
                if "queue_reset" in told or "RESET" in told:
                    break
            else:
                pytest.fail(f"the stream ended without saying why: {told}")
        assert (await world.status(queue, waiting["userId"])).json()["code"] in ("queue_reset", "not_in_line")
        redeemed = await world.client.post(
            f"/api/queue/tickets/{ticket}/redeem", json={"queue": queue, "sessionId": "s1"}
        )
        assert redeemed.status_code >= 400
        assert redeemed.json()["code"] in ("ticket_invalid", "queue_reset")

        async def is_refused() -> bool:
            return await ask() == 401

        await eventually(is_refused, 2, "the old pass is refused")


@pytest.mark.parametrize(
    "nickname", ["x" * 10_000, "abc\u202egnp", "\u2066hidden\u2069", "a\x00b", "line\nbreak", ""], ids=ascii
)
async def test_a_name_that_would_deceive_or_flood_is_refused(world: World, nickname: str) -> None:
    queue = f"q{secrets.token_hex(4)}"
    await world.configure(queue, capacity=0)
    refused = await world.enter(queue, nickname)
    assert refused.status_code == 422
    assert refused.json()["code"] == "invalid_request"
    assert (await world.view(queue))["waiting"] == 0
    message = await world.client.put(f"/api/admin/queues/{queue}", json={"message": nickname or "x" * 501})
    assert message.status_code == 422
