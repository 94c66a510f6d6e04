"""Heartbeats that run by themselves, and bring an instance back after any loss with its latest record."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from headgate.kit.problems import HeadgateError
from headgate.registry.model import Beat, Evicted, Json, Record, Registered, Superseded, UnknownInstance
from headgate.sdk.registry_modes import Mode, Place

JITTER: Final = 0.1
RETRY_SECONDS: Final = 1.0
EVICTED_SECONDS: Final = 5.0

log = structlog.get_logger()


class Own:
    """An instance that we registered: its latest record, and what has not been sent yet."""

    def __init__(self, record: Record, registration: int, figures: Callable[[], Json] | None = None) -> None:
        self.record = record
        self.registration = registration
        self.superseded = False
        self.gone = False
        self.figures = figures
        self.coming_back: asyncio.Task[Registered] | None = None
        self._metrics: Json | None = None
        self._metadata: Json | None = None
        self._healthy: bool | None = None

    @property
    def place(self) -> Place:
        """Give its type and group."""
        return self.record.type, self.record.group

    def update(self, metrics: Json | None, metadata: Json | None, healthy: bool | None) -> None:
        """Remember what changed, for the next beat and for the day it must register again."""
        if metrics is not None:
            self._metrics = metrics
            self.record = msgspec.structs.replace(self.record, metrics=metrics)
        if metadata is not None:
            self._metadata = metadata
            self.record = msgspec.structs.replace(self.record, metadata=metadata)
        if healthy is not None:
            self._healthy = healthy
            self.record = msgspec.structs.replace(self.record, healthy=healthy)

    def next_beat(self) -> Beat:
        """Give the next beat: with what has changed since the last that arrived."""
        if self.figures is not None:
            try:
                self.update({**self.record.metrics, **self.figures()}, None, None)
            except Exception:  # a machine that cannot be measured is alive all the same
                log.exception("load not measured", instance=self.record.instance_id)
        return Beat(self.record.instance_id, self._metrics, self._metadata, self._healthy, self.registration)

    def arrived(self, beat: Beat) -> None:
        """Note that a beat has arrived; what changed meanwhile is still to be sent."""
        if self._metrics is beat.metrics:
            self._metrics = None
        if self._metadata is beat.metadata:
            self._metadata = None
        if self._healthy is beat.healthy:
            self._healthy = None


class Beats:
    """The instances of one client, and the task of each."""

    def __init__(self, mode: Mode, interval: float) -> None:
        self._mode = mode
        self._interval = interval
        self._own: dict[str, Own] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, own: Own) -> None:
        """Take an instance in; one that was registered before under this id keeps beating with the new record."""
        before = self._own.get(own.record.instance_id)
        if before is not None:
            before.record, before.registration, before.superseded = own.record, own.registration, False
        else:
            self._own[own.record.instance_id] = own

    def find(self, instance_id: str) -> Own | None:
        """Give an instance of ours."""
        return self._own.get(instance_id)

    def start(self, instance_id: str) -> None:
        """Beat for an instance of ours until told to stop."""
        own = self._own.get(instance_id)
        if own is None:
            raise UnknownInstance("Register it with this client first.")
        if instance_id not in self._tasks or self._tasks[instance_id].done():
            self._tasks[instance_id] = asyncio.get_running_loop().create_task(self._keep_beating(own))

    async def stop(self, instance_id: str | None) -> None:
        """Beat no more, for one or for all."""
        names = list(self._tasks) if instance_id is None else [instance_id]
        tasks = [self._tasks.pop(name) for name in names if name in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def forget(self, instance_id: str) -> Own | None:
        """Let an instance go: a beat that is under way does not bring it back."""
        own = self._own.pop(instance_id, None)
        if own is not None:
            own.gone = True
        await self.stop(instance_id)
        if own is not None and own.coming_back is not None:
            # It may have been sent: whoever removes it now must come after it.
            (made,) = await asyncio.gather(own.coming_back, return_exceptions=True)
            if isinstance(made, Registered):
                own.registration = max(own.registration, made.registration)
        return own

    async def beat(self, own: Own, *, come_back: bool) -> None:
        """Beat once; with `come_back`, an instance that the registry does not know is registered again."""
        beat = own.next_beat()
        try:
            await self._mode.heartbeat(own.place, beat)
        except UnknownInstance:
            if not come_back or own.gone:
                raise
            # Everybody hears of a loss at once; each comes back at a moment of its own.
            await asyncio.sleep(random.uniform(0, self._interval / 2))
            log.info("registering again", instance=own.record.instance_id, type=own.record.type)
            own.coming_back = asyncio.get_running_loop().create_task(self._mode.register(own.record))
            own.registration = (await asyncio.shield(own.coming_back)).registration
        own.arrived(beat)

    async def _keep_beating(self, own: Own) -> None:
        pause = random.uniform(0.5, 1.0) * self._interval
        while True:
            await asyncio.sleep(pause)
            pause = self._interval * random.uniform(1 - JITTER, 1 + JITTER)
            try:
                await self.beat(own, come_back=True)
            except Superseded:
                own.superseded = True
                log.warning("another process has taken over this instance", instance=own.record.instance_id)
                return
            except Evicted as error:
                log.warning("evicted", instance=own.record.instance_id, detail=error.detail)
                pause = max(EVICTED_SECONDS, pause)
            except HeadgateError as error:
                log.debug("heartbeat failed", instance=own.record.instance_id, error=str(error))
                pause = min(pause, RETRY_SECONDS * random.uniform(0.5, 1.5))
            except Exception:  # whatever the way to the registry brings, the next beat is tried
                log.exception("heartbeat failed", instance=own.record.instance_id)
