"""Seats on servers: offered by heartbeat, held by tickets, taken by sessions, gone with a dead server."""

from __future__ import annotations

import pytest

from headgate.store import Store
from headgate.waiting_room.invariants import inspect
from headgate.waiting_room.model import Reason
from headgate.waiting_room.problems import TicketInvalid, TicketUsed
from headgate.waiting_room.servers import MOST_CHANGED
from headgate.waiting_room.wire import HeartbeatRequest
from tests.store.waiting_world import World


@pytest.fixture
async def world(store: Store) -> World:
    """A queue whose seats are its servers', with four in line."""
    world = World(store)
    await world.configure(grace_seconds=1000)
    for user in "abcd":
        await world.enter(user)
    return world


async def states(world: World, users: str = "abcd") -> str:
    look = await world.look()
    assert look.contradictions() == []
    return "".join(look.people[user].state for user in users)


async def let_in(world: World, user: str, session: str, server: str) -> None:
    """Redeem somebody's ticket, and have the server confirm it with a report."""
    seq = await world.redeem(await world.ticket(user), session, server)
    await world.beat(server, 2, sessions=[session], as_of=seq)


async def test_no_server_no_seat(world: World) -> None:
    await world.live(2)
    assert await states(world) == "WWWW"


async def test_a_server_offers_nothing_until_it_has_said_who_is_inside(world: World) -> None:
    await world.beat("s1", 2)
    await world.live(1)
    assert await states(world) == "WWWW"
    await world.beat("s1", 2, sessions=["known-only-to-the-server"])
    await world.live(1)
    assert await states(world) == "PWWW", "the one inside takes a seat"


async def test_a_seat_is_held_on_the_server_with_the_most_room(world: World) -> None:
    await world.beat("s1", 1, sessions=[])
    await world.beat("s2", 3, sessions=[])
    await world.live(1)
    look = await world.look()
    assert look.by_server == {"s1": 1, "s2": 3}
    assert look.people["a"].server == look.people["b"].server == "s2"
    status = await world.room.status("default", "main", "a", trusted=True)
    assert status.server is not None
    assert status.server.address == "ws://s2"


async def test_packed_fills_the_fullest_first(world: World) -> None:
    await world.configure(placement="packed")
    await world.beat("s1", 2, sessions=[])
    await world.beat("s2", 3, sessions=[])
    await world.live(1)
    look = await world.look()
    assert [look.people[user].server for user in "abcd"] == ["s1", "s1", "s2", "s2"]


async def test_capacity_caps_all_servers_together(world: World) -> None:
    await world.configure(capacity=3)
    await world.beat("s1", 2, sessions=[])
    await world.beat("s2", 2, sessions=[])
    await world.live(2)
    assert await states(world) == "PPPW"


async def test_a_ticket_is_refused_by_another_server_and_not_spent(world: World) -> None:
    await world.beat("s1", 1, sessions=[])
    await world.live(1)
    ticket = await world.ticket("a")
    with pytest.raises(TicketInvalid):
        await world.redeem(ticket, "x1", "s2")
    await world.redeem(ticket, "x1", "s1")
    with pytest.raises(TicketUsed):
        await world.redeem(ticket, "x2", "s1")


async def test_a_dead_servers_seats_are_gone_within_its_lease(world: World) -> None:
    await world.beat("s1", 2, sessions=[])
    await world.live(1)
    await let_in(world, "a", "x1", "s1")
    old = await world.ticket("b")
    await world.live(9)
    assert (await world.look()).by_server == {"s1": 2}
    await world.beat("s2", 1, sessions=[])
    await world.live(4)
    look = await world.look()
    assert (look.by_server, look.leases) == ({"s2": 1}, {"s2"})
    assert await states(world) == "FPWW"
    assert look.people["b"].server == "s2", "the holder was moved"
    assert await world.ticket("b") != old
    with pytest.raises(TicketInvalid):
        await world.redeem(old, "x2", "s1")


async def test_holders_of_a_dead_server_without_room_elsewhere_are_first_in_line(world: World) -> None:
    await world.beat("s1", 2, sessions=[])
    await world.live(12)
    look = await world.look()
    assert look.line == ["a", "b", "c", "d"]
    await world.beat("s2", 1, sessions=[])
    await world.live(1)
    assert await states(world) == "PWWW"


async def test_who_was_never_confirmed_by_a_dead_server_is_called_again_elsewhere(world: World) -> None:
    """The answer to the redeem may have been lost, and the player refused with 503: their session is not over."""
    await world.beat("s1", 2, sessions=[])
    await world.live(1)
    await let_in(world, "a", "x1", "s1")
    old = await world.ticket("b")
    await world.redeem(old, "x2", "s1")
    await world.live(9)
    await world.beat("s2", 1, sessions=[])
    await world.live(2)
    look = await world.look()
    assert await states(world) == "FPWW", "the server had said of the first that it is inside"
    assert (look.leases, look.by_server, look.people["b"].server) == ({"s2"}, {"s2": 1}, "s2")
    new = await world.ticket("b")
    assert new != old
    with pytest.raises(TicketInvalid):
        await world.redeem(old, "x2", "s2")
    await world.redeem(new, "x3", "s2")
    assert await states(world) == "FAWW"
    assert (await inspect(world.store, world.thing)).contradictions == []


