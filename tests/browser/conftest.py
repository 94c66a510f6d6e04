"""A real browser in front of a real nginx, a site and a gateway with its worker."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx2
import pytest
from playwright.async_api import Browser, async_playwright, expect

from tests.processes import GatewayProcess
from tests.programs import need
from tests.proxy.site import guarded, nginx, site
from tests.topology import Topology, reaper

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

# What a page shows in the end is tested, and not how soon a busy machine draws it.
expect.set_options(timeout=20_000)


@dataclass(frozen=True)
class Place:
    """Where the site and the gateway behind it are."""

    site: str
    gateway: GatewayProcess

    def admin(self) -> httpx2.AsyncClient:
        """Open a client that may do everything."""
        return httpx2.AsyncClient(base_url=self.gateway.url, headers={"X-API-Token": self.gateway.token}, timeout=20)


@pytest.fixture(scope="module")
def place(server: Topology) -> Iterator[Place]:
    with guarded(server.url) as gateway:
        command = [sys.executable, "-m", "headgate", "serve", "worker", "--store", server.url, "--ops-port", "0"]
        with (gateway.directory / "worker.log").open("ab") as output:
            worker = reaper().spawn(command, output, {"HEADGATE_STORE_PREFIX": gateway.prefix})
        try:
            with site() as site_port, nginx(gateway.port, site_port) as url:
                yield Place(url, gateway)
        finally:
            worker.terminate()
            worker.wait(15)


@pytest.fixture(scope="module")
async def shared_browser(anyio_backend: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=need("chromium"), args=ARGUMENTS)
        yield opened
        await opened.close()


@pytest.fixture
async def browser(shared_browser: Browser) -> AsyncIterator[Browser]:
    """A browser that remembers nobody: whatever a test opened is closed and forgotten."""
    yield shared_browser
    for context in list(shared_browser.contexts):
        await context.close()
