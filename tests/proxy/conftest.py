"""A site behind each of the proxies, with one gateway, for the tests that ask through a real proxy."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from tests.processes import GatewayProcess
from tests.proxy.site import PROXIES, guarded, site
from tests.topology import Topology


@pytest.fixture(scope="module")
def guard(server: Topology) -> Iterator[GatewayProcess]:
    with guarded(server.url) as process:
        yield process


@pytest.fixture(scope="module", params=PROXIES)
def proxy_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def proxy(proxy_name: str, guard: GatewayProcess) -> Iterator[str]:
    with site() as site_port, PROXIES[proxy_name](guard.port, site_port) as url:
        yield url


@pytest.fixture
async def admin(guard: GatewayProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=guard.url, headers={"X-API-Token": guard.token}, timeout=20) as client:
        yield client


@pytest.fixture
async def visitor(proxy: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=proxy, headers={"Accept": "text/html"}, timeout=20) as client:
        yield client


@pytest.fixture
async def queue(admin: httpx2.AsyncClient) -> AsyncIterator[str]:
    name = f"q{secrets.token_hex(4)}"
    yield name
    await admin.delete(f"/api/admin/queues/{name}")
