"""Decodes a service from the store: its instances at one moment, cached between reads while they stay the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import cast

import msgspec

from headgate.kit.wire import iso_time
from headgate.registry.filters import Filter, passes, value_of
from headgate.registry.model import (
    Check,
    Instance,
    Json,
    Listing,
    Override,
    Protection,
    Record,
)  # fmt: skip
from headgate.store import Reply
from headgate.store.watch.feed import FeedChange

NO_OVERRIDE = "- - - 0"
UNDECIDED = Override()
_objects = msgspec.json.Decoder(dict[str, object])
_checks = msgspec.json.Decoder(Check)


class StoredInstance(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a record that are stored as they came; the other fields have keys of their own."""

    instance_id: str
    type: str
    group: str
    hostname: str
    public_ip: str
    private_ip: str
    port: int | None
    protocol: str
    weight: float
    enabled: bool
    ephemeral: bool
    system_info: Json


_records = msgspec.json.Decoder(StoredInstance)


class _StoredView(msgspec.Struct, frozen=True):
    """An instance as a change event carries it."""

    record: StoredInstance
    metadata: Json
    metrics: Json
    state: str
    override: str
    check: Check | None
    deadline: float


class _Removal(msgspec.Struct, frozen=True):
    reason: str
    last: _StoredView


_views = msgspec.json.Decoder(_StoredView)
_removals = msgspec.json.Decoder(_Removal)


class CachedInstance:
    """The part of an instance that changes only with its registration, its override or its health."""

    __slots__ = (
        "check",
        "draining",
        "enabled",
        "ephemeral",
        "healthy",
        "metadata",
        "override",
        "prefix",
        "record",
        "registration",
        "ttl_ms",
        "weight",
    )  # fmt: skip

    def __init__(self, record: StoredInstance, metadata: Json, state: str, override: str, check: Check | None) -> None:
        self.record, self.metadata, self.check = record, metadata, check
        registration, ttl_ms, ephemeral, reported, checked, lapsed, _ = state.split(" ")
        self.registration, self.ttl_ms, self.ephemeral = int(registration), int(ttl_ms), ephemeral == "1"
        self.healthy = reported == "1" and checked == "1" and lapsed == "0"
        self.prefix: bytes | None = None
        self.enabled, self.weight, self.draining = record.enabled, record.weight, False
        self.override: Override | None = None
        if override != NO_OVERRIDE:
            word = decode_override(override)
            self.override = word if word != UNDECIDED else None  # an expired override has no effect
            self.enabled = record.enabled if word.enabled is None else word.enabled
            self.weight = record.weight if word.weight is None else word.weight
            self.draining = bool(word.drain)

    def available(self, *, late: bool, held: bool) -> bool:
        """Whether traffic may be sent there, as `Instance.available` says."""
        return self.healthy and (not late or held) and self.enabled and not self.draining

    def value(self, filter_: Filter, figures: bytes, deadline: float, *, late: bool, held: bool) -> object:
        """Give the value that a filter compares, decoding only the part that it needs."""
        match filter_.part:
            case "metadata":
                return self.metadata.get(filter_.key)
            case "metrics":
                return _objects.decode(figures).get(filter_.key)
            case "systemInfo":
                return self.record.system_info.get(filter_.key)
        return value_of(self.instance({}, deadline, late=late, held=held), filter_)

    def instance(self, metrics: Json, deadline: float, *, late: bool, held: bool) -> Instance:
        """Build the instance as it is now."""
        record = self.record
        return Instance(
            record.instance_id, record.type, record.group, record.hostname, record.public_ip, record.private_ip,
            record.port, record.protocol, self.weight, self.enabled, self.ephemeral,
            self.healthy and (not late or held), self.draining, late and held and bool(deadline), record.system_info,
            self.metadata, metrics, metrics, iso_time(deadline - self.ttl_ms) if deadline else "", self.ttl_ms / 1000,
            self.registration, self.check, self.override,
        )  # fmt: skip

    def to_json(self, metrics: bytes, deadline: float, *, late: bool, held: bool) -> bytes:
        """Encode the instance as JSON without building it; the part that does not change is encoded once."""
        prefix = self.prefix
        if prefix is None:
            whole = msgspec.to_builtins(self.instance({}, 0, late=False, held=False))
            for name in ("healthy", "suspect", "metrics", "performance", "lastHeartbeat"):
                del whole[name]
            prefix = self.prefix = msgspec.json.encode(whole)[:-1]
        healthy = b"true" if self.healthy and (not late or held) else b"false"
        suspect = b"true" if late and held and deadline else b"false"
        beat = _beat_text(deadline - self.ttl_ms) if deadline else b""
        return b'%b,"healthy":%b,"suspect":%b,"metrics":%b,"performance":%b,"lastHeartbeat":"%b"}' % (
            prefix, healthy, suspect, metrics, metrics, beat,
        )  # fmt: skip


