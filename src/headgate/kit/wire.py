"""The wire format: the base of the structs of requests, responses and events, and how times are written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _WireMeta(msgspec.StructMeta):
    """Tells type checkers that a subclass of a frozen struct is frozen too."""


class Wire(msgspec.Struct, metaclass=_WireMeta, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The base of structs that are sent over HTTP: frozen, camelCase on the wire, unknown fields refused."""


def iso_time(ms: float) -> str:
    """Write a time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
