"""A queue seen from outside: all its keys read and decoded, and whatever contradicts itself in them."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

from headgate.store import Store, Thing
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import Beat, HeartbeatRequest, QueueView

HEAD = struct.Struct("<cBdIII")


@dataclass(frozen=True)
class Person:
    """One decoded record."""

    state: str
    place: int
    shown: int
    seen: int
    eta: int
    ticket: str
    server: str
    session: str
    nickname: str


@dataclass(frozen=True)
class Snapshot:
    """Everything a queue holds at one moment."""

    people: dict[str, Person]
    waiting: dict[str, int]
    away: set[str]
    kept: set[str]
    finished: set[str]
    holds: set[str]
    tickets: dict[str, str]
    sessions: dict[str, tuple[str, str]]
    asked: dict[str, int]  # by session: the number of the last time that its redeem was asked for
    seats: list[str]
    leases: set[str]
    by_server: Counter[str] = field(default_factory=Counter)

    @property
    def line(self) -> list[str]:
        """The waiting users, in order."""
        return sorted(self.waiting, key=self.waiting.__getitem__)

    def contradictions(self) -> list[str]:
        """Say what cannot be: somebody in two states or in none, a seat without an owner, an owner without a seat."""
        found = []
        homes = {"W": set(self.waiting), "Y": self.away, "K": self.kept}
        for state, home in homes.items():
            if home != (told := {user for user, person in self.people.items() if person.state == state}):
                found.append(f"{state}: {home} in the set, {told} by record")
        done = {user for user, person in self.people.items() if person.state in "EFLB"}
        if self.finished != done:
            found.append(f"done: {self.finished} in the set, {done} by record")
        owed = []
        for user, person in self.people.items():
            if person.state == "P":
                owed.append(f"{person.server}:h:{person.ticket}")
                if person.ticket not in self.holds or self.tickets.get(person.ticket) != user:
                    found.append(f"{user} holds nothing by ticket {person.ticket}")
            elif person.state == "K":
                owed.append(f"{person.server}:k:{user}")
            elif person.state == "A" and self.sessions.get(person.session) != (person.server, user):
                found.append(f"{user} is inside without session {person.session}")
        owed += [f"{server}:s:{session}" for session, (server, _) in self.sessions.items()]
        if sorted(owed) != sorted(self.seats):
            found.append(f"seats {sorted(self.seats)}, owed {sorted(owed)}")
        holders = {person.ticket for person in self.people.values() if person.state == "P"}
        if holders != self.holds:
            found.append(f"holds {self.holds}, holders {holders}")
        strays = set(self.tickets) - {person.ticket for person in self.people.values()}
        if strays:
            found.append(f"tickets of nobody: {strays}")
        return found


async def snapshot(store: Store, thing: Thing) -> Snapshot:
    """Read a queue's keys as they are."""

    async def read(command: str, key: str, *more: str | int) -> list[bytes]:
        return cast("list[bytes]", await store.read(thing, command, thing.key(key), *more))

    async def members(key: str) -> set[str]:
        return {member.decode() for member in await read("ZRANGE", key, 0, -1)}

    async def pairs(command: str, key: str, *more: str | int) -> dict[str, bytes]:
        flat = await read(command, key, *more)
        return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

    (users, waiting, tickets, sessions, seats), (away, kept, finished, holds, leases) = await asyncio.gather(
        asyncio.gather(
            pairs("HGETALL", "users"),
            pairs("ZRANGE", "waiting", 0, -1, "WITHSCORES"),
            pairs("HGETALL", "tickets"),
            pairs("HGETALL", "sessions"),
            members("seats"),
        ),
        asyncio.gather(*(members(key) for key in ("away", "kept", "finished", "holds", "leases"))),
    )
    owners = {session: text.decode().split(":", 2)[1:] for session, text in sessions.items()}
    return Snapshot(
        people={user: _person(packed) for user, packed in users.items()},
        waiting={user: int(place) for user, place in waiting.items()},
        away=away,
        kept=kept,
        finished=finished,
        holds=holds,
        tickets={ticket: owner.decode().split(":", 1)[1] for ticket, owner in tickets.items()},
        sessions={session: (server, user) for session, (server, user) in owners.items()},
        asked={session: int(text.split(b":")[0].split(b"+")[-1]) for session, text in sessions.items()},
        seats=sorted(seats),
        leases=leases,
        by_server=Counter(seat.split(":", 1)[0] for seat in seats),
    )


