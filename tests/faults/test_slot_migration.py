"""A slot moves to another node under load: no caller sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest

from headgate.store import StoreSettings, Thing, open_store
from tests.faults.load import PATIENT_MS, Load, Outcome
from tests.store.scripts import TALLY, take_number
from tests.topology import HOST, Cluster, Node, eventually

pytestmark = [pytest.mark.topology("cluster"), pytest.mark.quiet]
DEADLINE = 2.0


class Move:
    """A slot on its way from one node to another, in the steps of SETSLOT and MIGRATE."""

    def __init__(self, server: Cluster, slot: int) -> None:
        self.server, self.slot = server, slot
        self.source = server.owner(slot)
        self.target = next(node for node in server.primaries() if node is not self.source)

    def begin(self) -> None:
        self._setslot(self.target, "IMPORTING", self.server.id_of(self.source))
        self._setslot(self.source, "MIGRATING", self.server.id_of(self.target))

    def remaining(self) -> list[str]:
        return list(self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 100))

    def move(self, key: str) -> None:
        self.source.command("MIGRATE", HOST, self.target.port, key, 0, 2000)

    def finish(self) -> None:
        for node in (self.target, self.source, *self._others()):
            self._setslot(node, "NODE", self.server.id_of(self.target))

    def _others(self) -> list[Node]:
        return [node for node in self.server.primaries() if node not in (self.source, self.target)]

    def _setslot(self, node: Node, *words: str) -> None:
        node.command("CLUSTER", "SETSLOT", self.slot, *words)


async def test_a_slot_moved_key_by_key_is_seen_by_nobody(fresh_server: Callable[..., Cluster], prefix: str) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store:
        thing = store.thing("t", "default", "moving")
        async with Load(store, [thing, store.thing("t", "default", "staying")]) as load:
            before = await take_number(store, thing)
            move = Move(server, thing.slot)
            move.begin()
            await anyio.sleep(0.2)
            for key in move.remaining():
                move.move(key)
                # The keys of one script are now in two places: TRYAGAIN, until all have arrived.
                await anyio.sleep(0.2)
            await anyio.sleep(0.3)  # all are there, the slot is not: ASK
            move.finish()
            await load.resumed(time.monotonic(), 5)
            await anyio.sleep(0.3)
            after = await take_number(store, thing)
        assert load.outcomes() == {Outcome.OK: len(load.history)}
        assert load.slowest() < DEADLINE
        await load.check(kept=True)
        assert server.owner(thing.slot) is move.target
        assert after.number > before.number
        assert after.epoch != before.epoch


async def test_a_new_thing_may_be_born_in_a_slot_that_moves(fresh_server: Callable[..., Cluster], prefix: str) -> None:
    """Its key exists nowhere: the source sends us on, and the target has never seen the script."""
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store:
        thing = store.thing("t", "default", "moving")
        move = Move(server, thing.slot)
        move.begin()
        for node in (move.source, move.target):
            node.command("SCRIPT", "FLUSH")
        async with asyncio.timeout(PATIENT_MS / 1000):
            assert await store.run(TALLY, thing, "id") == 1
        assert move.target.command("CLUSTER", "COUNTKEYSINSLOT", thing.slot) == 1
        move.finish()
        assert await store.run(TALLY, thing, "id") == 2


async def test_a_slot_that_stays_half_way_is_told_within_the_deadline(
    fresh_server: Callable[..., Cluster], prefix: str
) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=500)) as store:
        thing = store.thing("t", "default", "moving")
        async with Load(store, [thing]) as load:
            move = Move(server, thing.slot)
            move.begin()
            move.move(move.remaining()[0])
            await anyio.sleep(1.5)
            for key in move.remaining():
                move.move(key)
            move.finish()
            await load.resumed(time.monotonic(), 5)
        assert load.slowest() < 1
        await load.check(kept=True)


async def test_a_slot_moved_as_a_whole_is_seen_by_nobody(fresh_server: Callable[..., Cluster], prefix: str) -> None:
    """Valkey 9 moves slots atomically (CLUSTER MIGRATESLOTS)."""
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store:
        things = [store.thing("t", "default", f"x{n}") for n in range(6)]
        async with Load(store, things) as load:
            moving = things[0]
            source = server.owner(moving.slot)
            target = next(node for node in server.primaries() if node is not source)
            source.command(
                "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", moving.slot, moving.slot, "NODE", server.id_of(target)
            )
            await eventually(lambda: server.owner(moving.slot) is target, 10)
            await load.resumed(time.monotonic(), 5)
            await anyio.sleep(0.3)
        assert load.outcomes() == {Outcome.OK: len(load.history)}
        assert load.slowest() < DEADLINE
        await load.check(kept=True)


def test_the_thing_that_moves_and_the_one_that_stays_have_different_owners() -> None:
    assert Thing("t", "t", "default", "moving").slot != Thing("t", "t", "default", "staying").slot
