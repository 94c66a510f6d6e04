"""Structs of the registry's requests, answers and events, shared by the server and the SDK."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headgate.http.paging import PageQuery
from headgate.kit.wire import Wire
from headgate.registry.model import Instance, Json, Record, ServiceSummary

MOST_BEATS: Final = 1000
Nonce = Annotated[str, Meta(pattern=r"^[0-9A-Za-z_-]{8,64}\Z")]


class Heartbeat(Wire, frozen=True):
    """A heartbeat; fields that are present replace the stored ones."""

    type: str | None = None
    group: str | None = None
    metrics: Json | None = None
    performance: Json | None = None
    metadata: Json | None = None
    healthy: bool | None = None
    registration: int | None = None
    record: Record | None = None


class BatchHeartbeat(Heartbeat, frozen=True, kw_only=True):
    """One heartbeat of a batch."""

    instance_id: str


class BatchRequest(Wire, frozen=True):
    """Several heartbeats in one request."""

    heartbeats: Annotated[list[BatchHeartbeat], Meta(max_length=MOST_BEATS)]


class BatchAnswer(Wire, frozen=True):
    """The number of renewed instances, and the ids of the others."""

    renewed: int
    unknown: list[str]
    superseded: list[str] = []


class Renewed(Wire, frozen=True):
    """The answer to a heartbeat."""

    instance_id: str
    registration: int


class DiscoverQuery(PageQuery, frozen=True, kw_only=True):
    """The service to search, with filters."""

    type: str
    group: str | None = None
    healthy: bool | None = None
    check: bool = False
    filter: list[str] = []


class ServicePath(Wire, frozen=True):
    """The service of an instance; if it is left out, it is found by the instance's id."""

    type: str | None = None
    group: str | None = None
    registration: int | None = None


class RegisterQuery(Wire, frozen=True):
    """The idempotency key of a registration, and the number of an earlier registration of this process."""

    nonce: Nonce | None = None
    registration: int | None = None


class RemoveInstanceQuery(ServicePath, frozen=True):
    """The service of the instance, and the nonce of a registration whose answer was lost."""

    nonce: Nonce | None = None


class ServiceWatchQuery(Wire, frozen=True):
    """The service or type to watch, and the position to resume from."""

    type: str
    group: str | None = None
    revision: str | None = None


class ServiceQuery(Wire, frozen=True):
    """The name of one service."""

    type: str
    group: str


class EvictRequest(Wire, frozen=True):
    """How long the instance may not register again."""

    for_seconds: Annotated[float, Meta(gt=0, le=31_536_000)]


class ProtectionRequest(Wire, frozen=True):
    """The mode of mass-expiry protection: auto or off."""

    protection: Annotated[str, Meta(pattern=r"^(auto|off)\Z")]


class Services(Wire, frozen=True):
    """All services of a namespace."""

    services: list[ServiceSummary]
    next_page: str | None = None


class InstancePut(msgspec.Struct, frozen=True, rename="camel"):
    """An instance is new or has changed."""

    revision: int
    instance: Instance


class InstanceRemoved(msgspec.Struct, frozen=True, rename="camel"):
    """An instance was removed, with the reason: removed, expired, evicted or unhealthy."""

    revision: int
    instance_id: str
    group: str
    reason: str


class RegistryBookmark(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A position: of a bookmark, of a compaction, or of a new epoch."""

    revision: int
    epoch: str | None = None
    group: str | None = None


class TargetGroup(msgspec.Struct, frozen=True):
    """A target group of Prometheus' HTTP discovery."""

    targets: list[str]
    labels: dict[str, str]
