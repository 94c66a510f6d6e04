"""Reads services: concurrent callers share one script call, which transfers only changes since the last read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from headgate.kit.problems import StoreUnavailable
from headgate.registry.filters import Filter
from headgate.registry.service_state import NOTHING, CachedService, ServiceState, decode_state
from headgate.registry.settings import RegistrySettings
from headgate.store import Arg, Store, Thing, script

DISCOVER = script(__package__, "discover")
MOST_CACHED: Final = 256

Key = tuple[Thing, bool | None, tuple[Filter, ...]]


class ServiceReader:
    """Shares reads that are in flight, and caches the services that were read last."""

    def __init__(self, store: Store, settings: RegistrySettings, settle: Callable[[Thing], Awaitable[None]]) -> None:
        self._store = store
        self._settings = settings
        self._settle = settle
        self._cache: dict[Thing, CachedService] = {}
        self._read_once: dict[Thing, None] = {}
        self._pending: dict[Key, asyncio.Task[ServiceState]] = {}
        self._in_flight: dict[Key, asyncio.Task[ServiceState]] = {}

    async def read(self, thing: Thing, healthy: bool | None, filters: tuple[Filter, ...]) -> ServiceState:
        """Read a service at one moment, or only the instances that pass.

        The first filtered read of a service is filtered by the store. After that the whole service is cached and
        filtered here: this costs the store a fraction, because only changes are transferred.
        """
        if healthy is None and not filters:
            return await self._read_shared((thing, None, ()))
        if thing in self._cache or thing in self._read_once:
            return (await self._read_shared((thing, None, ()))).filtered(healthy, filters)
        self._read_once[thing] = None
        while len(self._read_once) > MOST_CACHED:
            del self._read_once[next(iter(self._read_once))]
        return await self._read_shared((thing, healthy, filters))

    async def _read_shared(self, key: Key) -> ServiceState:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = self._store.tasks.start(self._next(key))
        return await asyncio.shield(pending)

    async def _next(self, key: Key) -> ServiceState:
        """Wait for the read that is in flight, if any, and then read once for all callers that have come meanwhile."""
        before = self._in_flight.get(key)
        task = asyncio.current_task()
        assert task is not None
        if before is not None:
            await asyncio.wait([before])
        else:
            await asyncio.sleep(0)
        self._pending.pop(key, None)
        if before is not None and not before.cancelled() and isinstance(error := before.exception(), StoreUnavailable):
            # The read before has just timed out, so this one fails at once instead of waiting for a second timeout.
            raise StoreUnavailable(error.public_detail, retry_after=error.retry_after).because(error.reason)
        self._in_flight[key] = task
        try:
            return await self._read_now(*key)
        finally:
            if self._in_flight.get(key) is task:
                del self._in_flight[key]

    async def _read_now(self, thing: Thing, healthy: bool | None, filters: tuple[Filter, ...]) -> ServiceState:
        words: list[Arg] = [part for filter_ in filters for part in filter_.arguments()]
        unfiltered = healthy is None and not filters
        cached = self._cache.get(thing, NOTHING) if unfiltered else NOTHING
        choice = "" if healthy is None else int(healthy)
        settings = self._settings
        for force in (0, 0, 0, 1):
            reply = await self._store.run(
                DISCOVER, thing, settings.protect_from, settings.protect_share, choice, cached.shape,
                cached.figures, force, *words,
            )  # fmt: skip
            state = decode_state(reply, cached)
            if state.status != "unsettled":
                break
            await self._settle(thing)
        if unfiltered and state.known is not cached:
            self._keep(thing, state.known)
        return state

    def _keep(self, thing: Thing, cached: CachedService) -> None:
        self._cache.pop(thing, None)
        self._cache[thing] = cached
        while len(self._cache) > MOST_CACHED:
            del self._cache[next(iter(self._cache))]
