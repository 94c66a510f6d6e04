"""Servers and their seats: heartbeats, tickets redeemed exactly once, sessions that end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from headgate.kit import traces
from headgate.kit.ids import display_text, member_id
from headgate.kit.problems import InvalidRequest
from headgate.store import Batch, Reply, Store, Thing, script
from headgate.waiting_room.memory import QueueMemory
from headgate.waiting_room.metrics import HOLD_SECONDS, label
from headgate.waiting_room.model import LEASE_MS, MOST_SESSIONS, Reason
from headgate.waiting_room.problems import TicketInvalid
from headgate.waiting_room.queues import Queues
from headgate.waiting_room.wire import Beat, Redeemed, Servers, ServerView, User

HEARTBEAT = script("headgate.waiting_room", "heartbeat")
REDEEM = script("headgate.waiting_room", "redeem")
END = script("headgate.waiting_room", "end")
RENEW = script("headgate.waiting_room", "renew")
REMOVE_SERVER = script("headgate.waiting_room", "remove_server")
SERVERS = script("headgate.waiting_room", "servers")

# Sessions that one report begins or ends: the store is busy that long, and takes the rest with the next report.
MOST_CHANGED: Final = 500


class QueueServers:
    """The seats of all queues."""

    def __init__(self, store: Store, queues: Queues, memory: QueueMemory, wake: Callable[[Thing], None]) -> None:
        self._store = store
        self._queues = queues
        self._memory = memory
        self._wake = wake
        self._beats = Batch(store, HEARTBEAT, shared=lambda _: (LEASE_MS, MOST_CHANGED), most=64)
        # A report may be long, so it does not share its call.
        self._reports = Batch(store, HEARTBEAT, shared=lambda _: (LEASE_MS, MOST_CHANGED), most=1)
        self._redeems = Batch(store, REDEEM, most=128)
        self._ends = Batch(store, END, most=128)
        self._renewals = Batch(store, RENEW)

    async def heartbeat(
        self,
        thing: Thing,
        instance_id: str,
        *,
        capacity: int | None,
        max_capacity: int | None,
        address: str,
        sessions: Sequence[str] | None,
        as_of: int,
    ) -> Beat:
        """Offer seats for one more lease; with sessions, say also who is inside."""
        member_id(instance_id, "instanceId")
        if address:
            display_text(address, "address", 256)
        most = max_capacity if max_capacity is not None else capacity
        if most is None:
            raise InvalidRequest("Say capacity, maxCapacity, or both.", field="capacity")
        for field, seats in (("capacity", capacity), ("maxCapacity", max_capacity)):
            if seats is not None and not (0 <= seats <= MOST_SESSIONS and seats == int(seats)):
                raise InvalidRequest(
                    f"{field} must be a whole number from 0 to {MOST_SESSIONS}; for more seats run more servers.",
                    field=field,
                )
        if len(sessions or ()) > MOST_SESSIONS:
            raise InvalidRequest(f"A server reports at most {MOST_SESSIONS} sessions.", field="sessions")
        report = " ".join(member_id(session, "sessions") for session in sessions or ())
        reply = await self._queues.kept(
            thing,
            lambda: (self._beats if sessions is None else self._reports).call(
                thing,
                instance_id,
                most if capacity is None else capacity,
                most,
                address,
                as_of,
                int(sessions is not None),
                report,
            ),
        )
        drain, wanted, seq, wake = cast("list[int]", reply)
        if wake:
            self._wake(thing)
        return Beat(bool(drain), bool(wanted), seq)

    async def remove_server(self, thing: Thing, instance_id: str, *, drain: bool) -> None:
        """Let a server go; without drain the next visit, which is now, ends its sessions and moves who it never confirmed."""
        member_id(instance_id, "instanceId")

        async def remove() -> Reply:
            return await self._store.run(REMOVE_SERVER, thing, instance_id, int(drain))

        await self._queues.kept(thing, remove)

    async def redeem(self, thing: Thing, ticket_id: str, session_id: str, instance_id: str | None) -> Redeemed:
        """Spend a ticket for a session."""
        member_id(session_id, "sessionId")
        if instance_id is not None:
            member_id(instance_id, "instanceId")
        try:
            member_id(ticket_id, "ticketId")
        except InvalidRequest as error:
            raise TicketInvalid from error
        reply = await self._queues.kept(
            thing, lambda: self._redeems.call(thing, ticket_id, instance_id or "", session_id)
        )
        user, nickname, server, seq, held_ms, trace, wake = cast(
            "tuple[bytes, bytes, bytes, int, int, bytes, int]", reply
        )
        self._memory.entered(thing, user.decode())
        if wake:
            self._wake(thing)
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
        """End a session; one that is not inside is fine."""
        member_id(session_id, "sessionId")
        if instance_id is not None:
            member_id(instance_id, "instanceId")
        await self._queues.kept(thing, lambda: self._ends.call(thing, session_id, instance_id or "", reason.value))

    async def renew(self, thing: Thing, session_id: str) -> tuple[str, float]:
        """Renew a session that has no server; gives its user and for how many seconds. Raises SessionUnknown."""
        member_id(session_id, "sessionId")
        reply = await self._queues.kept(thing, lambda: self._renewals.call(thing, session_id))
        user, left_ms = cast("tuple[bytes, int]", reply)
        return user.decode(), left_ms / 1000

    async def servers(self, thing: Thing) -> Servers:
        """Show every live server."""
        reply = await self._queues.kept(thing, lambda: self._store.run(SERVERS, thing))
        rows = cast("list[tuple[bytes, bytes, int, int, int, int, int, int]]", reply)
        return Servers(
            thing.name,
            [
                ServerView(
                    name.decode(), address.decode(), capacity, most, sessions, holds, bool(draining), bool(reported)
                )
                for name, address, capacity, most, sessions, holds, draining, reported in rows
            ],
        )
