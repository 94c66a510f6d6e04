"""Looks at services: one script call for all who look together, and only what has changed since the last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from headgate.kit.problems import StoreUnavailable
from headgate.registry.filters import Filter
from headgate.registry.settings import RegistrySettings
from headgate.registry.views import NOTHING, KnownLookup, Lookup, read_look
from headgate.store import Arg, Store, Thing, script

DISCOVER = script(__package__, "discover")
KNOWN_SERVICES: Final = 256

Key = tuple[Thing, bool | None, tuple[Filter, ...]]


class Lookups:
    """What this process has on its way, and what it has read of the services it looked at last."""

    def __init__(self, store: Store, settings: RegistrySettings, settle: Callable[[Thing], Awaitable[None]]) -> None:
        self._store = store
        self._settings = settings
        self._settle = settle
        self._known: dict[Thing, KnownLookup] = {}
        self._asked: dict[Thing, None] = {}
        self._waiting: dict[Key, asyncio.Task[Lookup]] = {}
        self._under_way: dict[Key, asyncio.Task[Lookup]] = {}

    async def take(self, thing: Thing, healthy: bool | None, filters: tuple[Filter, ...]) -> Lookup:
        """See a service at one moment, or those in it who pass.

        The store chooses for whoever asks once. Who asks again keeps what is there in mind and chooses for itself: that costs
        the store a fraction, since only what has changed is read.
        """
        if healthy is None and not filters:
            return await self._take((thing, None, ()))
        if thing in self._known or thing in self._asked:
            return (await self._take((thing, None, ()))).chosen(healthy, filters)
        self._asked[thing] = None
        while len(self._asked) > KNOWN_SERVICES:
            del self._asked[next(iter(self._asked))]
        return await self._take((thing, healthy, filters))

    async def _take(self, key: Key) -> Lookup:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = self._store.tasks.start(self._next(key))
        return await asyncio.shield(waiting)

    async def _next(self, key: Key) -> Lookup:
        """Wait for the look that is on its way, if any, and then take one for all who have come meanwhile."""
        before = self._under_way.get(key)
        task = asyncio.current_task()
        assert task is not None
        if before is not None:
            await asyncio.wait([before])
        else:
            await asyncio.sleep(0)
        self._waiting.pop(key, None)
        if before is not None and not before.cancelled() and isinstance(error := before.exception(), StoreUnavailable):
            # A store that has just kept the others waiting for nothing is not waited for a second time.
            raise StoreUnavailable(error.public_detail, retry_after=error.retry_after).because(error.reason)
        self._under_way[key] = task
        try:
            return await self._read(*key)
        finally:
            if self._under_way.get(key) is task:
                del self._under_way[key]

    async def _read(self, thing: Thing, healthy: bool | None, filters: tuple[Filter, ...]) -> Lookup:
        words: list[Arg] = [part for filter_ in filters for part in filter_.arguments()]
        whole = healthy is None and not filters
        known = self._known.get(thing, NOTHING) if whole else NOTHING
        choice = "" if healthy is None else int(healthy)
        settings = self._settings
        for anyway in (0, 0, 0, 1):
            reply = await self._store.run(
                DISCOVER,
                thing,
                settings.protect_from,
                settings.protect_share,
                choice,
                known.shape,
                known.figures,
                anyway,
                *words,
            )
            look = read_look(reply, known)
            if look.state != "unsettled":
                break
            await self._settle(thing)
        if whole and look.known is not known:
            self._keep(thing, look.known)
        return look

    def _keep(self, thing: Thing, known: KnownLookup) -> None:
        self._known.pop(thing, None)
        self._known[thing] = known
        while len(self._known) > KNOWN_SERVICES:
            del self._known[next(iter(self._known))]
