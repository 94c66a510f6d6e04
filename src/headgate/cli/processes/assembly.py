"""Puts together what a process runs: the features that it needs on one open store, and what they offer to it.

`open_parts` is the one place where features are built. It enters those that hold a resource and closes all of them, the
last one first. Signals are handled by `kit/life.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from functools import partial

import msgspec

from headgate.cli.processes.live_settings import AdjustableLimits, live_settings
from headgate.cli.processes.metric_names import MetricNames
from headgate.cli.processes.registration import announce, process_record
from headgate.cli.processes.startup import begin
from headgate.cli.trial.strict_upstream import StrictUpstream
from headgate.config.api import operations as config_operations
from headgate.config.config import Config
from headgate.config.live_settings import DEFINITIONS
from headgate.config.live_settings import NAMESPACE as LIVE_SETTINGS
from headgate.config.settings import ConfigSettings
from headgate.gate.api import mount as gate_mount
from headgate.gate.api import operations as gate_operations
from headgate.gate.gate import Gate
from headgate.gate.jobs import jobs as gate_jobs
from headgate.gateway.assembly import Keeper, open_gateway
from headgate.gateway.gateway import Gateway
from headgate.gateway.settings import GatewaySettings
from headgate.http.routes import Mount, Operation
from headgate.kit import logs, traces
from headgate.kit.life import Job, run_jobs
from headgate.kit.logs import LogSettings
from headgate.kit.settings import Configuration
from headgate.locks.api import operations as lock_operations
from headgate.locks.jobs import jobs as lock_jobs
from headgate.locks.locks import Locks
from headgate.locks.settings import LockSettings
from headgate.registry.alerts import Alerts, target_from
from headgate.registry.api import operations as registry_operations
from headgate.registry.jobs import jobs as registry_jobs
from headgate.registry.probes import prober_for
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.relay.api import operations as relay_operations
from headgate.relay.jobs import jobs as relay_jobs
from headgate.relay.model import Limit, Upstream
from headgate.relay.relay import Relay
from headgate.relay.settings import RelaySettings
from headgate.store import Index, Store, StoreSettings, open_store
from headgate.waiting_room.admin_api import operations as queue_admin_operations
from headgate.waiting_room.api import operations as queue_operations
from headgate.waiting_room.jobs import jobs as waiting_room_jobs
from headgate.waiting_room.settings import WaitingRoomSettings
from headgate.waiting_room.waiting_room import WaitingRoom

DEMO_UPSTREAM = "a-server"


class Process(StrEnum):
    """The kinds of processes that have parts of their own."""

    GATEWAY = "gateway"
    WORKER = "worker"
    RELAY = "relay"
    ARENA = "arena"


class ProcessParts(msgspec.Struct, frozen=True):
    """The routes, mounts and background tasks that a gateway or relay serves, and the jobs that it or a worker runs.

    The secrets sign the cookies of the console, newest first. Only an arena needs the waiting room itself.
    """

    operations: list[Operation] = []
    mounts: list[Mount] = []
    keepers: list[Keeper] = []
    jobs: list[Job] = []
    secrets: list[bytes] = []
    room: WaitingRoom | None = None


@asynccontextmanager
async def open_parts(
    process: Process,
    store: Store,
    configuration: Configuration,
    host: str = "",
    port: int | None = None,
    limits: Callable[[], Mapping[str, AdjustableLimits]] | None = None,
    *,
    demo: bool = False,
) -> AsyncIterator[ProcessParts]:
    """Open the features of a process on an open store; the process registers itself with its host and port."""
    config = Config(store, configuration[ConfigSettings], {LIVE_SETTINGS: DEFINITIONS})
    signing_keys, level = configuration[GatewaySettings].signing_keys, configuration[LogSettings].level
    async with AsyncExitStack() as stack:
        if process is Process.ARENA:
            room = await stack.enter_async_context(WaitingRoom(store, signing_keys=signing_keys))
            yield ProcessParts(jobs=[Job("live settings", live_settings(config, usual=level).run)], room=room)
            return
        registry = Registry(store, configuration[RegistrySettings])
        prober = prober_for(store, registry.settings)
        presence = partial(announce, registry, prober, process_record(process, host, port))
        relay = await stack.enter_async_context(Relay(store, configuration[RelaySettings]))
        if process is Process.RELAY:
            if demo:
                upstream = await stack.enter_async_context(StrictUpstream(recording=False).open())
                policy = Upstream(base_url=upstream.url, limits=(Limit(count=10, seconds=60),), forward_user=True)
                await relay.upstreams.put(DEMO_UPSTREAM, policy)
            names = MetricNames(Index(store, "queue"), registry.index, relay.upstreams.index)
            keepers: list[Keeper] = [presence, names.keep]
            yield ProcessParts(relay_operations(relay), [relay.mount()], keepers, relay_jobs(relay))
            return
        locks = await stack.enter_async_context(Locks(store, configuration[LockSettings]))
        alerts = Alerts(target_from(registry.settings))
        live = live_settings(config, usual=level, alerts=alerts, limits=limits)
        room = await stack.enter_async_context(
            WaitingRoom(store, configuration[WaitingRoomSettings], signing_keys, metered=True)
        )
        gate = await stack.enter_async_context(Gate(store, room))
        names = MetricNames(room.queues.index, registry.index, relay.upstreams.index)
        if process is Process.WORKER:
            yield ProcessParts(
                jobs=[
                    Job("presence", presence),
                    Job("live settings", live.run),
                    Job("metric names", names.keep),
                    *registry_jobs(registry, prober, alerts),
                    *lock_jobs(locks),
                    *relay_jobs(relay),
                    *waiting_room_jobs(room),
                    *gate_jobs(gate),
                ]
            )
            return
        yield ProcessParts(
            operations=[
                *registry_operations(registry, prober),
                *config_operations(config),
                *lock_operations(locks),
                *relay_operations(relay),
                *queue_operations(room),
                *queue_admin_operations(room),
                *gate_operations(gate, room),
            ],
            mounts=[gate_mount(gate), relay.mount()],
            keepers=[presence, live.run, gate.rules.run, gate.run, room.numbers.run, names.keep],
            secrets=[secret for _, secret in (await room.signing_keys()).secrets()],
        )


@asynccontextmanager
async def open_application(
    process: Process, configuration: Configuration, listening: GatewaySettings, store_url: str, *, demo: bool = False
) -> AsyncIterator[Gateway]:
    """Open the HTTP application of one worker process of a gateway or relay, with a store connection of its own."""
    begin(configuration, process)
    if process is Process.RELAY:
        logs.hide(*configuration[RelaySettings].secrets_by_name().values())
    settings = msgspec.structs.replace(configuration[StoreSettings], url=store_url)
    opened: list[Gateway] = []
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(settings))

        def limits() -> Mapping[str, AdjustableLimits]:
            return opened[0].limits if opened else {}

        parts = await stack.enter_async_context(
            open_parts(process, store, configuration, listening.host, listening.port, limits, demo=demo)
        )
        quiet = asyncio.Event()
        if parts.jobs:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            group.create_task(run_jobs(parts.jobs, quiet))
        async with open_gateway(
            parts.operations, parts.mounts, parts.keepers, settings=listening, store=store, secrets=parts.secrets
        ) as application:
            opened.append(application)
            # Jobs finish while the last requests do, not after them.
            stopping = asyncio.get_running_loop().create_future()
            stopping.add_done_callback(lambda _: quiet.set())
            application.stop.watch(stopping)
            try:
                yield application
            finally:
                quiet.set()
    traces.close()
