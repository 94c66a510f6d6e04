"""Listeners of the SDK: one that stops itself is called no more, and its task ends."""

from __future__ import annotations

import asyncio

import pytest

from headgate.sdk.listeners import ListenerTask

pytestmark = pytest.mark.anyio


async def test_a_listener_that_stops_itself_gets_no_more_changes_and_its_task_ends() -> None:
    seen: list[int] = []

    async def listen(change: int) -> None:
        seen.append(change)
        await task.stop()

    task = ListenerTask(listen, lambda change: change)
    for change in range(3):
        task.put(change)
    await asyncio.wait((task._task,), timeout=5)
    assert task._task.done()
    assert seen == [0]
