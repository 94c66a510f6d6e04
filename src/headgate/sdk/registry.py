"""`hg.registry`: register, send heartbeats, discover, watch and deregister.

An instance that the registry has lost is registered again, and discovery answers from the last known state in an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypedDict, Unpack

import msgspec

from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError, StoreUnavailable
from headgate.kit.tasks import Tasks, cancel, finished
from headgate.registry.filters import parse_filters, passes_all
from headgate.registry.model import (
    Change,
    Check,
    Instance,
    InstanceBeat,
    Json,
    Listing,
    OverrideChange,
    Record,
    Registered,
    ServiceSummary,
    as_sent,
)
from headgate.registry.problems import Evicted, Superseded, UnknownInstance
from headgate.registry.wire import MOST_BEATS, BatchAnswer
from headgate.sdk.backends.registry import RegistryBackend, RegistryEvent, ServiceName
from headgate.sdk.following import FIRST_PAUSE, LONGEST_PAUSE, follow
from headgate.sdk.heartbeats import Heartbeats
from headgate.sdk.listeners import Listener
from headgate.sdk.service_view import InstanceList, SavedView, ServiceView
from headgate.sdk.snapshot import Snapshots
from headgate.sdk.system import load_figures, system_info

DRAIN_SECONDS: Final = 5.0
FIRST_SECONDS: Final = 10.0

log = get_logger()


class RecordFields(TypedDict, total=False):
    """The fields of a record, as keyword arguments."""

    type: str
    group: str
    instance_id: str
    hostname: str
    public_ip: str
    private_ip: str
    port: int | None
    protocol: str
    weight: float
    enabled: bool
    ephemeral: bool
    healthy: bool
    system_info: Json
    metadata: Json
    metrics: Json
    performance: Json
    ttl_seconds: float | None
    check: Check | None


class Registry:
    """The registry for one client."""

    def __init__(
        self,
        backend: RegistryBackend,
        *,
        snapshots: Snapshots[SavedView] | None = None,
        ttl_seconds: float = 30.0,
        heartbeat_interval_ms: int = 10_000,
    ) -> None:
        self._backend = backend
        self._snapshots = snapshots
        self._ttl_seconds = ttl_seconds
        self._views: dict[tuple[str, str | None], ServiceView] = {}
        self._following: dict[tuple[str, str | None], asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._heartbeats = Heartbeats(backend, heartbeat_interval_ms / 1000)
        self._running = True

    @property
    def is_running(self) -> bool:
        """Tell whether this part is open."""
        return self._running

    # Providers

    async def register(
        self, record: Record | None = None, *, collect_system: bool = False, **fields: Unpack[RecordFields]
    ) -> Registered:
        """Register an instance; it gets an id if it has none. `collect_system` adds facts and load of the machine."""
        given = record or Record(**fields)
        if collect_system:
            given = msgspec.structs.replace(given, system_info={**system_info(), **given.system_info})
        if given.ttl_seconds is None:
            given = msgspec.structs.replace(given, ttl_seconds=self._ttl_seconds)
        given = as_sent(given).addressed().checked()
        return await self._heartbeats.register(given, load_figures if collect_system else None)

    async def heartbeat(
        self,
        instance_id: str,
        *,
        metrics: Json | None = None,
        performance: Json | None = None,
        metadata: Json | None = None,
        healthy: bool | None = None,
    ) -> None:
        """Renew a lease once; fields that are given replace those of the record. Raises UnknownInstance."""
        figures = metrics if metrics is not None else performance
        own = self._heartbeats.find(instance_id)
        if own is None:
            await self._backend.heartbeat(None, InstanceBeat(instance_id, figures, metadata, healthy))
            return
        own.update(figures, metadata, healthy)
        await self._heartbeats.beat(own, come_back=False)

    async def come_back(self, instance_id: str) -> None:
        """Register again, with its latest record, an instance of this client that the registry has lost.

        Raises Superseded if another process has registered under its id since.
        """
        own = self._heartbeats.find(instance_id)
        if own is None:
            raise UnknownInstance("Register it with this client first.")
        await self._heartbeats.come_back(own)

    async def batch_heartbeat(self, instance_ids: Sequence[str]) -> BatchAnswer:
        """Renew several leases in one call; the answer lists the ids that are unknown."""
        beats: list[tuple[ServiceName, InstanceBeat]] = []
        missing: list[str] = []
        for instance_id in instance_ids:
            own = self._heartbeats.find(instance_id)
            if own is None:
                missing.append(instance_id)
            else:
                with suppress(Superseded, Evicted):  # the heartbeat below is refused with it too
                    await self._heartbeats.settle(own)
                beats.append((own.service, own.next_beat()))
        renewed = 0
        superseded: list[str] = []
        for first in range(0, len(beats), MOST_BEATS):
            answer = await self._backend.heartbeats(beats[first : first + MOST_BEATS])
            renewed += answer.renewed
            missing += answer.unknown
            superseded += answer.superseded
        return BatchAnswer(renewed, missing, superseded)

    def start_auto_heartbeat(self, instance_id: str) -> None:
        """Send heartbeats for an instance until stopped; if the registry loses it, it is registered again with its latest record."""
        self._heartbeats.start(instance_id)

    async def stop_auto_heartbeat(self, instance_id: str | None = None) -> None:
        """Stop the heartbeats of one instance or of all."""
        await self._heartbeats.stop(instance_id)

    async def remove(self, instance_id: str, type: str | None = None, group: str | None = None) -> None:
        """Deregister an instance; its heartbeats stop and nothing here registers it again."""
        own = await self._heartbeats.forget(instance_id)
        service = (type, group) if type is not None and group is not None else own.service if own else None
        known = (own.registration, own.nonce) if own else (None, None)
        await self._backend.remove(service, instance_id, *known)

    deregister = remove

    async def drain(self, instance_id: str, *, wait_seconds: float = DRAIN_SECONDS) -> None:
        """Report the instance as unhealthy, wait for callers to notice and for work to end, then deregister it."""
        try:
            await self.heartbeat(instance_id, healthy=False)
        except UnknownInstance:
            log.info("instance was not registered", instance=instance_id)
        else:
            await asyncio.sleep(wait_seconds)
        await self.remove(instance_id)

    @asynccontextmanager
    async def registered(
        self, record: Record | None = None, *, collect_system: bool = False, **fields: Unpack[RecordFields]
    ) -> AsyncIterator[Registered]:
        """Keep an instance registered, with heartbeats, for as long as the block lasts."""
        made = await self.register(record, collect_system=collect_system, **fields)
        try:
            self.start_auto_heartbeat(made.instance_id)
            yield made
        finally:
            try:
                # The removal goes on even if this task is cancelled meanwhile.
                removal = self.remove(made.instance_id)
                await (finished(self._heartbeats.tasks.start(removal)) if self._running else removal)
            except StoreUnavailable as error:
                log.info("not deregistered; the lease will end by itself", instance=made.instance_id, error=str(error))
            except Superseded:
                log.info("another process has taken over; it stays", instance=made.instance_id)

    # Consumers

    async def discover(
        self,
        type: str,
        group: str | None = None,
        *,
        healthy: bool | None = None,
        filters: Sequence[str] = (),
        check: bool = False,
    ) -> InstanceList:
        """Find instances; in an outage this gives the last known ones, marked stale."""
        parsed = parse_filters(filters)
        view = await self._view(type, group)
        try:
            if check:
                # The unfiltered list is kept too, for an outage.
                await self._discovered(view, await self._backend.discover(type, group, None, (), False))
                checked = await self._backend.discover(type, group, healthy, filters, check)
                return InstanceList(checked.instances, stale=False, revision=checked.revision)
            listing = await self._backend.discover(type, group, healthy, filters, False)
            filtered = healthy is not None or bool(filters)
            if filtered and view.is_of(listing):
                return InstanceList(listing.instances, stale=False, revision=listing.revision)
            if filtered:
                listing = await self._backend.discover(type, group, None, (), False)
            await self._discovered(view, listing)
        except StoreUnavailable:
            if not view.known:
                raise
            stale = True
        else:
            stale = False
        kept = [
            each for each in view.instances()
            if passes_all(each, parsed) and (healthy is None or each.available == healthy)
        ]  # fmt: skip
        return InstanceList(kept, stale=stale, revision=view.revision)

    async def get_all_instances(self, service_name: str) -> InstanceList:
        """Find all instances of `type/group`, or of a type."""
        return await self.discover(*_service(service_name))

    async def get_healthy_instances(self, service_name: str) -> InstanceList:
        """Find the instances of `type/group`, or of a type, that traffic may go to."""
        return await self.discover(*_service(service_name), healthy=True)

    async def cached(self, type: str, group: str | None = None) -> InstanceList:
        """Give the instances that a watch keeps in memory, without a call; the first time, start the watch and wait for it.

        Raises StoreUnavailable if the registry does not answer and no snapshot exists, or the error that refused the watch.
        """
        view = await self._follow(type, group)
        await view.wait_until_known(FIRST_SECONDS)
        return view.known_list()

    async def subscribe(self, service_name: str, listener: Listener[Change]) -> None:
        """Call a listener with every change, beginning with the present instances."""
        view = await self._follow(*_service(service_name))
        await view.listen(listener)

    async def unsubscribe(self, service_name: str, listener: Listener[Change]) -> None:
        """Stop calling one listener."""
        key = _service(service_name)
        view = self._views.get(key)
        if view is None:
            return
        await view.unlisten(listener)
        if not view.listeners:
            await self._unfollow(key)

    def watch(
        self, type: str, group: str | None = None, *, position: str | None = None
    ) -> AsyncGenerator[RegistryEvent, None]:
        """Give raw events: the present state and then changes, or the changes after a position that `Marked` gave."""
        return self._backend.watch(type, group, position)

    # Operators

    async def override(self, type: str, group: str, instance_id: str, change: OverrideChange) -> Instance:
        """Override fields of an instance's record, as an operator."""
        return await self._backend.override((type, group), instance_id, change)

    async def evict(self, type: str, group: str, instance_id: str, seconds: float) -> None:
        """Remove an instance and refuse its registration for so many seconds."""
        await self._backend.evict((type, group), instance_id, seconds)

    async def services(self) -> list[ServiceSummary]:
        """List the services of the namespace."""
        return await self._backend.services()

    async def protect(self, type: str, group: str, mode: str) -> None:
        """Switch a service's mass-expiry protection to auto or off."""
        await self._backend.protect((type, group), mode)

    async def stop(self) -> None:
        """End all background tasks: heartbeats, watches, listeners; instances stay registered until their leases end."""
        self._running = False
        await self._heartbeats.close()
        for key in list(self._following):
            await self._unfollow(key)
        await self._tasks.close()
        for view in list(self._views.values()):
            await view.close()

    async def _view(self, type_: str, group: str | None) -> ServiceView:
        key = (type_, group)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = ServiceView(
                f"{type_}@{group if group is not None else '*'}", group, self._snapshots
            )
            await asyncio.to_thread(view.load)
        return view

    async def _discovered(self, view: ServiceView, listing: Listing) -> None:
        if view.discovered(listing):
            await view.save()

    async def _follow(self, type_: str, group: str | None) -> ServiceView:
        view = await self._view(type_, group)
        if not self._running:
            raise Closed
        key = (type_, group)
        if key not in self._following:
            self._following[key] = self._tasks.start(self._keep_following(type_, group, view))
        return view

    async def _unfollow(self, key: tuple[str, str | None]) -> None:
        task = self._following.pop(key, None)
        if task is not None:
            await cancel(task)
            await self._views[key].save()
            self._views[key].stale = True

    async def _keep_following(self, type_: str, group: str | None, view: ServiceView) -> None:
        async def take(event: RegistryEvent) -> bool:
            return view.take(event)

        def on_break(refusal: HeadgateError | None) -> float | None:
            view.stale = True
            return None if refusal is None else FIRST_PAUSE if view.refused(refusal) else LONGEST_PAUSE

        async with Tasks() as tasks:
            tasks.start(view.keep_saving())
            await follow(
                lambda: self._backend.watch(type_, group, view.position), take, on_break, type=type_, group=group
            )
            view.stale = True


def _service(name: str) -> tuple[str, str | None]:
    type_, slash, group = name.partition("/")
    return type_, group if slash else None