async def test_who_was_never_confirmed_by_a_server_that_leaves_is_first_in_line(world: World) -> None:
    await world.beat("s1", 3, sessions=[])
    await world.live(1)
    await let_in(world, "b", "x1", "s1")
    for number, user in enumerate("ca"):
        await world.redeem(await world.ticket(user), f"y{number}", "s1")
    places = {user: person.place for user, person in (await world.look()).people.items()}
    await world.room.remove_server("default", "main", "s1")
    look = await world.look()
    assert await states(world) == "WFWW"
    assert look.seats == []
    assert look.line == ["a", "c", "d"]
    assert {user: person.place for user, person in look.people.items()} == places
    assert str((await world.room.status("default", "main", "a", trusted=True)).status) == "WAITING"
    await world.beat("s2", 1, sessions=[])
    await world.live(1)
    assert await states(world) == "PFWW"
    assert (await inspect(world.store, world.thing)).contradictions == []


async def test_a_redeem_that_was_asked_for_again_after_the_last_report_is_not_confirmed(world: World) -> None:
    """The server asked again because it had no answer, and died before it had one."""
    await world.beat("s1", 1, sessions=[])
    await world.live(1)
    ticket = await world.ticket("a")
    seq = await world.redeem(ticket, "x1", "s1")
    await world.redeem(ticket, "x1", "s1")
    await world.beat("s1", 1, sessions=[], as_of=seq)
    await world.room.remove_server("default", "main", "s1")
    assert await states(world) == "WWWW"


async def test_who_was_never_confirmed_keeps_the_seat_where_seats_are_one_number(world: World) -> None:
    """The seat is the queue's and not the server's: it is theirs also while nobody new is called."""
    await world.configure(seats="fixed", capacity=2)
    await world.beat("s1", 5, sessions=[])
    await world.live(1)
    await let_in(world, "a", "x1", "s1")
    await world.redeem(await world.ticket("b"), "x2", "s1")
    await world.operate("pause")
    await world.configure(capacity=1)
    await world.room.remove_server("default", "main", "s1")
    look = await world.look()
    assert await states(world) == "FPWW"
    assert look.seats == [f":h:{look.people['b'].ticket}"]
    await world.redeem(await world.ticket("b"), "x3", None)
    assert await states(world) == "FAWW"


async def test_whoever_has_entered_elsewhere_since_a_reset_stays_there_when_the_old_server_dies(world: World) -> None:
    await world.beat("s1", 1, sessions=[])
    await world.live(1)
    await world.redeem(await world.ticket("a"), "x1", "s1")
    await world.operate("reset")
    await world.enter("a")
    await world.beat("s2", 1, sessions=[])
    await world.live(1)
    await world.redeem(await world.ticket("a"), "x2", "s2")
    await world.room.remove_server("default", "main", "s1")
    look = await world.look()
    assert (look.seats, await states(world, "a"), look.people["a"].server) == (["s2:s:x2"], "A", "s2")


async def test_a_draining_server_honours_tickets_and_gets_nobody_new(world: World) -> None:
    await world.beat("s1", 3, sessions=[])
    await world.live(1)
    await world.room.remove_server("default", "main", "s1", drain=True)
    await world.room.leave("default", "main", "b", trusted=True)
    await world.live(2)
    assert await states(world) == "PLPW"
    await world.redeem(await world.ticket("a"), "x1", "s1")
    beat = await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=3))
    assert beat.drain


async def test_a_server_that_leaves_takes_its_sessions_along_at_once(world: World) -> None:
    await world.beat("s1", 2, sessions=[])
    await world.live(1)
    await let_in(world, "a", "x1", "s1")
    await world.room.remove_server("default", "main", "s1")
    assert await states(world) == "FWWW"
    assert (await world.look()).seats == []


async def test_a_report_ends_what_it_lacks_but_never_what_was_redeemed_meanwhile(world: World) -> None:
    await world.beat("s1", 3, sessions=[])
    await world.live(1)
    first = await world.redeem(await world.ticket("a"), "x1", "s1")
    await world.redeem(await world.ticket("b"), "x2", "s1")
    await world.beat("s1", 3, sessions=["x1"], as_of=first)
    assert set((await world.look()).sessions) == {"x1", "x2"}
    beat = await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=3))
    await world.beat("s1", 3, sessions=["x2"], as_of=beat.seq)
    assert set((await world.look()).sessions) == {"x2"}
    assert (await world.look()).contradictions() == []


async def test_a_redeem_whose_answer_was_lost_gives_the_ticket_back_when_the_server_reports(world: World) -> None:
    """The server never heard of the session, and says so: the ticket is as good as before, and its seat is held."""
    await world.beat("s1", 2, sessions=[])
    await world.live(1)
    ticket = await world.ticket("a")
    await world.redeem(ticket, "x1", "s1")
    beat = await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=2))
    await world.beat("s1", 2, sessions=[], as_of=beat.seq)
    assert await states(world) == "PPWW"
    assert await world.ticket("a") == ticket
    await world.live(1)
    assert await states(world) == "PPWW", "its seat is nobody else's"
    await world.redeem(ticket, "x2", "s1")
    with pytest.raises(TicketUsed):
        await world.redeem(ticket, "x1", "s1")
    assert (await world.look()).seats == [f"s1:h:{await world.ticket('b')}", "s1:s:x2"]


