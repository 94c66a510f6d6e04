"""`hg.registry`: register, beat, discover, watch and leave; it comes back by itself and never forgets what it knew."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
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
    Override,
    OverrideChange,
    Record,
    Registered,
    ServiceSummary,
    as_sent,
)
from headgate.registry.probes import prober_for
from headgate.registry.problems import Evicted, Superseded, UnknownInstance
from headgate.registry.registry import Registry as StoreRegistry
from headgate.registry.settings import RegistrySettings
from headgate.registry.wire import MOST_BEATS, BatchAnswer
from headgate.sdk.beats import Heartbeats
from headgate.sdk.http import Http
from headgate.sdk.listeners import Listener
from headgate.sdk.registry_modes import (
    Gone,
    Happening,
    HttpRegistryBackend,
    Listed,
    Marked,
    Place,
    Put,
    RegistryBackend,
    StoreRegistryBackend,
)
from headgate.sdk.snapshot import Snapshots, directory_for
from headgate.sdk.system import load_figures, system_info
from headgate.sdk.views import InstanceList, Saved, View
from headgate.store import Store

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
DRAIN_SECONDS: Final = 5.0
FIRST_SECONDS: Final = 10.0

log = get_logger()

__all__ = [
    "Change",
    "Check",
    "Gone",
    "Instance",
    "InstanceList",
    "Listed",
    "Marked",
    "Override",
    "Put",
    "Record",
    "Registry",
]


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
    """The registry as a client sees it."""

    def __init__(
        self,
        mode: RegistryBackend,
        *,
        snapshots: Snapshots[Saved] | None = None,
        ttl_seconds: float = 30.0,
        heartbeat_interval_ms: int = 10_000,
    ) -> None:
        self._mode = mode
        self._snapshots = snapshots
        self._ttl_seconds = ttl_seconds
        self._views: dict[tuple[str, str | None], View] = {}
        self._following: dict[tuple[str, str | None], asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._beats = Heartbeats(mode, heartbeat_interval_ms / 1000)
        self._running = True

    @property
    def is_running(self) -> bool:
        """Tell whether this part is open."""
        return self._running

    # Providers

    async def register(
        self, record: Record | None = None, *, collect_system: bool = False, **fields: Unpack[RecordFields]
    ) -> Registered:
        """Register an instance; its id is made if it has none. The machine's facts and load are added if wanted."""
        given = record or Record(**fields)
        if collect_system:
            given = msgspec.structs.replace(given, system_info={**system_info(), **given.system_info})
        if given.ttl_seconds is None:
            given = msgspec.structs.replace(given, ttl_seconds=self._ttl_seconds)
        given = as_sent(given).addressed().checked()
        return await self._beats.register(given, load_figures if collect_system else None)

    async def heartbeat(
        self,
        instance_id: str,
        *,
        metrics: Json | None = None,
        performance: Json | None = None,
        metadata: Json | None = None,
        healthy: bool | None = None,
    ) -> None:
        """Renew a lease once; what is given replaces what was. Raises UnknownInstance."""
        figures = metrics if metrics is not None else performance
        own = self._beats.find(instance_id)
        if own is None:
            await self._mode.heartbeat(None, InstanceBeat(instance_id, figures, metadata, healthy))
            return
        own.update(figures, metadata, healthy)
        await self._beats.beat(own, come_back=False)

    async def come_back(self, instance_id: str) -> None:
        """Register an instance of ours again, with its latest record, that the registry has lost.

        Raises Superseded if another process has registered under its id since.
        """
        own = self._beats.find(instance_id)
        if own is None:
            raise UnknownInstance("Register it with this client first.")
        await self._beats.come_back(own)

    async def batch_heartbeat(self, instance_ids: Sequence[str]) -> BatchAnswer:
        """Renew several leases in one call; tell which ids are unknown."""
        beats: list[tuple[Place, InstanceBeat]] = []
        missing: list[str] = []
        for instance_id in instance_ids:
            own = self._beats.find(instance_id)
            if own is None:
                missing.append(instance_id)
            else:
                with suppress(Superseded, Evicted):  # the beat is told so too
                    await self._beats.settle(own)
                beats.append((own.place, own.next_beat()))
        renewed = 0
        superseded: list[str] = []
        for first in range(0, len(beats), MOST_BEATS):
            answer = await self._mode.heartbeats(beats[first : first + MOST_BEATS])
            renewed += answer.renewed
            missing += answer.unknown
            superseded += answer.superseded
        return BatchAnswer(renewed, missing, superseded)

    def start_auto_heartbeat(self, instance_id: str) -> None:
        """Beat for an instance until told to stop; after any loss it is registered again with its latest record."""
        self._beats.start(instance_id)

    async def stop_auto_heartbeat(self, instance_id: str | None = None) -> None:
        """Beat no more, for one instance or for all."""
        await self._beats.stop(instance_id)

    async def remove(self, instance_id: str, type: str | None = None, group: str | None = None) -> None:
        """Take an instance out; nothing of ours brings it back."""
        own = await self._beats.forget(instance_id)
        place = (type, group) if type is not None and group is not None else own.place if own else None
        known = (own.registration, own.nonce) if own else (None, None)
        await self._mode.remove(place, instance_id, *known)

    deregister = remove

    async def drain(self, instance_id: str, *, wait_seconds: float = DRAIN_SECONDS) -> None:
        """Leave the healthy lists, wait for others to notice and for work to end, then leave."""
        try:
            await self.heartbeat(instance_id, healthy=False)
        except UnknownInstance:
            log.info("nobody knew of it", instance=instance_id)
        else:
            await asyncio.sleep(wait_seconds)
        await self.remove(instance_id)

    @asynccontextmanager
    async def registered(
        self, record: Record | None = None, *, collect_system: bool = False, **fields: Unpack[RecordFields]
    ) -> AsyncIterator[Registered]:
        """Be registered, with heartbeats, for as long as the block lasts."""
        made = await self.register(record, collect_system=collect_system, **fields)
        try:
            self.start_auto_heartbeat(made.instance_id)
            yield made
        finally:
            try:
                # The removal goes on when the caller is cancelled meanwhile.
                removal = self.remove(made.instance_id)
                await (finished(self._beats.tasks.start(removal)) if self._running else removal)
            except StoreUnavailable as error:
                log.info("could not leave; the lease will end by itself", instance=made.instance_id, error=str(error))
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
        """Find instances; in an outage, those last known, marked stale."""
        parsed = parse_filters(filters)
        view = await self._view(type, group)
        try:
            if check:
                # Whoever is asked for one by one is also kept in mind, for the day when nobody can be asked.
                await self._discovered(view, await self._mode.discover(type, group, None, (), False))
                asked = await self._mode.discover(type, group, healthy, filters, check)
                return InstanceList(asked.instances, stale=False, revision=asked.revision)
            listing = await self._mode.discover(type, group, healthy, filters, False)
            chosen = healthy is not None or bool(filters)
            if chosen and view.is_of(listing):
                return InstanceList(listing.instances, stale=False, revision=listing.revision)
            if chosen:
                listing = await self._mode.discover(type, group, None, (), False)
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
        """Give what a subscription keeps in memory, without a call; the first time, subscribe and wait for it a while.

        Raises StoreUnavailable if nobody can be asked and nothing is known, or what the watch was refused with.
        """
        view = await self._follow(type, group)
        await view.first(FIRST_SECONDS)
        return view.answer()

    async def subscribe(self, service_name: str, listener: Listener[Change]) -> None:
        """Call a listener with every change, starting with what is there now."""
        view = await self._follow(*_service(service_name))
        await view.listen(listener)

    async def unsubscribe(self, service_name: str, listener: Listener[Change]) -> None:
        """Stop calling one listener."""
        key = _service(service_name)
        view = self._views.get(key)
        if view is None:
            return
        await view.unlisten(listener)
        if not view.listening:
            await self._unfollow(key)

    def watch(
        self, type: str, group: str | None = None, *, position: str | None = None
    ) -> AsyncGenerator[Happening, None]:
        """Follow changes by hand: the present state first, or everything after a position that `Marked` gave."""
        return self._mode.watch(type, group, position)

    # Operators

    async def override(self, type: str, group: str, instance_id: str, change: OverrideChange) -> Instance:
        """Set what an operator decides for an instance."""
        return await self._mode.override((type, group), instance_id, change)

    async def evict(self, type: str, group: str, instance_id: str, seconds: float) -> None:
        """Take an instance out and keep it out for a time."""
        await self._mode.evict((type, group), instance_id, seconds)

    async def services(self) -> list[ServiceSummary]:
        """Tell what exists."""
        return await self._mode.services()

    async def protect(self, type: str, group: str, mode: str) -> None:
        """Switch a service's mass-expiry protection to auto or off."""
        await self._mode.protect((type, group), mode)

    async def stop(self) -> None:
        """End everything that runs for this part: heartbeats, watches, listeners; instances are not removed."""
        self._running = False
        await self._beats.close()
        for key in list(self._following):
            await self._unfollow(key)
        await self._tasks.close()
        for view in list(self._views.values()):
            await view.close()

    async def _view(self, type_: str, group: str | None) -> View:
        key = (type_, group)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = View(f"{type_}@{group if group is not None else '*'}", group, self._snapshots)
            await asyncio.to_thread(view.load)
        return view

    async def _discovered(self, view: View, listing: Listing) -> None:
        if view.discovered(listing):
            await view.save()

    async def _follow(self, type_: str, group: str | None) -> View:
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

    async def _keep_following(self, type_: str, group: str | None, view: View) -> None:
        pause = FIRST_PAUSE
        async with Tasks() as tasks:
            tasks.start(view.keep())
            while True:
                try:
                    async with aclosing(self._mode.watch(type_, group, view.position)) as happenings:
                        async for happening in happenings:
                            pause = FIRST_PAUSE
                            if not view.take(happening):
                                break
                except Closed:
                    view.stale = True
                    return
                except HeadgateError as error:
                    if not isinstance(error, StoreUnavailable) and error.status < 500:
                        log.warning("watch refused", type=type_, group=group, error=str(error))
                        pause = FIRST_PAUSE if view.refused(error) else LONGEST_PAUSE
                except Exception as error:  # noqa: BLE001  # whatever a stream may bring, the watch goes on
                    log.warning("a watch failed", type=type_, group=group, error=repr(error))
                view.stale = True
                # Jitter, so that a thousand clients do not come back in the same instant.
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, LONGEST_PAUSE)


def registry_of(
    backend: Http | Store,
    namespace: str,
    *,
    url: str,
    snapshot_dir: str | Path | None = None,
    ttl_seconds: float = 30.0,
    heartbeat_interval_ms: int = 10_000,
) -> Registry:
    """Make the registry part of a client."""
    mode: RegistryBackend
    if isinstance(backend, Http):
        mode = HttpRegistryBackend(backend, namespace)
        place = url
    else:
        settings = RegistrySettings(ttl_seconds=ttl_seconds)
        mode = StoreRegistryBackend(StoreRegistry(backend, settings), prober_for(backend, settings), namespace)
        place = f"{','.join(map(str, backend.address.nodes))} {backend.prefix}"
    snapshots = Snapshots(directory_for(snapshot_dir, place, namespace), Saved)
    return Registry(mode, snapshots=snapshots, ttl_seconds=ttl_seconds, heartbeat_interval_ms=heartbeat_interval_ms)


def _service(name: str) -> tuple[str, str | None]:
    type_, slash, group = name.partition("/")
    return type_, group if slash else None


__all__ += ["UnknownInstance"]
