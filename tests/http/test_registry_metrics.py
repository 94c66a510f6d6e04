"""Metrics of registry and config: a gateway's numbers, and a worker's."""

from __future__ import annotations

import asyncio
import re
import secrets

import pytest
from prometheus_client import REGISTRY

from headgate.registry.metrics import SERVICES
from headgate.registry.model import Record
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper
from headgate.store import Store
from tests.processes import Gateway
from tests.topology import eventually

pytestmark = pytest.mark.anyio


async def measured(gateway: Gateway, name: str, labels: str = "") -> float:
    """Give one number of the gateway, all processes together; 0 if it is not there yet."""
    text = (await gateway.client.get("/metrics")).text
    found = re.search(rf"^{re.escape(name)}{re.escape(labels)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_a_gateway_counts_what_is_registered_renewed_and_watched(gateway: Gateway) -> None:
    client, group = gateway.client, secrets.token_hex(4)
    place = {"type": "game", "group": group}
    ok = '{outcome="ok"}'
    names = (
        ("headgate_registry_registrations_total", ok),
        ("headgate_registry_heartbeats_total", ok),
        ("headgate_registry_heartbeats_total", '{outcome="unknown_instance"}'),
        ("headgate_registry_push_seconds_count", ""),
    )
    before = [await measured(gateway, *name) for name in names]
    open_before = await measured(gateway, "headgate_registry_watchers")

    told = bytearray()

    async def watch() -> None:
        async with client.stream("GET", "/sd/v1/watch", params=place, timeout=30) as stream:
            async for chunk in stream.aiter_bytes():
                told.extend(chunk)

    watching = asyncio.ensure_future(watch())

    async def watched() -> bool:
        # Only what comes after the first bookmark is pushed; before it, it is part of the present.
        return b"event: bookmark" in told and await measured(gateway, "headgate_registry_watchers") == open_before + 1

    await eventually(watched)
    await client.post("/sd/v1/instances", json={**place, "instanceId": "a", "hostname": "h"})
    for name in ("a", "a", "nobody"):
        await client.post(f"/sd/v1/instances/{name}/heartbeat", json=place)

    async def counted() -> bool:
        now = [await measured(gateway, *name) for name in names]
        registered, renewed, unknown, pushed = (after - first for after, first in zip(now, before, strict=True))
        # The gateway is an instance too, and renews itself now and then.
        return (registered, unknown, pushed) == (1, 1, 1) and renewed >= 2

    await eventually(counted)
    assert await measured(gateway, "headgate_registry_watch_lag_seconds") < 10
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

    async def closed() -> bool:
        return await measured(gateway, "headgate_registry_watchers") == open_before

    await eventually(closed)


async def test_a_gateway_counts_publishes_by_their_outcome(gateway: Gateway) -> None:
    client, path = gateway.client, f"/cfg/v1/{secrets.token_hex(4)}/a"
    outcomes = ("published", "conflict")

    async def counts() -> list[float]:
        return [
            await measured(gateway, "headgate_config_publishes_total", f'{{outcome="{each}"}}') for each in outcomes
        ]

    before, reads = await counts(), await measured(gateway, "headgate_config_reads_total")
    for _ in range(2):
        await client.put(path, json={"content": "x"}, headers={"If-None-Match": "*"})
    await client.get(path)
    assert [after - first for after, first in zip(await counts(), before, strict=True)] == [1, 1]
    assert await measured(gateway, "headgate_config_reads_total") > reads


async def test_a_worker_counts_the_living_the_suspects_and_the_dead(store: Store) -> None:
    registry = Registry(store, RegistrySettings(ttl_seconds=5))
    SERVICES.forget(*SERVICES.shown())
    sweeper, namespace = Sweeper(registry), secrets.token_hex(4)
    thing = registry.service(namespace, "game", "g")
    service = f"{namespace}/game/g"

    def sample(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"headgate_registry_{name}", {"service": service, **labels})

    for number in range(10):
        await registry.register(namespace, Record(hostname="h", type="game", group="g", instance_id=f"i{number}"))
    await sweeper.sweep(thing)
    assert (sample("instances", state="live"), sample("instances", state="suspect")) == (10, 0)
    for ms in (2000, 4000, 5500):
        store.advance_clock(ms)
        await sweeper.sweep(thing)
    assert (sample("instances", state="live"), sample("instances", state="suspect")) == (0, 10)
    assert (sample("protected"), sample("expirations_total")) == (1, None), "held back, and nobody dead yet"
    await registry.protect(namespace, "game", "g", "off")
    await sweeper.sweep(thing)
    assert (sample("expirations_total"), sample("protected")) == (10, 0)
    assert (sample("instances", state="live"), sample("instances", state="suspect")) == (0, 0)
