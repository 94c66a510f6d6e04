"""Sends the heartbeats of a client's instances, and registers an instance again that the registry has lost.

A registration whose response was lost may have succeeded and superseded the number that we know. So it is repeated, with the
same nonce, before the next heartbeat: the registry gives the same response again, or says that another process has registered
since. The first registration under an id is removed again if its caller was cancelled or it failed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import msgspec

from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError
from headgate.kit.tasks import Tasks, cancel, finished
from headgate.registry.model import InstanceBeat, Json, Record, Registered, new_nonce
from headgate.registry.problems import Evicted, ServiceFull, Superseded, UnknownInstance
from headgate.sdk.backends.registry import RegistryBackend, ServiceName

JITTER: Final = 0.1
RETRY_SECONDS: Final = 1.0
EVICTED_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 30.0

log = get_logger()


class OwnInstance:
    """An instance that this client registered: its latest record, and the changes that no heartbeat has delivered yet."""

    def __init__(self, record: Record, registration: int, figures: Callable[[], Json] | None = None) -> None:
        self.record = record
        self.registration = registration
        self.superseded = False
        self.gone = False
        self.figures = figures
        self.nonce: str | None = None  # of a registration whose outcome is not known yet
        self.coming_back: asyncio.Task[Registered] | None = None
        self._metrics: Json | None = None
        self._metadata: Json | None = None
        self._healthy: bool | None = None

    @property
    def service(self) -> ServiceName:
        """Give its type and group."""
        return self.record.type, self.record.group

    def update(self, metrics: Json | None, metadata: Json | None, healthy: bool | None) -> None:
        """Keep changes for the next heartbeat, and in the record for another registration."""
        if metrics is not None:
            self._metrics = metrics
            self.record = msgspec.structs.replace(self.record, metrics=metrics)
        if metadata is not None:
            self._metadata = metadata
            self.record = msgspec.structs.replace(self.record, metadata=metadata)
        if healthy is not None:
            self._healthy = healthy
            self.record = msgspec.structs.replace(self.record, healthy=healthy)

    def next_beat(self) -> InstanceBeat:
        """Give the next heartbeat, with the changes since the last that was delivered."""
        if self.figures is not None:
            try:
                self.update({**self.record.metrics, **self.figures()}, None, None)
            except Exception:  # the heartbeat is sent without the load
                log.exception("load not measured", instance=self.record.instance_id)
        return InstanceBeat(self.record.instance_id, self._metrics, self._metadata, self._healthy, self.registration)

    def delivered(self, beat: InstanceBeat) -> None:
        """Drop the changes that a heartbeat has delivered; those made meanwhile are sent with the next."""
        if self._metrics is beat.metrics:
            self._metrics = None
        if self._metadata is beat.metadata:
            self._metadata = None
        if self._healthy is beat.healthy:
            self._healthy = None


class Heartbeats:
    """The instances of one client, each with the task that sends its heartbeats."""

    def __init__(self, backend: RegistryBackend, interval: float) -> None:
        self._backend = backend
        self._interval = interval
        self._own: dict[str, OwnInstance] = {}
        self._beating: dict[str, asyncio.Task[None]] = {}
        self.tasks = Tasks()
        self._closed = False

    async def register(self, record: Record, figures: Callable[[], Json] | None = None) -> Registered:
        """Register an instance; heartbeats of one already registered under this id go on, with the new record."""
        self._refuse_when_closed()
        own = self._own.get(record.instance_id)
        if own is not None:
            return await self._register_anew(own, record, figures)
        nonce = new_nonce()
        registering = self.tasks.start(self._backend.register(record, nonce, None))
        try:
            made = await finished(registering)
        except BaseException as error:
            if not isinstance(error, HeadgateError) or error.status >= 500:
                self.tasks.start(self._withdraw(record, nonce, registering))
            raise
        self.add(OwnInstance(record, made.registration, figures))
        return made

    def add(self, own: OwnInstance) -> None:
        """Add a registered instance, or replace the record of the one with this id."""
        before = self._own.get(own.record.instance_id)
        if before is not None:
            before.record, before.registration, before.superseded = own.record, own.registration, False
        else:
            self._own[own.record.instance_id] = own

    def find(self, instance_id: str) -> OwnInstance | None:
        """Give an instance that this client registered, or None."""
        return self._own.get(instance_id)

    def start(self, instance_id: str) -> None:
        """Send heartbeats for an instance of this client until `stop`."""
        self._refuse_when_closed()
        own = self._own.get(instance_id)
        if own is None:
            raise UnknownInstance("Register it with this client first.")
        if instance_id not in self._beating or self._beating[instance_id].done():
            self._beating[instance_id] = self.tasks.start(self._keep_beating(own))

    async def stop(self, instance_id: str | None) -> None:
        """Stop the heartbeats of one instance or of all."""
        names = list(self._beating) if instance_id is None else [instance_id]
        await cancel(*[self._beating.pop(name) for name in names if name in self._beating])

    async def close(self) -> None:
        """Stop all heartbeats and refuse new ones; calls in flight have a second to end."""
        self._closed = True
        await self.stop(None)
        await self.tasks.close(CLOSE_SECONDS)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Closed

    async def forget(self, instance_id: str) -> OwnInstance | None:
        """Forget an instance; a heartbeat in flight does not register it again."""
        own = self._own.pop(instance_id, None)
        if own is not None:
            own.gone = True
        await self.stop(instance_id)
        if own is not None and own.coming_back is not None:
            # The request may have been sent: the removal must come after it.
            await asyncio.wait((own.coming_back,))
        return own

    async def beat(self, own: OwnInstance, *, come_back: bool) -> None:
        """Send one heartbeat; with `come_back`, an instance that the registry does not know is registered again."""
        await self.settle(own)
        beat = own.next_beat()
        try:
            await self._backend.heartbeat(own.service, beat)
        except UnknownInstance:
            if not come_back or own.gone:
                raise
            # All instances notice a loss at once; a random pause spreads their registrations.
            await asyncio.sleep(random.uniform(0, self._interval / 2))
            if own.registration == beat.registration:
                await self.come_back(own)
        except Superseded:
            if own.nonce is None and own.registration == beat.registration:
                raise
            # This client registered it again while the heartbeat was in flight.
            await self.beat(own, come_back=come_back)
            return
        own.delivered(beat)

    async def come_back(self, own: OwnInstance) -> None:
        """Register again an instance that the registry has lost; raises Superseded if another process has its id now."""
        log.info("registering again", instance=own.record.instance_id, type=own.record.type)
        own.nonce = own.nonce or new_nonce()
        await self.settle(own)

    async def settle(self, own: OwnInstance) -> None:
        """Complete a registration that has no response yet: wait for it, or repeat it."""
        if own.nonce is not None and not own.gone:
            self._refuse_when_closed()
            if own.coming_back is None or own.coming_back.done():
                own.coming_back = self.tasks.start(self._register(own, own.nonce))
            await finished(own.coming_back)

    async def _register_anew(self, own: OwnInstance, record: Record, figures: Callable[[], Json] | None) -> Registered:
        while own.coming_back is not None and not own.coming_back.done():
            await asyncio.wait((own.coming_back,))
        if own.gone:
            return await self.register(record, figures)
        own.nonce = new_nonce()
        own.coming_back = self.tasks.start(self._register(own, own.nonce, record))
        return await finished(own.coming_back)

    async def _register(self, own: OwnInstance, nonce: str, record: Record | None = None) -> Registered:
        """Register an instance again: with a new record, which replaces any holder of its id, or with its own record."""
        try:
            made = await self._backend.register(record or own.record, nonce, None if record else own.registration)
        except (Superseded, Evicted, ServiceFull):
            own.nonce = None
            raise
        # Here and not in the awaiting task, which may have been cancelled.
        own.nonce, own.registration, own.superseded = None, made.registration, False
        if record is not None:
            own.record = record
        return made

    async def _withdraw(self, record: Record, nonce: str, registering: asyncio.Task[Registered]) -> None:
        """Remove a registration whose caller was cancelled or got an error; after one lease it has ended by itself."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + (record.ttl_seconds or LEASE_SECONDS)
        await asyncio.wait((registering,))
        while loop.time() < limit:
            try:
                await self._backend.remove((record.type, record.group), record.instance_id, None, nonce)
                return
            except Closed:
                return
            except HeadgateError as error:
                log.debug("not deregistered yet", instance=record.instance_id, error=str(error))
                await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))

    async def _keep_beating(self, own: OwnInstance) -> None:
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
            except Closed:
                return
            except HeadgateError as error:
                log.debug("heartbeat failed", instance=own.record.instance_id, error=str(error))
                pause = min(pause, RETRY_SECONDS * random.uniform(0.5, 1.5))
            except Exception:  # the next heartbeat must be tried whatever went wrong
                log.exception("heartbeat failed", instance=own.record.instance_id)
