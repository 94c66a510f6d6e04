"""`HeadgateSync`: the same client for scripts without an event loop; one runs in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

from headgate.kit.problems import Closed
from headgate.locks import Election, Lock, LockSource
from headgate.sdk.client import Headgate
from headgate.sdk.sync_locks import SyncElection, SyncLock

T = TypeVar("T")


class HeadgateSync:
    """`with HeadgateSync(url, token=…) as hg:`; parts and calls are those of `Headgate`, without `await`."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._client: Headgate | None = None
        self._calls: set[Future[Any]] = set()
        self._changing = threading.Lock()
        self._over = False

    def __enter__(self) -> HeadgateSync:
        self._thread = threading.Thread(target=self._loop.run_forever, name="headgate", daemon=True)
        self._thread.start()
        self._client = Headgate(self._url, **self._options)
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        try:
            self._run(self._client.__aexit__(kind, error, trace))
        finally:
            self._end()

    def lock(self, name: str, ttl: float = 10.0, wait: float | None = None, **options: Any) -> SyncLock:
        """Describe a lock: `with hg.lock("nightly") as held:`; a thread may not take it twice."""

        async def describe() -> Lock:
            return self._opened.lock(name, ttl, wait, **options)

        return SyncLock(self._run, self._run(describe()))

    def election(self, name: str, ttl: float = 10.0, **options: Any) -> SyncElection:
        """Name an election."""

        async def describe() -> Election:
            return self._opened.election(name, ttl, **options)

        return SyncElection(self._run, self._run(describe()))

    @property
    def _opened(self) -> Headgate:
        if self._client is None:
            raise RuntimeError("use this client inside 'with'")
        return self._client

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._client is None:
            raise AttributeError(name)

        async def look() -> Any:
            return getattr(self._client, name)

        value = self._run(look())
        return _Part(self, value) if isinstance(value, LockSource) else self._plain(value)

    def _plain(self, value: Any) -> Any:
        """Turn what the asynchronous side gives into what a script can use."""
        if inspect.ismethod(value) or inspect.isfunction(value):
            return self._called(value)
        if isinstance(value, AbstractAsyncContextManager) and not isinstance(value, AbstractContextManager):
            return self._entered(value)
        if isinstance(value, AsyncIterator):
            return self._iterated(value)
        if type(value).__module__.startswith("headgate.sdk.") and not isinstance(value, list):
            return _Part(self, value)
        return value

    def _called(self, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            async def run() -> Any:
                answer = function(*args, **options)
                return await answer if inspect.iscoroutine(answer) else answer

            return self._plain(self._run(run()))

        return call

    @contextmanager
    def _entered(self, manager: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        value = self._run(manager.__aenter__())
        try:
            yield _Part(self, value) if value is manager else self._plain(value)
        except BaseException as error:
            if not self._run(manager.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._run(manager.__aexit__(None, None, None))

    def _iterated(self, iterator: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._plain(self._run(_next(iterator)))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                with suppress(Closed):
                    self._run(close())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._changing:
            if self._over:
                work.close()
                raise Closed
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(future)
        try:
            return future.result()
        except CancelledError:
            if self._over:
                raise Closed from None
            raise
        except BaseException:
            future.cancel()
            raise
        finally:
            self._calls.discard(future)

    def _end(self) -> None:
        """End the loop, once nobody can ask any more and whoever still waits for an answer in another thread was told."""
        with self._changing:
            self._over = True
        for future in tuple(self._calls):
            future.cancel()
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join()
        self._loop.close()


class _Part:
    """One part of the client, or one of its objects, with plain calls."""

    def __init__(self, sync: HeadgateSync, value: object) -> None:
        self._sync = sync
        self._value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._sync._plain(getattr(self._value, name))

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._value, name, value)


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)
