"""Entries: enter a queue, ask for a status, watch it, leave. The store decides the order, so any process may answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final, cast

import msgspec

from headgate.kit import traces
from headgate.kit.ids import display_text, member_id, new_uuid
from headgate.kit.problems import Closed, InvalidRequest, StoreFull, StoreUnavailable
from headgate.store import Arg, Batch, BatchedCall, Store, Thing, script
from headgate.waiting_room.memory import QueueFacts, QueueMemory
from headgate.waiting_room.metrics import STREAMS, label
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.problems import NotInLine, QueueLost, QueueReset, QueueUnknown
from headgate.waiting_room.queues import Queues
from headgate.waiting_room.signing import PLACE_SECONDS, PlaceToken, ProofKeys, SigningKeys
from headgate.waiting_room.statuses import FINAL, FactsDecoder, ScheduleVisit, decode_place, decode_status
from headgate.waiting_room.wire import Entry, Status

ENTRY = script("headgate.waiting_room", "entry")
STATUS = script("headgate.waiting_room", "status")
LEAVE = script("headgate.waiting_room", "leave")

RETRY_SECONDS: Final = 1.0
PROVEN: Final = "p"
ENTERS: Final = "e"
PROMOTED: Final = ord("P")
FINISHED: Final = b"EFLB"
LEAST_KEY: Final = 8
MOST_KEY: Final = 256

Keys = Callable[[], Awaitable[SigningKeys]]


class EntryClaim(msgspec.Struct, frozen=True):
    """A user and what the caller proved: an account needs a proof, an anonymous id is a secret and so its own proof."""

    user_id: str
    nickname: str = ""
    account: bool = False
    proven: bool = False
    place: int | None = None
    generation: int = 0
    promoted: bool = False

    def encode(self) -> str:
        """Write the claim as the scripts read it."""
        if not self.proven:
            return ""
        flags = PROVEN + "a" * self.account + "c" * self.promoted
        return flags if self.place is None else f"{flags} {self.place} {self.generation} {self.nickname}"


class Entries:
    """The users of all queues."""

    def __init__(
        self, store: Store, queues: Queues, keys: Keys, proofs: ProofKeys, memory: QueueMemory, visit: ScheduleVisit
    ) -> None:
        self._store = store
        self._queues = queues
        self._keys = keys
        self._proofs = proofs
        self._memory = memory
        decode = FactsDecoder(queues, visit).decode

        def shared(thing: Thing) -> tuple[Arg, ...]:
            return memory.serving(thing), new_uuid()

        self._entry_batch = Batch(store, ENTRY, shared=shared, preface=decode, most=128)
        self._status_batch = Batch(store, STATUS, shared=shared, preface=decode)
        self._watchers: dict[Thing, dict[str, set[asyncio.Event]]] = {}
        self._listening: dict[Thing, ExitStack] = {}

    async def entry(self, thing: Thing, arguments: EntryArguments) -> Entry:
        """Give a user a place, or the one that they have already."""
        nickname, user_id = arguments.nickname, arguments.user_id
        display_text(nickname, "nickname")
        keys = await self._keys()
        if user_id is None and not arguments.place_token:
            user_id, claim = _new_user_id(keys, thing, nickname, arguments.idempotency_key), PROVEN
        else:
            proven = self._authenticate(
                keys, thing, user_id, arguments.place_token, arguments.trusted, nickname, arguments.proof
            )
            user_id, claim = proven.user_id, proven.encode()
        item = (user_id, nickname, claim, traces.traceparent() or "")
        call = self._entry_batch.call(thing, *item)
        try:
            reply: Any = await call
        except QueueUnknown as error:
            call, reply = await self._retry_lost(thing, error, lambda: self._entry_batch.call(thing, *item))
        except StoreFull as full:
            call, reply = await self._existing_status(thing, user_id, claim, full)
        facts: QueueFacts = call.preface
        number, account = decode_place(reply)
        now = self._store.now(thing)
        place = PlaceToken(
            sub=user_id,
            aud=thing.name,
            gen=facts.generation,
            place=number,
            exp=int(now) + PLACE_SECONDS,
            ns=thing.namespace,
            account=account,
            name=nickname,
        )
        make = partial(Entry, place_token=keys.sign_place(place))
        return decode_status(make, thing, user_id, reply, facts, keys, now)

    async def status(self, thing: Thing, user_id: str, place_token: str | None, trusted: bool) -> Status:
        """Give a user's status; the script records that the user is still there."""
        claim = ""  # an anonymous id is a secret
        if trusted or place_token is not None:
            claim = self._authenticate(await self._keys(), thing, user_id, place_token, trusted).encode()
        call = self._status_batch.call(thing, user_id, claim)
        try:
            reply: Any = await call  # no cast: it would be one more call on a hot path
        except QueueUnknown as error:
            call, reply = await self._retry_lost(thing, error, lambda: self._status_batch.call(thing, user_id, claim))
        except (NotInLine, UnicodeError):
            member_id(user_id, "userId")  # an id that was found is valid, so only others are validated
            raise
        keys = await self._keys() if reply[0] == PROMOTED else None
        return decode_status(Status, thing, user_id, reply, call.preface, keys, self._store.now(thing) if keys else 0.0)

    async def leave(self, thing: Thing, user_id: str, *, place_token: str | None, trusted: bool) -> None:
        """Give up the place or the ticket."""
        claim = self._authenticate(await self._keys(), thing, user_id, place_token, trusted)
        await self._queues.with_restore(
            thing, lambda: self._store.run(LEAVE, thing, claim.user_id, int(claim.proven)), in_line=True
        )

    async def watch(
        self, thing: Thing, user_id: str, *, place_token: str | None, trusted: bool
    ) -> AsyncGenerator[Status, None]:
        """Yield each change of a status until it is final; an outage of the store does not end the stream."""
        changed = asyncio.Event()
        self._watch(thing, user_id, changed)
        shown: object = None
        try:
            with STREAMS.labels(label(thing)).track_inprogress():
                while True:
                    changed.clear()
                    try:
                        status = await self.status(thing, user_id, place_token, trusted)
                    except StoreUnavailable as error:
                        if shown is None or isinstance(error, Closed):
                            raise
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    now = (
                        status.status,
                        status.rank,
                        status.eta,
                        status.least_seconds,
                        status.paused,
                        status.ticket_id,
                    )
                    if now != shown:
                        yield status
                    shown = now
                    if status.status in FINAL:
                        return
                    with suppress(TimeoutError):
                        async with asyncio.timeout(status.poll_after_ms / 1000):
                            await changed.wait()
        finally:
            self._unwatch(thing, user_id, changed)

    async def _retry_lost(
        self, thing: Thing, error: QueueUnknown, make: Callable[[], BatchedCall]
    ) -> tuple[BatchedCall, bytes]:
        """Repeat a call on a queue that the store has lost, after restoring the queue."""
        if not isinstance(error, QueueLost):
            self._queues.forget(thing)
            raise error

        async def attempt() -> tuple[BatchedCall, bytes]:
            call = make()
            return call, cast("bytes", await call)

        return await self._queues.with_restore(thing, attempt, in_line=True)

    async def _existing_status(
        self, thing: Thing, user_id: str, claim: str, full: StoreFull
    ) -> tuple[BatchedCall, bytes]:
        """Answer an entry that a full store refused, if the user already has a place, a ticket or a kept seat."""
        flags, space, place = claim.partition(" ")
        item = (user_id, f"{flags}{ENTERS}{space}{place}")

        async def attempt() -> tuple[BatchedCall, bytes]:
            call = self._status_batch.call(thing, *item)
            return call, cast("bytes", await call)

        try:
            call, reply = await self._queues.with_restore(thing, attempt, in_line=True)
        except (NotInLine, QueueReset):
            raise full from None
        if reply[:1] in FINISHED:
            raise full
        return call, reply

    def _authenticate(
        self,
        keys: SigningKeys,
        thing: Thing,
        user_id: str | None,
        place_token: str | None,
        trusted: bool,
        nickname: str = "",
        proof: str | None = None,
    ) -> EntryClaim:
        """Check what a caller shows for a user: a place token, a proof, or a service token."""
        if user_id is not None:
            member_id(user_id, "userId")
        place = (
            keys.read_place(place_token, namespace=thing.namespace, queue=thing.name, user_id=user_id)
            if place_token
            else None
        )
        if proof is not None and user_id is not None and not trusted:
            self._proofs.check(proof, queue=thing.name, user_id=user_id, now=self._store.now(thing))
        known = trusted or proof is not None
        if place is not None:
            # After its expiry a token still proves the user, who may wait longer than that, but brings no place back.
            number = place.place if place.exp >= self._store.now(thing) else None
            promoted = self._memory.was_promoted(thing, place.sub)
            return EntryClaim(
                place.sub, nickname or place.name, place.account or known, True, number, place.gen, promoted
            )
        if user_id is None:
            raise InvalidRequest("userId is missing.", field="userId")
        return EntryClaim(user_id, nickname, account=known, proven=known)

    def _watch(self, thing: Thing, user_id: str, changed: asyncio.Event) -> None:
        users = self._watchers.get(thing)
        if users is None:
            users = self._watchers[thing] = {}
            self._listening[thing] = ExitStack()
            self._listening[thing].enter_context(
                self._store.hints.listen(thing, "events", lambda hint: self._on_hint(thing, hint))
            )
        users.setdefault(user_id, set()).add(changed)

    def _unwatch(self, thing: Thing, user_id: str, changed: asyncio.Event) -> None:
        users = self._watchers[thing]
        users[user_id].discard(changed)
        if not users[user_id]:
            del users[user_id]
        if not users:
            del self._watchers[thing]
            self._listening.pop(thing).close()

    def _on_hint(self, thing: Thing, hint: str | None) -> None:
        users = self._watchers.get(thing, {})
        kind, *changed = (hint or "").split(" ")
        # A hint without ids may concern any user: a reset, or hints that were missed.
        for user_id in changed if kind == "changed" else list(users):
            for event in users.get(user_id.removeprefix("+"), ()):
                event.set()


def _new_user_id(keys: SigningKeys, thing: Thing, nickname: str, idempotency_key: str | None) -> str:
    """Make an id for an anonymous user; with an idempotency key, the same id each time."""
    if idempotency_key is None:
        return new_uuid()
    if not LEAST_KEY <= len(idempotency_key) <= MOST_KEY:
        raise InvalidRequest(
            f"Idempotency-Key must have {LEAST_KEY} to {MOST_KEY} characters.", field="Idempotency-Key"
        )
    return keys.derived_user(thing.tag, nickname, idempotency_key)
