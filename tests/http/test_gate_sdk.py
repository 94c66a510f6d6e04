"""`headgate.sdk.asgi.Gate` before a small site on a real server: the page and its stream come from the site's own host."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx2
import pytest

from headgate.http.listener import asgi, listen
from headgate.http.routes import Message, Receive, Scope, Send
from headgate.http.server import listening
from headgate.sdk.asgi import Gate
from tests.processes import Gateway
from tests.topology import HOST, eventually, free_port


async def site(scope: Scope, receive: Receive, send: Send) -> None:
    """Say which page was asked for, and set a cookie of the site's own."""
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/plain"), (b"set-cookie", b"basket=1"), (b"Cache-Control", b"max-age=60")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": f"page {scope['path']}".encode()})
    elif scope["type"] == "websocket":
        await send({"type": "websocket.accept"})


@asynccontextmanager
async def served(gateway_url: str, *, token: str = "", fail_open: bool = False) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve the site behind the gate, and give a visitor's browser."""
    gate = Gate(site, gateway_url, token=token, fail_open=fail_open)
    try:
        with listening(HOST, 0) as listener:
            url = f"http://{HOST}:{listener.getsockname()[1]}"
            async with listen(asgi(gate), listener, stop_seconds=2):
                async with httpx2.AsyncClient(base_url=url, headers={"Accept": "text/html"}, timeout=20) as visitor:
                    yield visitor
    finally:
        await gate.close()


async def make(gateway: Gateway, **policy: object) -> str:
    queue = f"s{secrets.token_hex(4)}"
    answer = await gateway.client.put(f"/api/admin/queues/{queue}", json={"paths": [f"/{queue}/**"], **policy})
    assert answer.status_code == 201, answer.text
    return queue


async def test_wait_page_stream_and_turn_on_the_sites_own_host(gateway: Gateway) -> None:
    queue = await make(gateway, capacity=0)
    async with served(gateway.url, token=gateway.token) as visitor:
        assert (await visitor.get("/about")).text == "page /about"

        async def waits() -> bool:
            return (await visitor.get(f"/{queue}/shoes?size=9")).status_code == 302

        await eventually(waits, 10, "the queue is known")
        sent = await visitor.get(f"/{queue}/shoes?size=9")
        assert sent.headers["location"] == f"/wait/{queue}?return=%2F{queue}%2Fshoes%3Fsize%3D9"
        assert sent.headers["cache-control"] == "no-store"
        program = await visitor.get(f"/{queue}/shoes", headers={"Accept": "application/json"})
        assert program.status_code == 429
        assert program.json()["code"] == "must_wait"

        page = await visitor.get(sent.headers["location"])
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        assert "nonce-" in page.headers["content-security-policy"]
        found = re.search(r'"userId":"([^"]+)","placeToken":"([^"]*)"', page.text)
        assert found is not None
        query = {"queue": queue, "userId": found[1]}
        if found[2]:
            query["placeToken"] = found[2]
        async with asyncio.timeout(15), visitor.stream("GET", "/api/queue/stream", params=query) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "event: status"
            assert '"WAITING"' in await anext(lines)

        await gateway.client.put(f"/api/admin/queues/{queue}", json={"capacity": 1})

        async def enters() -> bool:
            return (await visitor.get(f"/{queue}/shoes?size=9")).status_code == 200

        await eventually(enters, 10, "it is the visitor's turn", every=0.2)
        inside = await visitor.get(f"/{queue}/shoes?size=9")
        assert inside.text == f"page /{queue}/shoes"
        assert inside.headers.get_list("set-cookie") == ["basket=1"]
    await gateway.client.delete(f"/api/admin/queues/{queue}")


@pytest.mark.parametrize("with_token", [True, False], ids=["with token", "without token"])
async def test_a_pass_of_one_visitor_lets_no_other_in(gateway: Gateway, with_token: bool) -> None:
    queue = await make(gateway, capacity=1)
    async with served(gateway.url, token=gateway.token if with_token else "") as first:

        async def passes() -> bool:
            return "headgate" in (await first.get(f"/{queue}/x")).cookies

        await eventually(passes, 10, "the first visitor has a pass")
        for _ in range(3):
            async with httpx2.AsyncClient(base_url=first.base_url, headers=first.headers) as other:
                assert (await other.get(f"/{queue}/x")).status_code == 302
                page = await other.get(f"/wait/{queue}?return=/{queue}/x")
                assert page.status_code == 200, (
                    "the page does not take them for the first visitor, who would be sent on"
                )
        assert (await first.get(f"/{queue}/x")).status_code == 200
    await gateway.client.delete(f"/api/admin/queues/{queue}")


async def test_no_header_of_the_visitor_fools_the_gate_of_a_site(gateway: Gateway) -> None:
    queue = await make(gateway, capacity=0, bypass={"addresses": ["10.0.0.0/8"]})
    async with served(gateway.url, token=gateway.token) as visitor:

        async def waits() -> bool:
            return (await visitor.get(f"/{queue}/x")).status_code == 302

        await eventually(waits, 10, "the queue is known")
        for name, value in (
            ("X-Forwarded-Uri", "/about"),
            ("X-Forwarded-For", "10.1.2.3"),
            ("X-API-Token", gateway.token),
            ("Authorization", f"Bearer {gateway.token}"),
        ):
            assert (await visitor.get(f"/{queue}/x", headers={name: value})).status_code == 302, name
        assert (await visitor.get("/api/admin/queues", headers={"X-API-Token": "x"})).text == "page /api/admin/queues"
    await gateway.client.delete(f"/api/admin/queues/{queue}")


