"""The sweep removes instances whose lease has ended; each service is claimed by one worker at a time."""

from __future__ import annotations

import asyncio
from typing import Final, cast

import msgspec

from headgate.kit.logs import get_logger
from headgate.registry import metrics
from headgate.registry.alerts import Alerts
from headgate.registry.registry import Registry
from headgate.store import Claim, Thing, script

SWEEP = script(__package__, "sweep")
MOST: Final = 200
AT_ONCE: Final = 64
MOST_TOLD: Final = 10  # instances that died together and get an alert each

log = get_logger()


class SweepResult(msgspec.Struct, frozen=True):
    """The outcome of one sweep of a service."""

    word: str
    next_ms: int
    instances: int
    suspects: int
    removed: list[str]
    marked: list[str]
    back: list[str]


class Sweeper:
    """Sweeps the services that are due."""

    def __init__(self, registry: Registry, alerts: Alerts | None = None) -> None:
        self._registry = registry
        self._alerts = alerts or Alerts()
        self._protected: set[Thing] = set()

    async def step(self) -> None:
        """Sweep all services that are due now."""
        while claims := await self._registry.index.claim(AT_ONCE):
            await asyncio.gather(*(self._visit(claim) for claim in claims))
            if len(claims) < AT_ONCE:
                return

    async def sweep(self, thing: Thing) -> SweepResult:
        """Sweep one service."""
        settings = self._registry.settings
        arguments = (
            settings.history, int(settings.override_seconds * 1000), MOST, settings.protect_from, settings.protect_share,
            int(settings.history_seconds * 1000),
        )  # fmt: skip
        reply = cast("list[bytes | int]", await self._registry.store.run(SWEEP, thing, *arguments))
        word, next_ms, instances, suspects = cast("tuple[bytes, int, int, int]", tuple(reply[:4]))
        changed: dict[bytes, list[str]] = {b"removed": [], b"put": [], b"back": []}
        for id_, kind in zip(cast("list[bytes]", reply[4::2]), cast("list[bytes]", reply[5::2]), strict=True):
            changed[kind].append(id_.decode())
        swept = SweepResult(word.decode(), next_ms, instances, suspects, *changed.values())
        self._measure(thing, swept)
        if swept.removed:
            log.info("instances expired", service=thing.name, namespace=thing.namespace, count=len(swept.removed))
            await self._registry.locations.forget(thing.namespace, thing.name, swept.removed)
        return swept

    async def _visit(self, claim: Claim) -> None:
        swept = await self.sweep(claim.thing)
        while swept.next_ms == 0:
            swept = await self.sweep(claim.thing)
        if swept.word == "gone":
            await self._registry.index.forget(claim)
        else:
            await self._registry.index.done(claim, swept.next_ms)

    def _measure(self, thing: Thing, swept: SweepResult) -> None:
        name = metrics.service_label(thing)
        ended = [*swept.removed, *swept.marked]
        if ended:
            metrics.EXPIRATIONS.labels(name).inc(len(ended))
        for id_ in ended[:MOST_TOLD]:
            self._alert(thing, "death", f"{id_} of {thing.name} stopped beating", key=f"{thing.tag}/{id_}")
        if len(ended) > MOST_TOLD:
            text = f"{len(ended) - MOST_TOLD} more of {thing.name} stopped beating"
            self._alert(thing, "death", text, key=f"{thing.tag}/{ended[MOST_TOLD]}")
        for id_ in swept.back:
            text = f"{id_} of {thing.name} is back"
            self._alert(thing, "death", text, key=f"{thing.tag}/{id_}", resolved=True)
        protected = swept.word == "protected"
        if protected != (thing in self._protected):
            (self._protected.add if protected else self._protected.discard)(thing)
            metrics.PROTECTED.labels(name).set(int(protected))
            words = "mass expiry held back" if protected else "mass expiry protection ended"
            log.warning(words, service=thing.name, namespace=thing.namespace, suspects=swept.suspects)
            text = f"{thing.name}: {words}, {swept.suspects} instances are late"
            self._alert(thing, "protection", text, key=f"{thing.tag}/protection", resolved=not protected)
        metrics.INSTANCES.labels(name, "live").set(swept.instances - swept.suspects)
        metrics.INSTANCES.labels(name, "suspect").set(swept.suspects)

    def _alert(self, thing: Thing, kind: str, text: str, *, key: str, resolved: bool = False) -> None:
        self._alerts.raise_alert(kind, text, namespace=thing.namespace, service=thing.name, key=key, resolved=resolved)
