"""Builds all key names, so that the keys of a thing share one slot and no two names collide."""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

SLOTS: Final = 16384


class Thing:
    """A queue, a service, a config namespace, an upstream or a lock: the unit that lives in one slot."""

    __slots__ = ("base", "name", "namespace", "part", "slot", "tag")

    def __init__(self, prefix: str, part: str, namespace: str, name: str) -> None:
        self.part = part
        self.namespace = namespace
        self.name = name
        self.tag = f"{_quoted(namespace)}/{_quoted(name)}"
        self.base = f"{prefix}:{part}:{{{self.tag}}}:"
        self.slot = crc_hqx(self.tag.encode(), 0) % SLOTS

    def key(self, suffix: str) -> str:
        """Name one of this thing's keys."""
        return self.base + suffix

    def __repr__(self) -> str:
        return f"<{self.part} {self.tag}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self.base == other.base

    def __hash__(self) -> int:
        return hash(self.base)


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into namespace and name."""
    namespace, _, name = tag.partition("/")
    return unquote(namespace), unquote(name)


def part_of_key(value: str) -> str:
    """Quote a name from outside for use inside a key."""
    return _quoted(value)


@lru_cache(maxsize=16_384)
def _quoted(value: str) -> str:
    return quote(value, safe="")
