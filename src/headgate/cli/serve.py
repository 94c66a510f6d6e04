"""`headgate serve …`: where the parts meet. The store is opened, the features are built on it, and handed to a process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

import msgspec
import structlog
from cyclopts import Parameter

from headgate import __version__
from headgate.cli.local_store import local_store
from headgate.cli.ports import refuse_taken
from headgate.cli.presence import Limiter, announce, live_settings, process_record
from headgate.cli.settings import read_settings
from headgate.config.api import operations as config_operations
from headgate.config.dynamic import DEFINITIONS
from headgate.config.dynamic import NAMESPACE as LIVE_SETTINGS
from headgate.config.settings import ConfigSettings
from headgate.config.values import Config
from headgate.gateway.assembly import Keeper, open_gateway
from headgate.gateway.gateway import Gateway
from headgate.gateway.server import serve
from headgate.gateway.settings import GatewaySettings
from headgate.kit import logs, traces
from headgate.kit.http import Mount, Operation
from headgate.kit.life import Job, Life, run_jobs
from headgate.kit.logs import LogSettings
from headgate.kit.operations import OperationsSettings, Ready, serve_operations
from headgate.kit.ports import trouble
from headgate.kit.problems import StoreUnavailable
from headgate.kit.settings import DEFAULT, Configuration
from headgate.kit.traces import TraceSettings
from headgate.locks.api import operations as lock_operations
from headgate.locks.lock import Locks
from headgate.locks.settings import LockSettings
from headgate.locks.sweep import jobs as lock_jobs
from headgate.registry.alerts import Alerts, target_from
from headgate.registry.api import operations as registry_operations
from headgate.registry.health import prober_for
from headgate.registry.instances import Registry
from headgate.registry.jobs import jobs as registry_jobs
from headgate.registry.model import Record
from headgate.registry.settings import RegistrySettings
from headgate.relay.api import operations as relay_operations
from headgate.relay.relay import Relay
from headgate.relay.relay import jobs as relay_jobs
from headgate.relay.settings import RelaySettings
from headgate.store import Store, StoreSettings, open_store
from headgate.waiting_room import WaitingRoom
from headgate.waiting_room.admin_api import operations as queue_admin_operations
from headgate.waiting_room.api import operations as queue_operations
from headgate.waiting_room.gate import Gate
from headgate.waiting_room.gate_api import mount as gate_mount
from headgate.waiting_room.gate_api import operations as gate_operations
from headgate.waiting_room.settings import WaitingRoomSettings

log = structlog.get_logger()

Leash = Annotated[bool, Parameter(show=False, negative=())]


class Parts(msgspec.Struct, frozen=True):
    """Everything the features offer: routes for a gateway and what keeps them current, jobs for a worker."""

    operations: list[Operation] = []
    mounts: list[Mount] = []
    keepers: list[Keeper] = []
    jobs: list[Job] = []


def assemble(
    store: Store,
    configuration: Configuration,
    record: Record,
    limits: Callable[[], Mapping[str, Limiter]] | None = None,
) -> Parts:
    """Build every feature on an open store; the record is what this process is registered as."""
    registry = Registry(store, configuration[RegistrySettings])
    prober = prober_for(store, registry.settings)
    alerts = Alerts(target_from(registry.settings))
    config = Config(store, configuration[ConfigSettings], {LIVE_SETTINGS: DEFINITIONS})
    live = live_settings(config, usual=configuration[LogSettings].level, alerts=alerts, limits=limits)
    presence = partial(announce, registry, prober, record)
    locks = Locks(store, configuration[LockSettings])
    relay = Relay(store, configuration[RelaySettings])
    keys = configuration[GatewaySettings].signing_keys
    room = WaitingRoom(store, configuration[WaitingRoomSettings], keys, metered=True)
    gate = Gate(store, room)
    return Parts(
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
        keepers=[presence, live.run, gate.rules.keep, gate.keep],
        jobs=[
            Job("presence", presence),
            Job("live settings", live.run),
            *registry_jobs(registry, prober, alerts),
            *lock_jobs(locks),
            *relay_jobs(relay),
            *room.jobs(),
            *gate.jobs(),
        ],
    )


async def gateway(
    *,
    store: str | None = None,
    host: str | None = None,
    port: int | None = None,
    ops_port: int | None = None,
    workers: int | None = None,
    leash: Leash = False,
) -> int:
    """Run the HTTP APIs, the gate, the pages and the console; any number of gateways may run.

    Parameters
    ----------
    store
        The store's URL.
    host
        Address to listen on.
    port
        Port to listen on.
    ops_port
        Port for probes and metrics.
    workers
        Processes that answer requests.
    leash
        Stop when stdin ends.
    """
    configuration = read_settings(
        store__url=("--store", store),
        gateway__host=("--host", host),
        gateway__port=("--port", port),
        gateway__workers=("--workers", workers),
        ops__port=("--ops-port", ops_port),
    )
    begin(configuration, "gateway", leash=leash)
    settings = configuration[GatewaySettings]
    async with Life(settings.quiet_seconds + settings.stop_seconds + 1) as life:
        async with local_store(configuration, life.end) as url:
            await serve(
                partial(open_application, configuration, url),
                settings,
                probes=partial(listen_operations, configuration),
                life=life,
            )
    return 0


@asynccontextmanager
async def open_application(configuration: Configuration, store_url: str) -> AsyncIterator[Gateway]:
    """Open what one process of a gateway serves: it has a store connection and features of its own."""
    begin(configuration, "gateway")
    settings = msgspec.structs.replace(configuration[StoreSettings], url=store_url)
    listening = configuration[GatewaySettings]
    opened: list[Gateway] = []
    async with open_store(settings) as store:
        record = process_record("gateway", listening.host, listening.port)
        parts = assemble(store, configuration, record, lambda: opened[0].limits if opened else {})
        async with open_gateway(
            parts.operations, parts.mounts, parts.keepers, settings=listening, store=store
        ) as application:
            opened.append(application)
            yield application
    traces.close()


async def worker(*, store: str | None = None, ops_port: int | None = None, leash: Leash = False) -> int:
    """Run promotion, sweeps, health checks and other due work; any number of workers may run.

    Parameters
    ----------
    store
        The store's URL.
    ops_port
        Port for probes and metrics.
    leash
        Stop when stdin ends.
    """
    configuration = read_settings(store__url=("--store", store), ops__port=("--ops-port", ops_port))
    begin(configuration, "worker", leash=leash)
    async with Life() as life, local_store(configuration, life.end) as url:
        settings = msgspec.structs.replace(configuration[StoreSettings], url=url)
        async with open_store(settings) as opened:

            async def why_not() -> str | None:
                return "stopping" if life.quiet.is_set() else await store_trouble(opened)

            async with listen_operations(configuration, why_not) as port:
                log.info("worker started", ops_port=port)
                record = process_record("worker", configuration[OperationsSettings].host, port)
                await life.run(run_jobs(assemble(opened, configuration, record).jobs, life.quiet))
    traces.close()
    return 0


def begin(configuration: Configuration, process: str, *, leash: bool = False) -> None:
    """Set up what every process has: logs that know the secrets, traces, and the leash."""
    logs.configure(configuration[LogSettings], process)
    logs.hide(*configuration.secrets())
    traces.configure(configuration[TraceSettings], process, __version__)
    if leash:
        threading.Thread(target=_stop_at_end_of_stdin, daemon=True).start()


async def store_trouble(store: Store) -> str | None:
    """Say why the store cannot be used now; None if it can."""
    try:
        await store.ping()
    except StoreUnavailable as error:
        return error.detail
    return None


@asynccontextmanager
async def listen_operations(configuration: Configuration, ready: Ready) -> AsyncIterator[int]:
    """Serve probes and metrics; the default port gives way to a free one, a chosen one does not."""
    settings = configuration[OperationsSettings]
    port = settings.port
    if configuration.origin("ops.port") == DEFAULT and trouble(settings.host, port) is not None:
        port = 0
    refuse_taken(settings.host, port, "--ops-port")
    async with serve_operations(port, ready, host=settings.host) as taken:
        yield taken


def _stop_at_end_of_stdin() -> None:
    while os.read(0, 1024):  # not sys.stdin: a thread that waits in there would hold its lock at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)
