"""Health checks by workers: each is made by one of them, and another takes over from one that dies."""

from __future__ import annotations

import asyncio
import random
from typing import Final, cast

import msgspec

from headgate.kit.life import Job
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.kit.tasks import Tasks
from headgate.registry.alerts import Alerts
from headgate.registry.health import Prober
from headgate.registry.model import Check, Instance
from headgate.registry.registry import Registry
from headgate.registry.views import StoredInstance
from headgate.store import Arg, Claim, Thing, script

CLAIM = script(__package__, "check_claim")
DONE = script(__package__, "check_done")
AT_ONCE: Final = 64
SPARE_MS: Final = 2000
LATEST_MS: Final = 4000
SOON_MS: Final = 250
GATHERING_SECONDS: Final = 0.02
EVERY_SECONDS: Final = 0.25

log = get_logger()
_records = msgspec.json.Decoder(StoredInstance)
_checks = msgspec.json.Decoder(Check)


class CheckRun(msgspec.Struct, frozen=True):
    """One check that is ours to make."""

    instance: Instance
    check: Check


class Checker:
    """Makes the checks that are due."""

    def __init__(self, registry: Registry, prober: Prober, alerts: Alerts) -> None:
        self._registry = registry
        self._prober = prober
        self._alerts = alerts
        self._under_way = 0

    async def step(self) -> None:
        """Begin all checks that are due now; one that hangs holds up nobody else's."""
        if self._under_way < self._prober.at_once:
            for claim in await self._registry.checks.claim():
                await self._visit(claim)

    async def _visit(self, claim: Claim) -> None:
        room = min(AT_ONCE, self._prober.at_once - self._under_way)
        if room <= 0:
            await self._registry.checks.done(claim, SOON_MS)
            return
        thing = self._registry.store.thing("service", claim.thing.namespace, claim.thing.name)
        reply = cast("list[bytes | int]", await self._registry.store.run(CLAIM, thing, room, SPARE_MS))
        next_ms = cast("int", reply[0])
        if next_ms < 0:
            await self._registry.checks.forget(claim)
            return
        # Given back before the probes are made, so that other workers take the rest meanwhile.
        await self._registry.checks.done(claim, next_ms)
        words = cast("list[bytes]", reply[1:])
        trials = [_trial(*words[i : i + 4]) for i in range(0, len(words), 4)]
        if trials:
            self._under_way += len(trials)
            self._registry.store.tasks.start(self._make(thing, trials))

    async def _make(self, thing: Thing, trials: list[CheckRun]) -> None:
        """Make checks side by side; what they find is noted as it comes, those that end together in one call."""
        async with Tasks() as tasks:
            asking = {tasks.start(self._prober.healthy(trial.instance, trial.check)): trial for trial in trials}
            try:
                while asking:
                    await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.sleep(GATHERING_SECONDS)
                    ended = [task for task in asking if task.done()]
                    found = [(asking.pop(task), task.result()) for task in ended]
                    self._under_way -= len(found)
                    await self._note(thing, found)
            finally:
                self._under_way -= len(asking)

    async def _note(self, thing: Thing, found: list[tuple[CheckRun, bool]]) -> None:
        settings = self._registry.settings
        items: list[Arg] = []
        soonest = LATEST_MS
        for trial, passed in found:
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
                DONE, thing, settings.history, int(settings.override_seconds * 1000), *items
            )
            await self._registry.checks.put(thing, soonest)
        except HeadgateError as error:
            log.warning("health checks were made for nothing", service=thing.name, error=str(error))
            return
        for (trial, _), word in zip(found, cast("list[bytes]", words), strict=True):
            if word in (b"healthy", b"unhealthy", b"removed"):
                self._tell(thing, trial, word.decode())

    def _tell(self, thing: Thing, trial: CheckRun, word: str) -> None:
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


def _trial(id_: bytes, registration: bytes, record: bytes, check: bytes) -> CheckRun:
    kept = _records.decode(record)
    instance = Instance(
        id_.decode(), kept.type, kept.group, kept.hostname, kept.public_ip, kept.private_ip, kept.port, kept.protocol,
        registration=int(registration),
    )  # fmt: skip
    return CheckRun(instance, _checks.decode(check))
