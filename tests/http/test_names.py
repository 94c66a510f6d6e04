"""Names that cannot stand in an address, or only seem to: refused by every route, and by the client of either mode."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from headgate.kit.problems import InvalidRequest
from headgate.relay.model import Upstream
from headgate.sdk import Headgate
from headgate.waiting_room.policy import PolicyChange
from tests.http.wires import read_answer
from tests.processes import Gateway

DOTS = (".", "..", "%2e", "%2E%2e")


async def raw(gateway: Gateway, method: str, target: str, body: str = "") -> int:
    """Send a request whose target is not put in order first, as clients do; give the answer's status."""
    where = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"{method} {target} HTTP/1.1\r\nHost: test\r\nX-API-Token: {gateway.process.token}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    try:
        status, _, _ = await read_answer(reader)
        return status
    finally:
        writer.close()


@pytest.mark.parametrize("name", DOTS)
@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("PUT", "/api/admin/queues/{}", '{"capacity": 1}'),
        ("POST", "/api/admin/queues/{}/pause", ""),
        ("PUT", "/api/admin/queues/q?namespace={}", '{"capacity": 1}'),
        ("PUT", "/api/admin/upstreams/{}", '{"baseUrl": "http://127.0.0.1:1"}'),
        ("PUT", "/cfg/v1/{}/key", '{"content": "1"}'),
        ("PUT", "/cfg/v1/default/{}", '{"content": "1"}'),
        ("PUT", "/cfg/v1/default/a/{}/b", '{"content": "1"}'),
        ("POST", "/lock/v1/{}/acquire", '{"ttlSeconds": 5}'),
        ("GET", "/sd/v1/instances?type={}", ""),
        ("GET", "/api/queue/status?userId=u&queue={}", ""),
        ("GET", "/gate/nginx?resource={}", ""),
        ("GET", "/gate/forward?resource={}", ""),
        ("GET", "/api/gate/check?userId=u&resource={}", ""),
    ],
)
async def test_dots_are_no_names(gateway: Gateway, method: str, target: str, body: str, name: str) -> None:
    assert await raw(gateway, method, target.format(name), body) == 422


async def test_tokens_and_instances_have_no_dots_for_names(gateway: Gateway) -> None:
    for name in (".", ".."):
        token = await gateway.client.post("/api/admin/tokens", json={"name": name, "role": "read"})
        assert token.status_code == 422
        for record in ({"type": name, "group": "g"}, {"type": "t", "group": name}):
            made = await gateway.client.post("/sd/v1/instances", json={**record, "privateIp": "127.0.0.1", "port": 1})
            assert made.status_code == 422


@pytest.mark.parametrize(
    "target",
    [
        "/gate/nginx?resource=nl-1%0A",
        "/gate/nginx?resource=nl-1&eventType=sale%0A",
        "/gate/nginx?resource=nl-1&namespace=default%0A",
        "/gate/forward?resource=nl-1%0A",
        "/api/queue/status?userId=u%0A",
        "/api/queue/status?userId=u&queue=main%0A",
        "/api/queue/board?queue=main%0A",
    ],
)
async def test_a_name_does_not_end_in_a_newline(gateway: Gateway, target: str) -> None:
    assert await raw(gateway, "GET", target) == 422


async def test_the_document_says_it_as_json_schema_does(gateway: Gateway) -> None:
    document = (await gateway.client.get("/openapi.json")).text
    assert "\\\\Z" not in document
    assert r"^(?!\\.\\.?$)[A-Za-z0-9_.:-]{1,128}$" in document


@pytest.mark.parametrize("name", [".", "..", "a\n"])
async def test_the_client_refuses_them_before_they_are_sent(hg: Headgate, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await hg.queues.configure(name, PolicyChange(capacity=1))
    with pytest.raises(InvalidRequest):
        await hg.config.set(name, "key", "1")
    with pytest.raises(InvalidRequest):
        await hg.config.set("default", name, "1")
    with pytest.raises(InvalidRequest):
        await hg.config.get("default", name)
    with pytest.raises(InvalidRequest):
        await hg.relay.put_upstream(name, Upstream("http://127.0.0.1:1", ()))
    with pytest.raises(InvalidRequest):
        await hg.registry.remove(name)
    with pytest.raises(InvalidRequest):
        await hg.queue.entry("ryan", queue=name)
    with pytest.raises(InvalidRequest):
        async with hg.lock(name):
            pass
