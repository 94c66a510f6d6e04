"""Redeems tickets so that a retry after an unknown outcome is idempotent.

When the store's answer is lost, the ticket may have been redeemed for the session that we named. The player's next
handshake must not find the ticket used: it names the same session again, and the store gives the same answer.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headgate.arena.handshake import SeatService
from headgate.kit.ids import new_uuid
from headgate.kit.problems import StoreUnavailable
from headgate.waiting_room.problems import TicketUsed
from headgate.waiting_room.wire import Redeemed

MOST_UNKNOWN: Final = 10_000


class TicketRedeemer:
    """Redeems tickets of one server."""

    def __init__(self, seats: SeatService) -> None:
        self._seats = seats
        self._in_flight: set[str] = set()
        self._unknown: dict[str, str] = {}

    async def redeem(self, ticket_id: str) -> Redeemed:
        """Redeem a ticket for a new session; of concurrent handshakes with the same ticket only one is tried."""
        if ticket_id in self._in_flight:
            raise TicketUsed("Somebody else shows this ticket at this moment; it lets one in, once.")
        session_id = self._unknown.pop(ticket_id, None) or new_uuid()
        self._in_flight.add(ticket_id)
        try:
            return await self._seats.redeem(ticket_id, session_id)
        except (StoreUnavailable, asyncio.CancelledError):
            if len(self._unknown) >= MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
            self._unknown[ticket_id] = session_id
            raise
        finally:
            self._in_flight.discard(ticket_id)
