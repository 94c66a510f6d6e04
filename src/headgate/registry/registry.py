"""The registry: registers instances, renews their leases, finds and removes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final, cast

import msgspec

from headgate.http.paging import batches
from headgate.kit.ids import member_id, thing_name
from headgate.kit.problems import HeadgateError, InvalidRequest, NotFound, StoreFull
from headgate.registry import metrics
from headgate.registry.filters import Filter
from headgate.registry.locations import GroupCache, Locations, groups_of
from headgate.registry.model import (
    Instance,
    InstanceBeat,
    Json,
    Listing,
    OverrideChange,
    Record,
    Registered,
    ServiceSummary,
    check_json,
    new_nonce,
)
from headgate.registry.problems import UnknownInstance
from headgate.registry.service_reader import ServiceReader
from headgate.registry.service_state import ServiceState, decode_view, encode_record, listing_of
from headgate.registry.settings import RegistrySettings
from headgate.registry.type_journal import TypeJournals
from headgate.store import Arg, Batch, Index, ServerError, Store, Thing, script
from headgate.store.errors import as_problem
from headgate.store.watch.feed import Feed, Snapshot

REGISTER = script(__package__, "register")
HEARTBEAT = script(__package__, "heartbeat")
REMOVE = script(__package__, "remove")
OVERRIDE = script(__package__, "override")
PROTECTION = script(__package__, "protection")
SETTLE = script(__package__, "settle")

REINDEX_SECONDS: Final = 20.0
REINDEX_SOON_SECONDS: Final = 0.05
SWEEP_IN_MS: Final = 200
GROUPS_AT_ONCE: Final = 64
PART: Final = "service"
BEATS_AT_ONCE: Final = 250
REGISTERS_AT_ONCE: Final = 32
SETTLED_AT_ONCE: Final = 500


class Registry:
    """All services of a store."""

    def __init__(self, store: Store, settings: RegistrySettings | None = None) -> None:
        self.store = store
        self.settings = settings or RegistrySettings()
        self.index = Index(store, PART)
        self.checks = Index(store, "check")
        self.locations = Locations(store)
        self.group_cache = GroupCache(store, self.index)
        self.feed: Feed[Instance] = Feed(
            store, self._snapshot, settle=self._settle, open_watches=metrics.WATCHERS, lag=metrics.WATCH_LAG
        )
        self.journals = TypeJournals(self)
        settings = self.settings
        beat_shared = (settings.history,)
        self._beats = Batch(store, HEARTBEAT, shared=lambda _: beat_shared)
        register_shared = (
            settings.history,
            int(settings.override_seconds * 1000),
            settings.most_instances,
            settings.protect_from,
            settings.protect_share,
        )
        self._registers = Batch(store, REGISTER, shared=lambda _: register_shared, most=REGISTERS_AT_ONCE)
        self._things: dict[tuple[str, str, str], Thing] = {}
        self._indexed_at: dict[Thing, float] = {}
        self._reader = ServiceReader(store, settings, self.feed.settle)

    def service(self, namespace: str, type: str, group: str) -> Thing:
        """Give the address of a service in the store, after checking both names."""
        key = (namespace, type, group)
        thing = self._things.get(key)
        if thing is None:
            thing = self.store.thing(PART, namespace, f"{thing_name(type, 'type')}/{thing_name(group, 'group')}")
            if len(self._things) > 10_000:
                self._things.clear()
            self._things[key] = thing
        return thing

    async def register(
        self, namespace: str, record: Record, *, nonce: str | None = None, registration: int | None = None
    ) -> Registered:
        """Register an instance, or replace the one with the same id.

        The same nonce again gives the same registration. A process that comes back sends its old registration number,
        and is refused if another process has registered under its id since.
        """
        return await self._write(namespace, record, "register", registration, nonce)

    async def renew(self, namespace: str, record: Record, registration: int | None = None) -> Registered:
        """Send a heartbeat that carries the whole record; an unknown instance is registered by it.

        A full store only renews the lease and the metrics of an instance that it knows.
        """
        try:
            return await self._write(namespace, record, "renew", registration, None)
        except StoreFull as full:
            thing = self.service(namespace, record.type, record.group)
            beat = InstanceBeat(record.instance_id, metrics=record.metrics, registration=registration)
            try:
                number = await self.beat(thing, beat)
            except UnknownInstance:
                raise full from None
            ttl_seconds = record.ttl_seconds or self.settings.ttl_seconds
            return Registered(record.instance_id, (await self.read_service(thing)).revision, number, ttl_seconds)

    async def heartbeat(self, namespace: str, type: str, group: str, beat: InstanceBeat) -> int:
        """Renew an instance's lease and update the fields of the beat; return its registration number."""
        return await self.beat(self.service(namespace, type, group), beat)

    async def beat(self, thing: Thing, beat: InstanceBeat) -> int:
        """Renew a lease in a service; concurrent heartbeats share one script call."""
        await self._index_service(thing)
        try:
            reply = await self._beats.call(thing, *_item(beat))
        except HeadgateError as error:
            metrics.HEARTBEATS.labels(error.code).inc()
            raise
        metrics.RENEWED.inc()
        return int(cast("bytes", reply))

    async def beat_many(self, thing: Thing, beats: Sequence[InstanceBeat]) -> list[int | HeadgateError]:
        """Renew many leases of one service in few calls; return a registration number or an error for each."""
        await self._index_service(thing)
        outcomes: list[int | HeadgateError] = []
        for first in range(0, len(beats), BEATS_AT_ONCE):
            items: list[Arg] = [part for beat in beats[first : first + BEATS_AT_ONCE] for part in _item(beat)]
            reply = await self.store.run(HEARTBEAT, thing, self.settings.history, *items)
            for each in cast("list[bytes | ServerError]", reply):
                outcome = as_problem(each) if isinstance(each, ServerError) else int(each)
                metrics.HEARTBEATS.labels("ok" if isinstance(outcome, int) else outcome.code).inc()
                outcomes.append(outcome)
        return outcomes

    async def locate(self, namespace: str, instance_id: str) -> tuple[str, str]:
        """Find the type and group of an instance by its id; raises UnknownInstance."""
        found = await self.locations.find(namespace, member_id(instance_id, "instanceId"))
        if found is None:
            raise UnknownInstance
        type_, _, group = found.partition("/")
        return type_, group

    async def remove(
        self,
        namespace: str,
        type: str,
        group: str,
        instance_id: str,
        *,
        registration: int | None = None,
        nonce: str | None = None,
        reason: str = "removed",
        evict_seconds: float = 0,
    ) -> bool:
        """Remove an instance; False if it was not there. With `evict_seconds` it may not register again for that long.

        With a registration number, a later registration is not removed (Superseded). With only a nonce, just the
        registration that was made with it is removed.
        """
        thing = self.service(namespace, type, group)
        if evict_seconds:
            await self._index_service(thing, soon=True)
        arguments = (
            self.settings.history, int(self.settings.override_seconds * 1000), member_id(instance_id, "instanceId"),
            "" if registration is None else registration, nonce or "", reason, int(evict_seconds * 1000),
        )  # fmt: skip
        reply = cast("list[bytes | int]", await self.store.run(REMOVE, thing, *arguments))
        if nonce is None or reply[1] == 1:  # otherwise the id may belong to another registration
            await self.locations.forget(namespace, thing.name, [instance_id])
        return reply[1] == 1

    async def override(
        self, namespace: str, type: str, group: str, instance_id: str, change: OverrideChange
    ) -> Instance:
        """Change an operator's override of an instance."""
        thing = self.service(namespace, type, group)
        words = (_flag(change.enabled), _weight(change.weight), _flag(change.drain))
        view = await self.store.run(
            OVERRIDE, thing, self.settings.history, member_id(instance_id, "instanceId"), *words
        )
        return decode_view(cast("bytes", view))

    async def protect(self, namespace: str, type: str, group: str, mode: str) -> None:
        """Switch a service's mass-expiry protection to auto or off."""
        thing = self.service(namespace, type, group)
        if mode not in ("auto", "off"):
            raise InvalidRequest("protection is auto or off.", field="protection")
        if await self.store.run(PROTECTION, thing, mode) != 1:
            raise NotFound(f"There is no service {type}/{group}.")

    async def read_service(
        self, thing: Thing, *, healthy: bool | None = None, filters: Sequence[Filter] = ()
    ) -> ServiceState:
        """Read a service at one moment in one round trip; callers that come during a read share the next one."""
        return await self._reader.read(thing, healthy, tuple(filters))

    async def discover(
        self,
        namespace: str,
        type: str,
        group: str | None = None,
        *,
        healthy: bool | None = None,
        filters: Sequence[Filter] = (),
    ) -> Listing:
        """Find instances of a service, or of all groups of a type."""
        if group is not None:
            return (
                await self.read_service(self.service(namespace, type, group), healthy=healthy, filters=filters)
            ).listing()
        states = await self.read_groups(namespace, type, healthy=healthy, filters=filters)
        instances = [instance for state in states.values() for instance in state.instances]
        return listing_of(states, instances, states)

    async def read_groups(
        self,
        namespace: str,
        type: str,
        *,
        healthy: bool | None = None,
        filters: Sequence[Filter] = (),
        groups: Mapping[str, Thing] | None = None,
    ) -> dict[str, ServiceState]:
        """Read every group of a type, or the given ones."""
        if groups is None:
            groups = await self.groups(namespace, type)
        turn = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def read(thing: Thing) -> ServiceState:
            async with turn:
                return await self.read_service(thing, healthy=healthy, filters=filters)

        found = await asyncio.gather(*(read(thing) for thing in groups.values()))
        return dict(zip(groups, found, strict=True))

    async def groups(self, namespace: str, type: str) -> dict[str, Thing]:
        """List the groups of a type; some may be empty by now."""
        thing_name(type, "type")
        return groups_of(await self.index.list(namespace), type)

    async def services(
        self, namespace: str, *, limit: int | None = None, page: str | None = None
    ) -> tuple[list[ServiceSummary], str | None]:
        """List services with counts, and the next page; services without instances are left out."""
        things = sorted(await self.index.list(namespace), key=lambda thing: thing.name)
        found: list[ServiceSummary] = []
        for batch in batches([thing for thing in things if page is None or thing.name > page], GROUPS_AT_ONCE):
            summaries = await asyncio.gather(*(self._summary(thing) for thing in batch))
            found += [each for each in summaries if each.instances]
            if limit is not None and len(found) > limit:
                last = found[limit - 1]
                return found[:limit], f"{last.type}/{last.group}"
        return found, None

    async def _summary(self, thing: Thing) -> ServiceSummary:
        state = await self.read_service(thing)
        type_, _, group = thing.name.partition("/")
        return ServiceSummary(
            type=type_,
            group=group,
            instances=len(state.instances),
            healthy=sum(instance.available for instance in state.instances),
            revision=state.revision,
            protection=state.protection,
        )

    async def _write(
        self, namespace: str, record: Record, mode: str, registration: int | None, nonce: str | None
    ) -> Registered:
        record = record.checked()
        thing = self.service(namespace, record.type, record.group)
        await self._index_service(thing, soon=True)
        if record.check:
            await self.checks.put(thing, SWEEP_IN_MS)
        locating = self.store.tasks.start(self.locations.put(namespace, record.instance_id, thing.name))
        try:
            return await self._register(thing, record, mode, registration, nonce or new_nonce())
        finally:
            await locating

    async def _register(
        self, thing: Thing, record: Record, mode: str, registration: int | None, nonce: str
    ) -> Registered:
        ttl_seconds = record.ttl_seconds or self.settings.ttl_seconds
        interval_ms = record.check.interval_seconds * 1000 if record.check else 0
        try:
            reply = await self._registers.call(
                thing,
                record.instance_id,
                mode,
                "" if registration is None else registration,
                nonce,
                int(ttl_seconds * 1000),
                int(record.ephemeral),
                int(record.healthy),
                encode_record(record),
                check_json(record.metadata, "metadata"),
                check_json(record.metrics, "metrics"),
                msgspec.json.encode(record.check) if record.check else "",
                int(
                    random.uniform(0, min(interval_ms, 5000))
                ),  # spreads the first checks of instances that start together
            )
        except HeadgateError as error:
            metrics.REGISTRATIONS.labels(error.code).inc()
            raise
        metrics.REGISTERED.inc()
        revision, number = (int(part) for part in cast("list[bytes]", reply))
        return Registered(record.instance_id, revision, number, ttl_seconds)

    async def _index_service(self, thing: Thing, *, soon: bool = False) -> None:
        """Put a service into the index of the sweep before it is written, and again from time to time.

        A registration repeats it `soon`: an empty service is swept rarely, and this one gets a lease that can end.
        Registrations within 50 ms share one call, because the service is not due before that.
        """
        now = monotonic()
        if now - self._indexed_at.get(thing, -REINDEX_SECONDS) < (REINDEX_SOON_SECONDS if soon else REINDEX_SECONDS):
            return
        if len(self._indexed_at) > 10_000:
            self._indexed_at.clear()
        await self.index.put(thing, SWEEP_IN_MS)
        self._indexed_at[thing] = now

    async def _settle(self, thing: Thing) -> None:
        """After an outage, extend every lease by one TTL; otherwise record which instances were already dead."""
        settings = self.settings
        while not await self.store.run(SETTLE, thing, SETTLED_AT_ONCE, settings.protect_from, settings.protect_share):
            pass

    async def _snapshot(self, thing: Thing) -> Snapshot[Instance]:
        state = await self.read_service(thing)
        return Snapshot(state.instances, state.revision, state.epoch)


def _item(beat: InstanceBeat) -> tuple[Arg, Arg, Arg, Arg, Arg]:
    """Encode a heartbeat as arguments of the script."""
    return (
        member_id(beat.instance_id, "instanceId"),
        "" if beat.registration is None else beat.registration,
        _json(beat.metrics, "metrics"),
        _json(beat.metadata, "metadata"),
        "" if beat.healthy is None else int(beat.healthy),
    )


def _json(value: Json | None, field: str) -> Arg:
    return "" if value is None else check_json(value, field)


def _flag(value: bool | msgspec.UnsetType | None) -> Arg:
    return "" if value is msgspec.UNSET else "-" if value is None else int(bool(value))


def _weight(value: float | msgspec.UnsetType | None) -> Arg:
    if isinstance(value, msgspec.UnsetType):
        return ""
    return "-" if value is None else repr(float(value))
