"""Fenced values: they remember the highest fence and refuse a holder who has been succeeded."""

from __future__ import annotations

from typing import cast

import msgspec

from headgate.kit.ids import thing_name
from headgate.kit.problems import InvalidRequest
from headgate.store import Store, Thing, script

SET = script(__package__, "fenced_set")
ADMIT = script(__package__, "fence_admit")
MOST_FENCE = 2**53 - 1
MOST_VALUE_BYTES = 1_048_576


class FencedValue(msgspec.Struct, frozen=True, rename="camel"):
    """A value and the fence it was written under."""

    value: str
    fence: int


class Fences:
    """Values in the store, and fences of resources elsewhere, that only the newest holder may change."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def set(self, namespace: str, key: str, value: str, fence: int) -> None:
        """Write a value; raises FenceOutdated if it was written under a higher fence."""
        encoded = checked_value(value).encode()
        if len(encoded) > MOST_VALUE_BYTES:
            raise InvalidRequest(f"value must have at most {MOST_VALUE_BYTES} bytes.", field="value")
        await self._store.run(SET, self._thing(namespace, key), checked_fence(fence), encoded)

    async def get(self, namespace: str, key: str) -> FencedValue | None:
        """Read a value; None if nothing was written."""
        thing = self._thing(namespace, key)
        value, fence = cast(
            "list[bytes | None]", await self._store.read(thing, "HMGET", thing.key("value"), "value", "fence")
        )
        return FencedValue(value.decode(), int(fence)) if value is not None and fence is not None else None

    async def admit(self, namespace: str, resource: str, fence: int) -> None:
        """Record a resource's fence; raises FenceOutdated if a higher one was recorded."""
        await self._store.run(ADMIT, self._thing(namespace, resource), checked_fence(fence))

    def _thing(self, namespace: str, key: str) -> Thing:
        return self._store.thing("fenced", thing_name(namespace, "namespace"), thing_name(key, "key"))


def checked_value(value: object) -> str:
    """Validate a value; bytes are refused, because the store and the gateway would encode them differently."""
    if not isinstance(value, str):
        raise InvalidRequest("value must be text.", field="value")
    return value


def checked_fence(fence: int) -> int:
    """Validate a fence."""
    if not 0 < fence <= MOST_FENCE:
        raise InvalidRequest(f"fence must be 1 to {MOST_FENCE}.", field="fence")
    return fence
