"""From what the store keeps of an instance to the instance that others see."""

from __future__ import annotations

from collections.abc import Iterator
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
    """The part of a record that is kept as it came; the rest has places of its own."""

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


class _View(msgspec.Struct, frozen=True):
    """An instance as a change carries it."""

    record: StoredInstance
    metadata: Json
    metrics: Json
    state: str
    override: str
    check: Check | None
    deadline: float


class _Removal(msgspec.Struct, frozen=True):
    reason: str
    last: _View


_views = msgspec.json.Decoder(_View)
_removals = msgspec.json.Decoder(_Removal)


class ServiceShape:
    """What of an instance changes only with its registration, an override or its health."""

    __slots__ = (
        "check", "decided", "draining", "enabled", "ephemeral", "metadata", "prefix", "record", "registration", "sound",
        "ttl_ms", "weight",
    )  # fmt: skip

    def __init__(self, record: StoredInstance, metadata: Json, state: str, override: str, check: Check | None) -> None:
        self.record, self.metadata, self.check = record, metadata, check
        registration, ttl_ms, ephemeral, reported, checked, lapsed, _ = state.split(" ")
        self.registration, self.ttl_ms, self.ephemeral = int(registration), int(ttl_ms), ephemeral == "1"
        self.sound = reported == "1" and checked == "1" and lapsed == "0"
        self.prefix: bytes | None = None
        self.enabled, self.weight, self.draining = record.enabled, record.weight, False
        self.decided: Override | None = None
        if override != NO_OVERRIDE:
            word = read_override(override)
            self.decided = word if word != UNDECIDED else None  # a tombstone whose time is over decides nothing
            self.enabled = record.enabled if word.enabled is None else word.enabled
            self.weight = record.weight if word.weight is None else word.weight
            self.draining = bool(word.drain)

    def available(self, *, late: bool, held: bool) -> bool:
        """Tell whether traffic may go there, as `Instance.available` does."""
        return self.sound and (not late or held) and self.enabled and not self.draining

    def value(self, filter_: Filter, figures: bytes, deadline: float, *, late: bool, held: bool) -> object:
        """Give what a filter asks for; what it does not ask for is not read."""
        match filter_.part:
            case "metadata":
                return self.metadata.get(filter_.key)
            case "metrics":
                return _objects.decode(figures).get(filter_.key)
            case "systemInfo":
                return self.record.system_info.get(filter_.key)
        return value_of(self.instance({}, deadline, late=late, held=held), filter_)

    def instance(self, metrics: Json, deadline: float, *, late: bool, held: bool) -> Instance:
        """Put the instance together as it is now."""
        record = self.record
        return Instance(
            record.instance_id, record.type, record.group, record.hostname, record.public_ip, record.private_ip,
            record.port, record.protocol, self.weight, self.enabled, self.ephemeral,
            self.sound and (not late or held), self.draining, late and held and bool(deadline), record.system_info,
            self.metadata, metrics, metrics, iso_time(deadline - self.ttl_ms) if deadline else "", self.ttl_ms / 1000,
            self.registration, self.check, self.decided,
        )  # fmt: skip

    def written(self, metrics: bytes, deadline: float, *, late: bool, held: bool) -> bytes:
        """Write the instance as JSON without building it; what does not change is written once."""
        prefix = self.prefix
        if prefix is None:
            whole = msgspec.to_builtins(self.instance({}, 0, late=False, held=False))
            for name in ("healthy", "suspect", "metrics", "performance", "lastHeartbeat"):
                del whole[name]
            prefix = self.prefix = msgspec.json.encode(whole)[:-1]
        healthy = b"true" if self.sound and (not late or held) else b"false"
        suspect = b"true" if late and held and deadline else b"false"
        beat = _beat_text(deadline - self.ttl_ms) if deadline else b""
        return b'%b,"healthy":%b,"suspect":%b,"metrics":%b,"performance":%b,"lastHeartbeat":"%b"}' % (
            prefix, healthy, suspect, metrics, metrics, beat,
        )  # fmt: skip


class KnownLookup(msgspec.Struct, frozen=True):
    """What a process has read of a service, and the marks by which it sees whether that still holds."""

    shape: bytes
    figures: bytes
    shapes: dict[bytes, ServiceShape]
    metrics: dict[bytes, bytes]


NOTHING = KnownLookup(b"", b"", {}, {})


