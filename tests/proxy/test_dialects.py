"""The words in which each proxy is answered, asked as that proxy asks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.processes import Gateway
from tests.topology import eventually

QUEUE = "dialects"


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    made = await gateway.client.put(f"/api/admin/queues/{QUEUE}", json={"capacity": 0, "paths": ["/dialects/**"]})
    assert made.status_code in (200, 201)
    async with httpx2.AsyncClient(base_url=gateway.url) as visitor:

        async def guarded() -> bool:
            return (await ask(visitor, "/gate/nginx", {"X-Original-URI": "/dialects/x"})).status_code != 200

        await eventually(guarded, 5, "the queue is known", every=0.05)
        visitor.cookies.clear()
        yield visitor


async def ask(client: httpx2.AsyncClient, path: str, headers: dict[str, str], method: str = "GET") -> httpx2.Response:
    return await client.request(method, path, headers=headers)


async def test_nginx_knows_200_and_401_with_the_page_in_a_header(client: httpx2.AsyncClient) -> None:
    assert (await ask(client, "/gate/nginx", {"X-Original-URI": "/else"})).status_code == 200
    wait = await ask(client, "/gate/nginx", {"X-Original-URI": "/dialects/a?b=c"})
    assert wait.status_code == 401
    assert wait.headers["x-headgate-location"] == f"/wait/{QUEUE}?return=%2Fdialects%2Fa%3Fb%3Dc"
    assert len(wait.headers.get_list("set-cookie")) == 1


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
async def test_envoy_asks_with_the_request_s_own_method_and_path(client: httpx2.AsyncClient, method: str) -> None:
    assert (await ask(client, "/gate/envoy/else", {}, method)).status_code == 200
    wait = await ask(client, "/gate/envoy/dialects/a?resource=else&b=c", {}, method)
    assert wait.status_code == 429
    assert wait.headers["retry-after"]
    problem = wait.json()
    assert problem["code"] == "must_wait"
    assert problem["rank"] >= 1
    browser = await ask(client, "/gate/envoy/dialects/a?b=c", {"Accept": "text/html,*/*"}, method)
    assert browser.status_code == 302
    assert browser.headers["location"] == f"/wait/{QUEUE}?return=%2Fdialects%2Fa%3Fb%3Dc"


async def test_traefik_sends_browsers_to_the_page_and_programs_a_problem(client: httpx2.AsyncClient) -> None:
    forwarded = {"X-Forwarded-Uri": "/dialects/a", "X-Forwarded-Method": "GET", "X-Forwarded-Host": "shop.example"}
    assert (await ask(client, "/gate/forward", {**forwarded, "X-Forwarded-Uri": "/else"})).status_code == 200
    assert (await ask(client, "/gate/forward", forwarded)).status_code == 429
    browser = await ask(client, "/gate/forward", {**forwarded, "Accept": "text/html"})
    assert browser.status_code == 302
    assert browser.headers["cache-control"] == "no-store"


async def test_the_resource_can_be_named_in_the_configured_address(client: httpx2.AsyncClient) -> None:
    answer = await ask(client, f"/gate/nginx?resource={QUEUE}", {"X-Original-URI": "/else"})
    assert answer.status_code == 401


async def test_on_https_the_cookie_is_bound_to_the_host(client: httpx2.AsyncClient) -> None:
    headers = {"X-Original-URI": "/dialects/a", "X-Forwarded-Proto": "https"}
    cookie = (await ask(client, "/gate/nginx", headers)).headers["set-cookie"]
    assert cookie.startswith("__Host-headgate=")
    assert all(flag in cookie for flag in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/"))


@pytest.mark.parametrize("path", ["/gate", "/gate/", "/gate/apache", "/gate/nginx/x"])
async def test_there_are_no_other_dialects(client: httpx2.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize(
    "wish",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "https:evil.example",
        "/a\nb",
    ],
)
async def test_the_page_returns_to_the_site_and_nowhere_else(client: httpx2.AsyncClient, wish: str) -> None:
    page = await client.get(f"/wait/{QUEUE}", params={"return": wish})
    assert page.status_code == 200
    assert "evil" not in page.text
    assert "javascript:" not in page.text


async def test_a_queue_that_is_gone_sends_its_waiters_on(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/wait/never-made", params={"return": "/dialects/a?b=c"})
    assert answer.status_code == 302
    assert answer.headers["location"] == "/dialects/a?b=c"


async def test_the_page_is_small_and_asks_nobody_for_anything(client: httpx2.AsyncClient) -> None:
    page = await client.get(f"/wait/{QUEUE}", params={"lang": "ko"})
    assert len(page.content) < 20_000
    assert "http://" not in page.text
    assert "https://" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["content-language"] == "ko"
    assert "refresh" not in page.headers
    plain = await client.get(f"/wait/{QUEUE}", params={"plain": "1"})
    assert int(plain.headers["refresh"]) >= 5
