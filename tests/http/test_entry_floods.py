"""Entry floods: one address makes no more entries than a school would, whichever way it enters and whichever process it asks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic

import httpx2
import pytest

from headgate.gateway.settings import LIMITS
from headgate.gateway.shared_buckets import GROUPS, SLOTS, SharedBuckets, shared_table, table_file
from headgate.http.routes import Message, Receive, Scope, Send
from headgate.kit.problems import RateLimited
from headgate.sdk.asgi import Gate
from tests.processes import GatewayProcess
from tests.topology import Topology, eventually

FLOOD = 400
QUEUE = "flooded"
ENTRY = LIMITS["entry"]

Ask = Callable[[httpx2.AsyncClient], AsyncIterator[int]]


class Flooded:
    """Gateways of one prefix, and a script without cookies or a token that asks them in turn."""

    def __init__(self, gateways: list[GatewayProcess], admin: httpx2.AsyncClient, stack: AsyncExitStack) -> None:
        self.gateways = gateways
        self.admin = admin
        self._stack = stack

    def on_leaving(self, close: Callable[[], Awaitable[None]]) -> None:
        self._stack.push_async_callback(close)

    async def flood(self, method: str, path: str, **options: object) -> tuple[list[int], float]:
        """Ask as often as a script does at once; give the statuses and how many entries may have been made meanwhile."""
        statuses: list[int] = []
        began = monotonic()

        async def script(number: int) -> None:
            gateway = self.gateways[number % len(self.gateways)]
            async with httpx2.AsyncClient(base_url=gateway.url, timeout=30) as client:
                for _ in range(FLOOD // 8):
                    client.cookies.clear()
                    statuses.append((await client.request(method, path, **options)).status_code)  # type: ignore[arg-type]

        await asyncio.gather(*(script(number) for number in range(8)))
        return statuses, ENTRY.burst + ENTRY.per_second * (monotonic() - began)

    async def refused(self, client: httpx2.AsyncClient, path: str, headers: dict[str, str]) -> httpx2.Response:
        """Ask without a cookie until no entry is made; on a machine that stood still, the bucket has filled a little."""
        for _ in range(FLOOD):
            client.cookies.clear()
            answer = await client.get(path, headers=headers)
            if "set-cookie" not in answer.headers:
                return answer
        raise AssertionError("the limit was never reached")

    async def entered(self) -> int:
        view = (await self.admin.get(f"/api/admin/queues/{QUEUE}")).json()
        return int(view["figures"]["enteredTotal"])


@asynccontextmanager
async def flooded(
    server: Topology, start: Callable[..., GatewayProcess], number: int, *words: str
) -> AsyncIterator[Flooded]:
    shared = {"HEADGATE_STORE_PREFIX": f"t{secrets.token_hex(4)}", "HEADGATE_ADMIN_TOKEN": secrets.token_urlsafe(24)}
    gateways = [start(server.url, *words, environment=shared) for _ in range(number)]
    headers = {"X-API-Token": shared["HEADGATE_ADMIN_TOKEN"]}
    async with AsyncExitStack() as stack, httpx2.AsyncClient(base_url=gateways[0].url, headers=headers) as admin:
        made = await admin.put(f"/api/admin/queues/{QUEUE}", json={"capacity": 0, "paths": ["/flood/**"]})
        assert made.status_code == 201
        yield Flooded(gateways, admin, stack)


@pytest.mark.parametrize(("gateways", "workers"), [(1, 2), (2, 1)], ids=["workers of one gateway", "two gateways"])
async def test_entries_of_an_address_are_counted_over_all_processes(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], gateways: int, workers: int
) -> None:
    async with flooded(server, fresh_gateway, gateways, "--workers", str(workers)) as world:
        statuses, most = await world.flood("POST", "/api/queue/entry", json={"nickname": "bot", "queue": QUEUE})
        assert set(statuses) == {200, 429}
        assert ENTRY.burst <= statuses.count(200) <= most + 5
        assert await world.entered() == statuses.count(200)


async def test_the_waiting_page_makes_no_more_entries_than_the_limit(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    async with flooded(server, fresh_gateway, 1) as world:
        statuses, most = await world.flood("GET", f"/wait/{QUEUE}")
        assert set(statuses) == {200, 429}
        assert await world.entered() == statuses.count(200) <= most + 5
        async with httpx2.AsyncClient(base_url=world.gateways[0].url) as visitor:
            page = await world.refused(visitor, f"/wait/{QUEUE}", {})
            assert page.status_code == 429
            assert int(page.headers["retry-after"]) >= 1
            assert page.headers["refresh"] == page.headers["retry-after"]
            assert "from your network" in page.text


@pytest.mark.parametrize("proxy", ["nginx", "forward", "envoy"])
async def test_a_gate_makes_no_more_entries_than_the_limit(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], proxy: str
) -> None:
    path = "/gate/envoy/flood/a" if proxy == "envoy" else f"/gate/{proxy}"
    headers = {"X-Original-URI": "/flood/a", "X-Forwarded-Uri": "/flood/a"}
    async with flooded(server, fresh_gateway, 1) as world:
        async with httpx2.AsyncClient(base_url=world.gateways[0].url) as first:

            async def guarded() -> bool:
                return (await first.get(path, headers=headers)).status_code in (401, 429)

            await eventually(guarded, 5, "the gate knows of the queue")
            before = await world.entered()
            statuses, most = await world.flood("GET", path, headers=headers)
            assert set(statuses) == {401 if proxy == "nginx" else 429}
            assert await world.entered() - before <= most + 5
            over = await world.refused(first, path, headers)
            if proxy == "nginx":
                assert over.headers["x-headgate-location"].startswith(f"/wait/{QUEUE}?")
                assert "set-cookie" not in over.headers
            else:
                assert over.json()["code"] == "rate_limited"
                page = await first.get(path, headers={**headers, "Accept": "text/html"})
                assert page.status_code == 302
                assert page.headers["location"].startswith(f"/wait/{QUEUE}?")


async def site(scope: Scope, receive: Receive, send: Send) -> None:
    """Say nothing: behind these gates everybody waits."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def ask_site(gate: Gate, path: str, address: str) -> tuple[int, bool]:
    """Ask a site behind its gate, from an address and without a cookie; give the status and whether we are in line now."""
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("there is no body to read")

    async def keep(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await gate({**scope, "client": (address, 4711)}, receive, keep)
    return sent[0]["status"], any(name == b"set-cookie" for name, _ in sent[0]["headers"])


@pytest.mark.parametrize("path", ["/flood/a", f"/wait/{QUEUE}"])
async def test_a_site_that_asks_with_its_token_is_limited_by_its_visitors_addresses(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], path: str
) -> None:
    async with flooded(server, fresh_gateway, 1) as world:
        gate = Gate(site, world.gateways[0].url, token=world.admin.headers["X-API-Token"])
        world.on_leaving(gate.close)

        async def in_line(address: str) -> bool:
            return (await ask_site(gate, path, address))[1]

        await eventually(lambda: in_line("192.0.2.1"), 5, "the gate knows of the queue")
        before, began = await world.entered(), monotonic()
        answers = [await ask_site(gate, path, "192.0.2.7") for _ in range(FLOOD)]
        most = ENTRY.burst + ENTRY.per_second * (monotonic() - began)
        made = sum(entered for _, entered in answers)
        assert ENTRY.burst <= made <= most + 5
        assert await world.entered() - before == made
        assert {status for status, entered in answers if not entered} == {429}
        assert await in_line("192.0.2.8"), "another visitor of the site has a limit of their own"