async def test_a_path_in_any_bytes_reaches_the_site_and_its_gate(gateway: Gateway) -> None:
    name = secrets.token_hex(4)
    queue = await make(gateway, capacity=0, paths=[f"/상품-{name}/**"])
    gate = Gate(site, gateway.url, token=gateway.token)

    async def ask(path: str, raw: bytes | None = None) -> tuple[int, bytes]:
        """Ask as servers do that pass on what came; without raw bytes, as those do that have decoded it."""
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)

        headers = [(b"host", b"\xe9"), (b"cookie", b"a=\xff; b=\xec\x83\x81"), (b"accept", b"text/html")]
        scope: Scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"y=\xc3\xa9",
            "headers": headers,
        }
        if raw is not None:
            scope["raw_path"] = raw
        await gate(scope, never, keep)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)

    guarded = f"/상품-{name}/x"
    try:

        async def waits() -> bool:
            return (await ask(guarded))[0] == 302

        await eventually(waits, 10, "the queue is known")
        for raw in (guarded.encode(), quote(guarded).encode(), guarded.encode("euc-kr"), b"/%ff"):
            assert (await ask(guarded, raw))[0] == 302, raw
        assert (await ask(f"/상품-{name}%2Fx"))[0] == 302
        for given in (None, "/다른".encode(), quote("/다른").encode()):
            assert await ask("/다른", given) == (200, "page /다른".encode()), given
    finally:
        await gate.close()
        await gateway.client.delete(f"/api/admin/queues/{queue}")


async def never() -> Message:
    raise AssertionError("there is no body to read")


async def test_a_visitor_is_nobody_else_for_the_sites_token(gateway: Gateway) -> None:
    queue = await make(gateway, capacity=0)
    account = {"queue": queue, "userId": "victim"}
    entered = await gateway.client.post("/api/queue/entry", json={**account, "nickname": "ryan"})
    assert entered.json()["status"] == "WAITING"
    async with served(gateway.url, token=gateway.token) as visitor:
        assert (await visitor.request("DELETE", "/api/queue/entry", params=account)).status_code == 403
        assert (await visitor.get("/api/queue/status", params=account)).status_code == 403
        other = {"queue": queue, "userId": "somebody", "nickname": "eve"}
        assert (await visitor.post("/api/queue/entry", json=other)).status_code == 403
    still = await gateway.client.get("/api/queue/status", params=account)
    assert (still.json()["status"], still.json()["rank"]) == ("WAITING", 1)
    await gateway.client.delete(f"/api/admin/queues/{queue}")


async def test_a_page_that_carries_a_pass_is_kept_by_no_cache(gateway: Gateway) -> None:
    queue = await make(gateway, capacity=5)
    async with served(gateway.url, token=gateway.token) as visitor:

        async def marked() -> bool:
            visitor.cookies.clear()
            answer = await visitor.get(f"/{queue}/x")
            cookies = answer.headers.get_list("set-cookie")
            return len(cookies) == 2 and answer.headers.get_list("cache-control") == ["no-store"]

        await eventually(marked, 10, "the pass comes with a page that is not to be kept")
        assert (await visitor.get(f"/{queue}/x")).headers["cache-control"] == "max-age=60"
    await gateway.client.delete(f"/api/admin/queues/{queue}")


async def test_a_websocket_waits_its_turn_too(gateway: Gateway) -> None:
    queue = await make(gateway, capacity=0)
    gate = Gate(site, gateway.url)

    async def handshake(path: str) -> list[str]:
        sent: list[str] = []

        async def send(message: Message) -> None:
            sent.append(message["type"])

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        await gate(
            {"type": "websocket", "scheme": "ws", "path": path, "query_string": b"", "headers": []}, receive, send
        )
        return sent

    async def refused() -> bool:
        return await handshake(f"/{queue}/live") == ["websocket.close"]

    await eventually(refused, 10, "who must wait gets no connection")
    assert await handshake("/about") == ["websocket.accept"]
    await gate.close()
    away = Gate(site, f"http://{HOST}:{free_port()}")
    gate = away
    assert await handshake("/about") == ["websocket.close"]
    await away.close()
    await gateway.client.delete(f"/api/admin/queues/{queue}")


async def test_while_the_gateway_is_away_the_site_does_what_it_chose() -> None:
    nowhere = f"http://{HOST}:{free_port()}"
    async with served(nowhere) as visitor:
        closed = await visitor.get("/sale")
        assert closed.status_code == 503
        assert closed.headers["retry-after"] == "5"
        assert closed.headers["cache-control"] == "no-store"
        assert "One moment" in closed.text
        program = await visitor.get("/sale", headers={"Accept": "application/json"})
        assert (program.status_code, program.json()["code"]) == (503, "store_unavailable")
        assert (await visitor.get("/wait/sale")).status_code == 503
    async with served(nowhere, fail_open=True) as visitor:
        opened = await visitor.get("/sale")
        assert (opened.status_code, opened.text) == (200, "page /sale")
