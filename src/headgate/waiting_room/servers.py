"""The servers of a queue: their heartbeats, which offer seats, and their removal."""

from __future__ import annotations

from typing import Final, cast

from headgate.kit.ids import display_text, member_id
from headgate.kit.problems import InvalidRequest
from headgate.store import Batch, Reply, Store, Thing, script
from headgate.waiting_room.model import LEASE_MS, MOST_SESSIONS
from headgate.waiting_room.queues import Queues
from headgate.waiting_room.statuses import ScheduleVisit
from headgate.waiting_room.wire import Beat, HeartbeatRequest, Servers, ServerView

HEARTBEAT = script("headgate.waiting_room", "heartbeat")
REMOVE_SERVER = script("headgate.waiting_room", "remove_server")
SERVERS = script("headgate.waiting_room", "servers")

# Sessions that one report begins or ends, to keep the call short; the next report does the rest.
MOST_CHANGED: Final = 500


class QueueServers:
    """The servers of all queues."""

    def __init__(self, store: Store, queues: Queues, schedule_visit: ScheduleVisit) -> None:
        self._store = store
        self._queues = queues
        self._schedule_visit = schedule_visit
        self._beats = Batch(store, HEARTBEAT, shared=lambda _: (LEASE_MS, MOST_CHANGED), most=64)
        # A report may be long, so it is not batched with others.
        self._reports = Batch(store, HEARTBEAT, shared=lambda _: (LEASE_MS, MOST_CHANGED), most=1)

    async def heartbeat(self, thing: Thing, instance_id: str, request: HeartbeatRequest) -> Beat:
        """Offer seats for one more lease; with `sessions`, also report all sessions on this server."""
        capacity, max_capacity, sessions = request.capacity, request.max_capacity, request.sessions
        member_id(instance_id, "instanceId")
        if request.address:
            display_text(request.address, "address", 256)
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
        reply = await self._queues.with_restore(
            thing,
            lambda: (self._beats if sessions is None else self._reports).call(
                thing,
                instance_id,
                most if capacity is None else capacity,
                most,
                request.address,
                request.as_of,
                int(sessions is not None),
                report,
            ),
        )
        drain, wanted, seq, needs_visit = cast("list[int]", reply)
        if needs_visit:
            self._schedule_visit(thing)
        return Beat(bool(drain), bool(wanted), seq)

    async def remove_server(self, thing: Thing, instance_id: str, *, drain: bool) -> None:
        """Remove a server, or drain it; after a removal the next visit ends or moves its sessions."""
        member_id(instance_id, "instanceId")

        async def remove() -> Reply:
            return await self._store.run(REMOVE_SERVER, thing, instance_id, int(drain))

        await self._queues.with_restore(thing, remove)

    async def servers(self, thing: Thing) -> Servers:
        """Show every live server."""
        reply = await self._queues.with_restore(thing, lambda: self._store.run(SERVERS, thing))
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
