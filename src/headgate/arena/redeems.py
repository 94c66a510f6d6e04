"""Spending tickets so that a second try after an unknown outcome is the same attempt.

When the store's answer is lost, the ticket may have been spent for the session that we named. Its owner, told to try again, must
not find the ticket used: the next handshake with it names the same session again, and the store gives the same answer.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headgate.arena.door import SeatService
from headgate.kit.ids import new_uuid
from headgate.kit.problems import StoreUnavailable
from headgate.waiting_room.problems import TicketUsed
from headgate.waiting_room.wire import Redeemed

MOST_UNKNOWN: Final = 10_000


class Redeems:
    """The redeems of one server."""

    def __init__(self, seats: SeatService) -> None:
        self._seats = seats
        self._under_way: set[str] = set()
        self._unknown: dict[str, str] = {}

    async def redeem(self, ticket_id: str) -> Redeemed:
        """Spend a ticket for a session of its own; of several who show it at once, one may try."""
        if ticket_id in self._under_way:
            raise TicketUsed("Somebody else shows this ticket at this moment; it lets one in, once.")
        session_id = self._unknown.pop(ticket_id, None) or new_uuid()
        self._under_way.add(ticket_id)
        try:
            return await self._seats.redeem(ticket_id, session_id)
        except (StoreUnavailable, asyncio.CancelledError):
            if len(self._unknown) >= MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
            self._unknown[ticket_id] = session_id
            raise
        finally:
            self._under_way.discard(ticket_id)
