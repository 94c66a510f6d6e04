"""The one client people import; the URL's scheme says how it talks: to a gateway, or straight to the store."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from headgate.kit.problems import Closed
from headgate.sdk.http import Http
from headgate.store import Store, StoreSettings, open_store

# A part is imported when it is first used: who takes a lock need not wait for the relay.
if TYPE_CHECKING:
    from headgate.locks import Election, FencedValue, Lock, Locks
    from headgate.sdk.config import Config
    from headgate.sdk.locks import HttpLocks
    from headgate.sdk.queue import Queue
    from headgate.sdk.queues import Operators
    from headgate.sdk.registry import Registry
    from headgate.sdk.relay import HttpRelay, StoreRelay


class Headgate:
    """`async with Headgate(url, token=…) as hg:`; http(s) is a gateway, valkey and its kin are a store."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        prefix: str = "hg",
        namespace: str = "default",
        snapshot_dir: Path | None = None,
        ttl_seconds: float = 30.0,
        heartbeat_interval_ms: int = 10_000,
    ) -> None:
        self.url = url
        self._snapshot_dir = snapshot_dir
        self._ttl_seconds = ttl_seconds
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.namespace = namespace
        self.token = token
        self._prefix = prefix
        self._stack = AsyncExitStack()
        self._backend: Http | Store | None = None
        self._closed = False

    @property
    def direct(self) -> bool:
        """Tell whether this client talks to the store itself."""
        return not self.url.startswith(("http://", "https://"))

    @property
    def backend(self) -> Http | Store:
        """Give what the parts talk to; only inside `async with`."""
        if self._backend is None:
            if self._closed:
                raise Closed
            raise RuntimeError("use this client inside 'async with'")
        return self._backend

    @cached_property
    def queue(self) -> Queue:
        """The waiting room: stand in line, offer seats, redeem tickets."""
        from headgate.sdk.queue import queue_of

        return queue_of(self.backend, self.namespace)

    @cached_property
    def queues(self) -> Operators:
        """The queues as their operators see them."""
        from headgate.sdk.queues import queues_of

        return queues_of(self.backend, self.namespace)

    @cached_property
    def registry(self) -> Registry:
        """The registry: register, beat, discover, watch and leave."""
        from headgate.sdk.registry import registry_of

        part = registry_of(
            self.backend,
            self.namespace,
            url=self.url,
            snapshot_dir=self._snapshot_dir,
            ttl_seconds=self._ttl_seconds,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
        )
        self._stack.push_async_callback(part.stop)
        return part

    @cached_property
    def locks(self) -> Locks | HttpLocks:
        """The locks, with what operators need: list, show, break."""
        from headgate.sdk.locks import locks_of

        part = locks_of(self.backend, self.namespace)
        self._stack.push_async_callback(part.close)
        return part

    @cached_property
    def relay(self) -> StoreRelay | HttpRelay:
        """The relay: permits around your own calls, requests and jobs within an upstream's limits."""
        from headgate.sdk.relay import StoreRelay, relay_of

        part = relay_of(self.backend)
        if isinstance(part, StoreRelay):
            self._stack.push_async_callback(part.close)
        return part

    def lock(
        self, name: str, ttl: float = 10.0, wait: float | None = None, *, delay: float = 0.0, label: str = "",
        renew: bool = True, replicas: int = 0,
    ) -> Lock:  # fmt: skip
        """Describe a lock: `async with hg.lock("nightly") as held:`, or use it as a decorator."""
        return self.locks.lock(name, ttl, wait, delay=delay, label=label, renew=renew, replicas=replicas)

    def election(self, name: str, ttl: float = 10.0, *, candidate: str = "", delay: float = 0.0) -> Election:
        """Name an election: `async with hg.election("boss").campaign() as term:`."""
        from headgate.locks import Election

        return Election(self.locks, name, ttl, candidate=candidate, delay=delay)

    async def fenced_set(self, key: str, value: str, fence: int) -> None:
        """Write a value under a lock's fence; raises FenceOutdated if a newer holder has written."""
        await self.locks.fenced_set(key, value, fence)

    async def fenced_get(self, key: str) -> FencedValue | None:
        """Read a value with the fence it was written under."""
        return await self.locks.fenced_get(key)

    @cached_property
    def config(self) -> Config:
        """Config: read, publish, roll back, watch, and live values."""
        from headgate.sdk.config import config_of

        part = config_of(self.backend, url=self.url, snapshot_dir=self._snapshot_dir)
        self._stack.push_async_callback(part.stop)
        return part

    async def __aenter__(self) -> Headgate:
        async with AsyncExitStack() as stack:
            if self.direct:
                settings = StoreSettings(url=self.url, prefix=self._prefix, volatile=True)
                self._backend = await stack.enter_async_context(open_store(settings))
            else:
                self._backend = await stack.enter_async_context(Http(self.url, self.token))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
        self._backend, self._closed = None, True
        for part in ("queue", "queues", "registry", "locks", "relay", "config"):
            self.__dict__.pop(part, None)  # opened again, it has new ones
