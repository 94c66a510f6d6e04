"""How long a ticket holds its seat: from the answer that shows it, and never at the cost of a place that nobody told of it."""

from __future__ import annotations

import pytest

from headgate.store import Store
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.problems import TicketExpired
from tests.store.waiting_world import World, enter_all


@pytest.fixture
async def world(store: Store) -> World:
    """A queue with two fixed seats."""
    world = World(store)
    await world.configure(capacity=2)
    return world


async def test_an_unused_ticket_expires_and_its_seat_is_free_within_a_second(world: World) -> None:
    await enter_all(world, "a", "b", "c")
    await world.tick()
    ticket = await world.ticket("a")
    for _ in range(60):
        await world.live(1)
        await world.state("c")
    with pytest.raises(TicketExpired):
        await world.redeem(ticket, "s1")
    status = await world.room.status("default", "main", "a", trusted=True)
    assert (str(status.status), status.ticket_id) == ("EXPIRED", status.ticket)  # both absent
    assert status.advice
    await world.live(1)
    assert await world.state("c") == "PROMOTED"
    assert (await world.room.queues.view(world.thing)).figures.expired_total == 2


async def test_a_tickets_time_counts_from_the_answer_that_shows_it(world: World) -> None:
    await world.enter("a")
    await world.live(50)
    shown = await world.room.status("default", "main", "a", trusted=True)
    assert shown.expires_in_ms == 60_000
    await world.live(40)
    again = await world.room.status("default", "main", "a", trusted=True)
    assert again.ticket_id == shown.ticket_id
    assert isinstance(again.expires_in_ms, int)
    assert again.expires_in_ms <= 20_000, "asking again does not hold a seat for ever"
    await world.redeem(await world.ticket("a"), "s1")


async def test_who_never_saw_their_ticket_loses_the_seat_but_not_the_place(world: World) -> None:
    await enter_all(world, "a", "b", "c", "d")
    await world.tick()  # two seats: a and b are called, and hear nothing of it
    places = {user: person.place for user, person in (await world.look()).people.items()}
    for _ in range(62):
        await world.live(1)
        await world.state("c")
        await world.state("d")
    assert await world.state("c") == "PROMOTED", "a seat is not held for those who do not come"
    look = await world.look()
    assert {look.people["a"].state, look.people["b"].state} == {"Y"}
    assert look.contradictions() == []
    assert (await world.room.queues.view(world.thing)).figures.expired_total == 2
    status = await world.room.status("default", "main", "a", trusted=True)
    assert (str(status.status), status.rank, status.place) == ("WAITING", 1, places["a"])
    await world.redeem(await world.ticket("c"), "s1")
    await world.room.end("default", "main", "s1")
    await world.live(1)
    assert await world.state("a") == "PROMOTED", "back at the head of the line"


async def test_who_asks_just_after_their_ticket_ran_out_unseen_still_gets_in(world: World) -> None:
    await world.enter("a")
    await world.tick()
    for _ in range(29):
        await world.live(2, every_ms=2000)
    world.wait(3000)  # the visit that would take the ticket back is late
    await world.redeem(await world.ticket("a"), "s1")
    assert (await world.look()).contradictions() == []


async def test_a_shown_rank_does_not_rise_when_many_come_back_who_never_saw_their_tickets(world: World) -> None:
    """They entered one by one and were told to be first; now they are all in line again."""
    await world.configure(capacity=5)
    for number in range(5):
        entry = await world.room.entry("default", "main", EntryArguments("n", user_id=f"u{number}", trusted=True))
        assert entry.rank == 1
        await world.tick()
        await world.live(1)
    await world.live(70)
    for number in range(5):
        status = await world.room.status("default", "main", f"u{number}", trusted=True)
        assert (str(status.status), status.rank) == ("WAITING", 1)
