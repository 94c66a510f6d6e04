"""Where things are: an instance known by its id alone (hints, spread over a few slots), and the groups of a type."""

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
NOTE_ANEW_SECONDS: Final = 21_600.0
REMEMBERED: Final = 100_000
FORGOTTEN_AT_ONCE: Final = 500
RECENT_SECONDS: Final = 0.5
REMEMBERED_NAMESPACES: Final = 1000


class Directory:
    """Notes of where instances are; a lost or aged one only means that its owner is asked to register again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._puts = Batch(store, PUT)
        self._known: dict[tuple[str, str], tuple[str, float]] = {}

    async def put(self, namespace: str, instance_id: str, service: str) -> None:
        """Note that an instance is in a service (`type/group`)."""
        self._remember(namespace, instance_id, service)
        await self._puts.call(self._shard(namespace, instance_id), instance_id, service)

    async def find(self, namespace: str, instance_id: str) -> str | None:
        """Give the service an instance is in, as far as anybody noted it."""
        service, noted_at = self._known.get((namespace, instance_id), ("", 0.0))
        if service and monotonic() - noted_at < NOTE_ANEW_SECONDS:
            return service
        shard = self._shard(namespace, instance_id)
        found = cast("bytes | None", await self._store.read(shard, "HGET", shard.key("places"), instance_id))
        if found is None:
            return None
        with suppress(StoreFull):  # the note is there, only older
            await self.put(namespace, instance_id, found.decode())  # who is asked for by its id alone is not forgotten
        return found.decode()

    async def forget(self, namespace: str, service: str, instance_ids: Iterable[str]) -> None:
        """Drop the notes of instances that have left a service (not if they are in another), and those nobody asked for in a month."""
        by_shard: dict[Thing, list[str]] = {}
        for instance_id in instance_ids:
            if self._known.get((namespace, instance_id), ("", 0.0))[0] == service:
                del self._known[namespace, instance_id]
            by_shard.setdefault(self._shard(namespace, instance_id), []).append(instance_id)
        await asyncio.gather(
            *(
                self._store.run(FORGET, shard, KEEP_MS, FORGOTTEN_AT_ONCE, service, *ids)
                for shard, ids in by_shard.items()
            )
        )

    def _remember(self, namespace: str, instance_id: str, service: str) -> None:
        self._known[namespace, instance_id] = (service, monotonic())
        if len(self._known) > REMEMBERED:
            for key in list(self._known)[: REMEMBERED // 10]:
                del self._known[key]

    def _shard(self, namespace: str, instance_id: str) -> Thing:
        return self._store.thing("directory", namespace, f"{crc32(instance_id.encode()) % SHARDS:x}")


class RecentGroups:
    """The groups of a type as they were a moment ago: all who watch share one read of the list."""

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index
        self._lists: dict[str, tuple[float, asyncio.Task[Sequence[Thing]]]] = {}

    async def of(self, namespace: str, type: str) -> dict[str, Thing]:
        """Give the groups of a type that may exist."""
        read_at, listing = self._lists.get(namespace, (0.0, None))
        if listing is None or monotonic() - read_at > RECENT_SECONDS:
            listing = self._store.tasks.start(self._index.list(namespace))
            if len(self._lists) > REMEMBERED_NAMESPACES:
                self._lists.clear()
            self._lists[namespace] = (monotonic(), listing)
            listing.add_done_callback(partial(self._end_listing, namespace))
        return groups_of(await asyncio.shield(listing), thing_name(type, "type"))

    def _end_listing(self, namespace: str, listing: asyncio.Task[Sequence[Thing]]) -> None:
        """Forget a list that could not be read, with its error."""
        if listing.cancelled() or listing.exception() is not None:
            _, known = self._lists.get(namespace, (0.0, None))
            if known is listing:
                del self._lists[namespace]


def groups_of(things: Sequence[Thing], type_: str) -> dict[str, Thing]:
    """Choose the services of a type, by their groups."""
    named = ((thing.name.partition("/"), thing) for thing in things)
    return {group: thing for (found, _, group), thing in named if found == type_}
