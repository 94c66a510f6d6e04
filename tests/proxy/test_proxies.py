"""The gate behind real proxies: who must wait sees the page, who has a pass sees the site, and no header fools it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import monotonic
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.processes import GatewayProcess
from tests.proxy.site import PROXIES, configure, envoy, guarded, nginx, passes, site
from tests.topology import Topology, eventually


async def test_what_nobody_guards_goes_through_without_a_cookie(visitor: httpx2.AsyncClient) -> None:
    answer = await visitor.get("/about")
    assert (answer.status_code, answer.text) == (200, "page /about")
    assert "set-cookie" not in answer.headers


async def test_wait_then_turn_then_the_very_page_asked_for(
    visitor: httpx2.AsyncClient, admin: httpx2.AsyncClient, queue: str
) -> None:
    await configure(admin, queue, capacity=0)
    asked = f"/{queue}/shoes?size=9&color=red"
    answer = await visitor.get(asked)
    assert answer.status_code == 302
    page = urlsplit(answer.headers["location"])
    assert page.path == f"/wait/{queue}"
    assert parse_qs(page.query)["return"] == [asked]
    assert answer.headers["cache-control"] == "no-store"

    shown = await visitor.get(answer.headers["location"])
    assert shown.status_code == 200
    assert "text/html" in shown.headers["content-type"]
    assert shown.headers["cache-control"] == "no-store"

    await configure(admin, queue, capacity=1)
    assert await passes(visitor, asked) == f"page {asked}"
    # From now on the cookie is the pass, and somebody without it still waits.
    assert (await visitor.get(asked)).status_code == 200
    async with httpx2.AsyncClient(base_url=visitor.base_url, headers={"Accept": "text/html"}) as other:
        assert (await other.get(asked)).status_code == 302


async def test_spelling_and_headers_do_not_fool_the_gate(
    visitor: httpx2.AsyncClient, admin: httpx2.AsyncClient, queue: str
) -> None:
    await configure(admin, queue, capacity=0, bypass={"paths": ["/open/**"], "addresses": ["10.0.0.0/8"]})
    spellings = (
        f"/{queue.upper()}/x",
        f"/%{ord(queue[0]):x}{queue[1:]}/x",
        f"/%25{ord(queue[0]):x}{queue[1:]}/x",
        f"/open/..%2f{queue}/x",
        f"//{queue}//x",
        f"/./{queue};a=b/x",
    )
    for target in spellings:
        # As it stands: a client that tidies addresses up would hide what is tried here.
        url = httpx2.URL(visitor.base_url).copy_with(raw_path=target.encode())
        assert (await visitor.get(url)).status_code == 302, target
    for headers in (
        {"X-Original-URI": "/about"},
        {"X-Forwarded-Uri": "/about"},
        {"X-Forwarded-For": "10.1.2.3"},
        {"X-Headgate-Set-Cookie": "headgate=1"},
        {"Cookie": "headgate=Zm9v.Zm9v.Zm9v"},
    ):
        assert (await visitor.get(f"/{queue}/x", headers=headers)).status_code == 302, headers
    assert (await visitor.get("/_headgate")).status_code != 200 or "page" in (await visitor.get("/_headgate")).text


async def test_the_stream_comes_through_unbuffered(
    visitor: httpx2.AsyncClient, admin: httpx2.AsyncClient, queue: str
) -> None:
    await configure(admin, queue, capacity=0)
    entry = (await visitor.post("/api/queue/entry", json={"nickname": "ryan", "queue": queue})).json()
    async with (
        asyncio.timeout(10),
        visitor.stream("GET", "/api/queue/stream", params={"userId": entry["userId"], "queue": queue}) as stream,
    ):
        lines = stream.aiter_lines()
        assert await anext(lines) == "event: status"
        await configure(admin, queue, capacity=1)
        await admin.post(f"/api/admin/queues/{queue}/admit", json={"count": 1})


@pytest.fixture(scope="module")
def limited(server: Topology) -> Iterator[GatewayProcess]:
    """A gateway that soon has enough of an address; each test comes from addresses of its own."""
    limits = {"entry": {"per_second": 0.1, "burst": 5}, "gate": {"per_second": 0.1, "burst": 40}}
    environment = {"HEADGATE_GATEWAY_TRUSTED_PROXIES": "127.0.0.1", "HEADGATE_GATEWAY_LIMITS": json.dumps(limits)}
    with GatewayProcess(server.url, environment=environment) as process:
        yield process


@pytest.mark.parametrize("name", PROXIES)
async def test_a_flood_from_one_address_is_limited_and_hurts_nobody_else(limited: GatewayProcess, name: str) -> None:
    network = f"127.0.{1 + list(PROXIES).index(name)}"
    with site() as site_port, PROXIES[name](limited.port, site_port) as url:
        async with httpx2.AsyncClient(base_url=limited.url, headers={"X-API-Token": limited.token}) as admin:
            await configure(admin, "flooded", capacity=0)
        async with at(f"{network}.2", url) as flood, at(f"{network}.3", url) as other:

            async def enter(client: httpx2.AsyncClient, number: int) -> int:
                # What a visitor says of their address counts for nothing.
                headers = {"X-Forwarded-For": f"203.0.113.{number}"}
                body = {"nickname": "ryan", "queue": "flooded"}
                return (await client.post("/api/queue/entry", json=body, headers=headers)).status_code

            flooding = [await enter(flood, number) for number in range(30)]
            assert flooding.count(429) >= 20
            assert [await enter(other, number) for number in range(3)] == [200] * 3
            asked = [(await flood.get("/flooded/x")).status_code for _ in range(60)]
            assert set(asked) == {302, 429}
            assert (await other.get("/flooded/x")).status_code == 302
            page = await flood.get("/wait/flooded")
            assert page.status_code == 429
            assert 1 <= int(page.headers["retry-after"]) <= 60
            assert name != "nginx" or "Too many requests" in page.text
            told = await flood.get("/flooded/x")
            assert told.status_code == 429
            assert 1 <= int(told.headers["retry-after"]) <= 60
            if name == "traefik":  # has no page of its own to show, and passes on what the gate says
                assert told.json()["code"] == "rate_limited"
                return
            assert told.headers["content-type"].startswith("text/html")
            assert told.headers["refresh"] == told.headers["retry-after"]
            assert told.headers["cache-control"] == "no-store"
            assert "Too many requests" in told.text


def at(address: str, url: str) -> httpx2.AsyncClient:
    """Open a visitor's client on an address of its own."""
    transport = httpx2.AsyncHTTPTransport(local_address=address)
    return httpx2.AsyncClient(base_url=url, transport=transport, headers={"Accept": "text/html"}, timeout=20)


