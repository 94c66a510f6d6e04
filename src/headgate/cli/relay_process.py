"""`headgate serve relay`: the forwarding proxy, and the sending of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headgate.cli.local_store import local_store
from headgate.cli.presence import announce, process_record
from headgate.cli.serve import Leash, begin, listen_operations
from headgate.cli.settings import read_settings
from headgate.gateway.assembly import open_gateway
from headgate.gateway.gateway import Gateway
from headgate.gateway.server import serve
from headgate.gateway.settings import GatewaySettings
from headgate.kit import logs, traces
from headgate.kit.life import Life, run_jobs
from headgate.kit.settings import Configuration
from headgate.registry.health import prober_for
from headgate.registry.instances import Registry
from headgate.registry.settings import RegistrySettings
from headgate.relay.api import operations
from headgate.relay.model import Limit, Upstream
from headgate.relay.relay import Relay, jobs
from headgate.relay.settings import RelaySettings
from headgate.relay.strict import StrictUpstream
from headgate.store import StoreSettings, open_store

DEMO = "a-server"
SPARE_SECONDS = 2.0


async def relay(
    *,
    store: str | None = None,
    host: str | None = None,
    port: int | None = None,
    ops_port: int | None = None,
    workers: int | None = None,
    demo: Annotated[bool, Parameter(negative=(), show=False)] = False,
    leash: Leash = False,
) -> int:
    """Run the forwarding proxy; any number of relays may run.

    Parameters
    ----------
    store
        The store's URL.
    host
        Address to listen on.
    port
        Port to listen on (8082 unless set).
    ops_port
        Port for probes and metrics.
    workers
        Processes that relay requests.
    demo
        Also run a strict upstream to try it on.
    leash
        Stop when stdin ends.
    """
    configuration = read_settings(
        store__url=("--store", store),
        gateway__host=("--host", host),
        relay__port=("--port", port),
        relay__workers=("--workers", workers),
        ops__port=("--ops-port", ops_port),
    )
    begin(configuration, "relay", leash=leash)
    settings = configuration[RelaySettings]
    edge = msgspec.structs.replace(
        configuration[GatewaySettings],
        port=settings.port,
        workers=settings.workers,
        stop_seconds=settings.drain_seconds + SPARE_SECONDS,
    )
    async with Life(edge.quiet_seconds + edge.stop_seconds + 1) as life:
        async with local_store(configuration, life.end) as url:
            await serve(
                partial(open_relay, configuration, edge, url, demo=demo),
                edge,
                probes=partial(listen_operations, configuration),
                life=life,
            )
    return 0


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
            upstream = await stack.enter_async_context(StrictUpstream().open())
            limits = (Limit(count=10, seconds=60),)
            await feature.upstreams.put(DEMO, Upstream(base_url=upstream.url, limits=limits, forward_user=True))
        quiet = asyncio.Event()
        group = await stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(run_jobs(jobs(feature), quiet))
        registry = Registry(store, configuration[RegistrySettings])
        record = process_record("relay", edge.host, edge.port)
        presence = partial(announce, registry, prober_for(store, registry.settings), record)
        async with open_gateway(
            operations(feature), [feature.mount()], [presence], settings=edge, store=store
        ) as application:
            try:
                yield application
            finally:
                quiet.set()
    traces.close()
