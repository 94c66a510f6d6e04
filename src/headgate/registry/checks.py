"""Health checks by workers: each is made by one of them, and another takes over from one that dies."""

from __future__ import annotations

import asyncio
import random
from typing import Final, cast

import msgspec
import structlog

from headgate.kit.life import Job
from headgate.kit.problems import HeadgateError
from headgate.registry.alerts import Alerts
from headgate.registry.health import Prober
from headgate.registry.instances import Registry
from headgate.registry.model import Check, Instance
from headgate.registry.views import Kept
from headgate.store import Arg, Claim, Thing, script

CLAIM = script(__package__, "check_claim")
DONE = script(__package__, "check_done")
AT_ONCE: Final = 64
LONGEST_PROBE_MS: Final = 4000
EVERY_SECONDS: Final = 0.25

log = structlog.get_logger()
_records = msgspec.json.Decoder(Kept)
_checks = msgspec.json.Decoder(Check)


class Trial(msgspec.Struct, frozen=True):
    """One check that is ours to make."""

    instance: Instance
    check: Check


class Checker:
    """Makes the checks that are due."""

    def __init__(self, registry: Registry, prober: Prober, alerts: Alerts) -> None:
        self._registry = registry
        self._prober = prober
        self._alerts = alerts

    async def step(self) -> None:
        """Make all checks that are due now."""
        claims = await self._registry.checks.claim()
        await asyncio.gather(*(self._visit(claim) for claim in claims))

    async def _visit(self, claim: Claim) -> None:
        thing = self._registry.store.thing("service", claim.thing.namespace, claim.thing.name)
        reply = cast("list[bytes | int]", await self._registry.store.run(CLAIM, thing, AT_ONCE, LONGEST_PROBE_MS))
        next_ms = cast("int", reply[0])
        if next_ms < 0:
            await self._registry.checks.forget(claim)
            return
        # Given back before the probes are made, so that other workers take the rest meanwhile.
        await self._registry.checks.done(claim, next_ms)
        words = cast("list[bytes]", reply[1:])
        trials = [_trial(*words[i : i + 4]) for i in range(0, len(words), 4)]
        if trials:
            await self._make(thing, trials)

    async def _make(self, thing: Thing, trials: list[Trial]) -> None:
        outcomes = await asyncio.gather(*(self._prober.healthy(trial.instance, trial.check) for trial in trials))
        settings = self._registry.settings
        items: list[Arg] = []
        soonest = LONGEST_PROBE_MS
        for trial, passed in zip(trials, outcomes, strict=True):
            check = trial.check
            # A little early or late each time: checks that started together drift apart.
            pause = int(check.interval_seconds * 1000 * random.uniform(0.9, 1.1))
            soonest = min(soonest, pause)
            items += [
                trial.instance.instance_id, trial.instance.registration, int(passed), check.rise, check.fall,
                int((check.remove_after_seconds or 0) * 1000), pause,
            ]  # fmt: skip
        try:
            words = await self._registry.store.run(
                DONE, thing, settings.lease_ms, settings.history, int(settings.override_seconds * 1000), *items
            )
        except HeadgateError as error:
            log.warning("health checks were made for nothing", service=thing.name, error=str(error))
            return
        await self._registry.checks.put(thing, soonest)
        for trial, word in zip(trials, cast("list[bytes]", words), strict=True):
            if word in (b"healthy", b"unhealthy", b"removed"):
                self._tell(thing, trial, word.decode())

    def _tell(self, thing: Thing, trial: Trial, word: str) -> None:
        log.info("health changed", service=thing.name, instance=trial.instance.instance_id, now=word)
        self._alerts.raise_alert(
            "health" if word != "removed" else "death",
            f"{trial.instance.instance_id} of {thing.name} is {word}" + (" as unhealthy" if word == "removed" else ""),
            namespace=thing.namespace,
            service=thing.name,
            resolved=word == "healthy",
            key=f"{thing.tag}/{trial.instance.instance_id}",
        )


def check_job(checker: Checker) -> Job:
    """Look for due checks four times a second."""
    return Job("registry health checks", checker.step, EVERY_SECONDS)


def _trial(id_: bytes, registration: bytes, record: bytes, check: bytes) -> Trial:
    kept = _records.decode(record)
    instance = Instance(
        id_.decode(), kept.type, kept.group, kept.hostname, kept.public_ip, kept.private_ip, kept.port, kept.protocol,
        registration=int(registration),
    )  # fmt: skip
    return Trial(instance, _checks.decode(check))
