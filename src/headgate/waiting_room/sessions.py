"""Sessions: tickets are redeemed exactly once, and sessions are renewed and ended."""

from __future__ import annotations

from typing import cast

from headgate.kit import traces
from headgate.kit.ids import member_id
from headgate.kit.problems import InvalidRequest
from headgate.store import Batch, Store, Thing, script
from headgate.waiting_room.memory import QueueMemory
from headgate.waiting_room.metrics import HOLD_SECONDS, label
from headgate.waiting_room.model import Reason
from headgate.waiting_room.problems import TicketInvalid
from headgate.waiting_room.queues import Queues
from headgate.waiting_room.statuses import ScheduleVisit
from headgate.waiting_room.wire import Redeemed, User

REDEEM = script("headgate.waiting_room", "redeem")
END = script("headgate.waiting_room", "end")
RENEW = script("headgate.waiting_room", "renew")


class QueueSessions:
    """The sessions of all queues."""

    def __init__(self, store: Store, queues: Queues, memory: QueueMemory, schedule_visit: ScheduleVisit) -> None:
        self._queues = queues
        self._memory = memory
        self._schedule_visit = schedule_visit
        self._redeems = Batch(store, REDEEM, most=128)
        self._ends = Batch(store, END, most=128)
        self._renewals = Batch(store, RENEW)

    async def redeem(self, thing: Thing, ticket_id: str, session_id: str, instance_id: str | None) -> Redeemed:
        """Redeem a ticket for a session."""
        member_id(session_id, "sessionId")
        if instance_id is not None:
            member_id(instance_id, "instanceId")
        try:
            member_id(ticket_id, "ticketId")
        except InvalidRequest as error:
            raise TicketInvalid from error
        reply = await self._queues.with_restore(
            thing, lambda: self._redeems.call(thing, ticket_id, instance_id or "", session_id)
        )
        user, nickname, server, seq, held_ms, trace, needs_visit = cast(
            "tuple[bytes, bytes, bytes, int, int, bytes, int]", reply
        )
        self._memory.user_entered(thing, user.decode())
        if needs_visit:
            self._schedule_visit(thing)
        if held_ms >= 0:
            HOLD_SECONDS.labels(label(thing)).observe(held_ms / 1000)
        if trace:
            with traces.span("queue redeem", traceparent=trace.decode(), queue=thing.name):
                pass
        return Redeemed(
            ticket_id=ticket_id,
            user=User(user.decode(), nickname.decode()),
            queue=thing.name,
            seq=seq,
            session_id=session_id,
            instance_id=server.decode(),
            traceparent=trace.decode() or None,
        )

    async def end(self, thing: Thing, session_id: str, instance_id: str | None, reason: Reason) -> None:
        """End a session; one that does not exist is no error."""
        member_id(session_id, "sessionId")
        if instance_id is not None:
            member_id(instance_id, "instanceId")
        await self._queues.with_restore(
            thing, lambda: self._ends.call(thing, session_id, instance_id or "", reason.value)
        )

    async def renew(self, thing: Thing, session_id: str) -> tuple[str, float]:
        """Renew a session that has no server; give its user and the seconds until it ends. Raises SessionUnknown."""
        member_id(session_id, "sessionId")
        reply = await self._queues.with_restore(thing, lambda: self._renewals.call(thing, session_id))
        user, left_ms = cast("tuple[bytes, int]", reply)
        return user.decode(), left_ms / 1000
