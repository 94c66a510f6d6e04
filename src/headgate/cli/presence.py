"""What every process of ours does beside its work: it registers itself, and follows the settings that change live."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec
import structlog

from headgate import __version__
from headgate.config.dynamic import NAMESPACE, Apply, Dynamic, EdgeLimits, LogLevel
from headgate.config.dynamic import AlertTarget as LiveTarget
from headgate.config.values import Config
from headgate.config.watch import follow
from headgate.kit import logs
from headgate.kit.ids import new_ulid
from headgate.kit.logs import Level
from headgate.kit.problems import Closed, HeadgateError
from headgate.registry.alerts import Alerts, AlertTarget
from headgate.registry.health import Prober
from headgate.registry.instances import Registry
from headgate.registry.model import Record
from headgate.sdk.registry import Registry as Client
from headgate.sdk.registry_modes import StoreMode

RETRY_SECONDS: Final = 2.0
ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # compared with, not listened on

log = structlog.get_logger()


class Limiter(Protocol):
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


async def announce(registry: Registry, prober: Prober, record: Record) -> None:
    """Keep this process registered until cancelled, then take it out."""
    client = Client(StoreMode(registry, prober, "default"))
    # One id for every try: the next takes the place of one whose answer was lost.
    record = msgspec.structs.replace(record, instance_id=record.instance_id or new_ulid())
    try:
        while True:
            try:
                async with client.registered(record):
                    await asyncio.Event().wait()
            except Closed:
                return
            except HeadgateError as error:
                log.debug("not registered yet", type=record.type, error=str(error))
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))
    finally:
        await client.stop()


def live_settings(
    config: Config,
    *,
    usual: Level,
    alerts: Alerts | None = None,
    limits: Callable[[], Mapping[str, Limiter]] | None = None,
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
