"""Entry floods: one address makes no more entries than a school would, whichever way it enters and whichever process it asks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic

import httpx2
import pytest

from headgate.gateway.settings import LIMITS
from headgate.gateway.shared_buckets import GROUPS, SLOTS, SharedBuckets, shared_table, table_file
from headgate.kit.problems import RateLimited
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
        table.moments[slot] = monotonic() + 1e6
        buckets.take("late")
        buckets.take("late")
        with pytest.raises(RateLimited):
            buckets.take("late")
