"""Clocks that step, outages, lost data: nobody is abandoned for it, no ticket works twice, old places come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest

from headgate.store import Store
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.problems import NotInLine, QueueClosed, QueueReset, QueueUnknown, TicketInvalid
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import HeartbeatRequest
from tests.store.waiting_world import World
from tests.topology import eventually


@pytest.fixture
async def world(store: Store) -> World:
    world = World(store)
    await world.configure(capacity=1)
    return world


async def lose_writes(world: World) -> None:
    """Make the queue believe that it was restored from somewhere else, as after a failover."""
    await world.store.write(world.thing, "HSET", world.thing.key("meta"), "replid", "somebody-else")


async def lose_everything(world: World) -> None:
    """Unlink all keys of the queue, as a flush would."""
    keys = ["meta", "policy", "waiting", "users", "tickets", "holds", "seats", "kept", "away", "finished", "sessions", "servers", "leases", "stays", "events", "traces", "history", "audit"]  # fmt: skip
    for key in keys:
        await world.store.write(world.thing, "DEL", world.thing.key(key))
    world.wait(1)  # what begins anew is later than what was


@pytest.mark.parametrize("step", [3_600_000, -3_600_000])
async def test_a_step_of_the_clock_ends_nothing(store: Store, step: int) -> None:
    world = World(store)
    await world.configure()
    await world.beat("s1", 2, sessions=[])
    for user in "abc":
        await world.enter(user)
    await world.live(1)
    await world.redeem(await world.ticket("a"), "x1", "s1")
    before = await world.look()
    world.step_clock(step)
    await world.live(3)
    after = await world.look()
    assert {user: person.state for user, person in after.people.items()} == {"a": "A", "b": "P", "c": "W"}
    assert (after.leases, after.seats) == (before.leases, before.seats)


async def test_an_outage_longer_than_every_grace_period_abandons_nobody(store: Store) -> None:
    world = World(store)
    await world.configure(grace_seconds=5, keep_seconds=5)
    await world.beat("s1", 1, sessions=[])
    for user in "abc":
        await world.enter(user)
    await world.live(1)
    ticket = await world.ticket("a")
    world.wait(3_600_000)
    await world.tick()
    look = await world.look()
    assert {user: person.state for user, person in look.people.items()} == {"a": "P", "b": "W", "c": "W"}
    await world.redeem(ticket, "x1", "s1")


async def test_after_possible_loss_tickets_are_void_and_holders_get_new_ones(world: World) -> None:
    await world.enter("a")
    await world.tick()
    old = await world.ticket("a")
    await lose_writes(world)
    with pytest.raises(TicketInvalid):
        await world.redeem(old, "x1")
    new = await world.ticket("a")
    assert new != old
    assert (await world.look()).contradictions() == []
    with pytest.raises(TicketInvalid):
        await world.redeem(old, "x1")
    await world.redeem(new, "x1")
    assert (await world.room.queues.view(world.thing)).figures.admitted_total == 1


async def test_after_possible_loss_servers_report_before_they_offer_seats(store: Store) -> None:
    world = World(store)
    await world.configure()
    await world.beat("s1", 1, sessions=[])
    await lose_writes(world)
    await world.enter("a")
    await world.live(1)
    assert await world.state("a") == "WAITING"
    beat = await world.room.heartbeat("default", "s1", HeartbeatRequest(capacity=1))
    assert beat.report
    await world.beat("s1", 1, sessions=["a-session-that-was-lost"])
    await world.live(1)
    assert await world.state("a") == "WAITING", "its seat is taken by somebody the store had forgotten"


async def test_waiters_who_are_still_known_notice_nothing_of_a_failover(world: World) -> None:
    await world.configure(capacity=0)
    before = await world.room.entry("default", "main", EntryArguments("Ryan", user_id="a", trusted=True))
    await lose_writes(world)
    await world.enter("b")
    after = await world.room.status("default", "main", "a", trusted=True)
    assert (after.place, after.rank) == (before.place, 1)
    view = await world.room.queues.view(world.thing)
    assert view.generation == 1


async def test_place_tokens_bring_the_old_order_back_after_everything_was_lost(world: World) -> None:
    await world.configure(capacity=0)
    room = world.room
    entries = {
        user: await room.entry("default", "main", EntryArguments(f"nick {user}", user_id=user, trusted=True))
        for user in "abcd"
    }
    await room.queues.view(world.thing)
    await lose_everything(world)
    new = await room.entry("default", "main", EntryArguments("late", user_id="late", trusted=True))
    for user in "dbca":
        status = await room.status("default", "main", user, place_token=entries[user].place_token)
        assert status.place == entries[user].place
    look = await world.look()
    assert look.line == ["a", "b", "c", "d", "late"]
    assert look.people["a"].nickname == "nick a"
    assert look.contradictions() == []
    with pytest.raises(QueueReset):
        await room.status("default", "main", "somebody-without-a-token", trusted=True)
    assert new.place > entries["d"].place


async def test_place_tokens_bring_the_old_order_back_though_the_clock_was_once_put_back(world: World) -> None:
    """The queue made up for it; with the queue, that was lost too."""
    await world.configure(capacity=0)
    await world.enter("first")
    world.step_clock(-3_600_000)
    await world.live(2)
    room = world.room
    room.queues._refreshed_at.clear()  # a minute has passed since it was last read
    entries = {
        user: await room.entry("default", "main", EntryArguments(user, user_id=user, trusted=True)) for user in "abc"
    }
    await eventually(lambda: b'"offset_ms":3' in room.queues._memory.get(world.thing).snapshot)  # type: ignore[union-attr]
    await lose_everything(world)
    for user in "cab":
        status = await room.status("default", "main", user, place_token=entries[user].place_token)
        assert status.place == entries[user].place
    await world.enter("late")
    assert (await world.look()).line == ["a", "b", "c", "late"]


async def test_a_place_that_was_served_is_not_given_back(world: World) -> None:
    room = world.room
    entry = await room.entry("default", "main", EntryArguments("a", user_id="a", trusted=True))
    await world.tick()
    await world.redeem(await world.ticket("a"), "x1")
    await lose_everything(world)
    with pytest.raises(QueueReset):
        await room.status("default", "main", "a", place_token=entry.place_token)


async def test_a_gateway_that_only_served_entries_can_write_the_queue_back(world: World) -> None:
    """It learns the policy in the background as soon as it has met the queue."""
    await world.configure(capacity=0, batch=77)
    room = WaitingRoom(world.store)
    await room.entry("default", "main", EntryArguments("a", user_id="a", trusted=True))
    await eventually(lambda: room.queues._memory.get(world.thing).snapshot)  # type: ignore[union-attr]
    await lose_everything(world)
    await room.entry("default", "main", EntryArguments("b", user_id="b", trusted=True))
    assert (await room.queues.view(world.thing)).batch == 77
    with pytest.raises(QueueUnknown):
        await WaitingRoom(world.store).status("default", "other", "a", trusted=True)


async def test_a_reset_tells_everybody_and_leaves_players_on_servers_inside(store: Store) -> None:
    world = World(store)
    await world.configure()
    await world.beat("s1", 2, sessions=[])
    room = world.room
    entries = {
        user: await room.entry("default", "main", EntryArguments(user, user_id=user, trusted=True)) for user in "abc"
    }
    await world.live(1)
    await world.redeem(await world.ticket("a"), "x1", "s1")
    ticket = await world.ticket("b")
    await world.operate("reset")
    await world.tick()
    look = await world.look()
    assert (look.seats, look.contradictions()) == (["s1:s:x1"], [])
    with pytest.raises(TicketInvalid):
        await world.redeem(ticket, "x2", "s1")
    for user in "bc":
        with pytest.raises(QueueReset):
            await room.status("default", "main", user, place_token=entries[user].place_token)
        with pytest.raises(QueueReset):
            await room.entry(
                "default", "main", EntryArguments(user, user_id=user, place_token=entries[user].place_token)
            )
    assert (await room.queues.view(world.thing)).generation == 2
    assert await world.enter("c") == "WAITING"


async def test_a_deleted_queue_does_not_come_back_by_memory(world: World) -> None:
    await world.enter("a")
    await world.room.queues.view(world.thing)
    await world.operate("delete")
    with pytest.raises(QueueUnknown):
        await world.enter("a")
    await world.configure(capacity=1)
    view = await world.room.queues.view(world.thing)
    assert view.generation == 2
    with pytest.raises(NotInLine):
        await world.room.status("default", "main", "a", trusted=True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda room: room.servers("default", "main"),
        lambda room: room.entry("default", "main", EntryArguments("a", user_id="a", trusted=True)),
        lambda room: room.status("default", "main", "a", trusted=True),
    ],
    ids=["servers", "entry", "status"],
)
async def test_a_queue_whose_end_was_not_heard_of_does_not_come_back_when_its_last_trace_is_gone(
    world: World, ask: Callable[[WaitingRoom], Awaitable[object]]
) -> None:
    """The trace that a queue was deleted lasts a day; a process that missed the notice may remember the queue for longer."""
    other = WaitingRoom(world.store)
    await other.queues.view(world.thing)
    await world.store.write(world.thing, "DEL", world.thing.key("policy"))  # as a deletion does, without the notice
    await world.store.write(world.thing, "HSET", world.thing.key("meta"), "deleted", 1)
    with pytest.raises(QueueUnknown):
        await ask(other)
    await lose_everything(world)
    with pytest.raises(QueueUnknown):
        await other.entry("default", "main", EntryArguments("a", user_id="a", trusted=True))


async def test_an_old_place_token_still_says_who_somebody_is_and_brings_no_place_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines may stand for days before a sale: whoever waits longer than a token lasts is still who they are."""
    await world.configure(capacity=0)
    room = world.room
    monkeypatch.setattr("headgate.waiting_room.entries.PLACE_SECONDS", -1)
    account = await room.entry("default", "main", EntryArguments("a", user_id="a", trusted=True))
    stranger = await room.entry("default", "main", EntryArguments("b"))
    for entry in (account, stranger):
        status = await room.status("default", "main", entry.user_id, place_token=entry.place_token)
        assert status.place == entry.place
    await lose_everything(world)
    with pytest.raises(QueueReset):
        await room.status("default", "main", "a", place_token=account.place_token)
    again = await room.entry("default", "main", EntryArguments("a", user_id="a", place_token=account.place_token))
    assert again.place > account.place


