"""Two registries on one store: one writes undisturbed, the other reads over a connection that a test may break."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.store import StoreSettings, open_store
from tests.topology import FaultyProxy, Standalone


@asynccontextmanager
async def writer_and_reader() -> AsyncIterator[tuple[Registry, Registry, FaultyProxy]]:
    with Standalone() as server:
        async with (
            FaultyProxy(server.node.port) as proxy,
            open_store(StoreSettings(url=server.url, prefix="t", deadline_ms=10_000)) as writing,
            open_store(StoreSettings(url=proxy.url, prefix="t", deadline_ms=10_000)) as reading,
        ):
            settings = RegistrySettings(history=5000)
            yield Registry(writing, settings), Registry(reading, settings), proxy
