"""What every process of ours does beside its work: it registers itself, and follows the settings that change live."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from headgate import __version__
from headgate.config.config import Config
from headgate.config.dynamic import NAMESPACE, Apply, Dynamic, EdgeLimits, LogLevel
from headgate.config.dynamic import LiveAlertTarget as LiveTarget
from headgate.config.watch import follow
from headgate.kit import logs
from headgate.kit.ids import new_ulid
from headgate.kit.logs import Level, get_logger
from headgate.kit.problems import Closed, HeadgateError, StoreUnavailable
from headgate.registry.alerts import Alerts, AlertTarget
from headgate.registry.health import Prober
from headgate.registry.model import Instance, Record
from headgate.registry.registry import Registry
from headgate.sdk.backends.registry import StoreRegistryBackend
from headgate.sdk.registry import Registry as Client

RETRY_SECONDS: Final = 2.0
CLOCK_SECONDS: Final = 5.0
# Under this name every process of ours reports its clock in the registry.
CLOCK_OFFSET: Final = "clockOffsetSeconds"
PROCESS_TYPES: Final = ("headgate-gateway", "headgate-worker", "headgate-relay", "headgate-arena")
ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # compared with, not listened on

log = get_logger()


class AdjustableLimits(Protocol):
    """A class of the edge's limits, whose rate can be changed while it runs."""

    def change(self, per_second: float | None) -> None:
        """Take another rate, or with None go back to the configured one."""


def process_record(kind: str, host: str, port: int | None) -> Record:
    """Describe this process: `headgate-gateway`, `headgate-worker`, …"""
    return Record(
        type=f"headgate-{kind}",
        hostname=socket.gethostname(),
        private_ip="" if host in ANY_ADDRESS else host,
        port=port,
        protocol="http",
        metadata={"version": __version__, "pid": os.getpid()},
    )


def clock_offsets(instances: Iterable[Instance]) -> list[tuple[str, float]]:
    """Give the name of each process, and by how many seconds its clock is ahead of the store's, as it reported."""
    found = []
    for instance in instances:
        offset = instance.metrics.get(CLOCK_OFFSET)
        if isinstance(offset, int | float):
            pid = instance.metadata.get("pid")
            found.append((f"{instance.type} on {instance.hostname}, process {pid},", float(offset)))
    return found


async def announce(registry: Registry, prober: Prober, record: Record) -> None:
    """Keep this process registered until cancelled, then take it out."""
    client = Client(StoreRegistryBackend(registry, prober, "default"))
    # One id for every try: the next takes the place of one whose answer was lost.
    record = msgspec.structs.replace(record, instance_id=record.instance_id or new_ulid())
    try:
        while True:
            try:
                offset = _clock_offset(registry)
                async with client.registered(msgspec.structs.replace(record, metrics={CLOCK_OFFSET: offset})):
                    await _report_clock(client, registry, record.instance_id, offset)
            except Closed:
                return
            except HeadgateError as error:
                log.debug("not registered yet", type=record.type, error=str(error))
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))
    finally:
        await client.stop()


async def _report_clock(client: Client, registry: Registry, instance_id: str, told: float) -> None:
    """Report this process's clock whenever it has changed against the store's."""
    while True:
        await asyncio.sleep(CLOCK_SECONDS)
        offset = _clock_offset(registry)
        if offset == told:
            continue
        try:
            await client.heartbeat(instance_id, metrics={CLOCK_OFFSET: offset})
            told = offset
        except StoreUnavailable as error:
            if isinstance(error, Closed):
                raise
            log.debug("clock not reported", error=str(error))


def _clock_offset(registry: Registry) -> float:
    """Give the offset of this process's clock in whole seconds: less is not worth a heartbeat of its own."""
    return float(round(registry.store.clock_offset()))


def live_settings(
    config: Config,
    *,
    usual: Level,
    alerts: Alerts | None = None,
    limits: Callable[[], Mapping[str, AdjustableLimits]] | None = None,
) -> Dynamic:
    """Follow Headgate's own live settings and put them in force in this process."""
    apply: dict[str, Apply] = {"log/level": lambda said: _set_level(said, usual)}
    if alerts is not None:
        configured = alerts.target

        def aim(said: LiveTarget) -> None:
            given = AlertTarget(**msgspec.structs.asdict(said))
            alerts.target = given if said.url else configured

        apply["alerts/target"] = aim
    if limits is not None:

        def limit(said: EdgeLimits) -> None:
            for name, limiter in limits().items():
                limiter.change(said.per_second.get(name))

        apply["edge/limits"] = limit
    return Dynamic(lambda: follow(config, NAMESPACE, None), apply)


def _set_level(said: LogLevel, usual: Level) -> None:
    logs.set_level(Level(said.level) if said.level else usual)
