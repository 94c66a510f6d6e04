"""A primary and a replica whose wires can be cut one by one: failovers that lose writes, without sentinels.

Clients come through the `door`, which a failover turns to the promoted server; replication runs over the `wire`.
"""

from __future__ import annotations

from typing import Self

import anyio.to_thread

from tests.topology.kind import synced
from tests.topology.node import HOST, Node
from tests.topology.proxy import FaultyProxy
from tests.topology.waiting import wait_until


class Replicated:
    """Use it as `async with Replicated() as pair`; `pair.url` stays the same through every failover."""

    def __init__(self) -> None:
        self.primary = Node("primary")
        self.door = FaultyProxy(self.primary.port)
        self.wire = FaultyProxy(self.primary.port)
        self.replica: Node
        self._nodes = [self.primary]

    @property
    def url(self) -> str:
        return self.door.url

    def partition(self) -> None:
        """Cut the replica off without a reset: the primary goes on and nobody has what it writes from now on."""
        self.wire.blackhole()

    async def fail_over(self) -> None:
        """Crash the primary, promote its replica with whatever it has, and give it a new replica."""
        self.primary.kill()
        self.replica.command("REPLICAOF", "NO", "ONE")
        self.primary = self.replica
        self.wire.heal()
        self.wire.target = self.door.target = self.primary.port
        self.wire.cut()
        self.door.cut()
        await self._attach()

    async def __aenter__(self) -> Self:
        await self.door.__aenter__()
        await self.wire.__aenter__()
        try:
            await anyio.to_thread.run_sync(self.primary.start)
            await self._attach()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.wire.__aexit__()
        await self.door.__aexit__()
        for node in self._nodes:
            node.stop()

    async def _attach(self) -> None:
        self.replica = Node("replica", {"replicaof": f"{HOST} {self.wire.port}"})
        self._nodes.append(self.replica)
        await anyio.to_thread.run_sync(self.replica.start)
        await anyio.to_thread.run_sync(
            wait_until, lambda: synced(self.replica, self.primary), 30, "the replica has everything"
        )
