"""`ServiceDiscoveryClient`: the registry part alone, with its options spelled out."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from headgate.kit.problems import InvalidRequest
from headgate.sdk.client import Headgate
from headgate.sdk.registry import Registry


class ServiceDiscoveryClient:
    """One client for both modes: `store` beside Valkey, `http` through a gateway."""

    def __init__(
        self,
        mode: Literal["store", "redis", "http"] | None = None,
        *,
        ttl_seconds: float = 30.0,
        heartbeat_interval_ms: int = 10_000,
        key_prefix: str = "hg",
        store_url: str | None = None,
        base_url: str | None = None,
        api_token: str | None = None,
        namespace: str = "default",
        snapshot_dir: str | Path | None = None,
    ) -> None:
        http = mode == "http" if mode is not None else base_url is not None
        url = base_url if http else store_url
        if url is None:
            raise InvalidRequest(f"{'base_url' if http else 'store_url'} is needed.")
        self._client = Headgate(
            url,
            token=api_token,
            prefix=key_prefix,
            namespace=namespace,
            snapshot_dir=snapshot_dir,
            ttl_seconds=ttl_seconds,
            heartbeat_interval_ms=heartbeat_interval_ms,
        )
        self._stack: AsyncExitStack | None = None

    @property
    def is_running(self) -> bool:
        """Tell whether it is open."""
        return self._stack is not None

    @property
    def registry(self) -> Registry:
        """The calls themselves."""
        return self._client.registry

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Say why a call of the registry is not there yet; `start` brings them."""
            if not name.startswith("_") and hasattr(Registry, name):
                raise RuntimeError("This client is not open: call start() first, or use it in 'async with'.")
            raise AttributeError(name)

    async def start(self) -> None:
        """Open it."""
        if self._stack is None:
            stack = AsyncExitStack()
            await stack.enter_async_context(self._client)
            self._stack = stack
            part = self._client.registry
            self.register, self.heartbeat, self.discover = part.register, part.heartbeat, part.discover
            self.remove, self.drain, self.registered = part.remove, part.drain, part.registered
            self.start_auto_heartbeat, self.stop_auto_heartbeat = part.start_auto_heartbeat, part.stop_auto_heartbeat
            self.batch_heartbeat, self.deregister = part.batch_heartbeat, part.remove
            self.get_all_instances, self.get_healthy_instances = part.get_all_instances, part.get_healthy_instances
            self.subscribe, self.unsubscribe, self.watch = part.subscribe, part.unsubscribe, part.watch

    async def stop(self) -> None:
        """Close it; instances are not removed, their leases end by themselves unless somebody beats for them."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def __aenter__(self) -> ServiceDiscoveryClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
