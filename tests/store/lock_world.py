"""Shared by the tests of locks: a client as in another process, and the observable state of a lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from prometheus_client import REGISTRY

from headgate.kit import metrics
from headgate.locks import Locks, LockSettings
from headgate.store import StoreSettings, open_store
from headgate.store.metrics import SCRIPT_SECONDS
from tests.topology import FaultyProxy, Stopwatch, Topology

LONG_TTL = 60.0  # far longer than a test waits: only being told, or giving back, lets anybody go on in time

# A grace that outlasts a machine which stands still: nobody is passed over for it.
CALM = LockSettings(grace_ms=2000)
LONGER_THAN_THE_GRACE = 2.3

T = TypeVar("T")


@asynccontextmanager
async def another(
    server: Topology | FaultyProxy, prefix: str, settings: LockSettings | None = None
) -> AsyncIterator[Locks]:
    """Locks on a connection of their own, as another process has them."""
    patient = StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)
    async with open_store(patient, wait_seconds=30) as store, Locks(store, settings) as made:
        yield made


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for what must be there in so many seconds, not counting those in which the machine stood still."""
    watch = Stopwatch()
    async with asyncio.timeout(LONG_TTL / 2):
        done = await work
    assert watch.seconds < seconds
    return done


async def are_waiting(locks: Locks, count: int) -> bool:
    return (await locks.show("a")).waiting == count


async def is_held(locks: Locks) -> bool:
    return (await locks.show("a")).held


async def is_free(locks: Locks) -> bool:
    state = await locks.show("a")
    return not state.held and not state.waiting


def ran(server: Topology, command: str) -> int:
    """How often all primaries have run a command, also from inside scripts."""
    stats = [node.info("commandstats").get(f"cmdstat_{command}", {"calls": 0}) for node in server.primaries()]
    return sum(int(one["calls"]) for one in stats)


def scripts(server: Topology) -> int:
    """How many scripts all primaries have run."""
    return ran(server, "evalsha")


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