async def test_a_session_that_its_server_once_reported_ends_when_it_is_reported_no_more(world: World) -> None:
    await world.beat("s1", 1, sessions=[])
    await world.live(1)
    seq = await world.redeem(await world.ticket("a"), "x1", "s1")
    await world.beat("s1", 1, sessions=["x1"], as_of=seq)
    await world.beat("s1", 1, sessions=[], as_of=seq)
    assert await states(world) == "FWWW"


async def test_a_report_from_before_a_redeem_was_repeated_does_not_end_its_session(world: World) -> None:
    """The server asked again for a session whose first answer was lost, and overtook its own report."""
    await world.beat("s1", 1, sessions=[])
    await world.live(1)
    ticket = await world.ticket("a")
    seq = await world.redeem(ticket, "x1", "s1")
    assert await world.redeem(ticket, "x1", "s1") == seq, "the same answer"
    await world.beat("s1", 1, sessions=[], as_of=seq)
    assert await states(world) == "AWWW"


async def test_a_ticket_that_came_back_after_a_possible_loss_is_replaced(world: World) -> None:
    await world.beat("s1", 1, sessions=[])
    await world.live(1)
    ticket = await world.ticket("a")
    await world.redeem(ticket, "x1", "s1")
    await world.store.write(world.thing, "HSET", world.thing.key("meta"), "replid", "another")
    beat = await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=1))
    await world.beat("s1", 1, sessions=[], as_of=beat.seq)
    with pytest.raises(TicketInvalid):
        await world.redeem(ticket, "x2", "s1")
    new = await world.ticket("a")
    assert new != ticket
    await world.redeem(new, "x2", "s1")
    assert await states(world) == "AWWW"


async def test_lowering_the_capacity_evicts_nobody_and_admits_nobody(world: World) -> None:
    await world.beat("s1", 3, sessions=[])
    await world.live(1)
    await world.beat("s1", 1)
    await world.live(2)
    assert await states(world) == "PPPW"
    await world.room.leave("default", "main", "a", trusted=True)
    await world.room.leave("default", "main", "b", trusted=True)
    await world.live(2)
    assert await states(world) == "LLPW"


async def test_who_was_dropped_comes_back_to_another_server_up_to_what_it_takes_at_most(world: World) -> None:
    await world.beat("s1", 1, sessions=[])
    await world.live(1)
    await world.redeem(await world.ticket("a"), "x1", "s1")
    await world.beat("s2", 1, most=2, sessions=[])
    await world.live(1)
    assert await states(world) == "APWW"
    await world.room.end("default", "main", "x1", "s1", Reason.DROPPED)
    await world.room.remove_server("default", "main", "s1", drain=True)
    assert await world.enter("a") == "PROMOTED"
    look = await world.look()
    assert (look.people["a"].server, look.by_server["s2"]) == ("s2", 2)
    await world.live(2)
    assert await states(world) == "PPWW", "promotion itself fills only the capacity"


async def test_capacity_is_clamped_to_the_most_and_may_be_left_out(world: World) -> None:
    await world.beat("s1", 9, most=2, sessions=[])
    [view] = (await world.room.servers("default", "main")).servers
    assert (view.capacity, view.max_capacity) == (2, 2)
    await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=None, max_capacity=3))
    [view] = (await world.room.servers("default", "main")).servers
    assert view.capacity == 3


async def test_a_long_report_is_taken_in_parts_and_no_seat_is_offered_before_all_of_it_is_known(world: World) -> None:
    inside = [f"x{number}" for number in range(MOST_CHANGED * 2 + 1)]
    room = len(inside) + 2
    for known in (MOST_CHANGED, MOST_CHANGED * 2):
        beat = await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=room, sessions=inside, as_of=7))
        assert beat.report, "there is more of it"
        await world.live(1)
        assert len((await world.look()).sessions) == known
        assert await states(world) == "WWWW"
    beat = await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=room, sessions=inside, as_of=7))
    assert not beat.report
    await world.live(1)
    assert await states(world) == "PPWW"

    for left in (MOST_CHANGED + 1, 1, 0):
        beat = await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=2, sessions=[], as_of=8))
        look = await world.look()
        assert len(look.sessions) == left
        assert beat.report == (left > 0)
        assert look.contradictions() == []


async def test_a_dead_servers_holder_is_moved_though_nobody_new_is_called(world: World) -> None:
    """They were called before, so neither a pause nor the rate is about them."""
    await world.beat("s1", 1, sessions=[])
    await world.live(1)
    await world.operate("pause")
    for _ in range(12):
        await world.beat("s2", 1, sessions=[])
        await world.live(1)
    assert (await world.look()).people["a"].server == "s2"
    assert await states(world) == "PWWW"
