"""Reads the state of all queues, services, upstreams and locks for `headgate top`, through a gateway or from a store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from headgate.cli.running_up import without_password
from headgate.gateway.api import StoreFacts, SystemFacts, store_facts
from headgate.kit.problems import HeadgateError
from headgate.kit.wire import Wire
from headgate.locks.model import LockState
from headgate.registry.model import ServiceSummary
from headgate.relay.wire import UpstreamStatus
from headgate.sdk import Headgate
from headgate.store import Store
from headgate.waiting_room.wire import QueueView, ServerView

# Services and upstreams are read one by one; a longer list does not fit on a screen anyway.
MOST = 50

Found = TypeVar("Found")


class QueueSummary(Wire):
    """A queue: its line, its admission rate, and its servers with their seats."""

    name: str
    state: str
    waiting: int
    away: int
    admitted_per_second: float
    holds: int
    sessions: int
    capacity: int
    servers: list[ServerView]


class ServiceCounts(Wire):
    """A service: its instances by state, each counted once."""

    name: str
    available: int
    unhealthy: int
    draining: int
    disabled: int
    suspect: int
    protected: bool


class SystemStatus(Wire):
    """The state of everything; a part that could not be read is empty and named in `troubles`."""

    at: datetime
    url: str
    namespace: str
    store: StoreFacts
    queues: list[QueueSummary]
    services: list[ServiceCounts]
    upstreams: list[UpstreamStatus]
    locks: list[LockState]
    troubles: dict[str, str]


async def read_system_status(headgate: Headgate) -> SystemStatus:
    """Read all parts concurrently; raises if not even the store's health can be read."""
    troubles: dict[str, str] = {}

    async def part(name: str, reading: Awaitable[Sequence[Found]]) -> list[Found]:
        try:
            return [*await reading]
        except HeadgateError as error:
            troubles[name] = error.detail
            return []

    queues, services, upstreams, locks, store = await asyncio.gather(
        part("queues", _queues(headgate)),
        part("services", _services(headgate)),
        part("upstreams", _upstreams(headgate)),
        part("locks", headgate.locks.list(headgate.namespace)),
        _store(headgate),
    )
    return SystemStatus(
        at=datetime.now(UTC),
        url=without_password(headgate.url),
        namespace=headgate.namespace,
        store=store,
        queues=queues,
        services=services,
        upstreams=upstreams,
        locks=locks,
        troubles=troubles,
    )


async def _queues(headgate: Headgate) -> list[QueueSummary]:
    return [await _queue(headgate, view) for view in await headgate.queues.list()]


async def _queue(headgate: Headgate, view: QueueView) -> QueueSummary:
    servers = (await headgate.queue.servers(view.queue)).servers if view.figures.servers else []
    figures = view.figures
    return QueueSummary(
        name=view.queue,
        state="paused" if view.paused else "draining" if view.draining else "open",
        waiting=figures.waiting,
        away=figures.away,
        admitted_per_second=figures.rate_per_second,
        holds=figures.holds,
        sessions=figures.sessions,
        capacity=figures.capacity,
        servers=servers,
    )


async def _services(headgate: Headgate) -> list[ServiceCounts]:
    found = await headgate.registry.services()
    return [*await asyncio.gather(*(_service(headgate, each) for each in found[:MOST]))]


async def _service(headgate: Headgate, summary: ServiceSummary) -> ServiceCounts:
    instances = await headgate.registry.discover(summary.type, summary.group)
    draining = sum(each.draining for each in instances)
    disabled = sum(not each.enabled and not each.draining for each in instances)
    unhealthy = sum(not each.healthy and each.enabled and not each.draining for each in instances)
    return ServiceCounts(
        name=f"{summary.type}/{summary.group}",
        available=sum(each.available and not each.suspect for each in instances),
        unhealthy=unhealthy,
        draining=draining,
        disabled=disabled,
        suspect=sum(each.available and each.suspect for each in instances),
        protected=summary.protection.active,
    )


async def _upstreams(headgate: Headgate) -> list[UpstreamStatus]:
    names = [view.name for view in await headgate.relay.upstreams()]
    return [*await asyncio.gather(*(headgate.relay.status(name) for name in names[:MOST]))]


async def _store(headgate: Headgate) -> StoreFacts:
    backend = headgate.backend
    if isinstance(backend, Store):
        return await store_facts(backend)
    return (await backend.request("GET", "/api/system", answer=SystemFacts)).store
