"""Domain types of the registry: the record that an instance sends, and the instance that others see."""

from __future__ import annotations

import math
import re
import secrets
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headgate.kit.ids import display_text, member_id, new_ulid, thing_name
from headgate.kit.problems import InvalidRequest
from headgate.kit.validation import explain
from headgate.kit.wire import Wire

MOST_JSON: Final = 16_384
MOST_DEPTH: Final = 16
MOST_NAME: Final = 255
MOST_URL: Final = 2000
MOST_NUMBER: Final = 2**64
_LONG_NUMBER: Final = re.compile(rb"\d{20}")
SHORTEST_TTL: Final = 1.0
LONGEST_TTL: Final = 86_400.0
Json = dict[str, Any]
W = TypeVar("W", bound=Wire)


class CheckKind(StrEnum):
    """The protocol of a health check."""

    HTTP = "http"
    TCP = "tcp"
    GRPC = "grpc"
    WEBSOCKET = "websocket"


_SCHEMES: Final = {CheckKind.HTTP: ("http", "https"), CheckKind.WEBSOCKET: ("ws", "wss")}


class Check(Wire, frozen=True):
    """A health check that workers run against an instance."""

    kind: CheckKind
    url: str | None = None
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    interval_seconds: Annotated[float, Meta(ge=0.5, le=3600)] = 10.0
    timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 2.0
    rise: Annotated[int, Meta(ge=1, le=100)] = 2
    fall: Annotated[int, Meta(ge=1, le=100)] = 3
    remove_after_seconds: Annotated[float, Meta(ge=1)] | None = None


class Record(Wire, frozen=True, omit_defaults=True):
    """The data that an instance sends about itself when it registers."""

    type: str
    group: str = "default"
    instance_id: str = ""
    hostname: str = ""
    public_ip: str = ""
    private_ip: str = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    protocol: str = ""
    weight: Annotated[float, Meta(ge=0, le=1_000_000)] = 1.0
    enabled: bool = True
    ephemeral: bool = True
    healthy: bool = True
    system_info: Json = {}
    metadata: Json = {}
    metrics: Json = {}
    performance: Json = {}
    ttl_seconds: float | None = None
    check: Check | None = None
    last_heartbeat: str | float | None = (
        None  # ignored: present so that an `Instance` from a listing can be sent back unchanged
    )

    def addressed(self) -> Record:
        """Refuse a record without any address."""
        if not (self.hostname or self.public_ip or self.private_ip):
            raise InvalidRequest("An instance needs an address: hostname, publicIp or privateIp.", field="hostname")
        return self

    def checked(self) -> Record:
        """Validate the record and fill in defaults; raises InvalidRequest."""
        thing_name(self.type, "type")
        thing_name(self.group, "group")
        instance_id = member_id(self.instance_id, "instanceId") if self.instance_id else new_ulid()
        texts = (("hostname", self.hostname), ("publicIp", self.public_ip), ("privateIp", self.private_ip))
        for field, value in (*texts, ("protocol", self.protocol)):
            if value:
                display_text(value, field, MOST_NAME)
        if self.metrics and self.performance and self.metrics != self.performance:
            raise InvalidRequest("metrics and performance are one thing under two names; send one.", field="metrics")
        if self.ttl_seconds is not None and not SHORTEST_TTL <= self.ttl_seconds <= LONGEST_TTL:
            raise InvalidRequest(f"ttlSeconds must be {SHORTEST_TTL:g} to {LONGEST_TTL:g}.", field="ttlSeconds")
        if self.check is not None and self.check.url is not None:
            _check_url(self.check.kind, self.check.url)
        for name in ("system_info", "metadata", "metrics", "performance"):
            check_json(getattr(self, name), name)
        metrics = self.metrics or self.performance
        return msgspec.structs.replace(
            self, instance_id=instance_id, metrics=metrics, performance={}, last_heartbeat=None
        )


class Override(Wire, frozen=True, omit_defaults=True):
    """An operator's settings for an instance; None leaves the field to the instance."""

    enabled: bool | None = None
    weight: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    drain: bool | None = None


class OverrideChange(Wire, frozen=True):
    """A change of an override: absent fields stay, null removes the operator's setting."""

    enabled: bool | UnsetType | None = UNSET
    weight: Annotated[float, Meta(ge=0, le=1000000)] | UnsetType | None = UNSET
    drain: bool | UnsetType | None = UNSET


