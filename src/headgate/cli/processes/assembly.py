"""Where the parts meet: the store is opened, the features are built on it, and handed to a gateway or a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec

from headgate.cli.processes.metric_names import MetricNames
from headgate.cli.processes.presence import AdjustableLimits, announce, live_settings, process_record
from headgate.cli.processes.process import begin
from headgate.config.api import operations as config_operations
from headgate.config.config import Config
from headgate.config.dynamic import DEFINITIONS
from headgate.config.dynamic import NAMESPACE as LIVE_SETTINGS
from headgate.config.settings import ConfigSettings
from headgate.gate.api import mount as gate_mount
from headgate.gate.api import operations as gate_operations
from headgate.gate.gate import Gate
from headgate.gate.jobs import jobs as gate_jobs
from headgate.gateway.assembly import Keeper, open_gateway
from headgate.gateway.gateway import Gateway
from headgate.gateway.settings import GatewaySettings
from headgate.http.routes import Mount, Operation
from headgate.kit import traces
from headgate.kit.life import Job
from headgate.kit.logs import LogSettings
from headgate.kit.settings import Configuration
from headgate.locks.api import operations as lock_operations
from headgate.locks.jobs import jobs as lock_jobs
from headgate.locks.locks import Locks
from headgate.locks.settings import LockSettings
from headgate.registry.alerts import Alerts, target_from
from headgate.registry.api import operations as registry_operations
from headgate.registry.health import prober_for
from headgate.registry.jobs import jobs as registry_jobs
from headgate.registry.model import Record
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.relay.api import operations as relay_operations
from headgate.relay.relay import Relay
from headgate.relay.relay import jobs as relay_jobs
from headgate.relay.settings import RelaySettings
from headgate.store import Store, StoreSettings, open_store
from headgate.waiting_room.admin_api import operations as queue_admin_operations
from headgate.waiting_room.api import operations as queue_operations
from headgate.waiting_room.jobs import jobs as waiting_room_jobs
from headgate.waiting_room.settings import WaitingRoomSettings
from headgate.waiting_room.signing import SigningKeys
from headgate.waiting_room.waiting_room import WaitingRoom


class ProcessParts(msgspec.Struct, frozen=True):
    """Everything the features offer: routes for a gateway and what keeps them current, jobs for a worker."""

    operations: list[Operation]
    mounts: list[Mount]
    keepers: list[Keeper]
    jobs: list[Job]
    signing_keys: Callable[[], Awaitable[SigningKeys]]


@asynccontextmanager
async def open_parts(
    store: Store,
    configuration: Configuration,
    record: Record,
    limits: Callable[[], Mapping[str, AdjustableLimits]] | None = None,
) -> AsyncIterator[ProcessParts]:
    """Build every feature on an open store, and close those that hold something; the record is what this process is registered as."""
    registry = Registry(store, configuration[RegistrySettings])
    prober = prober_for(store, registry.settings)
    alerts = Alerts(target_from(registry.settings))
    config = Config(store, configuration[ConfigSettings], {LIVE_SETTINGS: DEFINITIONS})
    live = live_settings(config, usual=configuration[LogSettings].level, alerts=alerts, limits=limits)
    presence = partial(announce, registry, prober, record)
    keys = configuration[GatewaySettings].signing_keys
    room = WaitingRoom(store, configuration[WaitingRoomSettings], keys, metered=True)
    gate = Gate(store, room)
    async with AsyncExitStack() as stack:
        stack.callback(room.queues.close)
        stack.callback(gate.rules.close)
        locks = await stack.enter_async_context(Locks(store, configuration[LockSettings]))
        relay = await stack.enter_async_context(Relay(store, configuration[RelaySettings]))
        names = MetricNames(room.queues.index, registry.index, relay.upstreams.index)
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
            jobs=[
                Job("presence", presence),
                Job("live settings", live.run),
                Job("metric names", names.keep),
                *registry_jobs(registry, prober, alerts),
                *lock_jobs(locks),
                *relay_jobs(relay),
                *waiting_room_jobs(room),
                *gate_jobs(gate),
            ],
            signing_keys=room.signing_keys,
        )


@asynccontextmanager
async def open_application(
    configuration: Configuration, listening: GatewaySettings, store_url: str
) -> AsyncIterator[Gateway]:
    """Open what one process of a gateway serves: it has a store connection and features of its own."""
    begin(configuration, "gateway")
    settings = msgspec.structs.replace(configuration[StoreSettings], url=store_url)
    opened: list[Gateway] = []
    async with open_store(settings) as store:
        record = process_record("gateway", listening.host, listening.port)
        async with open_parts(store, configuration, record, lambda: opened[0].limits if opened else {}) as parts:
            keys = await parts.signing_keys()
            async with open_gateway(
                parts.operations, parts.mounts, parts.keepers, settings=listening, store=store,
                secrets=[secret for _, secret in keys.secrets()],
            ) as application:  # fmt: skip
                opened.append(application)
                yield application
    traces.close()
