"""Standing in line: enter, ask, watch, leave. Order is the store's; a place is kept whatever tab or node asks."""

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
from headgate.waiting_room.problems import NotInLine, QueueLost, QueueReset, QueueUnknown
from headgate.waiting_room.queues import Queues
from headgate.waiting_room.signing import PLACE_SECONDS, PlaceToken, ProofKeys, SigningKeys
from headgate.waiting_room.statuses import FINAL, StatusReader, Wake, place_of, tell
from headgate.waiting_room.wire import Entry, Status

ENTRY = script("headgate.waiting_room", "entry")
STATUS = script("headgate.waiting_room", "status")
LEAVE = script("headgate.waiting_room", "leave")

RETRY_SECONDS: Final = 1.0
PROVEN: Final = "p"
ENTERS: Final = "e"
CALLED: Final = ord("P")
DONE: Final = b"EFLB"
LEAST_KEY: Final = 8
MOST_KEY: Final = 256

Keys = Callable[[], Awaitable[SigningKeys]]


class EntryClaim(msgspec.Struct, frozen=True):
    """Who asks, and what they can prove: an account is asked for only with a proof, an anonymous id is its own proof."""

    user_id: str
    nickname: str = ""
    account: bool = False
    proven: bool = False
    place: int | None = None
    generation: int = 0
    called: bool = False

    def claim(self) -> str:
        """Write down for the scripts what they can show."""
        if not self.proven:
            return ""
        flags = PROVEN + "a" * self.account + "c" * self.called
        return flags if self.place is None else f"{flags} {self.place} {self.generation} {self.nickname}"


