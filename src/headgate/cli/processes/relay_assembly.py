"""What one worker of a relay serves: the proxy, the sending of jobs, and its place in the registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec

from headgate.cli.processes.metric_names import MetricNames
from headgate.cli.processes.presence import announce, process_record
from headgate.cli.processes.process import begin
from headgate.cli.trial.strict_upstream import StrictUpstream
from headgate.gateway.assembly import open_gateway
from headgate.gateway.gateway import Gateway
from headgate.gateway.settings import GatewaySettings
from headgate.kit import logs, traces
from headgate.kit.life import run_jobs
from headgate.kit.settings import Configuration
from headgate.registry.probes import prober_for
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.relay.api import operations
from headgate.relay.model import Limit, Upstream
from headgate.relay.relay import Relay, jobs
from headgate.relay.settings import RelaySettings
from headgate.store import Index, StoreSettings, open_store

DEMO = "a-server"


@asynccontextmanager
async def open_relay(
    configuration: Configuration, edge: GatewaySettings, store_url: str, *, demo: bool = False
) -> AsyncIterator[Gateway]:
    """Open what one process of a relay serves."""
    begin(configuration, "relay")
    logs.hide(*configuration[RelaySettings].secrets_by_name().values())
    settings = msgspec.structs.replace(configuration[StoreSettings], url=store_url)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(settings))
        feature = await stack.enter_async_context(Relay(store, configuration[RelaySettings]))
        if demo:
            upstream = await stack.enter_async_context(StrictUpstream(recording=False).open())
            limits = (Limit(count=10, seconds=60),)
            await feature.upstreams.put(DEMO, Upstream(base_url=upstream.url, limits=limits, forward_user=True))
        quiet = asyncio.Event()
        group = await stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(run_jobs(jobs(feature), quiet))
        registry = Registry(store, configuration[RegistrySettings])
        record = process_record("relay", edge.host, edge.port)
        names = MetricNames(Index(store, "queue"), registry.index, feature.upstreams.index)
        presence = partial(announce, registry, prober_for(store, registry.settings), record)
        async with open_gateway(
            operations(feature), [feature.mount()], [presence, names.keep], settings=edge, store=store
        ) as application:
            # Jobs come to their end beside the requests, not after them.
            stopping = asyncio.get_running_loop().create_future()
            stopping.add_done_callback(lambda _: quiet.set())
            application.stop.watch(stopping)
            try:
                yield application
            finally:
                quiet.set()
    traces.close()
