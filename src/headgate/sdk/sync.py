"""`HeadgateSync`: the same client for scripts without an event loop; one runs in a thread of its own.

A forked child (of gunicorn, uWSGI, Celery, `multiprocessing`) has no such thread, and its parent's connections are not its own.
It opens a client of its own when it first uses an inherited one. Objects that cannot be made anew, such as a lock that the
parent holds, raise `Forked` there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from headgate.kit.fork import forks
from headgate.kit.problems import Closed, Forked
from headgate.locks import Election, Lock, LockSource
from headgate.sdk.client import Headgate, refuse_copy
from headgate.sdk.loop_thread import LoopThread
from headgate.sdk.sync_locks import SyncElection, SyncLock

T = TypeVar("T")


class HeadgateSync:
    """`with HeadgateSync(url, token=…) as hg:`; parameters, parts and calls are those of `Headgate`, without `await`."""

    def __init__(self, url: str, **options: Any) -> None:
        """Describe a client; the options are the parameters of `Headgate`."""
        self._make = functools.partial(Headgate, url, **options)
        self._client = self._make()
        self._thread: LoopThread | None = None
        self._closed = False

    def __enter__(self) -> HeadgateSync:
        if self._thread is not None and not self._thread.inherited:
            raise RuntimeError("this client is open already")
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._closed = self._thread, True
        if thread is None or thread.inherited:
            return  # only the parent may close it
        try:
            thread.run(self._client.__aexit__(kind, error, trace))
        finally:
            thread.end()
            self._thread = None

    def lock(self, name: str, ttl: float = 10.0, wait: float | None = None, **options: Any) -> SyncLock:
        """Describe a lock: `with hg.lock("nightly") as held:`; a thread may not take it twice."""

        def describe() -> Lock:
            return self._client.lock(name, ttl, wait, **options)

        self._look(describe)
        return SyncLock(self._opened, describe)

    def election(self, name: str, ttl: float = 10.0, **options: Any) -> SyncElection:
        """Name an election."""

        def describe() -> Election:
            return self._client.election(name, ttl, **options)

        self._look(describe)
        return SyncElection(self._opened, describe)

    def _open(self) -> LoopThread:
        thread = LoopThread()
        client = self._make()
        try:
            thread.run(client.__aenter__())
        except BaseException:
            thread.end()
            raise
        self._thread, self._client, self._closed = thread, client, False
        return thread

    def _opened(self) -> LoopThread:
        """Give the thread of this process; a forked child opens a client of its own."""
        thread = self._thread
        if self._closed:
            raise Closed
        if thread is None:
            raise RuntimeError("use this client inside 'with'")
        if thread.inherited:
            with forks.opening:
                thread = self._thread
                if thread is None or thread.inherited:
                    thread = self._open()
        return thread

    def _look(self, give: Callable[[], T]) -> T:
        """Call a function in the event loop, where the parts of the client are made."""

        async def look() -> T:
            return give()

        return self._opened().run(look())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def find() -> Any:
            return getattr(self._client, name)

        thread, value = self._opened(), self._look(find)
        return _Part(self, thread, value, find) if _is_part(value) else self._plain(thread, value)

    def _plain(self, thread: LoopThread, value: Any) -> Any:
        """Wrap a result of the asynchronous client so that a script can use it without `await`."""
        if inspect.ismethod(value) or inspect.isfunction(value):
            return self._called(thread, value)
        if isinstance(value, AbstractAsyncContextManager) and not isinstance(value, AbstractContextManager):
            return self._entered(thread, value)
        if isinstance(value, AsyncIterator):
            return self._iterated(thread, value)
        return _Part(self, thread, value) if _is_part(value) else value

    def _called(self, thread: LoopThread, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            async def run() -> Any:
                answer = function(*args, **options)
                return await answer if inspect.iscoroutine(answer) else answer

            return self._plain(thread, thread.run(run()))

        return call

    @contextmanager
    def _entered(self, thread: LoopThread, manager: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        value = thread.run(manager.__aenter__())
        try:
            yield _Part(self, thread, value) if value is manager else self._plain(thread, value)
        except BaseException as error:
            if thread.inherited or not thread.run(manager.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            if not thread.inherited:
                thread.run(manager.__aexit__(None, None, None))

    def _iterated(self, thread: LoopThread, iterator: AsyncIterator[Any]) -> Iterator[Any]:
        close = getattr(iterator, "aclose", None)
        try:
            while True:
                try:
                    yield self._plain(thread, thread.run(_next(iterator)))
                except StopAsyncIteration:
                    return
        except Closed:
            close = None  # the iterator may still be running in the loop, which closes it when it ends
            raise
        finally:
            if close is not None:
                with suppress(Closed):
                    thread.run(close())

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)


class _Part:
    """One part of the client, or one of its objects, with plain calls. A forked child finds a part anew with `find`."""

    def __init__(
        self, sync: HeadgateSync, thread: LoopThread, value: object, find: Callable[[], object] | None = None
    ) -> None:
        self._sync = sync
        self._opened: tuple[LoopThread, object] = (thread, value)
        self._find = find

    def _now(self) -> tuple[LoopThread, object]:
        if self._opened[0].inherited:
            if self._find is None:
                raise Forked
            self._opened = (self._sync._opened(), self._sync._look(self._find))
        return self._opened

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        thread, value = self._now()
        return self._sync._plain(thread, getattr(value, name))

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._now()[1], name, value)


def _is_part(value: object) -> bool:
    """Tell whether a value has calls to await, so that a script needs something in its place."""
    ours = type(value).__module__.startswith("headgate.sdk.") and not isinstance(value, list)
    return ours or isinstance(value, LockSource)


async def _next(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)
