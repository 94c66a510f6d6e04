"""The demonstration shop: a button starts a rush, the queue switches itself on, and whoever waits gets in."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from urllib.request import urlopen

import httpx2
import pytest

from tests.faults.worker_process import WorkerProcess
from tests.processes import GatewayProcess
from tests.topology import HOST, Topology, eventually, free_port, reaper, wait_until

LANTERN = "/product/lantern"


@pytest.fixture(scope="module")
def gateway(server: Topology) -> Iterator[GatewayProcess]:
    with GatewayProcess(server.url) as process, WorkerProcess(server.url, process.prefix):
        yield process


@pytest.fixture(scope="module")
def shop(gateway: GatewayProcess) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "headgate", "serve", "shop", "--port", str(port), "--ops-port", "0"]
    with (gateway.directory / "shop.log").open("ab") as output:
        process = reaper().spawn(command, output, {"HEADGATE_URL": gateway.url, "HEADGATE_TOKEN": gateway.token})
    try:
        wait_until(lambda: urlopen(f"http://{HOST}:{port}/", timeout=5).close() is None, 30, "the shop is open")
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        assert process.wait(15) == 0


@pytest.fixture
async def visitor(shop: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=shop, headers={"Accept": "text/html"}, timeout=20) as client:
        yield client


async def test_a_rush_makes_a_line_and_the_line_lets_people_in(
    gateway: GatewayProcess, visitor: httpx2.AsyncClient
) -> None:
    calm = await visitor.get(LANTERN)
    assert calm.status_code == 200
    assert "You are in" in calm.text
    assert "<form method=post" in (await visitor.get("/")).text
    assert (await visitor.post("/rush")).status_code == 303

    async def must_wait() -> bool:
        return (await visitor.get(LANTERN)).status_code == 302

    await eventually(must_wait, 30, "the queue is on", every=0.2)
    page = (await visitor.get(LANTERN)).headers["location"]
    assert page.startswith("/wait/product-lantern?")
    assert "The lantern is back for one day" in (await visitor.get(page)).text
    async with httpx2.AsyncClient(base_url=gateway.url, headers={"X-API-Token": gateway.token}) as admin:
        assert (await admin.get("/api/admin/queues/product-lantern")).json()["waiting"] > 1
        await admin.post("/api/admin/queues/product-lantern/admit", json={"count": 500})

    async def enters() -> bool:
        return "You are in" in (await visitor.get(LANTERN)).text

    await eventually(enters, 30, "the visitor is in", every=0.3)
