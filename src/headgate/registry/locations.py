"""Finds the service of an instance by its id (hints in a few slots), and caches the groups of a type."""

from __future__ import annotations

import asyncio
from binascii import crc32
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final, cast

from headgate.kit.ids import thing_name
from headgate.kit.problems import StoreFull
from headgate.store import Batch, Index, Store, Thing, script

PUT = script(__package__, "locate_put")
FORGET = script(__package__, "locate_forget")
SHARDS: Final = 4
KEEP_MS: Final = 30 * 86_400_000
REFRESH_SECONDS: Final = 21_600.0
MOST_CACHED: Final = 100_000
FORGOTTEN_AT_ONCE: Final = 500
GROUPS_FRESH_SECONDS: Final = 0.5
MOST_NAMESPACES: Final = 1000


class Locations:
    """Stored hints of which service an instance is in; without one, its owner is asked to register again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._puts = Batch(store, PUT)
        self._cached: dict[tuple[str, str], tuple[str, float]] = {}

    async def put(self, namespace: str, instance_id: str, service: str) -> None:
        """Store that an instance is in a service (`type/group`)."""
        self._cache(namespace, instance_id, service)
        await self._puts.call(self._shard(namespace, instance_id), instance_id, service)

    async def find(self, namespace: str, instance_id: str) -> str | None:
        """Give the service of an instance, or None if there is no hint."""
        service, cached_at = self._cached.get((namespace, instance_id), ("", 0.0))
        if service and monotonic() - cached_at < REFRESH_SECONDS:
            return service
        shard = self._shard(namespace, instance_id)
        found = cast("bytes | None", await self._store.read(shard, "HGET", shard.key("places"), instance_id))
        if found is None:
            return None
        with suppress(StoreFull):  # the old hint is still there
            await self.put(
                namespace, instance_id, found.decode()
            )  # refreshes it, so that it does not expire while it is in use
        return found.decode()

    async def forget(self, namespace: str, service: str, instance_ids: Iterable[str]) -> None:
        """Delete the hints of instances that left a service (unless they moved), and those unused for a month."""
        by_shard: dict[Thing, list[str]] = {}
        for instance_id in instance_ids:
            if self._cached.get((namespace, instance_id), ("", 0.0))[0] == service:
                del self._cached[namespace, instance_id]
            by_shard.setdefault(self._shard(namespace, instance_id), []).append(instance_id)
        await asyncio.gather(
            *(
                self._store.run(FORGET, shard, KEEP_MS, FORGOTTEN_AT_ONCE, service, *ids)
                for shard, ids in by_shard.items()
            )
        )

    def _cache(self, namespace: str, instance_id: str, service: str) -> None:
        self._cached[namespace, instance_id] = (service, monotonic())
        if len(self._cached) > MOST_CACHED:
            for key in list(self._cached)[: MOST_CACHED // 10]:
                del self._cached[key]

    def _shard(self, namespace: str, instance_id: str) -> Thing:
        return self._store.thing("directory", namespace, f"{crc32(instance_id.encode()) % SHARDS:x}")


class GroupCache:
    """Caches the groups of a type for a moment, so that all watchers share one read of the index."""

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index
        self._lists: dict[str, tuple[float, asyncio.Task[Sequence[Thing]]]] = {}

    async def get(self, namespace: str, type: str) -> dict[str, Thing]:
        """List the groups of a type; some may be empty by now."""
        read_at, listing = self._lists.get(namespace, (0.0, None))
        if listing is None or monotonic() - read_at > GROUPS_FRESH_SECONDS:
            listing = self._store.tasks.start(self._index.list(namespace))
            if len(self._lists) > MOST_NAMESPACES:
                self._lists.clear()
            self._lists[namespace] = (monotonic(), listing)
            listing.add_done_callback(partial(self._end_listing, namespace))
        return groups_of(await asyncio.shield(listing), thing_name(type, "type"))

    def _end_listing(self, namespace: str, listing: asyncio.Task[Sequence[Thing]]) -> None:
        """Drop a failed read from the cache."""
        if listing.cancelled() or listing.exception() is not None:
            _, known = self._lists.get(namespace, (0.0, None))
            if known is listing:
                del self._lists[namespace]


def groups_of(things: Sequence[Thing], type_: str) -> dict[str, Thing]:
    """Select the services of a type, by group."""
    named = ((thing.name.partition("/"), thing) for thing in things)
    return {group: thing for (found, _, group), thing in named if found == type_}
