"""The store is away: callers are told quickly, what needs no store goes on, and service comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio.to_thread
import httpx2
import pytest

from tests.http.sample_process import SampleProcess, SampleStarter
from tests.http.test_callers import in_force, make
from tests.http.test_requests import problem
from tests.topology import Node, Standalone, Stopwatch, eventually, wait_until

pytestmark = [pytest.mark.topology("standalone"), pytest.mark.quiet]

PATHS = ("/sample/store", "/sample/prompt/store")
DEADLINE_MS = 2000
SLACK = 1.5  # for a test machine that is busy with other things


async def ask_many(sample: SampleProcess, number: int) -> list[tuple[httpx2.Response, float]]:
    """Ask for something in the store so many times at once, and time each answer."""

    async def ask(client: httpx2.AsyncClient, path: str) -> tuple[httpx2.Response, float]:
        watch = Stopwatch()
        response = await client.get(path)
        return response, watch.seconds

    async with httpx2.AsyncClient(
        base_url=sample.url, timeout=20, limits=httpx2.Limits(max_connections=None)
    ) as client:
        return await asyncio.gather(*(ask(client, PATHS[each % 2]) for each in range(number)))


@pytest.fixture
def node(fresh_server: Callable[..., Standalone]) -> Node:
    return fresh_server().node


@pytest.mark.parametrize("way", ["kill", "pause"])
async def test_callers_are_told_within_the_deadline(node: Node, fresh_sample: SampleStarter, way: str) -> None:
    sample = fresh_sample(node.url, deadline_ms=DEADLINE_MS)
    getattr(node, way)()
    for response, seconds in await ask_many(sample, 50):
        document = problem(response, 503, "store_unavailable")
        assert response.headers["retry-after"] == "1"
        assert document["retryAfter"] == 1
        assert seconds < DEADLINE_MS / 1000 + SLACK
    if way == "kill":
        await anyio.to_thread.run_sync(node.start)
    else:
        node.resume()
    watch = Stopwatch()

    async def whole() -> bool:
        return all(response.status_code == 200 for response, _ in await ask_many(sample, 5))

    await eventually(whole, 10)
    assert watch.seconds < 2.0 + SLACK


async def test_words_of_the_store_are_for_the_log_and_not_for_callers(node: Node, fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(node.url, deadline_ms=500)
    node.command("CONFIG", "SET", "replica-serve-stale-data", "no")
    node.command("REPLICAOF", "127.0.0.1", "1")
    for response, _ in await ask_many(sample, 4):
        assert problem(response, 503, "store_unavailable")["detail"] == "The store is away."
        assert "MASTERDOWN" not in response.text
    assert "The store is away: MASTERDOWN" in sample.log


async def test_outage_that_lasts_is_told_at_once(node: Node, fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(node.url, deadline_ms=DEADLINE_MS)
    node.kill()

    async def quick() -> bool:
        return max(seconds for _, seconds in await ask_many(sample, 5)) < 0.8

    await eventually(quick, 10, "callers no longer wait out their deadline")


def test_what_needs_no_store_goes_on(node: Node, fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(node.url, deadline_ms=DEADLINE_MS)
    with sample.admin() as admin, sample.client() as client:
        token = make(admin, "steady", "read")
        wait_until(lambda: in_force(client, token))
        node.kill()
        wait_until(lambda: not sample.ready(), 6, "the probe says that the store is away")
        assert "store" in httpx2.get(f"{sample.ops_url}/readyz").text
        assert httpx2.get(f"{sample.ops_url}/livez").status_code == 200
        assert in_force(client, token)
        problem(client.get("/sample/read/a", headers={"X-API-Token": "wrong"}), 401, "unauthorized")
        assert client.get("/openapi.json").status_code == 200
        facts = admin.get("/api/system").json()["store"]
        assert facts == {"kind": "standalone", "healthy": False, "latencyMs": None, "servers": []}
        problem(admin.post("/api/admin/tokens", json={"name": "b", "role": "read"}), 503, "store_unavailable")
        node.start()
        wait_until(sample.ready, 6, "it is ready again")
        later = make(admin, "after", "read")
        wait_until(lambda: in_force(client, later))


async def test_log_of_an_outage_stays_short(node: Node, fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(node.url, deadline_ms=DEADLINE_MS, level="info")
    node.kill()
    watch = Stopwatch()
    assert {response.status_code for response, _ in await ask_many(sample, 200)} == {503}
    assert 1 <= sample.log.count('"event":"request refused"') <= watch.wall + 2
