"""Any interleaving of what people, servers, workers and operators do, against a model that knows only the rules."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headgate.kit.problems import StoreFull
from headgate.store import StoreSettings, open_store
from headgate.waiting_room.invariants import inspect
from headgate.waiting_room.model import EntryArguments, Reason
from headgate.waiting_room.problems import QueueReset, TicketExpired, TicketInvalid, TicketUsed
from headgate.waiting_room.wire import Entry
from tests.store.full import full as full_store
from tests.store.test_waiting_room_loss import lose_everything
from tests.store.waiting_world import Snapshot, World
from tests.topology import Topology, eventually

T = TypeVar("T")
EVERYBODY = [f"u{number}" for number in range(8)]
ALL_SERVERS = ["s1", "s2", "s3"]
USERS = st.sampled_from(EVERYBODY)
SERVERS = st.sampled_from(ALL_SERVERS)
SEATS = st.sampled_from([1, 2, 3, 0])
LEASE_SECONDS = 10


def action(name: str, weight: int, **arguments: st.SearchStrategy[Any]) -> list[st.SearchStrategy[Any]]:
    """Something that may happen, and how often."""
    return [st.tuples(st.just(name), st.fixed_dictionaries(arguments))] * weight


# One rule with weights: left to itself, Hypothesis tries long runs of one thing and hardly ever gets anybody inside.
ACTIONS = st.one_of(
    *action("rush", 3, users=st.just(EVERYBODY) | st.lists(USERS, min_size=1, max_size=4, unique=True)),
    *action("ask", 1, user=USERS),
    *action("leave", 1, user=USERS),
    *action("tick", 4, workers=st.integers(1, 3)),
    *action("redeem", 8, which=st.integers(0, 5), contenders=st.integers(1, 3), server=st.none() | SERVERS),
    *action("end", 3, which=st.integers(0, 5), reason=st.sampled_from(Reason), again=st.booleans()),
    *action("beat", 4, server=SERVERS, capacity=SEATS, room=st.integers(0, 2), report=st.just(True) | st.booleans()),
    *action("leave_server", 1, server=SERVERS, drain=st.booleans()),
    *action("change_capacity", 1, capacity=SEATS),
    *action("change_rate", 1, rate=st.sampled_from([None, None, None, 0, 1, 5])),
    *action("switch", 1, action=st.sampled_from(["pause", "resume", "resume"])),
    *action("admit", 1, number=st.integers(1, 3)),
    *action("live", 3, seconds=st.integers(1, 12), beating=st.just(set(ALL_SERVERS)) | st.sets(SERVERS),
            asking=st.just(set(EVERYBODY)) | st.sets(USERS)),
    *action("lose_history", 1),
    *action("lose_everything", 1, order=st.permutations(EVERYBODY), returning=st.integers(0, 8), late=st.integers(1, 6)),
    *action("fill", 1, full=st.booleans()),
    *action("redeem_unheard", 2, which=st.integers(0, 5)),
    *action("lose_server", 2, server=SERVERS, reported=st.integers(0, 2), signs_off=st.booleans(), beating=st.sets(SERVERS)),
    *action("step_clock", 1, step=st.sampled_from([-3_600_000, 3_600_000, 20_000])),
)  # fmt: skip


class Model:
    """The expected state: seats on offer, tickets redeemed, and the states that each user may be in."""

    def __init__(self) -> None:
        self.offers: dict[str, int] = {}  # what each server last said, while it is not draining
        self.beaten: dict[str, int] = {}
        self.confirmed: dict[str, int] = {}  # by server: up to which redeem its reports have told who is inside
        self.seconds = 0
        self.fixed: int | None = None
        self.spent: dict[str, str] = {}
        self.known: set[str] = set()

    def check_admission(self, before: Snapshot, after: Snapshot) -> None:
        """No admission raises sessions and holds above the capacity in force, per server and in all."""
        for server, seats in after.by_server.items():
            alive = self.seconds - self.beaten.get(server, 0) <= LEASE_SECONDS
            limit = 10**9 if self.fixed is not None else self.offers.get(server, 0) if alive else 0
            assert seats <= max(before.by_server[server], limit), (server, before.seats, after.seats, limit)
        if self.fixed is not None:
            assert len(after.seats) <= max(len(before.seats), self.fixed), (before.seats, after.seats)

    def check_order(self, before: Snapshot, after: Snapshot) -> None:
        """Check that promoted users were ahead of all users who still wait."""
        called = [user for user in before.waiting if after.people[user].state == "P"]
        for user in called:
            overtaken = [other for other, place in after.waiting.items() if place < before.waiting[user]]
            assert not overtaken, (user, overtaken)

    def check_people(self, before: Snapshot, after: Snapshot) -> None:
        """Nobody is lost, nobody is in two states, places do not change while somebody is in line."""
        assert after.contradictions() == []
        assert set(after.people) == self.known
        for user, place in after.waiting.items():
            if user in before.waiting:
                assert place == before.waiting[user]

    def check_tickets(self, before: Snapshot, after: Snapshot) -> None:
        """A ticket that its owner never saw costs them no place."""
        for user, person in before.people.items():
            if person.state == "P" and not person.eta:
                assert after.people[user].state in "PYW", user
                assert after.people[user].place == person.place

    def confirm(self, server: str, as_of: int) -> None:
        """A server's report says who of those redeemed until then is inside."""
        self.confirmed[server] = max(self.confirmed.get(server, 0), as_of)

    def check_cleared(self, before: Snapshot, after: Snapshot) -> None:
        """Check users of a removed server: confirmed sessions have finished, the others are called again or wait at their place."""
        cleared = before.leases - after.leases
        for user, person in before.people.items():
            if person.state != "A" or person.server not in cleared:
                continue
            now = after.people[user]
            if before.asked[person.session] <= self.confirmed.get(person.server, 0):
                assert now.state == "F", (user, now)
            else:
                assert now.state in "PW", (user, now)
                assert now.place == person.place
                assert person.ticket not in after.tickets, "the ticket that was spent stays spent"
        for server in cleared:
            self.confirmed.pop(server, None)

    def spend(self, ticket: str, session: str) -> None:
        """A ticket lets one session in."""
        assert self.spent.setdefault(ticket, session) == session


