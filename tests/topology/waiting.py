"""Waiting for a condition with a deadline, in place of sleeping for luck."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable

import anyio

from tests.topology.stopwatch import Stopwatch


class NotInTime(AssertionError):
    """The condition did not come true before the deadline."""


def wait_until(condition: Callable[[], object], seconds: float = 10, what: str = "") -> None:
    """Block until the condition is true; an exception of a server that is not there yet counts as false."""
    last: BaseException | None = None
    watch = Stopwatch()
    while watch.seconds < seconds:
        try:
            if condition():
                return
        except (OSError, _valkey_error()) as error:
            last = error
        time.sleep(0.02)
    raise NotInTime(f"{what or 'condition'} not true after {seconds} s") from last


async def eventually(
    condition: Callable[[], object | Awaitable[object]], seconds: float = 10, what: str = "", every: float = 0.02
) -> None:
    """Wait in a coroutine until the condition, plain or async, is true."""
    watch = Stopwatch()
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if watch.seconds > seconds:
            raise NotInTime(f"{what or 'condition'} not true after {seconds} s")
        await anyio.sleep(every)


def _valkey_error() -> type[Exception]:
    from valkey.exceptions import ValkeyError  # imported late: the proxy's users need no client library

    return ValkeyError
