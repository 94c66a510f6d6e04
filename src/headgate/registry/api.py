"""HTTP routes of the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from headgate.http.conditional import holds
from headgate.http.paging import PageQuery, batches, page_of
from headgate.http.routes import Access, Answer, Call, Operation, Stream
from headgate.kit.ids import revision_number
from headgate.kit.metrics import CONTENT_TYPE
from headgate.kit.problems import HeadgateError, InvalidRequest, NotFound
from headgate.registry import wire
from headgate.registry.filters import Filter, parse_filters
from headgate.registry.model import Instance, InstanceBeat, Listing, OverrideChange, Record, Registered
from headgate.registry.probes import Prober
from headgate.registry.problems import Evicted, ServiceFull, Superseded, UnknownInstance
from headgate.registry.prometheus import exposition, target_groups
from headgate.registry.registry import GROUPS_AT_ONCE, Registry
from headgate.registry.service_state import ServiceState, listing_of
from headgate.registry.watch import Cursor, read_cursor, watch_service, watch_type
from headgate.store import Thing

TAG: Final = "registry"
MOST_BODY: Final = 131_072
MOST_BATCH_BODY: Final = 4_194_304
BEFORE_NAMES: Final = "!"  # sorts before every character of a name


def operations(registry: Registry, prober: Prober) -> list[Operation]:
    """List the routes of the registry."""
    api = RegistryRoutes(registry, prober)

    def route(
        method: str,
        path: str,
        handler: Callable[[Call], Awaitable[object]],
        summary: str,
        access: Access,
        *,
        query: type[msgspec.Struct] | None = None,
        body: type[msgspec.Struct] | None = None,
        body_limit: int = MOST_BODY,
        body_optional: bool = False,
        answer: type | None = None,
        content_type: str = "application/json",
        errors: tuple[type[HeadgateError], ...] = (),
        other_statuses: tuple[int, ...] = (),
        headers: dict[str, str] | None = None,
    ) -> Operation:
        return Operation(
            method, path, handler, summary, access=access, tag=TAG, query=query, body=body, body_limit=body_limit,
            body_optional=body_optional, answer=answer, content_type=content_type, errors=errors, namespaced=True,
            other_statuses=other_statuses, headers=headers or {},
            name=f"registry_{getattr(handler, '__name__', 'call')}",
        )  # fmt: skip

    one = "/sd/v1/instances/{instanceId}"
    return [
        route(
            "POST", "/sd/v1/instances", api.register, "Register an instance", Access.SERVICE,
            query=wire.RegisterQuery, body=Record, answer=Registered, errors=(Evicted, ServiceFull, Superseded),
        ),
        route(
            "POST", f"{one}/heartbeat", api.heartbeat, "Renew an instance's lease", Access.SERVICE,
            body=wire.Heartbeat, body_optional=True, answer=wire.Renewed,
            errors=(UnknownInstance, Superseded, Evicted, ServiceFull),
        ),
        route(
            "POST", "/sd/v1/heartbeats", api.heartbeats, "Renew many leases", Access.SERVICE,
            body=wire.BatchRequest, body_limit=MOST_BATCH_BODY, answer=wire.BatchAnswer,
        ),
        route(
            "GET", "/sd/v1/instances", api.discover, "Find instances", Access.READ,
            query=wire.DiscoverQuery, answer=Listing, other_statuses=(304,),
            headers={"If-None-Match": "The ETag you have: 304 while the same instances are there."},
        ),
        route(
            "DELETE", one, api.remove, "Remove an instance", Access.SERVICE,
            query=wire.RemoveInstanceQuery, errors=(Superseded,),
        ),
        route(
            "PATCH", one, api.override, "Override what an instance says of itself", Access.SERVICE,
            query=wire.ServicePath, body=OverrideChange, answer=Instance, errors=(UnknownInstance,),
        ),
        route(
            "POST", f"{one}/evict", api.evict, "Remove an instance and keep it out for a time", Access.ADMIN,
            query=wire.ServicePath, body=wire.EvictRequest, errors=(UnknownInstance,),
        ),
        route(
            "GET", "/sd/v1/services", api.services, "List services", Access.READ, query=PageQuery, answer=wire.Services,
        ),
        route(
            "PATCH", "/sd/v1/services", api.protect, "Switch a service's mass-expiry protection", Access.ADMIN,
            query=wire.ServiceQuery, body=wire.ProtectionRequest, errors=(NotFound,),
        ),
        route(
            "GET", "/sd/v1/watch", api.watch, "Watch a service, or all groups of a type", Access.READ,
            query=wire.ServiceWatchQuery, content_type="text/event-stream",
            headers={"Last-Event-ID": "The position to go on from, as an event's id gave it; before `revision`."},
        ),
        route(
            "GET", "/sd/v1/metrics", api.metrics, "Every instance's numeric performance, for Prometheus", Access.READ,
            content_type=CONTENT_TYPE,
        ),
        route(
            "GET", "/sd/v1/prometheus", api.prometheus, "Prometheus HTTP discovery", Access.READ,
            answer=list[wire.TargetGroup],
        ),
    ]  # fmt: skip


class RegistryRoutes:
    def __init__(self, registry: Registry, prober: Prober) -> None:
        self._registry = registry
        self._prober = prober

    async def register(self, call: Call) -> Registered:
        query: wire.RegisterQuery = call.query
        return await self._registry.register(
            call.namespace, call.body.addressed(), nonce=query.nonce, registration=query.registration
        )

    async def heartbeat(self, call: Call) -> wire.Renewed:
        beat: wire.Heartbeat = call.body or wire.Heartbeat()
        return await self._renew(call.namespace, call.path["instanceId"], beat)

    async def heartbeats(self, call: Call) -> wire.BatchAnswer:
        body: wire.BatchRequest = call.body
        outcomes: list[wire.Renewed | int | BaseException] = [UnknownInstance()] * len(body.heartbeats)
        single: list[int] = []
        by_service: dict[Thing, list[int]] = {}
        for index, beat in enumerate(body.heartbeats):
            if beat.record is None and beat.type is not None and beat.group is not None:
                by_service.setdefault(self._registry.service(call.namespace, beat.type, beat.group), []).append(index)
            else:
                single.append(index)

        async def many(thing: Thing, indexes: list[int]) -> None:
            beats = [_beat(body.heartbeats[index].instance_id, body.heartbeats[index]) for index in indexes]
            for index, outcome in zip(indexes, await self._registry.beat_many(thing, beats), strict=True):
                outcomes[index] = outcome

        async def one(index: int) -> None:
            beat = body.heartbeats[index]
            try:
                outcomes[index] = await self._renew(call.namespace, beat.instance_id, beat)
            except (UnknownInstance, Evicted, Superseded) as error:
                outcomes[index] = error

        await asyncio.gather(*(many(*each) for each in by_service.items()), *(one(index) for index in single))
        unknown, superseded = [], []
        for beat, outcome in zip(body.heartbeats, outcomes, strict=True):
            if isinstance(outcome, UnknownInstance | Evicted):
                unknown.append(beat.instance_id)
            elif isinstance(outcome, Superseded):
                superseded.append(beat.instance_id)
            elif isinstance(outcome, BaseException):
                raise outcome
        return wire.BatchAnswer(len(outcomes) - len(unknown) - len(superseded), unknown, superseded)

    async def discover(self, call: Call) -> Answer | Listing:
        query: wire.DiscoverQuery = call.query
        filters = parse_filters(query.filter)
        if query.limit is not None or query.page is not None:
            return await self._discover_page(call, filters)
        before = 0
        if query.group is not None:
            thing = self._registry.service(call.namespace, query.type, query.group)
            states = {query.group: await self._registry.read_service(thing, healthy=query.healthy, filters=filters)}
        else:
            before = await self._registry.journals.position(call.namespace, query.type)
            states = await self._registry.read_groups(
                call.namespace, query.type, healthy=query.healthy, filters=filters
            )
        by_metrics = any(filter_.part == "metrics" for filter_ in filters)
        tag = ".".join(state.tag(by_metrics=by_metrics) for state in states.values())
        etag = f'"{tag if len(tag) < 200 else _digest(tag)}"'
        if not query.check and holds(call, etag):
            return Answer(status=304, headers={"ETag": etag})
        if query.group is not None and not query.check:
            return Answer(_body(states[query.group]), headers={"ETag": etag, "Cache-Control": "private, no-cache"})
        instances = [instance for state in states.values() for instance in state.instances]
        if query.check:
            instances = await call.until_disconnect(self._prober.answering(instances))
        groups = cursor = None
        if query.group is None:
            groups = states
            revisions = {group: state.revision for group, state in states.items()}
            journals = self._registry.journals
            cursor = str(Cursor(await journals.cursor_of(call.namespace, query.type, revisions, before)))
        listing = listing_of(states, instances, groups, cursor)
        return listing if query.check else Answer(listing, headers={"ETag": etag, "Cache-Control": "private, no-cache"})

    async def _discover_page(self, call: Call, filters: Sequence[Filter]) -> Listing:
        """Give one page of instances, ordered by group and id; groups after the page are not read."""
        query: wire.DiscoverQuery = call.query
        registry, namespace, page = self._registry, call.namespace, query.page
        cursor = None
        if query.group is not None:
            groups = {query.group: registry.service(namespace, query.type, query.group)}
        else:
            cursor = str(Cursor(await registry.journals.position(namespace, query.type)))
            groups = await registry.groups(namespace, query.type)
        names = sorted(group for group in groups if page is None or group >= page.partition(BEFORE_NAMES)[0])
        states: dict[str, ServiceState] = {}
        instances: list[Instance] = []
        next_page = None
        for batch in batches(names, GROUPS_AT_ONCE):
            chosen = {group: groups[group] for group in batch}
            states |= await registry.read_groups(
                namespace, query.type, healthy=query.healthy, filters=filters, groups=chosen
            )
            everyone = (instance for state in states.values() for instance in state.instances)
            instances, next_page = page_of(everyone, _page_name, query.limit, page)
            if next_page is not None:
                break
        shown = sorted({instance.group for instance in instances}) if query.group is None else None
        if query.check:
            instances = await call.until_disconnect(self._prober.answering(instances))
        return msgspec.structs.replace(listing_of(states, instances, shown, cursor), next_page=next_page)

    async def remove(self, call: Call) -> None:
        try:
            type_, group = await self._place(call)
        except UnknownInstance:
            return  # already gone: deleting is idempotent
        query: wire.RemoveInstanceQuery = call.query
        await self._registry.remove(
            call.namespace, type_, group, call.path["instanceId"], registration=query.registration, nonce=query.nonce
        )

    async def override(self, call: Call) -> Instance:
        type_, group = await self._place(call)
        return await self._registry.override(call.namespace, type_, group, call.path["instanceId"], call.body)

    async def evict(self, call: Call) -> None:
        type_, group = await self._place(call)
        await self._registry.remove(
            call.namespace, type_, group, call.path["instanceId"], reason="evicted", evict_seconds=call.body.for_seconds
        )

    async def services(self, call: Call) -> wire.Services:
        query: PageQuery = call.query
        return wire.Services(*await self._registry.services(call.namespace, limit=query.limit, page=query.page))

    async def protect(self, call: Call) -> None:
        query: wire.ServiceQuery = call.query
        await self._registry.protect(call.namespace, query.type, query.group, call.body.protection)

    async def watch(self, call: Call) -> Stream:
        query: wire.ServiceWatchQuery = call.query
        position = call.header("last-event-id") or query.revision
        if query.group is None:
            self._registry.journals.thing(call.namespace, query.type)  # validates the type before the stream starts
            after = read_cursor(position) if position else None
            return Stream(watch_type(self._registry, call.namespace, query.type, after))
        thing = self._registry.service(call.namespace, query.type, query.group)
        return Stream(watch_service(self._registry, thing, revision_number(position) if position else None))

    async def metrics(self, call: Call) -> Answer:
        return Answer(await exposition(self._registry, call.namespace), content_type=CONTENT_TYPE)

    async def prometheus(self, call: Call) -> list[wire.TargetGroup]:
        return await target_groups(self._registry, call.namespace)

    async def _renew(self, namespace: str, instance_id: str, beat: wire.Heartbeat) -> wire.Renewed:
        if beat.record is not None:
            record = _whole(instance_id, beat, beat.record.addressed())
            made = await self._registry.renew(namespace, record, beat.registration)
            return wire.Renewed(instance_id, made.registration)
        type_, group = beat.type, beat.group
        if type_ is None or group is None:
            type_, group = await self._registry.locate(namespace, instance_id)
        registration = await self._registry.heartbeat(namespace, type_, group, _beat(instance_id, beat))
        return wire.Renewed(instance_id, registration)

    async def _place(self, call: Call) -> tuple[str, str]:
        query: wire.ServicePath = call.query
        if query.type is not None and query.group is not None:
            return query.type, query.group
        return await self._registry.locate(call.namespace, call.path["instanceId"])


def _whole(instance_id: str, beat: wire.Heartbeat, record: Record) -> Record:
    """Merge a heartbeat into its record; fields of the heartbeat win, and another id, type or group is refused."""
    for field, said, outside in (
        ("instanceId", record.instance_id or instance_id, instance_id),
        ("type", record.type, beat.type or record.type),
        ("group", record.group, beat.group or record.group),
    ):
        if said != outside:
            raise InvalidRequest("The record is another instance's.", field=f"record.{field}")
    news = _beat(instance_id, beat)
    return msgspec.structs.replace(
        record,
        instance_id=instance_id,
        metrics=news.metrics if news.metrics is not None else record.metrics,
        performance={} if news.metrics is not None else record.performance,
        metadata=news.metadata if news.metadata is not None else record.metadata,
        healthy=news.healthy if news.healthy is not None else record.healthy,
    )


def _beat(instance_id: str, beat: wire.Heartbeat) -> InstanceBeat:
    if beat.metrics is not None and beat.performance is not None and beat.metrics != beat.performance:
        raise InvalidRequest("metrics and performance are one thing under two names; send one.", field="metrics")
    figures = beat.metrics if beat.metrics is not None else beat.performance
    return InstanceBeat(instance_id, figures, beat.metadata, beat.healthy, beat.registration)


def _body(state: ServiceState) -> bytes:
    """Encode the `Listing` of one group from its cached parts."""
    return b'{"instances":%b,"revision":%d,"epoch":"%b","stale":false,"revisions":null,"epochs":null,"cursor":null,"nextPage":null}' % (
        state.body, state.revision, state.epoch.encode(),
    )  # fmt: skip


def _page_name(instance: Instance) -> str:
    return f"{instance.group}{BEFORE_NAMES}{instance.instance_id}"


def _digest(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode(), digest_size=16).hexdigest()
