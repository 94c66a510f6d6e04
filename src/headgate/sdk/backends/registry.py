"""Backends of `hg.registry`, on the store or behind a gateway; both give the same lists and the same events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol, Self

import msgspec

from headgate.kit.ids import member_id
from headgate.registry.filters import parse_filters
from headgate.registry.model import (
    Instance,
    InstanceBeat,
    Listing,
    OverrideChange,
    Record,
    Registered,
    ServiceSummary,
    as_sent,
)
from headgate.registry.probes import Prober, prober_for
from headgate.registry.problems import Evicted, Superseded, UnknownInstance
from headgate.registry.registry import Registry as StoreRegistry
from headgate.registry.service_state import decode_put, decode_removal
from headgate.registry.settings import RegistrySettings
from headgate.registry.watch import Cursor, GroupNotice, follow_type, read_cursor
from headgate.registry.wire import BatchAnswer, BatchHeartbeat, BatchRequest, EvictRequest, Heartbeat, Renewed, Services
from headgate.sdk.http import Http, problem_in
from headgate.store import Store
from headgate.store.watch.feed import Bookmark, Compacted, FeedChange, Reset, Snapshot


class Listed(msgspec.Struct, frozen=True):
    """All instances of a group; `lost` says that its history may have been lost before, `epoch` names the present history."""

    group: str
    instances: list[Instance]
    revision: int
    lost: bool
    epoch: str | None = None


class Put(msgspec.Struct, frozen=True):
    """An instance is new, or changed."""

    instance: Instance
    revision: int


class Gone(msgspec.Struct, frozen=True):
    """An instance was removed, and why."""

    group: str
    instance_id: str
    reason: str
    revision: int


class Marked(msgspec.Struct, frozen=True):
    """A position from which a watch can be resumed.

    `groups` names all groups, at the end of the present state of all. `epoch` is that of the group, if one group is watched.
    `current` says that everything up to now has been delivered.
    """

    position: str
    groups: frozenset[str] | None = None
    epoch: str | None = None
    current: bool = False


RegistryEvent = Listed | Put | Gone | Marked
ServiceName = tuple[str, str]  # type and group


class RegistryBackend(Protocol):
    """The calls that `Registry` is built on."""

    async def register(self, record: Record, nonce: str, registration: int | None) -> Registered: ...

    async def heartbeat(self, service: ServiceName | None, beat: InstanceBeat) -> int: ...

    async def heartbeats(self, beats: Sequence[tuple[ServiceName, InstanceBeat]]) -> BatchAnswer: ...

    async def discover(
        self, type: str, group: str | None, healthy: bool | None, filters: Sequence[str], check: bool
    ) -> Listing: ...

    async def remove(
        self, service: ServiceName | None, instance_id: str, registration: int | None, nonce: str | None = None
    ) -> None: ...

    async def override(self, service: ServiceName, instance_id: str, change: OverrideChange) -> Instance: ...

    async def evict(self, service: ServiceName, instance_id: str, seconds: float) -> None: ...

    async def services(self) -> list[ServiceSummary]: ...

    async def protect(self, service: ServiceName, mode: str) -> None: ...

    def watch(self, type: str, group: str | None, position: str | None) -> AsyncGenerator[RegistryEvent, None]: ...


class StoreRegistryBackend:
    """The registry on the store."""

    def __init__(self, registry: StoreRegistry, prober: Prober, namespace: str) -> None:
        self._registry = registry
        self._prober = prober
        self._namespace = namespace

    @classmethod
    def on(cls, store: Store, namespace: str, ttl_seconds: float) -> Self:
        """Make the backend of a client that has only the store."""
        settings = RegistrySettings(ttl_seconds=ttl_seconds)
        return cls(StoreRegistry(store, settings), prober_for(store, settings), namespace)

    async def register(self, record: Record, nonce: str, registration: int | None) -> Registered:
        return await self._registry.register(self._namespace, record, nonce=nonce, registration=registration)

    async def heartbeat(self, service: ServiceName | None, beat: InstanceBeat) -> int:
        type_, group = service or await self._registry.locate(self._namespace, beat.instance_id)
        return await self._registry.heartbeat(self._namespace, type_, group, beat)

    async def heartbeats(self, beats: Sequence[tuple[ServiceName, InstanceBeat]]) -> BatchAnswer:
        # Concurrently, so that they are batched into few calls to the store.
        results = await asyncio.gather(
            *(self._registry.heartbeat(self._namespace, *service, beat) for service, beat in beats),
            return_exceptions=True,
        )
        unknown, superseded = [], []
        for (_, beat), result in zip(beats, results, strict=True):
            if isinstance(result, UnknownInstance | Evicted):
                unknown.append(beat.instance_id)
            elif isinstance(result, Superseded):
                superseded.append(beat.instance_id)
            elif isinstance(result, BaseException):
                raise result
        return BatchAnswer(len(beats) - len(unknown) - len(superseded), unknown, superseded)

    async def discover(
        self, type: str, group: str | None, healthy: bool | None, filters: Sequence[str], check: bool
    ) -> Listing:
        listing = await self._registry.discover(
            self._namespace, type, group, healthy=healthy, filters=parse_filters(filters)
        )
        if check:
            return msgspec.structs.replace(listing, instances=await self._prober.answering(listing.instances))
        return listing

    async def remove(
        self, service: ServiceName | None, instance_id: str, registration: int | None, nonce: str | None = None
    ) -> None:
        try:
            type_, group = service or await self._registry.locate(self._namespace, instance_id)
        except UnknownInstance:
            return
        await self._registry.remove(self._namespace, type_, group, instance_id, registration=registration, nonce=nonce)

    async def override(self, service: ServiceName, instance_id: str, change: OverrideChange) -> Instance:
        return await self._registry.override(self._namespace, *service, instance_id, as_sent(change))

    async def evict(self, service: ServiceName, instance_id: str, seconds: float) -> None:
        for_seconds = as_sent(EvictRequest(seconds)).for_seconds
        await self._registry.remove(self._namespace, *service, instance_id, reason="evicted", evict_seconds=for_seconds)

    async def services(self) -> list[ServiceSummary]:
        return (await self._registry.services(self._namespace))[0]

    async def protect(self, service: ServiceName, mode: str) -> None:
        await self._registry.protect(self._namespace, *service, mode)

    async def watch(self, type: str, group: str | None, position: str | None) -> AsyncGenerator[RegistryEvent, None]:
        after = read_cursor(position) if position else None
        if group is None:
            notices = follow_type(self._registry, self._namespace, type, after)
        else:
            notices = self._follow_one(type, group, after)
        lost: set[str] = set()
        groups: set[str] | None = set() if position is None and group is None else None
        async with aclosing(notices):
            async for found in notices:
                match found.notice:
                    case Snapshot():
                        yield Listed(
                            found.group,
                            found.notice.items,
                            found.notice.revision,
                            not lost.isdisjoint({found.group, ""}),
                            found.notice.epoch,
                        )
                        lost.discard(found.group)
                        if groups is not None:
                            groups.add(found.group)
                    case FeedChange(kind="put"):
                        yield Put(decode_put(found.notice), found.notice.revision)
                    case FeedChange():
                        yield Gone(
                            found.group, found.notice.member, decode_removal(found.notice)[0], found.notice.revision
                        )
                    case Reset() | Compacted():
                        if isinstance(found.notice, Reset):
                            lost.add(found.group)
                        if not found.group:
                            groups = set()
                    case Bookmark():
                        pass
                if found.cursor is not None:
                    whole, groups = groups, None
                    lost.discard("")
                    mark = found.notice if isinstance(found.notice, Bookmark) else None
                    all_groups = None if whole is None else frozenset(whole)
                    yield Marked(str(found.cursor), all_groups, mark.epoch if mark else None, current=mark is not None)

    async def _follow_one(self, type_: str, group: str, after: Cursor | None) -> AsyncGenerator[GroupNotice, None]:
        thing = self._registry.service(self._namespace, type_, group)
        async with aclosing(self._registry.feed.watch(thing, after.journal if after else None)) as notices:
            async for notice in notices:
                gone = isinstance(notice, Compacted | Reset)
                yield GroupNotice(group, notice, None if gone else Cursor(notice.revision))


class _Mark(msgspec.Struct, frozen=True):
    revision: int
    group: str | None = None
    epoch: str | None = None


class _PutData(msgspec.Struct, frozen=True):
    revision: int
    instance: Instance


class _GoneData(msgspec.Struct, frozen=True, rename="camel"):
    revision: int
    instance_id: str
    group: str
    reason: str


class HttpRegistryBackend:
    """The registry behind a gateway."""

    def __init__(self, http: Http, namespace: str) -> None:
        self._http = http
        self._namespace = namespace

    async def register(self, record: Record, nonce: str, registration: int | None) -> Registered:
        query = self._query(nonce=nonce, registration=registration)
        return await self._http.request(
            "POST", "/sd/v1/instances", query=query, body=record.checked(), answer=Registered
        )

    async def heartbeat(self, service: ServiceName | None, beat: InstanceBeat) -> int:
        type_, group = service or (None, None)
        body = Heartbeat(type_, group, beat.metrics, None, beat.metadata, beat.healthy, beat.registration)
        path = f"{_instance_path(beat.instance_id)}/heartbeat"
        answer = await self._http.request("POST", path, query=self._query(), body=body, answer=Renewed)
        return answer.registration

    async def heartbeats(self, beats: Sequence[tuple[ServiceName, InstanceBeat]]) -> BatchAnswer:
        items = [
            BatchHeartbeat(
                type_, group, beat.metrics, None, beat.metadata, beat.healthy, beat.registration,
                instance_id=beat.instance_id,
            )
            for (type_, group), beat in beats
        ]  # fmt: skip
        return await self._http.request(
            "POST", "/sd/v1/heartbeats", query=self._query(), body=BatchRequest(items), answer=BatchAnswer
        )

    async def discover(
        self, type: str, group: str | None, healthy: bool | None, filters: Sequence[str], check: bool
    ) -> Listing:
        query = self._query(type=type, group=group, healthy=healthy, check=check or None, filter=list(filters) or None)
        return await self._http.request("GET", "/sd/v1/instances", query=query, answer=Listing)

    async def remove(
        self, service: ServiceName | None, instance_id: str, registration: int | None, nonce: str | None = None
    ) -> None:
        type_, group = service or (None, None)
        query = self._query(type=type_, group=group, registration=registration, nonce=nonce)
        await self._http.request("DELETE", _instance_path(instance_id), query=query, answer=type(None))

    async def override(self, service: ServiceName, instance_id: str, change: OverrideChange) -> Instance:
        query = self._query(type=service[0], group=service[1])
        return await self._http.request("PATCH", _instance_path(instance_id), query=query, body=change, answer=Instance)

    async def evict(self, service: ServiceName, instance_id: str, seconds: float) -> None:
        query = self._query(type=service[0], group=service[1])
        path = f"{_instance_path(instance_id)}/evict"
        await self._http.request("POST", path, query=query, body={"forSeconds": seconds}, answer=type(None))

    async def services(self) -> list[ServiceSummary]:
        return (await self._http.request("GET", "/sd/v1/services", query=self._query(), answer=Services)).services

    async def protect(self, service: ServiceName, mode: str) -> None:
        query = self._query(type=service[0], group=service[1])
        await self._http.request("PATCH", "/sd/v1/services", query=query, body={"protection": mode}, answer=type(None))

    async def watch(self, type: str, group: str | None, position: str | None) -> AsyncGenerator[RegistryEvent, None]:
        # Puts of a group's present state are collected into one list, until the group's bookmark. A bookmark without a
        # group ends the present state of all groups.
        listing: dict[str, list[Instance]] = {}
        listing_all = position is None
        listed: set[str] = set()
        lost: set[str] = set()
        query = self._query(type=type, group=group, revision=position)
        async with self._http.events("/sd/v1/watch", query=query) as events:
            async for event in events:
                groups: frozenset[str] | None = None
                epoch: str | None = None
                if event.event == "problem":
                    raise problem_in(event)
                if event.event == "put":
                    put = msgspec.json.decode(event.data, type=_PutData)
                    name = put.instance.group
                    if name in listing or (listing_all and name not in listed):
                        listing.setdefault(name, []).append(put.instance)
                        continue
                    yield Put(put.instance, put.revision)
                elif event.event == "removed":
                    gone = msgspec.json.decode(event.data, type=_GoneData)
                    yield Gone(gone.group, gone.instance_id, gone.reason, gone.revision)
                elif event.event in ("compacted", "reset"):
                    mark = msgspec.json.decode(event.data, type=_Mark)
                    name = mark.group or group or ""
                    if name:
                        listing[name] = []
                    else:
                        listing, listed, listing_all = {}, set(), True
                    if event.event == "reset":
                        lost.add(name)
                    continue
                elif event.event == "bookmark":
                    mark = msgspec.json.decode(event.data, type=_Mark)
                    name = mark.group or group or ""
                    if name in listing or (listing_all and name and name not in listed):
                        was_lost = not lost.isdisjoint({name, ""})
                        yield Listed(name, listing.pop(name, []), mark.revision, was_lost, mark.epoch)
                        lost.discard(name)
                        listed.add(name)
                    if mark.group and group is None:
                        continue  # a watch of all groups is resumed only from marks of all groups
                    if listing_all and group is None:
                        groups = frozenset(listed)
                    listing_all = False
                    lost.discard("")
                    epoch = mark.epoch
                if event.id:
                    yield Marked(event.id, groups, epoch, current=event.event == "bookmark")

    def _query(
        self, **values: str | float | bool | list[str] | None
    ) -> dict[str, str | float | bool | list[str] | None]:
        return {"namespace": self._namespace, **values}


def _instance_path(instance_id: str) -> str:
    return f"/sd/v1/instances/{member_id(instance_id, 'instanceId')}"