async def test_a_board_behind_the_cache_reaches_the_gateway_once_a_second(server: Topology) -> None:
    with site() as site_port, guarded(server.url) as process, nginx(process.port, site_port, board_cache=True) as url:
        async with httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token}) as admin:
            await configure(admin, "watched", capacity=0)
        async with httpx2.AsyncClient(base_url=url, timeout=20) as reader:
            started = monotonic()
            for number in range(200):
                answer = await reader.get("/api/queue/board", params={"queue": "watched", "other": str(number)})
                assert answer.status_code == 200
                assert "set-cookie" not in answer.headers
            seconds = monotonic() - started
            unknown = await reader.get("/api/queue/board", params={"queue": "other"})
            assert unknown.status_code == 404

            async def counted() -> float:
                lines = (await reader.get(f"{process.ops_url}/metrics")).text.splitlines()
                mine = [line for line in lines if line.startswith("headgate_http_requests_total{")]
                return sum(float(line.rsplit(" ", 1)[1]) for line in mine if '"board"' in line and '"200"' in line)

            async def shown() -> bool:
                return await counted() > 0

            await eventually(shown, 5, "the figures are shown")
            assert await counted() <= seconds + 2


@pytest.mark.parametrize("start", [nginx, envoy], ids=["nginx", "envoy"])
async def test_an_operator_may_choose_that_everybody_gets_in_while_the_gateway_is_away(
    server: Topology, start: Callable[..., AbstractContextManager[str]]
) -> None:
    with (
        site() as site_port,
        guarded(server.url) as process,
        start(process.port, site_port, fail_open=True) as url,
    ):
        async with httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token}) as admin:
            await configure(admin, "chosen", capacity=0)
        async with httpx2.AsyncClient(base_url=url, headers={"Accept": "text/html"}) as client:
            assert (await client.get("/chosen/x")).status_code == 302
            process.stop()
            answer = await client.get("/chosen/x")
    assert (answer.status_code, answer.text) == (200, "page /chosen/x")
