"""The waiting room: everything that can be done with queues, on one open store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from time import monotonic
from typing import Any, Final, Self, cast

from headgate.kit import metrics
from headgate.kit.problems import HeadgateError
from headgate.store import Store, Thing, script
from headgate.waiting_room.board import Boards
from headgate.waiting_room.entries import Entries
from headgate.waiting_room.memory import QueueMemory
from headgate.waiting_room.metrics import QueueNumbers
from headgate.waiting_room.model import EntryArguments, Reason
from headgate.waiting_room.promotion import Promotion
from headgate.waiting_room.queues import Queues
from headgate.waiting_room.servers import QueueServers
from headgate.waiting_room.sessions import QueueSessions
from headgate.waiting_room.settings import WaitingRoomSettings
from headgate.waiting_room.signing import ProofKeys, PublicKeys, SigningKeys
from headgate.waiting_room.wire import Beat, Board, Entry, HeartbeatRequest, Redeemed, Servers, Status

SHARED_KEYS = script("headgate.waiting_room", "shared_keys")

SCHEDULE_SECONDS: Final = 0.2
MOST_SCHEDULED: Final = 10_000


class WaitingRoom:
    """The main class: users wait in queues, are promoted in order, and enter seats that servers really have."""

    def __init__(
        self,
        store: Store,
        settings: WaitingRoomSettings | None = None,
        signing_keys: str = "",
        *,
        metered: bool = False,
    ) -> None:
        self._store = store
        settings = settings or WaitingRoomSettings()
        memory = QueueMemory()
        self._keys: SigningKeys | None = SigningKeys.read(signing_keys) if signing_keys else None
        self._fetching = asyncio.Lock()
        self.queues = Queues(store, memory)
        proofs = ProofKeys(settings.proof_secret, settings.proof_keys)
        self._entries = Entries(store, self.queues, self.signing_keys, proofs, memory, self._schedule_visit)
        self._servers = QueueServers(store, self.queues, self._schedule_visit)
        self._sessions = QueueSessions(store, self.queues, memory, self._schedule_visit)
        self.promotion = Promotion(store, self.queues, settings)
        self._boards = Boards(store, self.queues)
        self._scheduled_at: dict[Thing, float] = {}
        self.numbers = QueueNumbers(self.queues.index, self.queues.figures)
        if metered:
            metrics.before_scrape(self.numbers.refresh)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.queues.close()

    def now(self) -> float:
        """Give the store's time in seconds, by which signed tokens expire."""
        return self._store.now()

    def entry(self, namespace: str, queue: str, arguments: EntryArguments) -> Coroutine[Any, Any, Entry]:
        """Join a queue."""
        return self._entries.entry(self.queues.thing(namespace, queue), arguments)

    def status(
        self, namespace: str, queue: str, user_id: str, place_token: str | None = None, trusted: bool = False
    ) -> Coroutine[Any, Any, Status]:
        """Give a user's status."""
        thing = self.queues.thing(namespace, queue)
        return self._entries.status(thing, user_id, place_token, trusted)

    def watch(
        self, namespace: str, queue: str, user_id: str, *, place_token: str | None = None, trusted: bool = False
    ) -> AsyncGenerator[Status, None]:
        """Yield each change of a user's status until it is final."""
        thing = self.queues.thing(namespace, queue)
        return self._entries.watch(thing, user_id, place_token=place_token, trusted=trusted)

    async def leave(
        self, namespace: str, queue: str, user_id: str, *, place_token: str | None = None, trusted: bool = False
    ) -> None:
        """Give up a place, or a ticket and its seat."""
        thing = self.queues.thing(namespace, queue)
        await self._entries.leave(thing, user_id, place_token=place_token, trusted=trusted)

    async def board(self, namespace: str, queue: str) -> Board:
        """Show the public view of a queue."""
        return await self._boards.get(self.queues.thing(namespace, queue))

    async def redeem(
        self, namespace: str, queue: str, ticket_id: str, session_id: str, instance_id: str | None = None
    ) -> Redeemed:
        """Redeem a ticket for a session, exactly once."""
        return await self._sessions.redeem(self.queues.thing(namespace, queue), ticket_id, session_id, instance_id)

    async def end(
        self,
        namespace: str,
        queue: str,
        session_id: str,
        instance_id: str | None = None,
        reason: Reason = Reason.LEFT,
    ) -> None:
        """End a session."""
        await self._sessions.end(self.queues.thing(namespace, queue), session_id, instance_id, reason)

    async def renew(self, namespace: str, queue: str, session_id: str) -> tuple[str, float]:
        """Renew a session that has no server; give its user and the seconds until it ends."""
        return await self._sessions.renew(self.queues.thing(namespace, queue), session_id)

    async def heartbeat(self, namespace: str, instance_id: str, request: HeartbeatRequest) -> Beat:
        """Offer a server's seats for one more lease."""
        return await self._servers.heartbeat(self.queues.thing(namespace, request.queue), instance_id, request)

    async def remove_server(self, namespace: str, queue: str, instance_id: str, *, drain: bool = False) -> None:
        """Remove a server, or drain it."""
        thing = self.queues.thing(namespace, queue)
        await self._servers.remove_server(thing, instance_id, drain=drain)
        if not drain:
            await self.promotion.visit(thing)

    async def servers(self, namespace: str, queue: str) -> Servers:
        """Show every live server of a queue."""
        return await self._servers.servers(self.queues.thing(namespace, queue))

    async def signing_keys(self) -> SigningKeys:
        """Give the keys of the settings, else the keys that all gateways of this store share."""
        if self._keys is None:
            async with self._fetching:
                if self._keys is None:
                    home = self._store.thing("keys", "default", "waiting-room")
                    text = cast("bytes", await self._store.run(SHARED_KEYS, home, SigningKeys.generate()))
                    self._keys = SigningKeys.read(text.decode())
        return self._keys

    async def public_keys(self) -> PublicKeys:
        """Give the public keys that verify signed tickets."""
        return (await self.signing_keys()).public()

    def _schedule_visit(self, thing: Thing) -> None:
        """Put a queue into the index of due queues, since no worker visits one that was empty."""
        now = monotonic()
        if now - self._scheduled_at.get(thing, 0.0) >= SCHEDULE_SECONDS:
            if len(self._scheduled_at) >= MOST_SCHEDULED:
                self._scheduled_at.clear()
            self._scheduled_at[thing] = now
            self._store.tasks.start(self._put_in_index(thing))

    async def _put_in_index(self, thing: Thing) -> None:
        try:
            await self.queues.index.put(thing, 0)
        except HeadgateError:
            self._scheduled_at.pop(thing, None)  # the next call tries again
