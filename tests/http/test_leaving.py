"""A task that is cancelled while it leaves a context manager is cancelled: the rest of the task does not run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from headgate.http.routes import Receive, Scope, Send
from headgate.registry.model import Record
from headgate.sdk import Headgate
from headgate.sdk.lifespan import registered
from headgate.waiting_room.policy import PolicyChange
from tests.store.cancelling import cancelled_at_each
from tests.topology import Topology

pytestmark = pytest.mark.anyio


async def no_cancellation_is_lost(leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Cancel it at each suspension, and see that it ends there each time."""
    last = 0
    async for at, leaving, task in cancelled_at_each(leave):
        last = at
        assert task.cancelled() == leaving.reached, at
    assert last > 1


async def test_a_cancellation_while_seats_are_given_up_is_not_lost(server: Topology) -> None:
    async with Headgate(server.url) as hg:
        await hg.queues.configure("q", PolicyChange())

        async def leave() -> None:
            offer = hg.queue.offer_seats(capacity=1, address="ws://here", queue="q")
            await asyncio.ensure_future(offer.__aenter__())
            await offer.__aexit__(None, None, None)

        await no_cancellation_is_lost(leave)


async def test_a_cancellation_while_a_watch_of_a_type_ends_is_not_lost(server: Topology) -> None:
    async with Headgate(server.url) as hg:
        await hg.registry.register(hostname="h", type="game", group="g")

        async def leave() -> None:
            async with aclosing(hg.registry.watch("game")) as watch:
                await anext(watch)

        await no_cancellation_is_lost(leave)


async def test_a_cancellation_while_an_application_takes_its_time_to_end_is_not_lost(server: Topology) -> None:
    lingering, over = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        try:
            await asyncio.Event().wait()
        finally:
            lingering.set()
            await over.wait()

    inbox: asyncio.Queue[Any] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    wrapped = registered(slow, server.url, Record(hostname="h", type="web"), drain_seconds=0)
    running = asyncio.ensure_future(wrapped({"type": "lifespan"}, inbox.get, outbox.put))
    for word in ("startup", "shutdown"):
        await inbox.put({"type": f"lifespan.{word}"})
        assert (await outbox.get())["type"] == f"lifespan.{word}.complete"
    await lingering.wait()
    running.cancel()
    await asyncio.sleep(0)
    over.set()
    await asyncio.wait((running,))
    assert running.cancelled()