class World:
    """One queue with a waiting room on it, and a clock that only tests move.

    Time stands still meanwhile: what is counted by the second does not depend on how busy this machine is. Where other
    processes are at work in the queue, it has to be `real_time`.
    """

    def __init__(self, store: Store, queue: str = "main", *, real_time: bool = False) -> None:
        self.store = store
        self._began_ms = None if real_time else int(time.time() * 1000)
        self.room = WaitingRoom(store)
        self.thing = self.room.queues.thing("default", queue)
        self.queue = queue
        self._waited_ms = 0
        self._stepped_ms = 0
        if not real_time:
            self._set_clock()

    async def configure(self, **changes: object) -> QueueView:
        """Create the queue or change its policy, in a store that has lost nothing."""
        await self.room.queues.index.note_age(new=True)
        return await self.room.queues.configure(self.thing, PolicyChange(**changes), who="test")  # type: ignore[arg-type]

    async def operate(self, action: str, number: int = 0) -> None:
        """Do what an operator does."""
        await self.room.queues.operate(self.thing, action, who="test", number=number)

    async def enter(self, user: str, **more: str) -> str:
        """Enter as an account and give the status."""
        entry = await self.room.entry("default", self.queue, EntryArguments(user, user_id=user, trusted=True, **more))
        return str(entry.status)

    async def state(self, user: str) -> str:
        """Ask for a status."""
        return str((await self.room.status("default", self.queue, user, trusted=True)).status)

    async def ticket(self, user: str) -> str:
        """Ask for the ticket of somebody promoted."""
        status = await self.room.status("default", self.queue, user, trusted=True)
        assert isinstance(status.ticket_id, str), status
        return status.ticket_id

    async def redeem(self, ticket: str, session: str, server: str | None = None) -> int:
        """Spend a ticket."""
        return (await self.room.redeem("default", self.queue, ticket, session, server)).seq

    async def beat(
        self, server: str, capacity: int, most: int | None = None, sessions: list[str] | None = None, as_of: int = 0
    ) -> Beat:
        """Beat for a server; its sessions are reported if given."""
        return await self.room.heartbeat(
            "default", server, HeartbeatRequest(queue=self.queue,capacity=capacity, max_capacity=most, address=f"ws://{server}",
            sessions=sessions, as_of=as_of,
        ))  # fmt: skip

    async def tick(self) -> None:
        """Let a worker visit the queue."""
        await self.room.promotion.visit(self.thing)

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self._waited_ms += ms
        self._set_clock()

    async def live(self, seconds: float, *, every_ms: int = 1000) -> None:
        """Let time pass with a worker that visits the queue."""
        for _ in range(int(seconds * 1000 / every_ms)):
            self.wait(every_ms)
            await self.tick()

    def step_clock(self, ms: int) -> None:
        """Let the server's clock jump."""
        self._stepped_ms += ms
        self._set_clock()

    async def look(self) -> Snapshot:
        """Read everything."""
        return await snapshot(self.store, self.thing)

    def _set_clock(self) -> None:
        if self._began_ms is None:
            self.store.advance_clock(self._waited_ms)
            self.store.step_clock(self._waited_ms + self._stepped_ms)
        else:
            self.store.stop_clock(self._began_ms + self._waited_ms, stepped_ms=self._stepped_ms)


async def enter_all(world: World, *users: str) -> None:
    """Enter one after the other."""
    for user in users:
        await world.enter(user)


def _person(packed: bytes) -> Person:
    state, _, place, shown, seen, eta = HEAD.unpack_from(packed)
    at = HEAD.size
    texts = []
    for _ in range(3):
        length = packed[at]
        texts.append(packed[at + 1 : at + 1 + length].decode())
        at += 1 + length
    ticket, server, session = texts
    return Person(state.decode(), int(place), shown, seen, eta, ticket, server, session, packed[at:].decode())
