"""Metrics of services and upstreams that are gone: none of their series stays, nor what they added to `other`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from headgate.cli.processes.metric_names import MetricNames
from headgate.kit.named_metrics import MOST_NAMES, OTHER, LabelNames
from headgate.registry.metrics import SERVICES
from headgate.registry.model import Record
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper
from headgate.relay.job_queue import JobQueue
from headgate.relay.jobs import RelaySweep
from headgate.relay.metrics import UPSTREAMS
from headgate.relay.settings import RelaySettings
from headgate.store import Index, Store
from tests.store.relay_world import PATIENT_MS, Counting, nodes, window
from tests.topology import Topology, eventually

pytestmark = pytest.mark.topology("standalone")
MANY = MOST_NAMES + 20


@pytest.fixture(autouse=True)
def no_name_is_known_yet() -> Iterator[None]:
    for names in (SERVICES, UPSTREAMS):
        names.forget(*names.known())
    yield
    for names in (SERVICES, UPSTREAMS):
        names.forget(*names.known())


def shown(names: LabelNames, metric: str | None = None) -> set[str]:
    """Give the label values under which anything is shown, of one metric or of all."""
    return {
        sample.labels[names.label]
        for family in REGISTRY.collect()
        for sample in family.samples
        if names.label in sample.labels and metric in (None, sample.name)
    }


async def test_the_series_of_removed_services_go(store: Store) -> None:
    registry = Registry(store, RegistrySettings(ttl_seconds=5, history_seconds=1))
    sweeper, namespace = Sweeper(registry), secrets.token_hex(4)
    metric_names = MetricNames(Index(store, "queue"), registry.index, Index(store, "upstream"))
    groups = [f"g{number}" for number in range(MANY)]

    async def register(group: str) -> None:
        await registry.register(namespace, Record(hostname="h", type="game", group=group, instance_id="i"))
        await sweeper.sweep(registry.service(namespace, "game", group))

    await asyncio.gather(*(register(group) for group in groups))
    await metric_names.forget_gone()
    assert len(shown(SERVICES, "headgate_registry_instances")) == MOST_NAMES + 1
    assert len(SERVICES.known()) == MANY, "those without series of their own count under other"

    await asyncio.gather(*(registry.remove(namespace, "game", group, "i") for group in groups[1:]))
    store.advance_clock(1500)

    async def gone() -> bool:
        await sweeper.step()  # a worker strikes the services that are empty
        await metric_names.forget_gone()
        return SERVICES.known() == {f"{namespace}/game/g0"}

    await eventually(gone, 20, "only the service that is there is known")
    assert shown(SERVICES) == {f"{namespace}/game/g0"}


async def test_the_series_of_removed_upstreams_go(server: Topology, prefix: str) -> None:
    async with nodes(server.url, prefix, 1, deadline_ms=PATIENT_MS) as (node,):
        sweep = RelaySweep(node.store, node.upstreams, JobQueue(node.store, node.upstreams, RelaySettings()))
        metric_names = MetricNames(Index(node.store, "queue"), Index(node.store, "service"), node.upstreams.index)
        names = [f"api-{number}" for number in range(MANY)]
        upstream = Counting(7, tail=0.0)

        async def use(name: str) -> None:
            await node.upstreams.put(name, window(5, 0.2))
            await node.send(name, "u", upstream)
            await sweep.visit(name)

        await asyncio.gather(*(use(name) for name in names))
        await metric_names.forget_gone()
        windows = "headgate_relay_largest_window"
        assert len(shown(UPSTREAMS, windows)) == MOST_NAMES + 1
        assert OTHER in shown(UPSTREAMS, windows)

        await asyncio.gather(*(node.upstreams.remove(name) for name in names[1:]))
        node.store.advance_clock(20_000)  # what was sent is old

        async def gone() -> bool:
            await sweep.step()
            await metric_names.forget_gone()
            return UPSTREAMS.known() == {"api-0"}

        await eventually(gone, 30, "only the upstream that is there is known")
        assert shown(UPSTREAMS, windows) <= {"api-0"}
        assert OTHER not in shown(UPSTREAMS, "headgate_relay_cooling")