class WaitingRoomMachine(RuleBasedStateMachine):
    """The whole waiting room of one queue."""

    server: Topology

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        prefix = f"t{secrets.token_hex(4)}"
        self.opened = open_store(StoreSettings(url=self.server.url, prefix=prefix))
        self.model = Model()
        self.world = self.do(self.build())
        self.tickets: list[str] = []
        self.sessions: list[str] = []
        self.seqs: dict[str, int] = {}
        self.entries: dict[str, Entry] = {}
        self.inside: dict[str, set[str]] = {}  # by server: sessions that the store has lost
        self.memory = ExitStack()
        self.full = False
        self.before: Snapshot | None = None

    async def build(self) -> World:
        return World(await self.opened.__aenter__())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.memory.close()
        self.do(self.opened.__aexit__(None, None, None))
        self.runner.close()

    @rule(action=ACTIONS)
    def act(self, action: tuple[str, dict[str, Any]]) -> None:
        name, arguments = action
        getattr(self, name)(**arguments)

    @initialize(capacity=st.none() | SEATS, batch=st.integers(1, 5), packed=st.booleans())
    def create(self, capacity: int | None, batch: int, packed: bool) -> None:
        self.model.fixed = capacity
        self.do(
            self.world.configure(
                capacity=capacity,
                seats="servers" if capacity is None else "fixed",
                batch=batch,
                placement="packed" if packed else "most-free",
                ticket_ttl_seconds=10,
                session_ttl_seconds=30,
                grace_seconds=8,
                keep_seconds=6,
                reentry_seconds=5,
                finished_seconds=31_536_000,
            )
        )
        self.rush(["u0", "u1", "u2"])
        self.beat("s1", 2, 1, report=True)

    def rush(self, users: list[str]) -> None:
        for user in users:
            self.enter(user)

    def enter(self, user: str) -> None:
        before = self.do(self.world.look())
        was = before.people.get(user)
        entering = self.world.room.entry("default", "main", EntryArguments(user, user_id=user, trusted=True))
        if self.full and (was is None or was.state in "EFLB"):
            with pytest.raises(StoreFull):
                self.do(entering)
            assert self.do(self.world.look()) == before, "nothing is written for who is refused"
            return
        entry = self.entries[user] = self.do(entering)
        status = str(entry.status)
        self.model.known.add(user)
        after = self.do(self.world.look())
        if was is None or was.state in "EFLB":
            assert status == "WAITING"
            assert after.line[-1] == user, "a newcomer stands last"
        elif was.state in "WY":
            assert status == "WAITING"
            assert after.people[user].place == was.place
        elif was.state == "K":
            assert status in {"PROMOTED", "WAITING"}
        assert len(after.seats) <= len(before.seats), "an entry takes no seat"

    def ask(self, user: str) -> None:
        if user in self.model.known:
            before = self.do(self.world.look()).people[user]
            status = self.do(self.world.room.status("default", "main", user, trusted=True))
            if before.state in "WYP" and before.shown:
                assert status.rank <= before.shown, "a shown rank never rises"
            if isinstance(status.ticket_id, str):
                self.tickets.append(status.ticket_id)

    def leave(self, user: str) -> None:
        self.do(self.world.room.leave("default", "main", user, trusted=True))

    def tick(self, workers: int) -> None:
        before = self.do(self.world.look())

        async def all_at_once() -> None:
            await asyncio.gather(*(self.world.tick() for _ in range(workers)))

        self.do(all_at_once())
        after = self.do(self.world.look())
        self.model.check_admission(before, after)
        self.model.check_order(before, after)
        self.model.check_tickets(before, after)
        self.model.check_cleared(before, after)
        for user in after.people:
            self.ask(user)

    def redeem(self, which: int, contenders: int, server: str | None) -> None:
        if not self.tickets:
            return
        ticket = self.tickets[-1 - which % len(self.tickets)]
        names = [f"x{len(self.sessions)}-{number}" for number in range(contenders)]
        before = self.do(self.world.look())

        async def all_at_once() -> list[int | BaseException]:
            return await asyncio.gather(
                *(self.world.redeem(ticket, name, server) for name in names), return_exceptions=True
            )

        entered = 0
        for name, outcome in zip(names, self.do(all_at_once()), strict=True):
            if isinstance(outcome, int):
                entered += 1
                self.model.spend(ticket, name)
                self.sessions.append(name)
                assert self.do(self.world.redeem(ticket, name, server)) == outcome, "the same session may ask again"
                owner, _ = self.do(self.world.look()).sessions[name]
                self.seqs[owner] = max(self.seqs.get(owner, 0), outcome)
            else:
                assert isinstance(outcome, TicketInvalid | TicketUsed | TicketExpired), outcome
        assert entered <= 1
        after = self.do(self.world.look())
        assert len(after.seats) <= len(before.seats), "a redeem takes no seat that was not held"

    def end(self, which: int, reason: Reason, again: bool) -> None:
        if not self.sessions:
            return
        session = self.sessions[-1 - which % len(self.sessions)]
        for inside in self.inside.values():
            inside.discard(session)
        for _ in range(1 + again):
            self.do(self.world.room.end("default", "main", session, None, reason))
        assert session not in self.do(self.world.look()).sessions

    def beat(self, server: str, capacity: int, room: int, report: bool) -> None:
        look = self.do(self.world.look())
        known = [name for name, (owner, _) in look.sessions.items() if owner == server]
        inside = sorted({*known, *self.inside.get(server, ())}) if report else None
        as_of = self.seqs.get(server, 0)
        beat = self.do(self.world.beat(server, capacity, capacity + room, sessions=inside, as_of=as_of))
        self.seqs[server] = max(as_of, beat.seq)  # nothing is on its way, so its next report is of all of them
        if report:
            self.model.confirm(server, as_of)
        views = {view.instance_id: view for view in self.do(self.world.room.servers("default", "main")).servers}
        # What the store may fill now; an entry that comes back to a kept seat may use the room above it.
        open_ = views[server].reported and not views[server].draining
        self.model.offers[server] = capacity if open_ else 0
        self.model.beaten[server] = self.model.seconds

    def leave_server(self, server: str, drain: bool) -> None:
        before = self.do(self.world.look())
        self.model.offers[server] = 0
        self.inside.pop(server, None)
        self.do(self.world.room.remove_server("default", "main", server, drain=drain))
        after = self.do(self.world.look())
        self.model.check_admission(before, after)
        self.model.check_cleared(before, after)
        if not drain:
            assert after.by_server[server] == 0, "a server that left has no seat"

    def change_capacity(self, capacity: int) -> None:
        if self.model.fixed is not None:
            self.model.fixed = capacity
            before = self.do(self.world.look())
            self.do(self.world.configure(capacity=capacity))
            assert self.do(self.world.look()).seats == before.seats, "lowering it evicts nobody"

    def change_rate(self, rate: float | None) -> None:
        self.do(self.world.configure(rate_per_second=rate))

    def switch(self, action: str) -> None:
        self.do(self.world.operate(action))

    def admit(self, number: int) -> None:
        self.do(self.world.operate("admit", number))

    def live(self, seconds: int, beating: set[str], asking: set[str]) -> None:
        for _ in range(seconds):
            before = self.do(self.world.look())
            self.world.wait(1000)
            self.model.seconds += 1
            self.do(self.world.tick())
            after = self.do(self.world.look())
            self.model.check_admission(before, after)
            self.model.check_order(before, after)
            self.model.check_tickets(before, after)
            self.model.check_cleared(before, after)
            for server in beating & after.leases:
                self.beat(server, self.model.offers.get(server, 0), 1, report=False)
            for user in sorted(asking):
                self.ask(user)

    def step_clock(self, step: int) -> None:
        before = self.do(self.world.look())
        self.world.step_clock(step)
        self.do(self.world.tick())
        after = self.do(self.world.look())
        self.model.check_admission(before, after)
        self.model.check_cleared(before, after)
        for user, person in before.people.items():
            if person.state == "W":
                assert after.people[user].state in "WPY", "a step of the clock abandons nobody"

    def lose_history(self) -> None:
        """Let the queue believe that the store failed over: tickets are void, servers have to report."""
        thing = self.world.thing
        before, full = self.do(self.world.look()), self.full
        self.fill(False)
        self.do(self.world.store.write(thing, "HSET", thing.key("meta"), "replid", secrets.token_hex(8)))
        self.fill(full)
        for person in before.people.values():
            if person.state == "P":
                with pytest.raises((TicketInvalid, TicketExpired)):
                    self.do(self.world.redeem(person.ticket, "void"))
        self.model.offers = dict.fromkeys(self.model.offers, 0)
        assert self.do(self.world.look()).seats == before.seats, "holders keep their seats"

    def lose_everything(self, order: list[str], returning: int, late: int) -> None:
        """Flush the queue: whoever shows a place token and has not entered stands where they stood, in whatever order they ask."""
        before = self.do(self.world.look())
        standing = {user for user, person in before.people.items() if person.state in "WPY"}
        room, thing = self.world.room, self.world.thing
        view = self.do(room.queues.view(thing))  # what it has to write back is not older than a minute
        called = {user for user in standing if before.people[user].place <= view.serving}
        over = set(before.people) - standing

        def heard() -> bool:
            known = room.queues._memory.get(thing)
            return known is not None and called <= set(known.promoted) and not over & set(known.promoted)

        self.do(eventually(heard, 5, "every hint has arrived"))
        self.do(lose_everything(self.world))
        self.do(room.queues.view(thing))  # whoever looks first writes it back
        for session, (server, _) in before.sessions.items():
            self.inside.setdefault(server, set()).add(session)
        offers, self.model.offers, self.model.beaten, self.model.confirmed = self.model.offers, {}, {}, {}
        self.model.known, self.before = set(), None
        for number, user in enumerate(order[:returning]):
            if number == late:  # the others come when those behind them may have been called already
                for server, capacity in offers.items():
                    self.beat(server, capacity, 1, report=True)
                self.live(12, set(offers), set(order[:number]))
            self.come_back(user, before, view.serving)
        look = self.do(self.world.look())
        assert look.line == sorted(look.waiting, key=lambda user: before.people[user].place)
        for person in before.people.values():
            if person.ticket:
                with pytest.raises(TicketInvalid):
                    self.do(self.world.redeem(person.ticket, "void"))

    def come_back(self, user: str, before: Snapshot, serving: int) -> None:
        was, entry = before.people.get(user), self.entries.get(user)
        if was is None or entry is None:
            return
        asking = self.world.room.status("default", "main", user, place_token=entry.place_token)
        if was.state in "WPY":
            assert self.do(asking).place == was.place
            self.model.known.add(user)
        elif was.place <= serving:
            with pytest.raises(QueueReset):
                self.do(asking)
        else:
            asking.close()  # whoever left unheard of might have lost the place as well

    def fill(self, full: bool) -> None:
        """Let the store be out of memory, or no longer."""
        self.memory.close()
        self.full = full
        if full:
            self.memory.enter_context(full_store(self.server))

    def redeem_unheard(self, which: int) -> None:
        """Let a server miss the answer to a redeem, and report: the ticket is as good as before."""
        before = self.do(self.world.look())
        people = [person for person in before.people.values() if person.state == "P" and person.server in before.leases]
        if not people:
            return
        person = people[which % len(people)]
        try:
            self.seqs[person.server] = self.do(self.world.redeem(person.ticket, "unheard", person.server))
        except (TicketInvalid, TicketExpired):
            return
        inside = [name for name, (owner, _) in before.sessions.items() if owner == person.server]
        inside = sorted({*inside, *self.inside.get(person.server, ())})
        self.do(
            self.world.beat(
                person.server, self.model.offers.get(person.server, 0), sessions=inside, as_of=self.seqs[person.server]
            )
        )
        self.model.confirm(person.server, self.seqs[person.server])
        after = self.do(self.world.look())
        assert after.seats == before.seats
        assert person.ticket in after.tickets

    def lose_server(self, server: str, reported: int, signs_off: bool, beating: set[str]) -> None:
        """Let whoever is called enter a server that reports some of them, and is gone after that."""
        self.beat(server, 2, 1, report=True)
        self.rush(EVERYBODY[:4])
        self.tick(1)
        people = self.do(self.world.look()).people.values()
        called = [person for person in people if person.state == "P" and person.server in ("", server)]
        for number, person in enumerate(called):
            if number == reported:
                self.beat(server, 2, 1, report=False)  # its answer says what the next report is of
                self.beat(server, 2, 1, report=True)
            session = f"x{len(self.sessions)}-0"
            try:
                self.do(self.world.redeem(person.ticket, session, server))
            except (TicketInvalid, TicketExpired):
                continue
            self.model.spend(person.ticket, session)
            self.sessions.append(session)
        if signs_off:
            self.leave_server(server, drain=False)
        else:
            self.live(LEASE_SECONDS + 1, beating - {server}, set(EVERYBODY))

    @invariant()
    def nobody_is_lost(self) -> None:
        after = self.do(self.world.look())
        self.model.check_people(self.before or after, after)
        self.before = after

    @invariant()
    def doctor_finds_no_contradiction(self) -> None:
        assert self.do(inspect(self.world.store, self.world.thing)).contradictions == []


def test_any_interleaving_keeps_every_promise(server: Topology, examples: Callable[[int], int]) -> None:
    WaitingRoomMachine.server = server
    run_state_machine_as_test(
        WaitingRoomMachine,
        settings=settings(
            max_examples=examples(40), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
