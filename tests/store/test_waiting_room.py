"""The waiting room on a real store: places, calls, seats and tickets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from headgate.kit.problems import Forbidden, VersionConflict
from headgate.store import Store
from headgate.waiting_room.model import EntryArguments, Reason
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.problems import (
    NotInLine,
    QueueClosed,
    QueueFull,
    QueueUnknown,
    SessionTaken,
    TicketInvalid,
    TicketUsed,
)
from headgate.waiting_room.promotion import PROMOTE
from tests.store.waiting_world import World, enter_all
from tests.topology import eventually


@pytest.fixture
async def world(store: Store) -> World:
    """A queue with two fixed seats."""
    world = World(store)
    await world.configure(capacity=2)
    return world


@pytest.fixture
async def arena(store: Store) -> World:
    """A queue whose seats are its servers'."""
    world = World(store)
    await world.configure()
    return world


async def test_second_entry_keeps_the_first_place(world: World) -> None:
    room = world.room
    first = await room.entry("default", "main", EntryArguments("Ryan", user_id="ryan", trusted=True))
    await world.enter("apeach")
    again = await room.entry("default", "main", EntryArguments("Ryan", user_id="ryan", trusted=True))
    assert (again.place, again.rank) == (first.place, 1)


async def test_a_thousand_entries_at_once_get_places_in_the_order_they_were_made(world: World) -> None:
    await asyncio.gather(*(world.enter(f"u{number}") for number in range(1000)))
    look = await world.look()
    assert [look.people[user].place for user in look.line] == sorted(look.waiting.values())
    assert len(set(look.waiting.values())) == 1000


async def test_who_enters_twice_among_a_crowd_of_newcomers_keeps_one_place_and_the_true_rank(world: World) -> None:
    room = world.room
    names = [f"u{number}" for number in range(20)]
    entries = await asyncio.gather(
        *(
            room.entry("default", "main", EntryArguments("player", user_id=name, trusted=True))
            for name in (*names, *names)
        )
    )
    first, again = entries[:20], entries[20:]
    assert [entry.place for entry in first] == [entry.place for entry in again]
    assert [entry.rank for entry in first] == [entry.rank for entry in again] == list(range(1, 21))
    assert len((await world.look()).line) == 20


async def test_a_queue_that_nobody_made_is_unknown(store: Store) -> None:
    world = World(store, "nowhere")
    await world.room.queues.index.note_age(new=True)
    with pytest.raises(QueueUnknown):
        await world.enter("ryan")


async def test_a_full_queue_and_a_closed_one_refuse_newcomers_only(world: World) -> None:
    await world.configure(max_length=1)
    await world.enter("ryan")
    with pytest.raises(QueueFull):
        await world.enter("apeach")
    await world.configure(max_length=None)
    await world.operate("drain")
    with pytest.raises(QueueClosed):
        await world.enter("apeach")
    assert await world.enter("ryan") == "WAITING"
    await world.operate("resume")
    assert await world.enter("apeach") == "WAITING"


async def test_an_anonymous_waiter_is_known_by_their_secret_id(world: World) -> None:
    room = world.room
    entry = await room.entry("default", "main", EntryArguments("Ryan"))
    again = await room.entry("default", "main", EntryArguments("Ryan", user_id=entry.user_id))
    assert again.place == entry.place
    assert (await room.status("default", "main", entry.user_id)).rank == 1
    with pytest.raises(Forbidden):
        await room.entry("default", "main", EntryArguments("Ryan", user_id="chosen-by-a-stranger"))
    with pytest.raises(NotInLine):
        await room.status("default", "main", "nobody")


async def test_an_accounts_place_is_not_told_without_proof(world: World) -> None:
    room = world.room
    entry = await room.entry("default", "main", EntryArguments("Ryan", user_id="ryan", trusted=True))
    for ask in (
        room.status("default", "main", "ryan"),
        room.leave("default", "main", "ryan"),
        room.entry("default", "main", EntryArguments("Ryan", user_id="ryan")),
    ):
        with pytest.raises(Forbidden):
            await ask
    assert (await room.status("default", "main", "ryan", place_token=entry.place_token)).rank == 1
    other = await room.entry("default", "main", EntryArguments("Apeach", user_id="apeach", trusted=True))
    with pytest.raises(Forbidden):
        await room.status("default", "main", "ryan", place_token=other.place_token)


async def test_an_idempotency_key_makes_a_retry_the_same_waiter(world: World) -> None:
    first = await world.room.entry("default", "main", EntryArguments("Ryan", idempotency_key="retry-0001"))
    again = await world.room.entry("default", "main", EntryArguments("Ryan", idempotency_key="retry-0001"))
    other = await world.room.entry("default", "main", EntryArguments("Ryan", idempotency_key="retry-0002"))
    assert first.user_id == again.user_id != other.user_id


async def test_the_front_is_called_and_holds_a_seat(world: World) -> None:
    await enter_all(world, "a", "b", "c")
    await world.tick()
    assert [await world.state(user) for user in "abc"] == ["PROMOTED", "PROMOTED", "WAITING"]
    status = await world.room.status("default", "main", "c", trusted=True)
    assert status.rank == 1