@pytest.mark.parametrize(("role", "believed"), [(None, False), ("read", False), ("service", True), ("admin", True)])
async def test_forwarded_addresses_are_believed_from_services_only(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], role: str | None, believed: bool
) -> None:
    async with flooded(server, fresh_gateway, 1) as world:
        token: dict[str, str] = {}
        if role is not None:
            made = await world.admin.post("/api/admin/tokens", json={"name": f"a-{role}", "role": role})
            token = {"X-API-Token": made.json()["token"]}
        async with httpx2.AsyncClient(base_url=world.gateways[0].url, headers=token) as client:

            async def known() -> bool:
                return role is None or (await client.get("/api/admin/queues")).status_code == 200

            await eventually(known, 5, "the token is known")
            began, statuses = monotonic(), []
            for number in range(FLOOD):
                client.cookies.clear()
                forwarded = {"X-Forwarded-For": f"198.51.{number // 100}.{number % 100}"}
                statuses.append((await client.get(f"/wait/{QUEUE}", headers=forwarded)).status_code)
            most = ENTRY.burst + ENTRY.per_second * (monotonic() - began)
            entered = await world.entered()
            assert statuses.count(200) == entered
            if believed:
                assert entered == FLOOD
            else:
                assert ENTRY.burst <= entered <= most + 5


