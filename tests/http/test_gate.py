"""The gate over HTTP: the backend's check, revocation, signed bypasses, and traffic that switches a queue on everywhere."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest

from tests.processes import Gateway, GatewayProcess
from tests.topology import Topology, eventually


@pytest.fixture
async def queue(gateway: Gateway) -> AsyncIterator[str]:
    name = f"g{secrets.token_hex(4)}"
    yield name
    await gateway.client.delete(f"/api/admin/queues/{name}")


async def check(client: httpx2.AsyncClient, **query: str) -> dict[str, object]:
    answer = await client.get("/api/gate/check", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_a_check_answered_wait_has_entered_the_visitor(gateway: Gateway, queue: str) -> None:
    await gateway.client.put(f"/api/admin/queues/{queue}", json={"capacity": 0})

    async def waits() -> bool:
        return (await check(gateway.client, resource=queue, userId="ryan"))["decision"] == "wait"

    await eventually(waits, 3)
    answer = await check(gateway.client, resource=queue, userId="ryan")
    assert answer["queue"] == queue
    assert answer["rank"] == 1
    assert str(answer["waitUrl"]).startswith(f"/wait/{queue}?")
    status = await gateway.client.get("/api/queue/status", params={"userId": "ryan", "queue": queue})
    assert status.json()["status"] == "WAITING"


async def test_the_check_needs_a_service_token_and_says_what_is_missing(gateway: Gateway) -> None:
    async with httpx2.AsyncClient(base_url=gateway.url) as anybody:
        assert (await anybody.get("/api/gate/check", params={"resource": "a", "userId": "u"})).status_code == 401
    for query in (
        {"resource": "a"},
        {"userId": "u"},
        {"resource": "{a}", "userId": "u"},
        {"resource": "a", "userId": "a b"},
    ):
        answer = await gateway.client.get("/api/gate/check", params=query)
        assert answer.status_code == 422
        assert answer.json()["code"] == "invalid_request"


async def test_a_revoked_pass_is_refused_within_a_second_and_the_seat_is_free(gateway: Gateway, queue: str) -> None:
    await gateway.client.put(f"/api/admin/queues/{queue}", json={"capacity": 1, "paths": [f"/{queue}/*"]})
    async with httpx2.AsyncClient(base_url=gateway.url) as visitor:

        async def ask() -> httpx2.Response:
            return await visitor.get("/gate/nginx", headers={"X-Original-URI": f"/{queue}/a"})

        async def admitted() -> bool:
            return "set-cookie" in (await ask()).headers

        await eventually(admitted, 3)
        assert (await ask()).status_code == 200
        servers = await gateway.client.get(f"/api/admin/queues/{queue}")
        assert servers.json()["sessions"] == 1
        await gateway.client.post(f"/api/admin/queues/{queue}/pause")
        # Nobody but the visitor knows their id, so the operator finds it in the site's own log; here, in the page.
        page = await visitor.get(f"/wait/{queue}", params={"return": "/x"}, follow_redirects=False)
        assert page.status_code == 302
        user = await who(gateway, visitor)
        await gateway.client.post(f"/api/admin/queues/{queue}/revoke", json={"userId": user})

        async def refused() -> bool:
            return (await ask()).status_code == 401

        await eventually(refused, 2)
        assert (await gateway.client.get(f"/api/admin/queues/{queue}")).json()["sessions"] == 0


async def who(gateway: Gateway, visitor: httpx2.AsyncClient) -> str:
    """Read the visitor's id out of their own cookie, which is signed but not secret to them."""
    payload = next(iter(visitor.cookies.values())).split(".")[1]
    return str(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode().split('"')[1])