async def test_a_newcomer_never_overtakes_when_a_seat_frees_between_ticks(world: World) -> None:
    await enter_all(world, "a", "b", "c")
    await world.tick()
    await world.room.leave("default", "main", "a", trusted=True)
    await world.enter("late")
    await world.tick()
    assert await world.state("c") == "PROMOTED"
    assert await world.state("late") == "WAITING"


async def test_one_ticket_lets_one_of_a_hundred_in(world: World) -> None:
    await world.enter("a")
    await world.tick()
    ticket = await world.ticket("a")
    outcomes = await asyncio.gather(
        *(world.redeem(ticket, f"s{number}") for number in range(100)), return_exceptions=True
    )
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, TicketUsed) for outcome in outcomes) == 99
    assert (await world.look()).contradictions() == []


async def test_two_tickets_cannot_share_a_session(world: World) -> None:
    await enter_all(world, "a", "b")
    await world.tick()
    await world.redeem(await world.ticket("a"), "s1")
    with pytest.raises(SessionTaken):
        await world.redeem(await world.ticket("b"), "s1")


async def test_a_ticket_is_void_after_its_owner_left(world: World) -> None:
    await world.enter("a")
    await world.tick()
    ticket = await world.ticket("a")
    await world.room.leave("default", "main", "a", trusted=True)
    await world.room.leave("default", "main", "a", trusted=True)
    with pytest.raises(TicketInvalid):
        await world.redeem(ticket, "s1")
    assert (await world.look()).seats == []
    assert await world.state("a") == "LEFT"


async def test_a_ghost_is_away_when_called_and_comes_back_to_its_place(world: World) -> None:
    await enter_all(world, "ghost", "b", "c", "d")
    await world.configure(capacity=0)
    for _ in range(130):
        await world.live(1)
        for user in "bcd":
            await world.state(user)
    await world.configure(capacity=1)
    await world.live(1)
    look = await world.look()
    assert look.people["ghost"].state == "Y"
    assert look.people["b"].state == "P"
    rank_of_c = (await world.room.status("default", "main", "c", trusted=True)).rank
    back = await world.room.status("default", "main", "ghost", trusted=True)
    assert (str(back.status), back.rank) == ("WAITING", 1)
    assert (await world.room.status("default", "main", "c", trusted=True)).rank == rank_of_c, "a shown rank never rises"
    await world.configure(capacity=2)
    await world.live(1)
    assert await world.state("ghost") == "PROMOTED"


async def test_who_stays_away_is_abandoned(world: World) -> None:
    await world.configure(capacity=0, grace_seconds=2, keep_seconds=3)
    await world.enter("ghost")
    await world.live(4)
    await world.configure(capacity=1)
    await world.live(1)
    assert (await world.look()).people["ghost"].state == "Y"
    await world.live(4)
    assert await world.state("ghost") == "ABANDONED"
    assert await world.enter("ghost") == "WAITING"


async def test_a_dropped_session_keeps_its_seat_for_its_owner(world: World) -> None:
    await world.configure(capacity=1)
    await enter_all(world, "a", "c")
    await world.tick()
    await world.redeem(await world.ticket("a"), "s1")
    await world.room.end("default", "main", "s1", None, Reason.DROPPED)
    await world.live(1)
    assert await world.state("c") == "WAITING", "the seat is kept"
    assert await world.enter("a") == "PROMOTED"
    await world.redeem(await world.ticket("a"), "s2")
    await world.room.end("default", "main", "s2", None, Reason.DROPPED)
    for _ in range(121):
        await world.live(1)
        await world.state("c")
    assert await world.state("c") == "PROMOTED", "after reentrySeconds the seat is free"
    assert await world.state("a") == "FINISHED"


async def test_an_ended_session_frees_its_seat_once(world: World) -> None:
    await enter_all(world, "a", "b", "c", "d")
    await world.tick()
    await world.redeem(await world.ticket("a"), "s1")
    for _ in range(3):
        await world.room.end("default", "main", "s1", None, Reason.LEFT)
    await world.live(1)
    look = await world.look()
    assert [look.people[user].state for user in "abcd"] == ["F", "P", "P", "W"]


async def test_a_session_without_a_server_ends_unless_renewed(world: World) -> None:
    await world.configure(session_ttl_seconds=5)
    await world.enter("a")
    await world.tick()
    await world.redeem(await world.ticket("a"), "s1")
    for _ in range(8):
        await world.live(1)
        assert await world.room.renew("default", "main", "s1") == ("a", 5.0)
    await world.live(6)
    assert await world.state("a") == "FINISHED"


async def test_a_rate_holds_with_any_number_of_workers(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, rate_per_second=5, batch=1000)
    await enter_all(world, *(f"u{number}" for number in range(60)))
    called = []
    for _ in range(5):
        world.wait(1000)
        await asyncio.gather(*(world.tick() for _ in range(4)))
        called.append(len((await world.look()).holds))
    # Between two visits a hair more than a second may pass.
    assert [later - earlier for earlier, later in zip([0, *called], called, strict=False)] == [5, 5, 5, 5, 5]