class Entries:
    """The people of all queues."""

    def __init__(
        self, store: Store, queues: Queues, keys: Keys, proofs: ProofKeys, memory: QueueMemory, wake: Wake
    ) -> None:
        self._store = store
        self._queues = queues
        self._keys = keys
        self._proofs = proofs
        self._memory = memory
        hear = StatusReader(queues, wake).hear

        def shared(thing: Thing) -> tuple[Arg, ...]:
            return memory.serving(thing), new_uuid()

        self._entries = Batch(store, ENTRY, shared=shared, preface=hear, most=128)
        self._statuses = Batch(store, STATUS, shared=shared, preface=hear)
        self._watchers: dict[Thing, dict[str, set[asyncio.Event]]] = {}
        self._listening: dict[Thing, ExitStack] = {}

    async def entry(
        self,
        thing: Thing,
        nickname: str,
        *,
        user_id: str | None,
        proof: str | None,
        place_token: str | None,
        idempotency_key: str | None,
        trusted: bool,
    ) -> Entry:
        """Take a place, or find the one this user has."""
        display_text(nickname, "nickname")
        keys = await self._keys()
        if user_id is None and not place_token:
            user_id, claim = self._newcomer(keys, thing, nickname, idempotency_key), PROVEN
        else:
            asker = self._asker(keys, thing, user_id, nickname, proof, place_token, trusted)
            user_id, claim = asker.user_id, asker.claim()
        item = (user_id, nickname, claim, traces.traceparent() or "")
        seat = self._entries.call(thing, *item)
        try:
            reply: Any = await seat
        except QueueUnknown as error:
            seat, reply = await self._ask_again(thing, error, lambda: self._entries.call(thing, *item))
        except StoreFull as full:
            seat, reply = await self._without_growing(thing, user_id, claim, full)
        common: QueueFacts = seat.preface
        number, account = place_of(reply)
        now = self._store.now(thing)
        place = PlaceToken(
            sub=user_id,
            aud=thing.name,
            gen=common.generation,
            place=number,
            exp=int(now) + PLACE_SECONDS,
            ns=thing.namespace,
            account=account,
            name=nickname,
        )
        make = partial(Entry, place_token=keys.sign_place(place))
        return tell(make, thing, user_id, reply, common, keys, now)

    async def status(self, thing: Thing, user_id: str, place_token: str | None, trusted: bool) -> Status:
        """Say where somebody stands, and note that they asked."""
        claim = ""  # their id is their own secret
        if trusted or place_token is not None:
            claim = self._asker(await self._keys(), thing, user_id, "", None, place_token, trusted).claim()
        seat = self._statuses.call(thing, user_id, claim)
        try:
            reply: Any = await seat  # a cast would be a call, and everybody in line comes by here
        except QueueUnknown as error:
            seat, reply = await self._ask_again(thing, error, lambda: self._statuses.call(thing, user_id, claim))
        except (NotInLine, UnicodeError):
            member_id(user_id, "userId")  # nearly everybody is found: only who is not may have given what is no id
            raise
        keys = await self._keys() if reply[0] == CALLED else None
        return tell(Status, thing, user_id, reply, seat.preface, keys, self._store.now(thing) if keys else 0.0)

    async def leave(self, thing: Thing, user_id: str, *, place_token: str | None, trusted: bool) -> None:
        """Give up the place or the ticket."""
        asker = self._asker(await self._keys(), thing, user_id, "", None, place_token, trusted)
        await self._queues.kept(
            thing, lambda: self._store.run(LEAVE, thing, asker.user_id, int(asker.proven)), in_line=True
        )

    async def watch(
        self, thing: Thing, user_id: str, *, place_token: str | None, trusted: bool
    ) -> AsyncGenerator[Status, None]:
        """Give each change until there is nothing more to come; an outage of the store is waited out."""
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

    async def _ask_again(
        self, thing: Thing, error: QueueUnknown, call: Callable[[], BatchedCall]
    ) -> tuple[BatchedCall, bytes]:
        """Ask again of a queue that the store has lost, once what we remember of it is written back."""
        if not isinstance(error, QueueLost):
            self._queues.forget(thing)
            raise error

        async def asked() -> tuple[BatchedCall, bytes]:
            seat = call()
            return seat, cast("bytes", await seat)

        return await self._queues.kept(thing, asked, in_line=True)

    async def _without_growing(
        self, thing: Thing, user_id: str, claim: str, full: StoreFull
    ) -> tuple[BatchedCall, bytes]:
        """Answer an entry that a full store refused, if the user has a place, a ticket or a kept seat already."""
        flags, space, place = claim.partition(" ")
        item = (user_id, f"{flags}{ENTERS}{space}{place}")

        async def asked() -> tuple[BatchedCall, bytes]:
            seat = self._statuses.call(thing, *item)
            return seat, cast("bytes", await seat)

        try:
            seat, reply = await self._queues.kept(thing, asked, in_line=True)
        except (NotInLine, QueueReset):
            raise full from None
        if reply[:1] in DONE:
            raise full
        return seat, reply

    def _newcomer(self, keys: SigningKeys, thing: Thing, nickname: str, idempotency_key: str | None) -> str:
        if idempotency_key is None:
            return new_uuid()
        if not LEAST_KEY <= len(idempotency_key) <= MOST_KEY:
            raise InvalidRequest(
                f"Idempotency-Key must have {LEAST_KEY} to {MOST_KEY} characters.", field="Idempotency-Key"
            )
        return keys.derived_user(thing.tag, nickname, idempotency_key)

    def _asker(
        self,
        keys: SigningKeys,
        thing: Thing,
        user_id: str | None,
        nickname: str,
        proof: str | None,
        place_token: str | None,
        trusted: bool,
    ) -> EntryClaim:
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
            # An old one still says who they are, for whoever waits longer than that; it brings no place back.
            kept = place.place if place.exp >= self._store.now(thing) else None
            called = self._memory.was_called(thing, place.sub)
            return EntryClaim(place.sub, nickname or place.name, place.account or known, True, kept, place.gen, called)
        if user_id is None:
            raise InvalidRequest("userId is missing.", field="userId")
        return EntryClaim(user_id, nickname, account=known, proven=known)

    def _watch(self, thing: Thing, user_id: str, changed: asyncio.Event) -> None:
        users = self._watchers.get(thing)
        if users is None:
            users = self._watchers[thing] = {}
            self._listening[thing] = ExitStack()
            self._listening[thing].enter_context(
                self._store.hints.listen(thing, "events", lambda words: self._on_hint(thing, words))
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

    def _on_hint(self, thing: Thing, words: str | None) -> None:
        users = self._watchers.get(thing, {})
        kind, *changed = (words or "").split(" ")
        # Without names it may be about anybody: a reset, or hints that were missed.
        for user_id in changed if kind == "changed" else list(users):
            for event in users.get(user_id.removeprefix("+"), ()):
                event.set()
