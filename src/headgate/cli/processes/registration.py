"""Registers this process as a service of its own, and reports how far its clock is from the store's."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Iterable
from typing import Final

import msgspec

from headgate import __version__
from headgate.kit.ids import new_ulid
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError, StoreUnavailable
from headgate.registry.model import Instance, Record
from headgate.registry.probes import Prober
from headgate.registry.registry import Registry
from headgate.sdk.backends.registry import StoreRegistryBackend
from headgate.sdk.registry import Registry as Client

RETRY_SECONDS: Final = 2.0
CLOCK_SECONDS: Final = 5.0
# The metric under which every process reports its clock in the registry.
CLOCK_OFFSET: Final = "clockOffsetSeconds"
PROCESS_TYPES: Final = ("headgate-gateway", "headgate-worker", "headgate-relay", "headgate-arena")
ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # compared with, not listened on

log = get_logger()


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
    """Return the name of each process, and by how many seconds its clock is ahead of the store's, as it reported."""
    found = []
    for instance in instances:
        offset = instance.metrics.get(CLOCK_OFFSET)
        if isinstance(offset, int | float):
            pid = instance.metadata.get("pid")
            found.append((f"{instance.type} on {instance.hostname}, process {pid},", float(offset)))
    return found


async def announce(registry: Registry, prober: Prober, record: Record) -> None:
    """Keep this process registered until cancelled, then deregister it."""
    client = Client(StoreRegistryBackend(registry, prober, "default"))
    # One id for all attempts: a retry replaces a registration whose reply was lost.
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


async def _report_clock(client: Client, registry: Registry, instance_id: str, reported: float) -> None:
    """Report this process's clock whenever it has changed against the store's."""
    while True:
        await asyncio.sleep(CLOCK_SECONDS)
        offset = _clock_offset(registry)
        if offset == reported:
            continue
        try:
            await client.heartbeat(instance_id, metrics={CLOCK_OFFSET: offset})
            reported = offset
        except StoreUnavailable as error:
            if isinstance(error, Closed):
                raise
            log.debug("clock not reported", error=str(error))


def _clock_offset(registry: Registry) -> float:
    """Return the offset of this process's clock in whole seconds: smaller changes are not worth a heartbeat."""
    return float(round(registry.store.clock_offset()))
