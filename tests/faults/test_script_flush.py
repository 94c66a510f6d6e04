"""The server forgets its scripts under load: no caller sees it."""

from __future__ import annotations

import anyio

from headgate.store import Batch, Store
from tests.faults.load import Load, Outcome
from tests.store.scripts import ECHO
from tests.topology import Topology


async def test_flushed_scripts_are_seen_by_nobody(store: Store, server: Topology) -> None:
    things = [store.thing("t", "default", f"x{n}") for n in range(6)]
    batch = Batch(store, ECHO, shared=lambda thing: ("hello",))
    async with Load(store, things) as load:
        for turn in range(40):
            for node in server.primaries():
                node.command("SCRIPT", "FLUSH", "SYNC" if turn % 2 else "ASYNC")
            assert await batch.call(things[0], f"item-{turn}") == [b"hello", f"item-{turn}".encode()]
            await anyio.sleep(0.03)
    assert load.outcomes() == {Outcome.OK: len(load.history)}
    await load.check(kept=True)
