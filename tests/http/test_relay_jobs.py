"""Jobs: accepted now, answered later, through real relay processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.cli.trial.strict_upstream import Delays, StrictUpstream
from headgate.relay.model import JobState
from headgate.sdk import Headgate
from tests.faults.worker_process import WorkerProcess
from tests.http.relays import RelayProcess
from tests.processes import note_new_store
from tests.store.relay_world import Patient, window
from tests.topology import Topology, eventually


@pytest.fixture(scope="module")
def relay(server: Topology) -> Iterator[RelayProcess]:
    with RelayProcess(server.url, environment={"HEADGATE_RELAY_DRAIN_SECONDS": "2"}) as process:
        yield process


@pytest.fixture
async def client(relay: RelayProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=relay.url, headers={"X-API-Token": relay.token}, timeout=30) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"job-{secrets.token_hex(4)}"


async def put(client: httpx2.AsyncClient, name: str, url: str, count: int, seconds: float, **more: object) -> None:
    body = {
        "baseUrl": url,
        "limits": [{"count": count, "seconds": seconds}],
        "timeoutSeconds": 3,
        "deliverySeconds": 0.2,
        "forwardUser": True,
    } | more
    assert (await client.put(f"/api/admin/upstreams/{name}", json=body)).status_code == 200


async def submit(client: httpx2.AsyncClient, name: str, method: str = "POST", user: str = "u1", **more: str) -> str:
    headers = {"X-User-Id": user, "Prefer": "respond-async"} | more
    response = await client.request(method, f"/relay/{name}/work", headers=headers, content=b"payload")
    assert response.status_code == 202, response.text
    assert response.headers["preference-applied"] == "respond-async"
    return response.headers["location"]


async def state(client: httpx2.AsyncClient, location: str) -> dict[str, Any]:
    return dict((await client.get(location)).json())


async def ended(client: httpx2.AsyncClient, locations: list[str], seconds: float = 20) -> list[dict[str, Any]]:
    async def all_ended() -> bool:
        return all([(await state(client, location))["state"] not in ("waiting", "sending") for location in locations])

    await eventually(all_ended, seconds, every=0.1)
    return [await state(client, location) for location in locations]


class Steady(Delays):
    """A network that takes the same time for everything: long enough to find all of a few requests on their way."""

    def one(self) -> float:
        return self.seconds


async def test_jobs_are_sent_within_the_limit_and_answered(client: httpx2.AsyncClient, name: str) -> None:
    async with StrictUpstream(lambda: SlidingLog(4, 2.0, strict=True), Delays(0.01, tail=0.2)).open() as upstream:
        await put(client, name, upstream.url, 4, 2.0)
        locations = [await submit(client, name) for _ in range(12)]
        last = await state(client, locations[-1])
        assert last["state"] == "waiting"
        assert last["position"] >= 1
        assert last["eta"].endswith("Z")
        views = await ended(client, locations)
        assert {view["state"] for view in views} == {"done"}
        assert [view["response"]["status"] for view in views] == [200] * 12
        assert '"user": "u1"' in views[0]["response"]["body"]
        assert upstream.refused == 0
        assert upstream.bodies == [b"payload"] * 12


async def test_waiting_job_is_cancelled_and_never_sent(client: httpx2.AsyncClient, name: str) -> None:
    async with StrictUpstream().open() as upstream:
        await put(client, name, upstream.url, 1, 3600)
        first = await submit(client, name)
        await ended(client, [first])
        second = await submit(client, name, **{"X-Deadline-Ms": "80000000"})
        assert (await client.delete(second)).status_code == 204
        assert (await state(client, second))["state"] == "cancelled"
        assert (await client.delete(second)).status_code == 204
        status = (await client.get(f"/api/admin/upstreams/{name}/status")).json()
        await eventually(lambda: _waiting(client, name, 0))
        assert status["name"] == name
        assert upstream.count == 1


async def test_a_job_waits_longer_than_a_request_may(client: httpx2.AsyncClient, name: str) -> None:
    """Requests may wait for a second here; jobs are accepted to be sent whenever their turn comes, unless they say less."""
    async with StrictUpstream(lambda: SlidingLog(1, 1.0, strict=True)).open() as upstream:
        await put(client, name, upstream.url, 1, 1.0, deadlineSeconds=1)
        locations = [await submit(client, name) for _ in range(4)]
        hurried = await submit(client, name, **{"X-Deadline-Ms": "1000"})
        views = await ended(client, [*locations, hurried])
        assert [view["state"] for view in views] == ["done"] * 4 + ["failed"]
        week = {"X-User-Id": "u1", "Prefer": "respond-async", "X-Deadline-Ms": str(8 * 86_400_000)}
        refused = await client.post(f"/relay/{name}/x", headers=week)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")


async def _waiting(client: httpx2.AsyncClient, name: str, count: int) -> bool:
    return bool((await client.get(f"/api/admin/upstreams/{name}/status")).json()["waiting"] == count)


async def test_unknown_job_is_404(client: httpx2.AsyncClient, name: str) -> None:
    for id in ("nonsense", f"01ARZ3NDEKTSV4RRFFQ69G5FAV.{name}", "../x"):
        response = await client.get(f"/relay/jobs/{id}")
        assert response.status_code == 404


async def test_killed_relay_leaves_its_jobs_to_another(server: Topology, name: str) -> None:
    """Safe ones are sent again; an unsafe one that was on its way ends as unknown; none is sent twice that must not be."""
    with RelayProcess(server.url) as dying:
        environment = {"HEADGATE_ADMIN_TOKEN": dying.token}
        async with (
            StrictUpstream(lambda: SlidingLog(3, 1.0, strict=True), Steady(2)).open() as upstream,
            httpx2.AsyncClient(base_url=dying.url, headers={"X-API-Token": dying.token}, timeout=20) as client,
        ):
            await put(client, name, upstream.url, 3, 1.0, timeoutSeconds=8)
            unsafe = await asyncio.gather(*(submit(client, name, user="u1") for _ in range(3)))
            safe = await asyncio.gather(*(submit(client, name, "GET", user="u2") for _ in range(3)))
            waiting = await asyncio.gather(*(submit(client, name, user="u1") for _ in range(6)))

            async def all_sending() -> bool:
                return all([(await state(client, job))["state"] == "sending" for job in [*unsafe, *safe]])

            await eventually(all_sending, 5, every=0.005)
            dying.kill()
            upstream.delays = Delays(0.1)  # for those that are sent from now on
            heir = RelayProcess(server.url, prefix=dying.prefix, environment=environment)
            # In a thread: the upstream lives in this loop, and what is on its way to it must go on arriving.
            await anyio.to_thread.run_sync(heir.start)
            try:
                async with httpx2.AsyncClient(
                    base_url=heir.url, headers={"X-API-Token": dying.token}, timeout=20
                ) as other:
                    views = await ended(other, [*unsafe, *safe, *waiting], 40)
            finally:
                await anyio.to_thread.run_sync(heir.stop)
            assert [view["state"] for view in views] == ["unknown"] * 3 + ["done"] * 9
            assert upstream.refused == 0
            assert len(upstream.arrivals["u1"]) <= 3 + 6


async def test_stopping_relay_finishes_what_it_has(server: Topology, name: str) -> None:
    with RelayProcess(server.url, environment={"HEADGATE_RELAY_DRAIN_SECONDS": "10"}) as stopping:
        async with (
            StrictUpstream(lambda: SlidingLog(2, 3.0, strict=True), Delays(0.1)).open() as upstream,
            httpx2.AsyncClient(base_url=stopping.url, headers={"X-API-Token": stopping.token}, timeout=20) as client,
        ):
            await put(client, name, upstream.url, 2, 3.0)
            under_way = [
                asyncio.ensure_future(client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"})) for _ in range(4)
            ]
            await eventually(lambda: _waiting(client, name, 2))
            os.kill(stopping.pid, signal.SIGTERM)
            answers = await asyncio.gather(*under_way)
            assert [answer.status_code for answer in answers] == [200] * 4
            assert upstream.refused == 0
        assert stopping.wait() == 0


@pytest.mark.parametrize("kind", ["relay", "worker"])
async def test_stopping_process_ends_the_job_it_sends_and_gives_back_the_one_that_waits(
    server: Topology, name: str, prefix: str, kind: str
) -> None:
    stopping = RelayProcess(server.url, prefix=prefix) if kind == "relay" else WorkerProcess(server.url, prefix)
    async with (
        Patient().open() as upstream,
        Headgate(server.url, prefix=prefix) as hg,
    ):

        async def in_line(count: int) -> bool:
            return (await hg.relay.status(name)).waiting == count

        await anyio.to_thread.run_sync(note_new_store, server.url, prefix)
        await hg.relay.put_upstream(name, window(1, 60.0, base_url=upstream.url, timeout_seconds=30))
        async with in_thread(stopping):
            sending = await hg.relay.submit("POST", name, "/x", user="u1", content=b"b", deadline=600)
            await eventually(lambda: upstream.arrived == 1)
            waiting = await hg.relay.submit("POST", name, "/x", user="u1", content=b"b", deadline=600)
            await eventually(partial(in_line, 1))
            os.kill(stopping.pid, signal.SIGTERM)
            await eventually(partial(in_line, 0))
            upstream.answer.set()
            assert await anyio.to_thread.run_sync(stopping.wait) == 0
        assert (await hg.relay.job(sending)).state is JobState.DONE
        assert (await hg.relay.job(waiting)).state is JobState.WAITING
        status = await hg.relay.status(name)
        assert (status.in_flight, status.cooling) == (0, 1)  # also of the permit the store was told
        assert upstream.arrived == 1


@asynccontextmanager
async def in_thread(process: RelayProcess | WorkerProcess) -> AsyncIterator[None]:
    """Start and end a process while this loop turns: what it talks to may live here."""
    await anyio.to_thread.run_sync(process.__enter__)
    try:
        yield
    finally:
        await anyio.to_thread.run_sync(process.__exit__, None, None, None)


async def test_stopping_relay_waits_no_longer_than_it_may(server: Topology, name: str) -> None:
    """A client that waits longer is told to ask another; one that leaves meanwhile is not waited for."""
    with RelayProcess(server.url, environment={"HEADGATE_RELAY_DRAIN_SECONDS": "2"}) as stopping:
        headers = {"X-API-Token": stopping.token, "X-User-Id": "u1"}
        async with (
            StrictUpstream().open() as upstream,
            httpx2.AsyncClient(base_url=stopping.url, headers=headers, timeout=30) as mine,
            httpx2.AsyncClient(base_url=stopping.url, headers=headers, timeout=30) as leaving,
        ):
            await put(mine, name, upstream.url, 1, 60.0)
            await mine.get(f"/relay/{name}/x")
            waiting = asyncio.ensure_future(mine.get(f"/relay/{name}/x"))
            left = asyncio.ensure_future(leaving.get(f"/relay/{name}/x"))
            await eventually(lambda: _waiting(mine, name, 2))
            os.kill(stopping.pid, signal.SIGTERM)
            left.cancel()
            await asyncio.wait((left,))
            told = await waiting
            assert (told.status_code, told.json()["code"]) == (503, "stopping")
            assert told.headers["retry-after"] == "1"
        assert stopping.wait() == 0
        assert upstream.count == 1
