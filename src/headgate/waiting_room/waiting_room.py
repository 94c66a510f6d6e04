"""The waiting room: everything that can be done with queues, on one open store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any, Final, Self, cast

from headgate.kit import metrics
from headgate.kit.life import Job
from headgate.kit.problems import HeadgateError
from headgate.store import Store, Thing, script
from headgate.waiting_room.entries import Entries
from headgate.waiting_room.memory import QueueMemory
from headgate.waiting_room.metrics import QueueNumbers
from headgate.waiting_room.model import Beat, Board, Entry, Reason, Redeemed, Servers, Status
from headgate.waiting_room.promotion import Promotion
from headgate.waiting_room.queues import BOARD, MARKS, Queues
from headgate.waiting_room.servers import QueueServers
from headgate.waiting_room.settings import WaitingRoomSettings
from headgate.waiting_room.signing import ProofKeys, PublicKeys, SigningKeys

SHARED_KEYS = script("headgate.waiting_room", "shared_keys")

BOARD_SECONDS: Final = 1.0
WAKE_SECONDS: Final = 0.2
MOST_WOKEN: Final = 10_000
MOST_BOARDS: Final = 10_000


class WaitingRoom:
    """People wait their turn, enter once, and every seat is real."""

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
        self._line = Entries(store, self.queues, self.signing_keys, proofs, memory, self._wake)
        self._seats = QueueServers(store, self.queues, memory, self._wake)
        self.promotion = Promotion(store, self.queues, settings)
        self._boards: dict[Thing, tuple[float, asyncio.Future[Board]]] = {}
        self._woken: dict[Thing, float] = {}
        self.numbers = QueueNumbers(self.queues.index, self.queues.figures)
        if metered:
            metrics.before_scrape(self.numbers.refresh)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.queues.close()

    def now(self) -> float:
        """Give the store's time in seconds, which everything signed goes by."""
        return self._store.now()

    def entry(
        self,
        namespace: str,
        queue: str,
        nickname: str,
        *,
        user_id: str | None = None,
        proof: str | None = None,
        place_token: str | None = None,
        idempotency_key: str | None = None,
        trusted: bool = False,
    ) -> Coroutine[Any, Any, Entry]:
        """Join a queue; `trusted` is a caller who may speak for any account."""
        return self._line.entry(
            self.queues.thing(namespace, queue),
            nickname,
            user_id=user_id,
            proof=proof,
            place_token=place_token,
            idempotency_key=idempotency_key,
            trusted=trusted,
        )

    def status(
        self, namespace: str, queue: str, user_id: str, place_token: str | None = None, trusted: bool = False
    ) -> Coroutine[Any, Any, Status]:
        """Say where somebody stands."""
        thing = self.queues.thing(namespace, queue)
        return self._line.status(thing, user_id, place_token, trusted)

    def watch(
        self, namespace: str, queue: str, user_id: str, *, place_token: str | None = None, trusted: bool = False
    ) -> AsyncGenerator[Status, None]:
        """Give each change of somebody's status until there is nothing more to come."""
        thing = self.queues.thing(namespace, queue)
        return self._line.watch(thing, user_id, place_token=place_token, trusted=trusted)

    async def leave(
        self, namespace: str, queue: str, user_id: str, *, place_token: str | None = None, trusted: bool = False
    ) -> None:
        """Give up a place, or a ticket and its seat."""
        thing = self.queues.thing(namespace, queue)
        await self._line.leave(thing, user_id, place_token=place_token, trusted=trusted)

    async def board(self, namespace: str, queue: str) -> Board:
        """Look at the line as everybody may; at most one look a second goes to the store."""
        thing = self.queues.thing(namespace, queue)
        looked, future = self._boards.get(thing, (0.0, None))
        if future is None or monotonic() - looked >= BOARD_SECONDS:
            future = asyncio.ensure_future(self._look_at_board(thing))
            future.add_done_callback(partial(self._end_board, thing))
            self._boards[thing] = (monotonic(), future)
            if len(self._boards) > MOST_BOARDS:
                self._boards.pop(next(iter(self._boards)))
        try:
            return await asyncio.shield(future)
        finally:
            del future  # breaks the reference cycle through the traceback of its error

    def _end_board(self, thing: Thing, future: asyncio.Future[Board]) -> None:
        """Forget a look that failed at once: anybody may ask for queues that do not exist."""
        if future.cancelled() or future.exception() is not None:
            _, known = self._boards.get(thing, (0.0, None))
            if known is future:
                del self._boards[thing]

    async def redeem(
        self, namespace: str, queue: str, ticket_id: str, session_id: str, instance_id: str | None = None
    ) -> Redeemed:
        """Spend a ticket for a session, exactly once."""
        return await self._seats.redeem(self.queues.thing(namespace, queue), ticket_id, session_id, instance_id)

    async def end(
        self,
        namespace: str,
        queue: str,
        session_id: str,
        instance_id: str | None = None,
        reason: Reason = Reason.LEFT,
    ) -> None:
        """End a session."""
        await self._seats.end(self.queues.thing(namespace, queue), session_id, instance_id, reason)

    async def renew(self, namespace: str, queue: str, session_id: str) -> tuple[str, float]:
        """Renew a session that has no server; gives its user and for how many seconds it is good."""
        return await self._seats.renew(self.queues.thing(namespace, queue), session_id)

    async def heartbeat(
        self,
        namespace: str,
        queue: str,
        instance_id: str,
        *,
        capacity: int | None,
        max_capacity: int | None = None,
        address: str = "",
        sessions: Sequence[str] | None = None,
        as_of: int = 0,
    ) -> Beat:
        """Offer a server's seats for one more lease."""
        return await self._seats.heartbeat(
            self.queues.thing(namespace, queue),
            instance_id,
            capacity=capacity,
            max_capacity=max_capacity,
            address=address,
            sessions=sessions,
            as_of=as_of,
        )

    async def remove_server(self, namespace: str, queue: str, instance_id: str, *, drain: bool = False) -> None:
        """Let a server go, or drain it."""
        thing = self.queues.thing(namespace, queue)
        await self._seats.remove_server(thing, instance_id, drain=drain)
        if not drain:
            await self.promotion.visit(thing)

    async def servers(self, namespace: str, queue: str) -> Servers:
        """Show every live server of a queue."""
        return await self._seats.servers(self.queues.thing(namespace, queue))

    async def signing_keys(self) -> SigningKeys:
        """Give the keys of the settings, or those that all gateways of this store share."""
        if self._keys is None:
            async with self._fetching:
                if self._keys is None:
                    home = self._store.thing("keys", "default", "waiting-room")
                    text = cast("bytes", await self._store.run(SHARED_KEYS, home, SigningKeys.generate()))
                    self._keys = SigningKeys.read(text.decode())
        return self._keys

    async def public_keys(self) -> PublicKeys:
        """Give what a door needs to check signed tickets."""
        return (await self.signing_keys()).public()

    def jobs(self) -> list[Job]:
        """Give what a worker does for the waiting room."""
        return [
            Job("promotion", self.promotion.run),
            Job("queue numbers", self.numbers.keep),
        ]

    def _wake(self, thing: Thing) -> None:
        """A queue that no worker visits has something in it again."""
        now = monotonic()
        if now - self._woken.get(thing, 0.0) >= WAKE_SECONDS:
            if len(self._woken) >= MOST_WOKEN:
                self._woken.clear()
            self._woken[thing] = now
            self._store.errands.start(self._put(thing))

    async def _put(self, thing: Thing) -> None:
        try:
            await self.queues.index.put(thing, 0)
        except HeadgateError:
            self._woken.pop(thing, None)  # the next one who asks tries again

    async def _look_at_board(self, thing: Thing) -> Board:
        reply = await self.queues.kept(thing, lambda: self._store.run(BOARD, thing, MARKS))
        epoch, *numbers = cast("list[bytes | int]", reply)
        generation, serving, waiting, rate, now, _, *marks = cast("list[int]", numbers)
        self.queues.note(thing, generation, int(cast("bytes", epoch)), serving)
        at = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return Board(
            queue=thing.name,
            epoch=cast("bytes", epoch).decode(),
            generation=generation,
            serving=serving,
            waiting=waiting,
            rate_per_second=round(rate / 1_000_000, 3),
            marks=list(zip(marks[::2], marks[1::2], strict=True)),
            at=at,
        )
