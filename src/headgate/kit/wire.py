"""The base of the structs that travel: requests, answers and events."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _WireMeta(msgspec.StructMeta):
    """Tells type checkers that a subclass of a frozen struct is frozen too."""


class Wire(msgspec.Struct, metaclass=_WireMeta, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base of what travels over HTTP: frozen, camelCase on the wire, unknown fields refused."""
