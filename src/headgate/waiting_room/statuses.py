"""What a script says of somebody, and what they are told of it.

An answer is packed: state, account, place, rank, and for somebody who is called the seat that is held. What all of a queue are
told alike comes once with each call, and stays the same from one step of the promotion to the next, so it is taken apart once
and not for each who asks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar, cast

import msgspec

from headgate.store import Reply, Thing
from headgate.waiting_room.memory import QueueFacts
from headgate.waiting_room.model import Flow, State, poll_after_ms
from headgate.waiting_room.queues import Queues
from headgate.waiting_room.signing import SigningKeys, Ticket
from headgate.waiting_room.wire import Seat, Status

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
WAKE: Final = 1
PAUSED: Final = 2

# Theirs: state, account, place, rank.
_OWN: Final = struct.Struct("<cBdI")
# Everybody's: generation, seconds since there is a line, switches, grace, serving, epoch, and what is forecast (free, turnover,
# departures it is known from, seconds a seat is taken, the policy's pace, the fastest turnover, seconds of a tick; and of
# those who are late: turnover at first, seconds in which it slows down, how wrong that may be, seconds they hold a seat).
_COMMON: Final = struct.Struct("<ddBdddIdddddddddd")
# Of a held seat: milliseconds left, then ticket, server and address, each after its length.
_LEFT: Final = struct.Struct("<dB")

Wake = Callable[[Thing], None]
Told = TypeVar("Told", bound=Status)


def place_of(reply: bytes) -> tuple[int, bool]:
    """Give the place, and whether it is an account's."""
    _, account, place, _ = _OWN.unpack_from(reply)
    return int(place), bool(account)


class StatusReader:
    """Takes note of what the scripts' answers say of a queue."""

    def __init__(self, queues: Queues, wake: Wake) -> None:
        self._queues = queues
        self._wake = wake

    def hear(self, thing: Thing, packed: Reply) -> QueueFacts | None:
        """Take note of what all of this queue are told alike, and give it; None if there is no such queue."""
        if not packed:
            return None
        said = cast("bytes", packed)
        common = self._queues.heard(thing, said)
        if common is None:
            generation, age, switches, grace, serving, epoch, free, *rest = _COMMON.unpack(said)
            rate, freed, cycle, pace, fastest, tick, *late = rest
            flow = Flow(pace, age, free, rate, freed, cycle, fastest, tick, *late)
            paused = bool(switches & PAUSED)
            told = None if paused or flow.says_nothing() else flow
            common = QueueFacts(said, int(generation), bool(switches & WAKE), grace / 1000, free, told, paused)
            self._queues.note(thing, common.generation, int(epoch), int(serving)).common = common
        if common.wake:
            self._wake(thing)
        return common


def tell(
    make: Callable[..., Told],
    thing: Thing,
    user_id: str,
    reply: bytes,
    common: QueueFacts,
    keys: SigningKeys | None,
    now: float,
) -> Told:
    """Say it in our words; `keys` sign the ticket of somebody who is called, and `now` is the store's time in seconds."""
    letter, _, place, rank = _OWN.unpack_from(reply)
    if letter == b"W":
        flow = common.flow
        eta = least = None
        if flow is not None:
            eta = flow.eta(rank)
            if eta is None:
                least = flow.least(rank)
        waiting = make(
            status=State.WAITING,
            queue=thing.name,
            user_id=user_id,
            rank=rank,
            place=int(place),
            eta=eta,
            poll_after_ms=poll_after_ms(rank, eta, common.grace_seconds, common.free),
            least_seconds=least,
        )
        return msgspec.structs.replace(waiting, paused=True) if flow is None and common.paused else waiting
    status = STATES[letter]
    told = make(
        status=status,
        queue=thing.name,
        user_id=user_id,
        rank=rank,
        place=int(place),
        eta=None,
        poll_after_ms=INSIDE_POLL_MS,
        advice=ADVICE.get(status),
    )
    return _called(told, keys, thing, common.generation, reply, now) if status is State.PROMOTED else told


def _called(told: Told, keys: SigningKeys | None, thing: Thing, generation: int, reply: bytes, now: float) -> Told:
    """Add the ticket, its signed form and the seat that it holds."""
    left, length = _LEFT.unpack_from(reply, _OWN.size)
    at = _OWN.size + _LEFT.size
    ticket = reply[at : at + length].decode()
    at += length
    server = reply[at + 1 : at + 1 + reply[at]].decode()
    at += 1 + reply[at]
    address = reply[at + 2 : at + 2 + int.from_bytes(reply[at : at + 2], "little")].decode()
    signed: str | None = None
    if keys:
        claims = Ticket(
            jti=ticket,
            sub=told.user_id,
            aud=thing.name,
            gen=generation,
            exp=int(now + left / 1000),
            srv=server,
            addr=address,
            ns=thing.namespace,
        )
        signed = keys.sign_ticket(claims)
    return msgspec.structs.replace(
        told,
        ticket_id=ticket,
        ticket=signed,
        server=Seat(server, address) if server else None,
        expires_in_ms=int(left),
        poll_after_ms=min(told.poll_after_ms, max(500, int(left))),
    )
