"""A queue with a worker and arenas on a real store, for tests that play."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from headgate.arena.server import Arena
from headgate.arena.settings import ArenaSettings
from headgate.sdk.backends.queue import StoreQueueBackend
from headgate.sdk.offer import Offer
from headgate.sdk.queue import Queue
from headgate.store import Store
from headgate.waiting_room.model import EntryArguments, State
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.signing import SigningKeys
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import ServerView, Status
from tests.topology import eventually

PATIENCE = 20


class RunningArena:
    """An arena in this process."""

    def __init__(self, arena: Arena, offer: Offer, port: int) -> None:
        self.arena = arena
        self.offer = offer
        self.url = f"ws://127.0.0.1:{port}/gameserver"


class World:
    """A queue whose seats are the arenas'."""

    def __init__(self, store: Store) -> None:
        self.room = WaitingRoom(store, signing_keys=SigningKeys.generate())
        self.queue: Queue = Queue(StoreQueueBackend(store, "default"), "default")
        self.thing = self.room.queues.thing("default", "main")

    async def promoted(self, nickname: str) -> Status:
        """Enter and wait for a ticket."""
        entry = await self.room.entry("default", "main", EntryArguments(nickname))
        return await self.status_until(entry.user_id, State.PROMOTED)

    async def status_until(self, user_id: str, state: State) -> Status:
        """Ask until somebody is in a state."""
        found: list[Status] = []

        async def there() -> bool:
            found.append(await self.room.status("default", "main", user_id, trusted=True))
            return found[-1].status is state

        await eventually(there, PATIENCE, f"somebody is {state}")
        return found[-1]

    async def server(self, offer: Offer) -> ServerView | None:
        """Show a server as the store knows it."""
        servers = (await self.room.servers("default", "main")).servers
        return next((one for one in servers if one.instance_id == offer.instance_id), None)

    @asynccontextmanager
    async def arena(self, **settings: Any) -> AsyncIterator[RunningArena]:
        """Run an arena; it drains at the end, at once unless told otherwise."""
        chosen = ArenaSettings(**{"port": 0, "drain_seconds": 0.0, **settings})
        arena = Arena(chosen)
        async with arena.open() as port:
            address = f"ws://127.0.0.1:{port}/gameserver"
            offer = self.queue.offer_seats(capacity=chosen.capacity, max_capacity=chosen.max_capacity, address=address)

            async def check(ticket: str) -> str:
                keys = await self.room.public_keys()
                return keys.check_ticket(ticket, queue="main", instance_id=offer.instance_id).jti

            arena.offer(offer, check)
            async with offer:
                yield RunningArena(arena, offer, port)
                await arena.drain()


@asynccontextmanager
async def open_world(store: Store, **policy: Any) -> AsyncIterator[World]:
    """Make the queue and run a worker's promotion beside it."""
    world = World(store)
    change = PolicyChange(**{"tick_ms": 100, **policy})
    await world.room.queues.configure(world.thing, change, who="test")
    working = asyncio.ensure_future(world.room.promotion.run())
    try:
        yield world
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


class Guest:
    """A player who speaks the seed's JSON by hand, so that the wire itself is tested."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, kind: str, payload: object) -> None:
        await self.connection.send(json.dumps({"type": kind, "payload": payload}))

    async def next(self) -> dict[str, Any]:
        """Give the next message."""
        async with asyncio.timeout(PATIENCE):
            text = await self.connection.recv()
        assert isinstance(text, str)
        message: dict[str, Any] = json.loads(text)
        assert set(message) == {"type", "payload"}
        return message

    async def count(self) -> int:
        """Ask how many are here; whatever was said before must have been read."""
        await self.send("SERVERSTATUS_REQUEST", {})
        answer = await self.next()
        assert answer["type"] == "SERVERSTATUS_RESPONSE"
        return int(answer["payload"]["clientCount"])


@asynccontextmanager
async def visiting(url: str, ticket_id: str, **options: Any) -> AsyncIterator[Guest]:
    """Enter as the seed says, with the ticket in the query."""
    async with connect(f"{url}?ticketId={ticket_id}", compression=None, **options) as connection:
        yield Guest(connection)
