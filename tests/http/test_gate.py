"""The gate over HTTP: the backend's check, revocation, signed bypasses, and traffic that switches a queue on everywhere."""

from __future__ import annotations

import asyncio
import base64
import html
import re
import secrets
import unicodedata
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import pytest

from tests.processes import Gateway, GatewayProcess
from tests.raw import BROWSER, Reply, send
from tests.topology import Topology, eventually, wait_until


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


@pytest.mark.parametrize("dialect", ["nginx", "forward", "envoy"])
async def test_a_path_of_raw_utf8_is_guarded_like_its_encoding(gateway: Gateway, queue: str, dialect: str) -> None:
    await gateway.client.put(f"/api/admin/queues/{queue}", json={"capacity": 0, "paths": [f"/{queue}-상품/**"]})

    def ask(path: bytes) -> Reply:
        name = "X-Original-URI" if dialect == "nginx" else "X-Forwarded-Uri"
        if dialect == "envoy":
            return send(gateway.url, b"/gate/envoy" + path)
        return send(gateway.url, f"/gate/{dialect}", [BROWSER, (name, path.decode("latin-1"))])

    wait_until(lambda: ask(quote(f"/{queue}-상품/7").encode()).status in (302, 401), 3)
    spellings = (
        f"/{queue}-상품/7".encode(),
        unicodedata.normalize("NFD", f"/{queue}-상품/7").encode(),
        f"/{queue}-상품/7".encode("euc-kr"),
    )
    for path in spellings:
        reply = ask(path)
        if dialect == "envoy":
            assert reply.status == 400  # such a request line is no HTTP; Envoy lets through on 200 only
            continue
        assert reply.status in (302, 401), path
        page = urlsplit(reply.all("x-headgate-location" if dialect == "nginx" else "location")[0])
        # They return to the very bytes that they asked for, as a browser writes them.
        assert parse_qs(page.query)["return"] == [quote(path)]
    assert ask(quote("/다른/7").encode()).status == 200
    assert ask("/다른/7".encode()).status == (400 if dialect == "envoy" else 200)


async def test_a_way_back_in_any_script_is_taken(gateway: Gateway, queue: str) -> None:
    await gateway.client.put(f"/api/admin/queues/{queue}", json={"capacity": 9, "paths": [f"/{queue}/*"]})
    async with httpx2.AsyncClient(base_url=gateway.url) as visitor:

        async def inside() -> bool:
            return "set-cookie" in (await visitor.get("/gate/nginx", headers={"X-Original-URI": f"/{queue}/a"})).headers

        await eventually(inside, 3)
        for wanted in ("/열린/문?색=빨강", "/é", "/🎫", "/a%2Fb?c=%20"):
            answer = await visitor.get(f"/wait/{queue}", params={"return": wanted})
            assert (answer.status_code, answer.headers["location"]) == (302, quote(wanted, safe="/?=%"))


@pytest.mark.parametrize(
    ("language", "said"), [("en", "This line is not there any more."), ("ko", "이 대기열은 더 이상 없습니다.")]
)
async def test_a_line_that_is_not_there_is_said_on_a_page(gateway: Gateway, language: str, said: str) -> None:
    async with httpx2.AsyncClient(base_url=gateway.url) as visitor:
        answer = await visitor.get("/wait/never-made", params={"lang": language})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert f'<h1 id="heading">{said}</h1>' in answer.text
        assert f'<html lang="{language}"' in answer.text
        assert "width=device-width" in answer.text
        assert "set-cookie" not in answer.headers
        other = re.search(r'hreflang="ja" href="([^"]+)"', answer.text)
        assert other is not None
        assert (await visitor.get(html.unescape(other[1]))).status_code == 404, (
            "in another language it is the same page"
        )
        back = await visitor.get("/wait/never-made", params={"return": "/shop"})
        assert (back.status_code, back.headers["location"]) == (302, "/shop")


async def test_rules_with_more_stars_than_can_be_matched_quickly_are_refused(gateway: Gateway, queue: str) -> None:
    answer = await gateway.client.put(f"/api/admin/queues/{queue}", json={"capacity": 0, "paths": ["/" + "**/a" * 20]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert "stars" in answer.json()["detail"]


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


async def test_the_page_of_a_queue_that_ends_with_its_template_sends_newcomers_on(gateway: Gateway, queue: str) -> None:
    auto = {"resource": f"{queue}-*", "threshold": 2, "windowSeconds": 5}
    made = await gateway.client.put(f"/api/admin/queues/{queue}", json={"auto": auto, "ratePerSecond": 0})
    assert made.json()["template"] == ""
    refused = await gateway.client.put(f"/api/admin/queues/{queue}", json={"template": "other"})
    assert (refused.status_code, "template" in refused.text) == (422, True)

    async def waits() -> bool:
        return (await check(gateway.client, resource=f"{queue}-7", userId="ryan"))["decision"] == "wait"

    await eventually(waits, 10)
    derived = f"/api/admin/queues/{queue}-7"
    assert (await gateway.client.get(derived)).json()["template"] == queue
    await gateway.client.delete(f"/api/admin/queues/{queue}")
    await gateway.client.post(f"{derived}/drain")
    async with httpx2.AsyncClient(base_url=gateway.url) as visitor:
        page = await visitor.get(f"/wait/{queue}-7", params={"return": "/item"})
    assert (page.status_code, page.headers["location"]) == (302, "/item")
    await gateway.client.delete(derived)


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

            async def counted() -> bool:
                text = (await anybody.get(f"{process.ops_url}/metrics")).text
                return 'headgate_gate_fail_mode_total{mode="open",queue="lenient"} ' in text

            await eventually(counted, 5)
        for node in topology.nodes:
            await node.restart()

        async def back() -> bool:
            return (
                await client.get("/api/gate/check", params={"resource": "shut", "userId": "new"})
            ).status_code == 200

        await eventually(back, 10)