class Instance(msgspec.Struct, frozen=True, rename="camel"):
    """An instance as others see it: its record with the operator's override applied, and its current health."""

    instance_id: str
    type: str
    group: str
    hostname: str = ""
    public_ip: str = ""
    private_ip: str = ""
    port: int | None = None
    protocol: str = ""
    weight: float = 1.0
    enabled: bool = True
    ephemeral: bool = True
    healthy: bool = True
    draining: bool = False
    suspect: bool = False
    system_info: Json = {}
    metadata: Json = {}
    metrics: Json = {}
    performance: Json = {}
    last_heartbeat: str = ""
    ttl_seconds: float = 30.0
    registration: int = 0
    check: Check | None = None
    override: Override | None = None

    @property
    def available(self) -> bool:
        """Whether traffic may be sent there: healthy, enabled and not draining."""
        return self.healthy and self.enabled and not self.draining

    @property
    def address(self) -> str:
        """The address inside the network: privateIp, else publicIp, else hostname."""
        return self.private_ip or self.public_ip or self.hostname


class Registered(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to a registration."""

    instance_id: str
    revision: int
    registration: int
    ttl_seconds: float


def new_nonce() -> str:
    """Make an idempotency key for a registration, so that a retry is the same registration."""
    return secrets.token_hex(8)


class InstanceBeat(msgspec.Struct, frozen=True):
    """One heartbeat; fields that are not None replace the stored ones."""

    instance_id: str
    metrics: Json | None = None
    metadata: Json | None = None
    healthy: bool | None = None
    registration: int | None = None


class Protection(msgspec.Struct, frozen=True, rename="camel"):
    """Whether expiry is held back in a service, and why."""

    mode: str
    active: bool
    until: str | None = None
    suspects: int = 0


class Listing(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to a discovery: a consistent set at one revision; for several groups, one revision and epoch each."""

    instances: list[Instance]
    revision: int
    epoch: str
    stale: bool = False
    revisions: dict[str, int] | None = None
    epochs: dict[str, str] | None = None
    cursor: str | None = None
    next_page: str | None = None


class ServiceSummary(msgspec.Struct, frozen=True, rename="camel"):
    """One service in a list of them."""

    type: str
    group: str
    instances: int
    healthy: int
    revision: int
    protection: Protection


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """A change as listeners get it: put, removed or stale, with the instance as it is (or last was)."""

    kind: str
    instance: Instance
    revision: int
    reason: str | None = None


def as_sent(value: W) -> W:
    """Refuse a struct built in Python that would be refused over HTTP, so that both modes of the SDK agree."""
    for field, each in msgspec.structs.asdict(value).items():
        if isinstance(each, float) and not math.isfinite(each):
            raise InvalidRequest(f"{field} must be a number.", field=field)
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=type(value))
    except (msgspec.ValidationError, OverflowError, RecursionError, TypeError, ValueError) as error:
        sentence, field = explain(error, type(value))
        raise (InvalidRequest(sentence, field=field) if field else InvalidRequest(sentence)) from error


def _check_url(kind: CheckKind, url: str) -> None:
    """Refuse the URL of a check that could never be requested."""
    schemes = _SCHEMES.get(kind)
    if schemes is None:
        raise InvalidRequest("Only http and websocket checks take a url.", field="check.url")
    if len(url) > MOST_URL or not (url.isascii() and url.isprintable()) or " " in url:
        raise InvalidRequest(f"check.url must be at most {MOST_URL} plain characters.", field="check.url")
    try:
        parts = urlsplit(url)
        whole = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not (whole or url.startswith("/")):
        raise InvalidRequest(f"check.url must be a path, or begin with {' or '.join(schemes)}://.", field="check.url")


def check_json(value: Json, field: str) -> bytes:
    """Encode a JSON object; raises InvalidRequest if it is too large, too deep or not JSON."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object.", field=field)
    try:
        text = msgspec.json.encode(value, order="deterministic")
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise InvalidRequest(f"{field} holds something that JSON cannot: {error}.", field=field) from error
    if len(text) > MOST_JSON:
        raise InvalidRequest(f"{field} has {len(text)} bytes; {MOST_JSON} is the most.", field=field)
    # With few brackets and no long run of digits nothing can be too deep or too large, so the walk is skipped.
    shallow = text.count(b"{") + text.count(b"[") <= MOST_DEPTH and not _LONG_NUMBER.search(text)
    if not shallow and _depth(value, field) > MOST_DEPTH:
        raise InvalidRequest(f"{field} is nested deeper than {MOST_DEPTH}.", field=field)
    return text


def _depth(value: object, field: str) -> int:
    """Measure the nesting depth; raises InvalidRequest for integers of more than 64 bits."""
    if isinstance(value, dict):
        return 1 + max((_depth(each, field) for each in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((_depth(each, field) for each in value), default=0)
    if isinstance(value, int) and abs(value) > MOST_NUMBER:
        raise InvalidRequest(f"{field} holds a whole number of more than 64 bits.", field=field)
    return 0