class CachedService(msgspec.Struct, frozen=True):
    """The last read of a service, with the store's version tags of its instances and of their metrics."""

    shape: bytes
    figures: bytes
    shapes: dict[bytes, CachedInstance]
    metrics: dict[bytes, bytes]


NOTHING = CachedService(b"", b"", {}, {})


class ServiceState:
    """A service at one moment, as one script call read it."""

    def __init__(
        self,
        state: str,
        epoch: str,
        revision: int,
        now_ms: float,
        held: bool,
        overdue: int,
        protection: Protection,
        known: CachedService,
        deadlines: dict[bytes, float],
        extended: dict[bytes, float],
    ) -> None:
        self.status, self.epoch, self.revision, self.now_ms = state, epoch, revision, now_ms
        self.overdue, self.protection, self.known = overdue, protection, known
        self._held = held
        self._deadlines = deadlines
        self._extended = extended  # deadlines before an outage, for instances whose lease was extended after it

    @cached_property
    def instances(self) -> list[Instance]:
        """All instances that are present."""
        figures = self.known.metrics
        return [
            shape.instance(_objects.decode(figures.get(id_, b"{}")), deadline, late=late, held=held)
            for id_, shape, deadline, late, held in self._present()
        ]

    @cached_property
    def body(self) -> bytes:
        """The instances as a JSON list, encoded once for all callers that share the read."""
        figures = self.known.metrics
        written = [
            shape.to_json(figures.get(id_, b"{}"), deadline, late=late, held=held)
            for id_, shape, deadline, late, held in self._present()
        ]
        return b"[" + b",".join(written) + b"]"

    def _present(self) -> Iterator[tuple[bytes, CachedInstance, float, bool, bool]]:
        """Yield id, instance, deadline, whether it has passed, and whether the lease still counts."""
        now, deadlines, extended = self.now_ms, self._deadlines, self._extended
        for id_, shape in self.known.shapes.items():
            deadline = deadlines.get(id_, 0.0)
            held = self._held or deadline > now
            if held or not shape.ephemeral:
                deadline = extended.get(id_, deadline)
                yield id_, shape, deadline, deadline <= now, held

    def filtered(self, healthy: bool | None, filters: tuple[Filter, ...]) -> ServiceState:
        """Keep the instances that pass, with the same result as the store's own filters."""
        figures = self.known.metrics
        shapes = {
            id_: shape
            for id_, shape, deadline, late, held in self._present()
            if (healthy is None or shape.available(late=late, held=held) == healthy)
            and all(
                passes(shape.value(filter_, figures.get(id_, b"{}"), deadline, late=late, held=held), filter_)
                for filter_ in filters
            )
        }
        known = CachedService(self.known.shape, self.known.figures, shapes, figures)
        return ServiceState(
            self.status, self.epoch, self.revision, self.now_ms, self._held, self.overdue, self.protection,
            known, self._deadlines, self._extended,
        )  # fmt: skip

    def tag(self, *, by_metrics: bool) -> str:
        """Give an ETag of the content; late instances and filters on metrics change it without a new revision."""
        if not self.overdue and not by_metrics:
            return str(self.revision)
        names = b",".join(sorted(id_ + b"!" if late else id_ for id_, _, _, late, _ in self._present()))
        return f"{self.revision}-{blake2b(names, digest_size=8).hexdigest()}"

    def listing(self) -> Listing:
        """Convert it to the answer to a discovery."""
        return Listing(instances=self.instances, revision=self.revision, epoch=self.epoch)


