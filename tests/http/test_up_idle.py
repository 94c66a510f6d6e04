"""The store calls that an idle `headgate up` makes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from time import monotonic
from typing import cast

import msgspec
import pytest

from headgate.store import Store, StoreSettings, open_store
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.http.test_up import Up, start

__all__ = ["start"]

QUEUES = 1000
MORE_A_SECOND = 20
WINDOW_SECONDS = 3.0
WINDOWS = 20


async def script_calls(store: Store) -> int:
    """Count the scripts that the store has run."""
    told = cast("bytes", await store.read(store.thing("queue", "default", "main"), "INFO", "commandstats")).decode()
    return sum(int(calls) for calls in re.findall(r"cmdstat_evalsha(?:_ro)?:calls=(\d+)", told))


async def calls_a_second(store: Store) -> float:
    """Count for a while."""
    before, began = await script_calls(store), monotonic()
    await asyncio.sleep(WINDOW_SECONDS)
    return (await script_calls(store) - before) / (monotonic() - began)


@pytest.mark.topology("standalone")
@pytest.mark.quiet
@pytest.mark.release
async def test_a_thousand_idle_queues_cost_the_store_next_to_nothing(start: Callable[..., Up]) -> None:
    up = start("--json", "--no-demo")
    told = msgspec.json.decode(up.ready(), type=dict[str, str | None])
    async with open_store(StoreSettings(url=str(told["store"]))) as store:
        without = min([await calls_a_second(store) for _ in range(3)])
        room = WaitingRoom(store)
        for first in range(0, QUEUES, 100):
            await asyncio.gather(
                *(
                    room.queues.configure(
                        room.queues.thing("default", f"idle-{number}"), PolicyChange(capacity=1), who="test"
                    )
                    for number in range(first, first + 100)
                )
            )
        room.queues.close()
        found: list[float] = []
        while len(found) < 2 or max(found[-2:]) > without + MORE_A_SECOND:
            assert len(found) < WINDOWS, f"{found} calls a second, {without} without queues"
            found.append(await calls_a_second(store))