async def test_a_long_pause_stores_up_no_burst(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, rate_per_second=5, burst=8, batch=1000, grace_seconds=1000)
    await enter_all(world, *(f"u{number}" for number in range(60)))
    await world.operate("pause")
    await world.live(60)
    assert (await world.look()).holds == set()
    await world.operate("resume")
    await world.tick()
    assert len((await world.look()).holds) == 8


async def test_a_batch_is_for_a_tick_and_not_for_a_worker(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, batch=3)
    await enter_all(world, *(f"u{number}" for number in range(20)))
    world.wait(1000)
    await asyncio.gather(*(world.tick() for _ in range(4)))
    assert len((await world.look()).holds) == 3


async def test_admit_calls_people_through_a_pause_but_not_past_the_seats(world: World) -> None:
    await enter_all(world, "a", "b", "c", "d")
    await world.operate("pause")
    await world.operate("admit", 1)
    await world.tick()
    await world.live(2)
    assert len((await world.look()).holds) == 1
    await world.operate("admit", 5)
    await world.live(2)
    assert len((await world.look()).holds) == 2


async def test_nobody_is_called_before_the_queue_opens(world: World) -> None:
    await world.configure(opens_at=datetime.now(UTC) + timedelta(seconds=30))
    await world.enter("a")
    await world.live(20)
    assert await world.state("a") == "WAITING"
    await world.live(15)
    assert await world.state("a") == "PROMOTED"


async def test_two_operators_cannot_overwrite_each_other(world: World) -> None:
    queues = world.room.queues
    version = (await queues.view(world.thing)).version
    await queues.configure(world.thing, PolicyChange(batch=7), who="ann", expected=version)
    with pytest.raises(VersionConflict):
        await queues.configure(world.thing, PolicyChange(batch=8), who="bob", expected=version)
    assert (await queues.view(world.thing)).batch == 7
    await asyncio.gather(*(world.configure(batch=number) for number in range(1, 5)))
    records = (await queues.audit(world.thing)).records
    assert len(records) == 6
    assert (records[-2].who, records[-2].new["batch"], records[-2].old["batch"]) == ("ann", 7, 100)


async def test_the_board_lets_everybody_find_their_rank(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=0)
    await enter_all(world, *(f"u{number}" for number in range(500)))
    board = await world.room.board("default", "main")
    assert (board.waiting, len(board.marks)) == (500, 64)
    look = await world.look()
    for place, rank in board.marks:
        assert look.waiting[look.line[rank - 1]] == place
    assert (board.marks[0][1], board.marks[-1][1]) == (1, 500)


async def test_an_eta_comes_from_measured_admissions(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=1000, rate_per_second=2, grace_seconds=1000)
    await enter_all(world, *(f"u{number}" for number in range(100)))
    assert (await world.room.status("default", "main", "u99", trusted=True)).eta is None
    await world.live(20)
    status = await world.room.status("default", "main", "u99", trusted=True)
    assert status.rank == 60
    assert status.eta is not None
    assert status.eta.low < 30 < status.eta.high
    assert abs(status.eta.seconds - 30) < 5


async def test_minutes_are_recorded(world: World) -> None:
    await world.configure(capacity=10)
    await enter_all(world, "a", "b")
    await world.tick()
    await world.live(65)
    minutes = (await world.room.queues.history(world.thing, 5)).minutes
    assert sum(minute.admitted for minute in minutes) == 2
    assert minutes[0].mean_wait_seconds is not None


async def test_an_idle_queue_is_visited_by_nobody_and_woken_by_an_entry(world: World) -> None:
    promotion, index = world.room.promotion, world.room.queues.index
    await promotion.visit_due()
    assert list(await index.claim()) == []
    world.wait(3000)
    assert list(await index.claim()) == [], "nothing is due however long nobody comes"
    await world.enter("a")

    async def due() -> bool:
        await promotion.visit_due()
        return await world.state("a") == "PROMOTED"

    await eventually(due, 5)
    assert await world.state("a") == "PROMOTED"


async def test_a_step_sent_again_after_a_lost_reply_makes_no_ticket_twice(store: Store) -> None:
    world = World(store)
    await world.configure(capacity=100, batch=2, tick_ms=100)
    await enter_all(world, "a", "b", "c", "d")
    for _ in range(2):
        await store.run(PROMOTE, world.thing, 200, 1000, "the same seed")
        world.wait(100)
    look = await world.look()
    assert len(look.holds) == 4
    assert look.contradictions() == []


async def test_a_queue_that_the_index_has_lost_is_visited_again(world: World) -> None:
    await world.configure(capacity=0)
    await world.enter("a")
    await world.room.promotion.visit_due()
    home = world.store.thing("index", "default", "queue")
    for key in ("names", "due", "stamps"):
        await world.store.write(home, "DEL", home.key(key))
    world.wait(6000)
    await eventually(lambda: _asks_and_is_listed(world), 5)


async def _asks_and_is_listed(world: World) -> bool:
    await world.state("a")
    return world.thing in await world.room.queues.index.list("default")
