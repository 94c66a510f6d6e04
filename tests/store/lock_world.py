"""What the tests of locks share: a client as another process has it, and what can be seen of a lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import REGISTRY

from headgate.kit import metrics
from headgate.locks import Locks
from headgate.store import StoreSettings, open_store
from headgate.store.metrics import SCRIPT_SECONDS
from tests.topology import FaultyProxy, Topology

LONG_TTL = 60.0  # far longer than a test waits: only being told, or giving back, lets anybody go on in time


@asynccontextmanager
async def another(server: Topology | FaultyProxy, prefix: str) -> AsyncIterator[Locks]:
    """Locks on a connection of their own, as another process has them."""
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store, Locks(store) as made:
        yield made


async def are_waiting(locks: Locks, count: int) -> bool:
    return (await locks.show("a")).waiting == count


async def is_held(locks: Locks) -> bool:
    return (await locks.show("a")).held


async def is_free(locks: Locks) -> bool:
    state = await locks.show("a")
    return not state.held and not state.waiting


def scripts(server: Topology) -> int:
    """How many scripts all primaries have run."""
    stats = [node.info("commandstats").get("cmdstat_evalsha", {"calls": 0}) for node in server.primaries()]
    return sum(int(one["calls"]) for one in stats)


def metric(name: str) -> float:
    """Add up one of our metrics over its labels."""
    return sum(
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == f"headgate_lock_{name}"
    )


def asked() -> float:
    """How often this process has asked for a lock."""
    metrics.flush()
    return sum(
        sample.value
        for family in SCRIPT_SECONDS.collect()
        for sample in family.samples
        if sample.name.endswith("_count") and sample.labels["script"] == "acquire"
    )


async def quiet(server: Topology) -> bool:
    before = scripts(server)
    await asyncio.sleep(0.1)
    return scripts(server) == before
