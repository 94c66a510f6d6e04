"""The demonstration shop: a button starts a rush, the queue switches itself on, and whoever waits gets in."""

from __future__ import annotations

import re
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

    async def line_stands() -> bool:
        # The shop's front page tells of its crowd. Our visitor must not ask for the lantern meanwhile: whoever happens
        # to be first when the queue switches on is let in, and stays in.
        front = await visitor.get("/")
        told = re.search(r"(\d+) of them (must wait|had to wait)", front.text)
        return told is not None and int(told[1]) >= 20

    await eventually(line_stands, 60, "a line stands", every=0.2)
    waits = await visitor.get(LANTERN)
    assert waits.status_code == 302
    page = waits.headers["location"]
    assert page.startswith("/wait/product-lantern?")
    assert "The lantern is back for one day" in (await visitor.get(page)).text
    async with httpx2.AsyncClient(base_url=gateway.url, headers={"X-API-Token": gateway.token}) as admin:
        assert (await admin.get("/api/admin/queues/product-lantern")).json()["waiting"] > 1
        await admin.post("/api/admin/queues/product-lantern/admit", json={"count": 500})

    async def enters() -> bool:
        return "You are in" in (await visitor.get(LANTERN)).text

    await eventually(enters, 30, "the visitor is in", every=0.3)


async def test_the_front_page_follows_the_crowd_and_rests_when_it_has_come(visitor: httpx2.AsyncClient) -> None:
    pages: list[httpx2.Response] = []

    async def coming() -> bool:
        # Again, if the last crowd was still on its way, or this one has come before we could look.
        await visitor.post("/rush")
        pages.append(await visitor.get("/"))
        return "A crowd is coming" in pages[-1].text

    await eventually(coming, 30, "a crowd is coming")
    assert pages[-1].headers["refresh"] == "1"

    async def come() -> bool:
        return "The last crowd" in (await visitor.get("/")).text

    await eventually(come, 90, "the crowd has come", every=0.3)
    assert "refresh" not in (await visitor.get("/")).headers
