"""`Headgate`, the client; the scheme of its URL says whether it talks to a gateway or to the store itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from headgate.kit.fork import forks
from headgate.kit.ids import sent_secret
from headgate.kit.problems import Closed, Forked, InvalidRequest
from headgate.sdk.http import Http, gateway_url
from headgate.store import Store, StoreSettings, open_store
from headgate.store.client.address import check_address

# A part is imported when it is first used: a program that takes a lock need not wait for the import of the relay.
if TYPE_CHECKING:
    from headgate.locks import Election, FencedValue, Lock, Locks
    from headgate.sdk.backends.locks import HttpLocksBackend
    from headgate.sdk.backends.queues import Operators
    from headgate.sdk.config import Config
    from headgate.sdk.queue import Queue
    from headgate.sdk.registry import Registry
    from headgate.sdk.relay import Relay
    from headgate.sdk.snapshot import Snapshots

FIRST_SECONDS: Final = 1.0
S = TypeVar("S")
H = TypeVar("H")


class Headgate:
    """A client: `async with Headgate(url, token=…) as hg:`; http(s) is a gateway, valkey:// and the forms below are a store.

    url: a gateway's (`http://host:8080`, `https://…`), or a store's (`valkey://host:6379/0`, `valkeys://` for TLS,
        `valkey+sentinel://h1,h2/NAME`, `valkey+cluster://h1,h2`; `redis` instead of `valkey` is the same).
    token: the API token, for a gateway.
    prefix: the beginning of all keys in the store, as the processes are set (`HEADGATE_STORE_PREFIX`); for a store.
    namespace: where names are looked up; different namespaces see nothing of each other.
    snapshot_dir: the directory for the last known state of registry and config, for an outage; else the user's cache.
    snapshot_secrets: keep secret values of config there too.
    ttl_seconds: the lease of instances that this client registers.
    heartbeat_interval_ms: how often heartbeats renew those leases.
    needs_store: for a store: raise StoreUnavailable if it does not answer at the start, instead of using snapshots.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        prefix: str = "hg",
        namespace: str = "default",
        snapshot_dir: str | Path | None = None,
        snapshot_secrets: bool = False,
        ttl_seconds: float = 30.0,
        heartbeat_interval_ms: int = 10_000,
        needs_store: bool = False,
    ) -> None:
        """Describe a client; nothing is opened before `async with`. The class says what the parameters mean."""
        self.url = _checked(url)
        self._needs_store = needs_store
        self._snapshot_dir = snapshot_dir
        self._snapshot_secrets = snapshot_secrets
        self._ttl_seconds = ttl_seconds
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.namespace = namespace
        self.token = None if token is None else sent_secret(token, "The token")
        self._prefix = prefix
        self._stack = AsyncExitStack()
        self._backend: Http | Store | None = None
        self._closed = False
        self._forks = forks.count

    @property
    def direct(self) -> bool:
        """Tell whether this client talks to the store itself."""
        return not self.url.startswith(("http://", "https://"))

    @property
    def backend(self) -> Http | Store:
        """Give the connection that all parts use, to a gateway or to the store; only inside `async with`."""
        if self._backend is None:
            if self._closed:
                raise Closed
            raise RuntimeError("use this client inside 'async with'")
        if self._inherited:
            raise Forked
        return self._backend

    def _choose(self, for_store: Callable[[Store], S], for_http: Callable[[Http], H]) -> S | H:
        """Make one of a part's two backends, by the connection of this client."""
        connection = self.backend
        return for_http(connection) if isinstance(connection, Http) else for_store(connection)

    def _snapshots(self, part: str, kind: type[S]) -> Snapshots[S]:
        """Give a part's snapshots; each gateway and each store has a directory of its own."""
        from headgate.sdk.snapshot import Snapshots, directory_for

        place = self._choose(
            lambda store: f"{','.join(map(str, store.address.nodes))} {store.prefix}", lambda _: self.url
        )
        return Snapshots(directory_for(self._snapshot_dir, place, part), kind)

    @cached_property
    def queue(self) -> Queue:
        """The waiting room: join a queue, offer seats, redeem tickets."""
        from headgate.sdk.backends.queue import HttpQueueBackend, StoreQueueBackend
        from headgate.sdk.queue import Queue

        backend = self._choose(
            lambda store: StoreQueueBackend(store, self.namespace), lambda http: HttpQueueBackend(http, self.namespace)
        )
        return Queue(backend, self.namespace)

    @cached_property
    def queues(self) -> Operators:
        """The queues for their operators."""
        from headgate.sdk.backends.queues import HttpQueuesBackend, StoreQueuesBackend

        return self._choose(
            lambda store: StoreQueuesBackend(store, self.namespace),
            lambda http: HttpQueuesBackend(http, self.namespace),
        )

    @cached_property
    def registry(self) -> Registry:
        """The registry: register, send heartbeats, discover, watch and deregister."""
        from headgate.sdk.backends.registry import HttpRegistryBackend, StoreRegistryBackend
        from headgate.sdk.registry import Registry
        from headgate.sdk.service_view import SavedView

        backend = self._choose(
            lambda store: StoreRegistryBackend.on(store, self.namespace, self._ttl_seconds),
            lambda http: HttpRegistryBackend(http, self.namespace),
        )
        part = Registry(
            backend,
            snapshots=self._snapshots(self.namespace, SavedView),
            ttl_seconds=self._ttl_seconds,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
        )
        self._stack.push_async_callback(part.stop)
        return part

    @cached_property
    def config(self) -> Config:
        """Config: read, publish, roll back, watch, and live values."""
        from headgate.config.model import Value
        from headgate.sdk.backends.config import HttpConfigBackend, StoreConfigBackend
        from headgate.sdk.config import Config

        backend = self._choose(StoreConfigBackend, HttpConfigBackend)
        part = Config(backend, self._snapshots("config", Value), snapshot_secrets=self._snapshot_secrets)
        self._stack.push_async_callback(part.stop)
        return part

    @cached_property
    def locks(self) -> Locks | HttpLocksBackend:
        """The locks, with the calls that operators need: list, show, break."""
        from headgate.locks import Locks
        from headgate.sdk.backends.locks import HttpLocksBackend

        part = self._choose(
            lambda store: Locks(store, namespace=self.namespace), lambda http: HttpLocksBackend(http, self.namespace)
        )
        self._stack.push_async_callback(part.close)
        return part

    @cached_property
    def relay(self) -> Relay:
        """The relay: permits around your own calls, requests and jobs within an upstream's limits."""
        from headgate.sdk.backends.relay import HttpRelayBackend, StoreRelayBackend
        from headgate.sdk.relay import Relay

        part = Relay(self._choose(StoreRelayBackend, HttpRelayBackend))
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

    @property
    def _inherited(self) -> bool:
        """Tell whether this was opened by the process that this one was forked from."""
        return self._forks != forks.count

    async def __aenter__(self) -> Headgate:
        if self._backend is not None and not self._inherited:
            raise RuntimeError("this client is open already")
        self._forget_parts()
        async with AsyncExitStack() as stack:
            if self.direct:
                settings = StoreSettings(url=self.url, prefix=self._prefix, volatile=True)
                # As with a gateway, a client starts during an outage and answers from snapshots, unless it needs the store.
                opening = (
                    open_store(settings)
                    if self._needs_store
                    else open_store(settings, wait_seconds=FIRST_SECONDS, may_be_away=True)
                )
                self._backend = await stack.enter_async_context(opening)
            else:
                self._backend = await stack.enter_async_context(Http(self.url, self.token))
            self._stack = stack.pop_all()
        self._forks, self._closed = forks.count, False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._inherited:  # the parent closes what is the parent's
                await self._stack.__aexit__(kind, error, trace)
        finally:
            self._backend, self._closed = None, True
            self._forget_parts()

    def _forget_parts(self) -> None:
        """Drop the parts, which belong to a connection that is closed; each is made again on its next use."""
        for part in ("queue", "queues", "registry", "locks", "relay", "config"):
            self.__dict__.pop(part, None)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)


def _checked(url: str) -> str:
    """Raise InvalidRequest for a URL that is neither a gateway's nor a store's."""
    url = str(url).strip()
    scheme, _, rest = url.partition("://")
    if rest and scheme in {"http", "https"}:
        return gateway_url(url)
    if not rest or not scheme.startswith(("valkey", "redis")):
        raise InvalidRequest(
            "A client's URL begins with http:// or https:// (a gateway), or with valkey://, valkeys:// (TLS), "
            "valkey+sentinel:// or valkey+cluster:// (a store).",
            field="url",
        )
    check_address(url)
    return url


def refuse_copy(client: object) -> NoReturn:
    """Raise the error of a client that is pickled or copied."""
    raise TypeError(f"a {type(client).__name__} cannot be copied or sent to another process; open one there")