async def test_a_signed_header_bypasses_one_queue_for_a_time(gateway: Gateway, queue: str) -> None:
    home = f"/api/admin/queues/{queue}"
    await gateway.client.put(home, json={"capacity": 0, "paths": [f"/{queue}/*"]})
    assert (await gateway.client.post(f"{home}/bypass", json={"forSeconds": 60})).status_code == 422
    await gateway.client.put(home, json={"bypass": {"header": "X-Robot"}})
    signed = (await gateway.client.post(f"{home}/bypass", json={"forSeconds": 60})).json()
    async with httpx2.AsyncClient(base_url=gateway.url) as robot:
        target = {"X-Original-URI": f"/{queue}/a"}

        async def passes() -> bool:
            answer = await robot.get("/gate/nginx", headers={**target, signed["header"]: signed["value"]})
            return answer.status_code == 200 and "set-cookie" not in answer.headers

        await eventually(passes, 3)
        altered = signed["value"][:-2] + ("AA" if not signed["value"].endswith("AA") else "BB")
        assert (await robot.get("/gate/nginx", headers={**target, "X-Robot": altered})).status_code == 401


async def test_traffic_on_one_gateway_switches_the_queue_on_at_every_gateway(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    shared = {"HEADGATE_STORE_PREFIX": f"t{secrets.token_hex(4)}", "HEADGATE_ADMIN_TOKEN": secrets.token_urlsafe(24)}
    first, second = (fresh_gateway(server.url, environment=shared) for _ in range(2))
    headers = {"X-API-Token": shared["HEADGATE_ADMIN_TOKEN"]}
    async with (
        httpx2.AsyncClient(base_url=first.url, headers=headers, timeout=20) as one,
        httpx2.AsyncClient(base_url=second.url, headers=headers, timeout=20) as other,
    ):
        auto = {"resource": "product-*", "threshold": 20, "windowSeconds": 5, "cooldownSeconds": 5}
        await one.put("/api/admin/queues/products", json={"auto": auto, "ratePerSecond": 0})
        await one.put("/api/admin/queues/later", json={"capacity": 1})  # to ask for the other would be traffic

        async def known() -> bool:
            answers = [await check(client, resource="later", userId="probe") for client in (one, other)]
            return all(answer.get("queue") == "later" for answer in answers)

        await eventually(known, 3, "both know of it")
        await asyncio.gather(*(check(one, resource="product-7", userId=f"u{number}") for number in range(30)))

        async def waits() -> bool:
            answers = [
                await check(client, resource="product-7", userId=f"late-{id(client)}") for client in (one, other)
            ]
            return all(answer["decision"] == "wait" for answer in answers)

        await eventually(waits, 2)
        assert (await check(other, resource="product-8", userId="calm"))["decision"] == "pass"


async def test_when_the_store_is_away_each_queue_does_what_its_operator_chose(
    fresh_server: Callable[..., Topology], fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    topology = fresh_server()
    process = fresh_gateway(topology.url)
    async with httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token}, timeout=20) as client:
        for name, mode in (("shut", "closed"), ("lenient", "open")):
            await client.put(f"/api/admin/queues/{name}", json={"capacity": 1, "failMode": mode})

        async def known() -> bool:
            return (await check(client, resource="lenient", userId="probe")).get("queue") == "lenient"

        await eventually(known, 3)
        assert (await check(client, resource="shut", userId="inside"))["decision"] == "pass"
        for node in topology.nodes:
            node.kill()
        assert (await check(client, resource="lenient", userId="new"))["decision"] == "pass"
        refused = await client.get("/api/gate/check", params={"resource": "shut", "userId": "new"})
        assert refused.status_code == 503
        assert refused.json()["code"] == "store_unavailable"
        # Someone inside is not asked for: their pass is good whatever happens to the store.
        assert (await check(client, resource="shut", userId="inside"))["decision"] == "pass"
        async with httpx2.AsyncClient() as anybody:
            metrics = (await anybody.get(f"{process.ops_url}/metrics")).text
        assert 'headgate_gate_fail_mode_total{mode="open",queue="lenient"}' in metrics
        for node in topology.nodes:
            await node.restart()

        async def back() -> bool:
            return (
                await client.get("/api/gate/check", params={"resource": "shut", "userId": "new"})
            ).status_code == 200

        await eventually(back, 10)