class Lookup:
    """A service at one moment, as one script call saw it."""

    def __init__(
        self,
        state: str,
        epoch: str,
        revision: int,
        now_ms: float,
        held: bool,
        overdue: int,
        protection: Protection,
        known: KnownLookup,
        deadlines: dict[bytes, float],
        extended: dict[bytes, float],
    ) -> None:
        self.state, self.epoch, self.revision, self.now_ms = state, epoch, revision, now_ms
        self.overdue, self.protection, self.known = overdue, protection, known
        self._held = held
        self._deadlines = deadlines
        self._extended = extended  # deadlines before an outage, of those who have a lease more since

    @cached_property
    def instances(self) -> list[Instance]:
        """Give all who are there."""
        figures = self.known.metrics
        return [
            shape.instance(_objects.decode(figures.get(id_, b"{}")), deadline, late=late, held=held)
            for id_, shape, deadline, late, held in self._present()
        ]

    @cached_property
    def body(self) -> bytes:
        """Write them as a JSON list; callers who looked together share it."""
        figures = self.known.metrics
        written = [
            shape.written(figures.get(id_, b"{}"), deadline, late=late, held=held)
            for id_, shape, deadline, late, held in self._present()
        ]
        return b"[" + b",".join(written) + b"]"

    def _present(self) -> Iterator[tuple[bytes, ServiceShape, float, bool, bool]]:
        """Give who is there, with the deadline of the last heartbeat, whether that has passed, and whether it counts."""
        now, deadlines, extended = self.now_ms, self._deadlines, self._extended
        for id_, shape in self.known.shapes.items():
            deadline = deadlines.get(id_, 0.0)
            held = self._held or deadline > now
            if held or not shape.ephemeral:
                deadline = extended.get(id_, deadline)
                yield id_, shape, deadline, deadline <= now, held

    def chosen(self, healthy: bool | None, filters: tuple[Filter, ...]) -> Lookup:
        """Keep those that pass, as the store would have chosen them."""
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
        known = KnownLookup(self.known.shape, self.known.figures, shapes, figures)
        return Lookup(
            self.state,
            self.epoch,
            self.revision,
            self.now_ms,
            self._held,
            self.overdue,
            self.protection,
            known,
            self._deadlines,
            self._extended,
        )

    def tag(self, *, by_metrics: bool) -> str:
        """Name what is in it. Whoever is late, or chosen by metrics, comes and goes without a revision."""
        if not self.overdue and not by_metrics:
            return str(self.revision)
        names = b",".join(sorted(id_ + b"!" if late else id_ for id_, _, _, late, _ in self._present()))
        return f"{self.revision}-{blake2b(names, digest_size=8).hexdigest()}"

    def listing(self) -> Listing:
        """Give it as the answer to a discovery."""
        return Listing(instances=self.instances, revision=self.revision, epoch=self.epoch)


def kept(record: Record) -> bytes:
    """Write the part of a record that is kept as it came."""
    return msgspec.json.encode(
        StoredInstance(
            record.instance_id, record.type, record.group, record.hostname, record.public_ip, record.private_ip,
            record.port, record.protocol, record.weight, record.enabled, record.ephemeral, record.system_info,
        ),
        order="deterministic",
    )  # fmt: skip


def read_look(reply: Reply, known: KnownLookup = NOTHING) -> Lookup:
    """Read what discover.lua gives; what it left out is as known."""
    parts = cast("list[Reply]", reply)
    state, epoch, revision, now = (cast("bytes", part) for part in parts[:4])
    held, overdue, mode, protected_until, shape, figures = cast(
        "tuple[int, int, bytes, bytes, bytes, bytes]", parts[4:10]
    )
    deadlines, extended, metrics, records, metadata, states, overrides, checks = (
        _by_id(cast("list[bytes]", flat)) for flat in parts[10:]
    )
    if shape and shape == known.shape:
        seen = known if figures == known.figures else KnownLookup(shape, figures, known.shapes, metrics)
    else:
        shapes = {
            id_: ServiceShape(
                _records.decode(records[id_]),
                _objects.decode(metadata[id_]),
                words.decode(),
                overrides[id_].decode() if id_ in overrides else NO_OVERRIDE,
                _checks.decode(checks[id_]) if id_ in checks else None,
            )
            for id_, words in states.items()
        }
        seen = KnownLookup(shape, figures, shapes, metrics)
    until = float(protected_until)
    kept = bool(held) or bool(extended)
    protection = Protection(
        mode.decode(),
        active=bool(until) or (kept and overdue > 0),
        until=iso_time(until) if until else None,
        suspects=overdue if kept else 0,
    )
    return Lookup(
        state.decode(), epoch.decode(), int(revision), float(now), bool(held), overdue, protection, seen,
        _scores(deadlines), _scores(extended),
    )  # fmt: skip


def read_put(change: FeedChange) -> Instance:
    """Read the instance that a change brought."""
    return read_view(change.value)


def read_view(view: bytes) -> Instance:
    """Read an instance as the store writes one by itself."""
    return _from_view(_views.decode(view))


def read_removal(change: FeedChange) -> tuple[str, Instance]:
    """Read why an instance went, and what it last was."""
    removal = _removals.decode(change.value)
    return removal.reason, _from_view(removal.last)


def _from_view(view: _View) -> Instance:
    shape = ServiceShape(view.record, view.metadata, view.state, view.override, view.check)
    return shape.instance(view.metrics, view.deadline, late=False, held=False)


@lru_cache(maxsize=4096)
def _second_text(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def _beat_text(ms: float) -> bytes:
    second, rest = divmod(int(ms), 1000)
    return b"%b.%03dZ" % (_second_text(second), rest)


def read_override(words: str) -> Override:
    """Read an override's words."""
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
