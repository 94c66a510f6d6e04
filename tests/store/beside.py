"""A store in a loop of its own thread, for tests that are plain functions (Hypothesis' state machines)."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import anyio.from_thread

from headgate.store import Store, StoreSettings, open_store

T = TypeVar("T")


class Run(Protocol):
    """Runs a coroutine in the store's loop and gives its result."""

    def __call__(self, work: Coroutine[object, object, T]) -> T: ...


@contextmanager
def store_beside(url: str, prefix: str = "t") -> Iterator[tuple[Run, Store]]:
    """Open a store in another thread; give a way to run coroutines there."""
    with anyio.from_thread.start_blocking_portal() as portal:

        def run(work: Coroutine[object, object, T]) -> T:
            async def wait() -> T:
                return await work

            return portal.call(wait)

        settings = StoreSettings(url=url, prefix=prefix, deadline_ms=10_000)
        with portal.wrap_async_context_manager(open_store(settings, wait_seconds=30)) as store:
            yield run, store
