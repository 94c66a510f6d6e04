"""From what the store keeps of an instance to the instance that others see."""

from __future__ import annotations

from typing import cast

import msgspec

from headgate.registry.model import (
    Check,
    Instance,
    Json,
    Listing,
    Override,
    Protection,
    Record,
    iso,
)  # fmt: skip
from headgate.store import Reply
from headgate.store.feed import Change

NO_OVERRIDE = "- - - 0"
_objects = msgspec.json.Decoder(dict[str, object])
_checks = msgspec.json.Decoder(Check)


class Kept(msgspec.Struct, frozen=True, rename="camel"):
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


_records = msgspec.json.Decoder(Kept)


class _View(msgspec.Struct, frozen=True):
    """An instance as a change carries it."""

    record: Kept
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


class Look(msgspec.Struct, frozen=True):
    """A service at one moment, as one script call saw it."""

    state: str
    epoch: str
    revision: int
    now_ms: float
    overdue: int
    protection: Protection
    instances: list[Instance]

    def listing(self) -> Listing:
        """Give it as the answer to a discovery."""
        return Listing(instances=self.instances, revision=self.revision, epoch=self.epoch)


def kept(record: Record) -> bytes:
    """Write the part of a record that is kept as it came."""
    return msgspec.json.encode(
        Kept(
            record.instance_id, record.type, record.group, record.hostname, record.public_ip, record.private_ip,
            record.port, record.protocol, record.weight, record.enabled, record.ephemeral, record.system_info,
        ),
        order="deterministic",
    )  # fmt: skip


def read_look(reply: Reply) -> Look:
    """Read what discover.lua gives."""
    parts = cast("list[Reply]", reply)
    state, epoch, revision, now = (cast("bytes", part) for part in parts[:4])
    held, overdue, mode, protected_until = cast("tuple[int, int, bytes, bytes]", parts[4:8])
    deadlines, records, metadata, metrics, states, overrides, checks = (
        _by_id(cast("list[bytes]", flat)) for flat in parts[8:]
    )
    now_ms = float(now)
    instances = []
    for id_, words in states.items():
        deadline = float(deadlines.get(id_, 0))
        late = deadline <= now_ms
        if late and not held and words.split(b" ", 3)[2] == b"1":
            continue
        instances.append(
            build(
                _records.decode(records[id_]),
                _objects.decode(metadata[id_]),
                _objects.decode(metrics[id_]) if id_ in metrics else {},
                words.decode(),
                overrides[id_].decode() if id_ in overrides else NO_OVERRIDE,
                _checks.decode(checks[id_]) if id_ in checks else None,
                deadline,
                late=late,
                held=bool(held),
            )
        )
    until = float(protected_until)
    protection = Protection(
        mode.decode(), active=bool(until) or (bool(held) and overdue > 0), until=iso(until) if until else None,
        suspects=overdue if held else 0,
    )  # fmt: skip
    return Look(state.decode(), epoch.decode(), int(revision), now_ms, overdue, protection, instances)


def read_put(change: Change) -> Instance:
    """Read the instance that a change brought."""
    return _from_view(_views.decode(change.value))


def read_removal(change: Change) -> tuple[str, Instance]:
    """Read why an instance went, and what it last was."""
    removal = _removals.decode(change.value)
    return removal.reason, _from_view(removal.last)


def _from_view(view: _View) -> Instance:
    return build(
        view.record, view.metadata, view.metrics, view.state, view.override, view.check, view.deadline,
        late=False, held=False,
    )  # fmt: skip


def build(
    record: Kept,
    metadata: Json,
    metrics: Json,
    state: str,
    override: str,
    check: Check | None,
    deadline: float,
    *,
    late: bool,
    held: bool,
) -> Instance:
    """Put an instance together: its record, under the operator's override, with its health."""
    registration, ttl_ms, ephemeral, reported, checked, lapsed, _ = state.split(" ")
    decided = None
    enabled, weight, draining = record.enabled, record.weight, False
    if override != NO_OVERRIDE:
        decided = read_override(override)
        enabled = record.enabled if decided.enabled is None else decided.enabled
        weight = record.weight if decided.weight is None else decided.weight
        draining = bool(decided.drain)
    return Instance(
        record.instance_id, record.type, record.group, record.hostname, record.public_ip, record.private_ip,
        record.port, record.protocol, weight, enabled, ephemeral == "1",
        reported == "1" and checked == "1" and lapsed == "0" and (not late or held),
        draining, late and held and lapsed == "0", record.system_info, metadata, metrics, metrics,
        iso(deadline - int(ttl_ms)) if deadline else "", int(ttl_ms) / 1000, int(registration), check, decided,
    )  # fmt: skip


def read_override(words: str) -> Override:
    """Read an override's words."""
    enabled, weight, drain, _ = words.split(" ")
    return Override(
        enabled=None if enabled == "-" else enabled == "1",
        weight=None if weight == "-" else float(weight),
        drain=None if drain == "-" else drain == "1",
    )


def _by_id(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
