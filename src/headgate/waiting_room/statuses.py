"""Decodes the packed replies of scripts into a `Status`.

The reply for one user has state, account, place and rank, and for a promoted user the seat that the ticket holds. The
facts that are the same for all users of a queue come once with each call. They stay the same from one promotion step to
the next, so they are decoded once and not for each user.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar, cast

import msgspec

from headgate.store import Reply, Thing
from headgate.waiting_room.memory import QueueFacts
from headgate.waiting_room.model import Forecast, State, poll_after_ms
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
NEEDS_VISIT: Final = 1
PAUSED: Final = 2

# Of the user: state, account, place, rank.
_USER: Final = struct.Struct("<cBdI")
# Of the queue: generation, seconds since anybody waits, switches, grace, serving, epoch, and the forecast (free,
# turnover, seats freed, seconds a seat is taken, the policy's pace, the fastest turnover, seconds of a tick; and about
# promoted users who do not come: first turnover, seconds in which it slows down, its uncertainty, seconds they hold a
# seat).
_FACTS: Final = struct.Struct("<ddBdddIdddddddddd")
# Of a held seat: milliseconds left, then ticket, server and address, each after its length.
_HOLD: Final = struct.Struct("<dB")

ScheduleVisit = Callable[[Thing], None]
AnyStatus = TypeVar("AnyStatus", bound=Status)


class FactsDecoder:
    """Decodes the facts of queues, and passes on the news in them."""

    def __init__(self, queues: Queues, schedule_visit: ScheduleVisit) -> None:
        self._queues = queues
        self._schedule_visit = schedule_visit

    def decode(self, thing: Thing, packed: Reply) -> QueueFacts | None:
        """Decode the facts of a queue; None if there is no such queue."""
        if not packed:
            return None
        content = cast("bytes", packed)
        facts = self._queues.known_facts(thing, content)
        if facts is None:
            generation, age, switches, grace, serving, epoch, free, *rest = _FACTS.unpack(content)
            rate, freed, cycle, pace, fastest, tick, *late = rest
            forecast = Forecast(pace, age, free, rate, freed, cycle, fastest, tick, *late)
            paused = bool(switches & PAUSED)
            shown = None if paused or forecast.empty() else forecast
            facts = QueueFacts(
                content, int(generation), bool(switches & NEEDS_VISIT), grace / 1000, free, shown, paused
            )
            self._queues.update_memory(thing, facts.generation, int(epoch), int(serving)).facts = facts
        if facts.needs_visit:
            self._schedule_visit(thing)
        return facts


def decode_place(reply: bytes) -> tuple[int, bool]:
    """Give the place, and whether it belongs to an account."""
    _, account, place, _ = _USER.unpack_from(reply)
    return int(place), bool(account)


def decode_status(
    make: Callable[..., AnyStatus],
    thing: Thing,
    user_id: str,
    reply: bytes,
    facts: QueueFacts,
    keys: SigningKeys | None,
    now: float,
) -> AnyStatus:
    """Decode a user's status; `keys` sign the ticket of a promoted user, and `now` is the store's time in seconds."""
    letter, _, place, rank = _USER.unpack_from(reply)
    if letter == b"W":
        forecast = facts.forecast
        eta = least = None
        if forecast is not None:
            eta = forecast.eta(rank)
            if eta is None:
                least = forecast.least(rank)
        waiting = make(
            status=State.WAITING,
            queue=thing.name,
            user_id=user_id,
            rank=rank,
            place=int(place),
            eta=eta,
            poll_after_ms=poll_after_ms(rank, eta, facts.grace_seconds, facts.free),
            least_seconds=least,
        )
        return msgspec.structs.replace(waiting, paused=True) if forecast is None and facts.paused else waiting
    state = STATES[letter]
    status = make(
        status=state,
        queue=thing.name,
        user_id=user_id,
        rank=rank,
        place=int(place),
        eta=None,
        poll_after_ms=INSIDE_POLL_MS,
        advice=ADVICE.get(state),
    )
    return _with_ticket(status, keys, thing, facts.generation, reply, now) if state is State.PROMOTED else status


def _with_ticket(
    status: AnyStatus, keys: SigningKeys | None, thing: Thing, generation: int, reply: bytes, now: float
) -> AnyStatus:
    """Add the ticket, its signed form and the seat that it holds."""
    left_ms, length = _HOLD.unpack_from(reply, _USER.size)
    at = _USER.size + _HOLD.size
    ticket = reply[at : at + length].decode()
    at += length
    server = reply[at + 1 : at + 1 + reply[at]].decode()
    at += 1 + reply[at]
    address = reply[at + 2 : at + 2 + int.from_bytes(reply[at : at + 2], "little")].decode()
    signed: str | None = None
    if keys:
        claims = Ticket(
            jti=ticket,
            sub=status.user_id,
            aud=thing.name,
            gen=generation,
            exp=int(now + left_ms / 1000),
            srv=server,
            addr=address,
            ns=thing.namespace,
        )
        signed = keys.sign_ticket(claims)
    return msgspec.structs.replace(
        status,
        ticket_id=ticket,
        ticket=signed,
        server=Seat(server, address) if server else None,
        expires_in_ms=int(left_ms),
        poll_after_ms=min(status.poll_after_ms, max(500, int(left_ms))),
    )