async def test_a_services_own_entries_and_checks_are_not_limited(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    async with flooded(server, fresh_gateway, 1) as world:
        forwarded = {"X-Forwarded-For": "192.0.2.7", **world.admin.headers}
        body = {"nickname": "a", "queue": QUEUE}
        statuses, _ = await world.flood("POST", "/api/queue/entry", json=body, headers=forwarded)
        assert set(statuses) == {200}

        async def guarded() -> bool:
            query = {"path": "/flood/a", "userId": "u"}
            return bool((await world.admin.get("/api/gate/check", params=query)).json()["decision"] == "wait")

        await eventually(guarded, 5, "the gate knows of the queue")
        for number in range(int(ENTRY.burst) + 50):
            query = {"path": "/flood/a", "userId": f"u{number}"}
            assert (await world.admin.get("/api/gate/check", params=query)).json()["decision"] == "wait"
        assert await world.entered() == FLOOD + 1 + ENTRY.burst + 50


async def test_who_is_known_enters_again_however_many_others_did(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    async with flooded(server, fresh_gateway, 1) as world:
        async with httpx2.AsyncClient(base_url=world.gateways[0].url) as visitor:
            assert (await visitor.get(f"/wait/{QUEUE}")).status_code == 200
            await world.flood("GET", f"/wait/{QUEUE}")
            assert (await visitor.get(f"/wait/{QUEUE}")).status_code == 200, "the cookie says who it is"
            token = {"X-API-Token": world.gateways[0].token, **world.admin.headers}
            served = await visitor.post("/api/queue/entry", json={"nickname": "a", "queue": QUEUE}, headers=token)
            assert served.status_code == 200, "a service is not held to the limit of its address"


def test_processes_count_in_one_file_that_the_last_one_removes() -> None:
    name = f"test {secrets.token_hex(8)}"
    file = table_file(name)
    with shared_table(name) as one:
        with shared_table(name) as other:
            assert one is not None
            assert other is not None
            first, second = SharedBuckets("entry", 0.001, 3, one), SharedBuckets("entry", 0.001, 3, other)
            first.take("a")
            second.take("a")
            first.take("a")
            for buckets in (first, second):
                with pytest.raises(RateLimited):
                    buckets.take("a")
            second.take("b")
        assert file.exists(), "the other process still counts in it"
    assert not file.exists()


def test_many_addresses_take_no_more_room_and_a_moment_of_another_boot_is_none() -> None:
    with shared_table(f"test {secrets.token_hex(8)}") as table:
        assert table is not None
        buckets = SharedBuckets("entry", 1, 2, table)
        for number in range(3 * GROUPS * SLOTS):
            buckets.take(f"192.0.2.{number}")
        buckets.take("late")
        slot, known = table.slot("late")
        assert known
        table.times[slot] = monotonic() + 1e6
        buckets.take("late")
        buckets.take("late")
        with pytest.raises(RateLimited):
            buckets.take("late")
