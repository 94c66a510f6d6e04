"""Standing in line: enter, ask, watch, leave. Order is the store's; a place is kept whatever tab or node asks."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from headgate.kit import traces
from headgate.kit.ids import display_text, member_id, new_uuid
from headgate.kit.problems import InvalidRequest, StoreUnavailable
from headgate.store import Batch, Store, Thing, script
from headgate.waiting_room.metrics import STREAMS
from headgate.waiting_room.model import Entry, Flow, Seat, State, Status, poll_after_ms
from headgate.waiting_room.problems import QueueLost
from headgate.waiting_room.queues import Queues, label
from headgate.waiting_room.signing import PLACE_SECONDS, Place, ProofKeys, SigningKeys, Ticket

ENTRY = script("headgate.waiting_room", "entry")
STATUS = script("headgate.waiting_room", "status")
LEAVE = script("headgate.waiting_room", "leave")

STATES: Final = {
    b"W": State.WAITING,
    b"P": State.PROMOTED,
    b"A": State.ACTIVE,
    b"K": State.ACTIVE,
    b"Y": State.AWAY,
    b"E": State.EXPIRED,
    b"F": State.FINISHED,
    b"L": State.LEFT,
    b"B": State.ABANDONED,
}
ADVICE: Final = {
    State.EXPIRED: "Your ticket was not used in time. Enter again to get a new place.",
    State.FINISHED: "Your session is over. Enter again to get a new place.",
    State.LEFT: "You left the line. Enter again to get a new place.",
    State.ABANDONED: "You were called and did not come for a long time. Enter again to get a new place.",
}
FINAL: Final = frozenset(ADVICE)
INSIDE_POLL_MS: Final = 5_000
RETRY_SECONDS: Final = 1.0
LEAST_KEY: Final = 8
MOST_KEY: Final = 256

# What the scripts say of somebody: state, account, place, rank, generation, rate, admissions and seconds it is known from,
# wake, grace, serving, and what is forecast (free, turnover, departures, stay); and of a held seat: milliseconds left, then ticket, server and address, each after its length.
_ANSWER: Final = struct.Struct("<cBdIddddBddIddd")
_LEFT: Final = struct.Struct("<dB")

Keys = Callable[[], Awaitable[SigningKeys]]
Wake = Callable[[Thing], None]
Told = TypeVar("Told", bound=Status)


class Asker(msgspec.Struct, frozen=True):
    """Who asks, and what they can prove: an account is asked for only with a proof, an anonymous id is its own proof."""

    user_id: str
    nickname: str = ""
    account: bool = False
    proven: bool = False
    place: int | None = None
    generation: int = 0

    def claim(self) -> str:
        """Write down for the scripts what they can show."""
        if not self.proven:
            return ""
        flags = "pa" if self.account else "p"
        return flags if self.place is None else f"{flags} {self.place} {self.generation} {self.nickname}"


class _Answer(NamedTuple):
    state: bytes
    account: int
    place: float
    rank: int
    generation: float
    rate: float
    seen: float
    age: float
    wake: int
    grace: float
    serving: float
    free: int
    turnover: float
    freed: float
    stay: float


class Line:
    """The people of all queues."""

    def __init__(
        self, store: Store, queues: Queues, keys: Keys, proofs: ProofKeys, serving: Callable[[Thing], int], wake: Wake
    ) -> None:
        self._store = store
        self._queues = queues
        self._keys = keys
        self._proofs = proofs
        self._wake = wake
        self._entries = Batch(store, ENTRY, shared=lambda thing: (serving(thing), new_uuid()), most=128)
        self._statuses = Batch(store, STATUS, shared=lambda thing: (serving(thing), new_uuid()))
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
        asker = self._newcomer(keys, thing, nickname, idempotency_key)
        if user_id is not None or place_token:
            asker = self._asker(keys, thing, user_id, nickname, proof, place_token, trusted)
        item = (asker.user_id, nickname, asker.claim(), traces.traceparent() or "")
        try:
            reply = cast("bytes", await self._entries.call(thing, *item))
        except QueueLost:
            reply = cast("bytes", await self._queues.kept(thing, lambda: self._entries.call(thing, *item)))
        answer = _Answer._make(_ANSWER.unpack_from(reply))
        place = Place(
            sub=asker.user_id,
            aud=thing.name,
            gen=int(answer.generation),
            place=int(answer.place),
            exp=int(time.time()) + PLACE_SECONDS,
            ns=thing.namespace,
            account=bool(answer.account),
            name=nickname,
        )
        return self._told(Entry, keys, thing, asker.user_id, answer, reply, place_token=keys.sign_place(place))

    async def status(self, thing: Thing, user_id: str, *, place_token: str | None, trusted: bool) -> Status:
        """Say where somebody stands, and note that they asked."""
        keys = await self._keys()
        if place_token is None and not trusted:
            claim = ""  # their id is their own secret
            member_id(user_id, "userId")
        else:
            claim = self._asker(keys, thing, user_id, "", None, place_token, trusted).claim()
        try:
            reply = cast("bytes", await self._statuses.call(thing, user_id, claim))
        except QueueLost:
            reply = cast("bytes", await self._queues.kept(thing, lambda: self._statuses.call(thing, user_id, claim)))
        return self._told(Status, keys, thing, user_id, _Answer._make(_ANSWER.unpack_from(reply)), reply)

    async def leave(self, thing: Thing, user_id: str, *, place_token: str | None, trusted: bool) -> None:
        """Give up the place or the ticket."""
        asker = self._asker(await self._keys(), thing, user_id, "", None, place_token, trusted)
        await self._queues.kept(thing, lambda: self._store.run(LEAVE, thing, asker.user_id, int(asker.proven)))

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
                        status = await self.status(thing, user_id, place_token=place_token, trusted=trusted)
                    except StoreUnavailable:
                        if shown is None:
                            raise
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    now = (status.status, status.rank, status.eta, status.ticket_id)
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

    def _newcomer(self, keys: SigningKeys, thing: Thing, nickname: str, idempotency_key: str | None) -> Asker:
        if idempotency_key is None:
            return Asker(new_uuid(), nickname, proven=True)
        if not LEAST_KEY <= len(idempotency_key) <= MOST_KEY:
            raise InvalidRequest(
                f"Idempotency-Key must have {LEAST_KEY} to {MOST_KEY} characters.", field="Idempotency-Key"
            )
        return Asker(keys.derived_user(thing.tag, nickname, idempotency_key), nickname, proven=True)

    def _asker(
        self,
        keys: SigningKeys,
        thing: Thing,
        user_id: str | None,
        nickname: str,
        proof: str | None,
        place_token: str | None,
        trusted: bool,
    ) -> Asker:
        if user_id is not None:
            member_id(user_id, "userId")
        place = (
            keys.read_place(place_token, namespace=thing.namespace, queue=thing.name, user_id=user_id)
            if place_token
            else None
        )
        if proof is not None and user_id is not None and not trusted:
            self._proofs.check(proof, queue=thing.name, user_id=user_id)
        known = trusted or proof is not None
        if place is not None:
            return Asker(place.sub, nickname or place.name, place.account or known, True, place.place, place.gen)
        if user_id is None:
            raise InvalidRequest("userId is missing.", field="userId")
        return Asker(user_id, nickname, account=known, proven=known)

    def _told(
        self,
        kind: type[Told],
        keys: SigningKeys,
        thing: Thing,
        user_id: str,
        answer: _Answer,
        reply: bytes,
        **more: Any,
    ) -> Told:
        """Turn a script's view of somebody into what they are told."""
        self._queues.note(thing, int(answer.generation), int(answer.serving))
        if answer.wake:
            self._wake(thing)
        status = STATES[answer.state]
        place, rank = int(answer.place), answer.rank
        if status is State.WAITING:
            eta = None
            if answer.rate or answer.turnover:
                eta = Flow(
                    answer.rate, answer.seen, answer.age, answer.free, answer.turnover, answer.freed, answer.stay
                ).eta(rank)
            return kind(
                status=status,
                queue=thing.name,
                user_id=user_id,
                rank=rank,
                place=place,
                eta=eta,
                poll_after_ms=poll_after_ms(rank, eta, answer.grace / 1000, answer.free),
                **more,
            )
        told = kind(
            status=status,
            queue=thing.name,
            user_id=user_id,
            rank=rank,
            place=place,
            eta=None,
            poll_after_ms=INSIDE_POLL_MS,
            advice=ADVICE.get(status, msgspec.UNSET),
            **more,
        )
        return _called(told, keys, thing, int(answer.generation), reply) if status is State.PROMOTED else told

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
            for event in users.get(user_id, ()):
                event.set()


def _called(told: Told, keys: SigningKeys, thing: Thing, generation: int, reply: bytes) -> Told:
    """Add the ticket, its signed form and the seat that it holds."""
    left, length = _LEFT.unpack_from(reply, _ANSWER.size)
    at = _ANSWER.size + _LEFT.size
    ticket = reply[at : at + length].decode()
    at += length
    server = reply[at + 1 : at + 1 + reply[at]].decode()
    at += 1 + reply[at]
    address = reply[at + 2 : at + 2 + int.from_bytes(reply[at : at + 2], "little")].decode()
    signed: str | msgspec.UnsetType = msgspec.UNSET
    if keys:
        claims = Ticket(
            jti=ticket,
            sub=told.user_id,
            aud=thing.name,
            gen=generation,
            exp=int(time.time() + left / 1000),
            srv=server,
            addr=address,
            ns=thing.namespace,
        )
        signed = keys.sign_ticket(claims)
    return msgspec.structs.replace(
        told,
        ticket_id=ticket,
        ticket=signed,
        server=Seat(server, address) if server else msgspec.UNSET,
        expires_in_ms=int(left),
        poll_after_ms=min(told.poll_after_ms, max(500, int(left))),
    )
