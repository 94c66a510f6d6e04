"""Runs health checks in workers: each check is claimed by one worker, and by another one if that worker dies."""

from __future__ import annotations

import asyncio
import random
from typing import Final, cast

import msgspec

from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.kit.tasks import Tasks
from headgate.registry.alerts import Alerts
from headgate.registry.model import Check, Instance
from headgate.registry.probes import Prober
from headgate.registry.registry import Registry
from headgate.registry.service_state import StoredInstance
from headgate.store import Arg, Claim, Thing, script

CLAIM = script(__package__, "check_claim")
DONE = script(__package__, "check_done")
AT_ONCE: Final = 64
SPARE_MS: Final = 2000
LATEST_MS: Final = 4000
RETRY_MS: Final = 250
BATCH_SECONDS: Final = 0.02

log = get_logger()
_records = msgspec.json.Decoder(StoredInstance)
_checks = msgspec.json.Decoder(Check)


class DueCheck(msgspec.Struct, frozen=True):
    """A health check that this worker has claimed."""

    instance: Instance
    check: Check


class HealthChecker:
    """Runs the health checks that are due."""

    def __init__(self, registry: Registry, prober: Prober, alerts: Alerts) -> None:
        self._registry = registry
        self._prober = prober
        self._alerts = alerts
        self._in_flight = 0

    async def step(self) -> None:
        """Start all checks that are due; a check that hangs does not delay the others."""
        if self._in_flight < self._prober.at_once:
            for claim in await self._registry.checks.claim():
                await self._visit(claim)

    async def _visit(self, claim: Claim) -> None:
        free = min(AT_ONCE, self._prober.at_once - self._in_flight)
        if free <= 0:
            await self._registry.checks.done(claim, RETRY_MS)
            return
        thing = self._registry.store.thing("service", claim.thing.namespace, claim.thing.name)
        reply = cast("list[bytes | int]", await self._registry.store.run(CLAIM, thing, free, SPARE_MS))
        next_ms = cast("int", reply[0])
        if next_ms < 0:
            await self._registry.checks.forget(claim)
            return
        # The claim is released before the probes run, so that other workers can claim the remaining checks.
        await self._registry.checks.done(claim, next_ms)
        words = cast("list[bytes]", reply[1:])
        due_checks = [_decode_due(*words[i : i + 4]) for i in range(0, len(words), 4)]
        if due_checks:
            self._in_flight += len(due_checks)
            self._registry.store.tasks.start(self._run(thing, due_checks))

    async def _run(self, thing: Thing, due_checks: list[DueCheck]) -> None:
        """Run probes concurrently and save their outcomes as they come; those that end together are saved in one call."""
        async with Tasks() as tasks:
            probes = {tasks.start(self._prober.healthy(due.instance, due.check)): due for due in due_checks}
            try:
                while probes:
                    await asyncio.wait(probes, return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.sleep(BATCH_SECONDS)
                    ended = [task for task in probes if task.done()]
                    outcomes = [(probes.pop(task), task.result()) for task in ended]
                    self._in_flight -= len(outcomes)
                    await self._save(thing, outcomes)
            finally:
                self._in_flight -= len(probes)

    async def _save(self, thing: Thing, outcomes: list[tuple[DueCheck, bool]]) -> None:
        settings = self._registry.settings
        items: list[Arg] = []
        soonest = LATEST_MS
        for due, passed in outcomes:
            check = due.check
            # Jitter, so that checks that started together drift apart.
            pause = int(check.interval_seconds * 1000 * random.uniform(0.9, 1.1))
            soonest = min(soonest, pause)
            items += [
                due.instance.instance_id, due.instance.registration, int(passed), check.rise, check.fall,
                int((check.remove_after_seconds or 0) * 1000), pause,
            ]  # fmt: skip
        try:
            words = await self._registry.store.run(
                DONE, thing, settings.history, int(settings.override_seconds * 1000), *items
            )
            await self._registry.checks.put(thing, soonest)
        except HeadgateError as error:
            log.warning("health checks were made for nothing", service=thing.name, error=str(error))
            return
        for (due, _), word in zip(outcomes, cast("list[bytes]", words), strict=True):
            if word in (b"healthy", b"unhealthy", b"removed"):
                self._report(thing, due, word.decode())

    def _report(self, thing: Thing, due: DueCheck, word: str) -> None:
        log.info("health changed", service=thing.name, instance=due.instance.instance_id, now=word)
        self._alerts.raise_alert(
            "health" if word != "removed" else "death",
            f"{due.instance.instance_id} of {thing.name} is {word}" + (" as unhealthy" if word == "removed" else ""),
            namespace=thing.namespace,
            service=thing.name,
            resolved=word == "healthy",
            key=f"{thing.tag}/{due.instance.instance_id}",
        )


def _decode_due(id_: bytes, registration: bytes, record: bytes, check: bytes) -> DueCheck:
    kept = _records.decode(record)
    instance = Instance(
        id_.decode(), kept.type, kept.group, kept.hostname, kept.public_ip, kept.private_ip, kept.port, kept.protocol,
        registration=int(registration),
    )  # fmt: skip
    return DueCheck(instance, _checks.decode(check))
