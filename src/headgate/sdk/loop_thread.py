"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from headgate.kit.fork import forks
from headgate.kit.problems import Closed, Forked

T = TypeVar("T")


class LoopThread:
    """Runs the coroutines that other threads hand over; it exists only in the process that started it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headgate", daemon=True)
        self._calls: set[Future[Any]] = set()
        self._changing = threading.Lock()
        self._over = False
        self._forks = forks.count
        self._thread.start()

    @property
    def inherited(self) -> bool:
        """Tell whether this is a forked child, which does not have the thread."""
        return self._forks != forks.count

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and give its result; raises Closed, in a forked child Forked."""
        if self.inherited:
            work.close()
            raise Forked
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a coroutine cannot wait for HeadgateSync, which needs its loop; use Headgate there")
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

    def end(self) -> None:
        """Refuse new calls, cancel those in flight in other threads, and end the loop."""
        with self._changing:
            self._over = True
        for future in tuple(self._calls):
            future.cancel()
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
