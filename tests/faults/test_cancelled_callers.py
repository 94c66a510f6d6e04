"""A caller who gives up at any await harms nobody: no answer goes to somebody else, no connection is spoilt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from headgate.store import Batch, Index, Store, StoreSettings, Thing, open_store
from tests.faults.load import Load, Outcome
from tests.store.scripts import ECHO, NOTE
from tests.topology import FaultyProxy, Standalone, Topology, eventually

TURNS = 80


@pytest.fixture
async def proxy(anyio_backend: str, fresh_server: Callable[..., Standalone]) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(fresh_server().node.port) as proxy:
        yield proxy


@pytest.fixture
async def behind(proxy: FaultyProxy, prefix: str) -> AsyncIterator[Store]:
    """A store that is reached through the proxy."""
    async with open_store(StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)) as store:
        yield store


async def own_answer(store: Store, thing: Thing, word: str) -> None:
    reply = await store.run(NOTE, thing, word, f"text-{word}")
    assert isinstance(reply, list)
    assert reply[:2] == [word.encode(), f"text-{word}".encode()]


async def cancelled_after(turns: int, call: Awaitable[object]) -> bool:
    """Start a call, let the loop turn so often, cancel it; say whether it was really cancelled."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@pytest.mark.topology("standalone")
@pytest.mark.parametrize("state", ["at ease", "in pieces", "just cut", "scripts flushed", "held back"])
async def test_cancelling_at_any_turn_leaves_the_next_caller_whole(
    proxy: FaultyProxy, behind: Store, state: str
) -> None:
    """Cancel after 0, 1, 2 … turns of the loop, so every await is hit; after each the next answer must be the right one."""
    thing = behind.thing("t", "default", "x")
    batch = Batch(behind, ECHO, shared=lambda thing: ("hello",))
    await own_answer(behind, thing, "first")
    cancelled = 0
    for turns in range(TURNS):
        if state == "in pieces":
            proxy.slice(1)
        elif state == "just cut":
            proxy.cut()
        elif state == "scripts flushed":
            await behind.write(thing, "SCRIPT", "FLUSH")
        elif state == "held back":
            proxy.hold()
        cancelled += await cancelled_after(turns, own_answer(behind, thing, f"gone-{turns}"))
        cancelled += await cancelled_after(turns, batch.call(thing, f"gone-{turns}"))
        if state == "held back":
            proxy.heal()
        await own_answer(behind, thing, f"next-{turns}")
        assert await batch.call(thing, f"next-{turns}") == [b"hello", f"next-{turns}".encode()]
    assert cancelled >= 10
    # One link for calls and one for hints, whatever happened.
    await eventually(lambda: len(proxy.links) == 2)


@pytest.mark.topology("standalone")
async def test_the_first_caller_may_give_up_while_the_link_is_opened(proxy: FaultyProxy, behind: Store) -> None:
    """Callers share one attempt to connect; whoever began it may leave it to the others."""
    thing = behind.thing("t", "default", "x")
    for turns in range(20):
        proxy.delay(0.05)
        proxy.cut()
        await eventually(lambda: behind.route.ready(thing.slot) is None, every=0)
        first = asyncio.create_task(own_answer(behind, thing, f"gone-{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        second = asyncio.create_task(own_answer(behind, thing, f"next-{turns}"))
        await asyncio.sleep(0)
        first.cancel()
        await second
        proxy.heal()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_thousand_cancelled_calls_under_load_mix_up_nothing(store: Store, server: Topology) -> None:
    dice = random.Random(7)
    things = [store.thing("t", "default", f"x{n}") for n in range(4)]
    batch = Batch(store, ECHO, shared=lambda thing: ("hello",))
    index = Index(store, "t")
    await store.ping()
    before = connections(server)

    async def give_up(n: int) -> None:
        thing = dice.choice(things)
        calls: list[Awaitable[object]] = [own_answer(store, thing, f"gone-{n}"), batch.call(thing, f"gone-{n}")]
        calls += [index.put(thing, 0), index.claim()]
        await asyncio.gather(*(cancelled_after(dice.randrange(30), call) for call in calls))

    async with Load(store, things, callers=40) as load:
        for n in range(0, 300, 10):
            await asyncio.gather(*(give_up(n + m) for m in range(10)))
    assert load.outcomes() == {Outcome.OK: len(load.history)}
    await load.check(kept=True)
    assert connections(server) == before


def connections(server: Topology) -> int:
    """How many connections of ours the servers have, the tests' own not counted."""
    lines = [line for node in server.primaries() for line in str(node.command("CLIENT", "LIST")).splitlines()]
    return sum("lib-name=valkey-py" not in line and "flags=N" in line for line in lines)