async def test_who_left_does_not_come_back_by_an_old_token(world: World) -> None:
    await world.configure(capacity=0, finished_seconds=0)
    room = world.room
    entry = await room.entry("default", "main", EntryArguments("a", user_id="a", trusted=True))
    await room.entry("default", "main", EntryArguments("b", user_id="b", trusted=True))
    await room.leave("default", "main", "a", trusted=True)
    await world.live(2)
    with pytest.raises(NotInLine):
        await room.status("default", "main", "a", place_token=entry.place_token)
    again = await room.entry("default", "main", EntryArguments("a", user_id="a", place_token=entry.place_token))
    assert again.rank == 2


@pytest.mark.parametrize("switch", ["pause", "drain"])
async def test_a_queue_that_is_written_back_is_still_paused_or_drained(world: World, switch: str) -> None:
    room = world.room
    entry = await room.entry("default", "main", EntryArguments("a", user_id="a", trusted=True))
    await world.operate(switch)
    await room.queues.view(world.thing)
    await lose_everything(world)
    status = await room.status("default", "main", "a", place_token=entry.place_token)
    assert status.place == entry.place
    view = await room.queues.view(world.thing)
    assert (view.paused, view.draining) == (switch == "pause", switch == "drain")
    await world.live(11)
    assert await world.state("a") == ("WAITING" if switch == "pause" else "PROMOTED")
    with pytest.raises(QueueClosed) if switch == "drain" else nullcontext():
        await world.enter("late")


async def test_a_report_ends_nobody_let_in_meanwhile_though_everything_and_an_hour_were_lost(store: Store) -> None:
    """The clock was put back long ago, which the queue made up for; then the store lost the queue and that with it."""
    world = World(store)
    await world.configure()
    await world.beat("s1", 3, sessions=[])
    world.step_clock(-3_600_000)
    await world.live(2)
    await world.enter("a")
    await world.live(1)
    seen = await world.redeem(await world.ticket("a"), "x1", "s1")
    await lose_everything(world)
    await world.beat("s1", 3, sessions=["x1"], as_of=seen)
    await world.enter("b")
    await world.live(6)
    await world.beat("s1", 3)
    await world.live(5)
    assert await world.redeem(await world.ticket("b"), "x2", "s1") > seen
    await world.beat("s1", 3, sessions=["x1"], as_of=seen)  # the answer to the second redeem is on its way
    assert set((await world.look()).sessions) == {"x1", "x2"}