def listing_of(
    states: Mapping[str, ServiceState],
    instances: list[Instance],
    groups: Iterable[str] | None,
    cursor: str | None = None,
) -> Listing:
    """Combine the states of several groups into one answer, with the revisions and epochs of the given groups."""
    return Listing(
        instances=instances,
        revision=max((state.revision for state in states.values()), default=0),
        epoch=max((state.epoch for state in states.values()), default="0"),
        revisions=None if groups is None else {group: states[group].revision for group in groups},
        epochs=None if groups is None else {group: states[group].epoch for group in groups},
        cursor=cursor,
    )


def encode_record(record: Record) -> bytes:
    """Encode the fields of a record that are stored as they came."""
    return msgspec.json.encode(
        StoredInstance(
            record.instance_id, record.type, record.group, record.hostname, record.public_ip, record.private_ip,
            record.port, record.protocol, record.weight, record.enabled, record.ephemeral, record.system_info,
        ),
        order="deterministic",
    )  # fmt: skip


def decode_state(reply: Reply, known: CachedService = NOTHING) -> ServiceState:
    """Decode the reply of discover.lua; parts that it left out are taken from the cache."""
    parts = cast("list[Reply]", reply)
    state, epoch, revision, now = (cast("bytes", part) for part in parts[:4])
    held, overdue, mode, protected_until, shape, figures = cast(
        "tuple[int, int, bytes, bytes, bytes, bytes]", parts[4:10]
    )
    deadlines, extended, metrics, records, metadata, states, overrides, checks = (
        _by_id(cast("list[bytes]", flat)) for flat in parts[10:]
    )
    if shape and shape == known.shape:
        seen = known if figures == known.figures else CachedService(shape, figures, known.shapes, metrics)
    else:
        shapes = {
            id_: CachedInstance(
                _records.decode(records[id_]),
                _objects.decode(metadata[id_]),
                words.decode(),
                overrides[id_].decode() if id_ in overrides else NO_OVERRIDE,
                _checks.decode(checks[id_]) if id_ in checks else None,
            )
            for id_, words in states.items()
        }
        seen = CachedService(shape, figures, shapes, metrics)
    until = float(protected_until)
    kept = bool(held) or bool(extended)
    protection = Protection(
        mode.decode(),
        active=bool(until) or (kept and overdue > 0),
        until=iso_time(until) if until else None,
        suspects=overdue if kept else 0,
    )
    return ServiceState(
        state.decode(), epoch.decode(), int(revision), float(now), bool(held), overdue, protection, seen,
        _scores(deadlines), _scores(extended),
    )  # fmt: skip


def decode_put(change: FeedChange) -> Instance:
    """Decode the instance in a change event."""
    return decode_view(change.value)


def decode_view(view: bytes) -> Instance:
    """Decode an instance that a script returned by itself."""
    return _from_view(_views.decode(view))


def decode_removal(change: FeedChange) -> tuple[str, Instance]:
    """Decode the reason of a removal, and the instance as it last was."""
    removal = _removals.decode(change.value)
    return removal.reason, _from_view(removal.last)


def _from_view(view: _StoredView) -> Instance:
    shape = CachedInstance(view.record, view.metadata, view.state, view.override, view.check)
    return shape.instance(view.metrics, view.deadline, late=False, held=False)


@lru_cache(maxsize=4096)
def _second_text(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def _beat_text(ms: float) -> bytes:
    second, rest = divmod(int(ms), 1000)
    return b"%b.%03dZ" % (_second_text(second), rest)


def decode_override(words: str) -> Override:
    """Decode the stored form of an override."""
    enabled, weight, drain, _ = words.split(" ")
    return Override(
        enabled=None if enabled == "-" else enabled == "1",
        weight=None if weight == "-" else float(weight),
        drain=None if drain == "-" else drain == "1",
    )


def _scores(members: dict[bytes, bytes]) -> dict[bytes, float]:
    return {id_: float(score) for id_, score in members.items()}


def _by_id(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
