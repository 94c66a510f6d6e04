"""After everything was lost: who comes back with a place token stands where they stood, whoever asked first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.store import Store, StoreSettings, open_store
from headgate.waiting_room.model import EntryArguments, State
from headgate.waiting_room.problems import QueueReset, QueueUnknown, TicketInvalid
from headgate.waiting_room.queues import RESTORE_MS
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import Entry, Status
from tests.store.test_waiting_room_loss import lose_everything, lose_writes
from tests.store.waiting_world import World
from tests.topology import eventually

NS, QUEUE = "default", "main"


@pytest.fixture
async def world(store: Store) -> World:
    world = World(store)
    await world.configure(capacity=1, grace_seconds=1000)
    return world


async def enter_all(world: World, users: str) -> dict[str, Entry]:
    return {user: await world.room.entry(NS, QUEUE, EntryArguments(user, user_id=user, trusted=True)) for user in users}


async def ask(world: World, entry: Entry, room: WaitingRoom | None = None) -> Status:
    return await (room or world.room).status(NS, QUEUE, entry.user_id, place_token=entry.place_token)


async def knows_who_was_called(world: World, *users: str, room: WaitingRoom | None = None) -> None:
    """Wait until a process has heard of all who were called and have not entered."""

    def heard() -> bool:
        known = (room or world.room).queues._memory.get(world.thing)
        return known is not None and known.serving > 0 and list(known.promoted) == list(users)

    await eventually(heard, 5, "the hints have arrived")


@pytest.mark.parametrize("first", range(6))
async def test_whoever_asks_first_costs_nobody_in_front_their_place(world: World, first: int) -> None:
    users = "abcdef"
    entries = await enter_all(world, users)
    await lose_everything(world)
    order = [users[first], *Random(first).sample(users.replace(users[first], ""), 5)]
    for user in order:
        status = await ask(world, entries[user])
        assert (status.status, status.place) == (State.WAITING, entries[user].place)
        assert (status.paused, status.eta) == (True, None), "nobody is promised a moment while nobody is called"
        await world.live(1)
    await world.live(6)
    assert [await world.state(user) for user in users] == ["PROMOTED", *["WAITING"] * 5]
    assert (await world.look()).line == list("bcdef")


async def test_those_in_front_come_back_though_somebody_behind_them_was_called_since(world: World) -> None:
    entries = await enter_all(world, "abcdef")
    await lose_everything(world)
    await ask(world, entries["f"])
    await world.live(11)
    assert (await ask(world, entries["f"])).status is State.PROMOTED, "nobody else came in time"
    for user in "ecabd":
        assert (await ask(world, entries[user])).status is State.WAITING
    assert (await world.look()).line == list("abcde")
    await lose_everything(world)
    await knows_who_was_called(world, "f", "e", "c", "a", "b", "d")
    for user in "bdface":
        assert (await ask(world, entries[user])).status is State.WAITING, "nor does losing everything once more"
    assert (await world.look()).line == list("abcdef")


@pytest.mark.parametrize("seen", [True, False], ids=["with their ticket", "who had not seen it"])
async def test_who_was_called_and_had_not_entered_is_first_again_and_the_old_ticket_is_void(
    world: World, seen: bool
) -> None:
    entries = await enter_all(world, "abc")
    await world.configure(capacity=2)
    await world.tick()
    old = await world.ticket("b")
    await world.redeem(await world.ticket("a"), "x1") if seen else None
    await knows_who_was_called(world, *("b" if seen else "ab"))
    await lose_everything(world)
    await ask(world, entries["c"])
    status = await ask(world, entries["b"])
    assert (status.status, status.rank, status.place) == (State.WAITING, 1, entries["b"].place)
    with pytest.raises(TicketInvalid):
        await world.redeem(old, "x2")
    if seen:
        with pytest.raises(QueueReset, match="called before"):
            await ask(world, entries["a"])
    await world.live(11)
    new = await world.ticket("b")
    assert new != old
    await world.redeem(new, "x2")


async def test_who_was_away_when_called_keeps_the_place(world: World) -> None:
    await world.configure(capacity=0, grace_seconds=2)
    entries = await enter_all(world, "ab")
    for _ in range(4):
        await world.live(1)
        await ask(world, entries["b"])
    await world.configure(capacity=1)
    await world.live(1)
    assert {user: person.state for user, person in (await world.look()).people.items()} == {"a": "Y", "b": "P"}
    await knows_who_was_called(world, "a", "b")
    await lose_everything(world)
    assert [(await ask(world, entries[user])).rank for user in "ba"] == [1, 1]


@pytest.mark.parametrize("end", ["expired", "left", "abandoned"])
async def test_whose_turn_is_over_is_not_first_again(world: World, end: str) -> None:
    await world.configure(ticket_ttl_seconds=3, keep_seconds=2, grace_seconds=1000 if end != "abandoned" else 1)
    entries = await enter_all(world, "a")
    await world.live(1 if end != "abandoned" else 3)
    if end == "left":
        await world.room.leave(NS, QUEUE, "a", trusted=True)
    elif end == "expired":
        await world.ticket("a")
    await world.live(5)
    assert (await world.look()).people["a"].state == end[0].upper().replace("A", "B")
    await knows_who_was_called(world)
    await lose_everything(world)
    with pytest.raises(QueueReset, match="called before"):
        await ask(world, entries["a"])


async def test_a_gateway_that_heard_of_nobody_believes_the_one_that_wrote_the_queue_back(world: World) -> None:
    entries = await enter_all(world, "ab")
    await world.tick()
    await knows_who_was_called(world, "a")
    await lose_everything(world)
    await ask(world, entries["b"])
    assert (await ask(world, entries["a"], WaitingRoom(world.store))).rank == 1


@pytest.fixture
async def other(world: World, store_url: str) -> AsyncIterator[WaitingRoom]:
    """Another process, that knows the queue."""
    settings = StoreSettings(url=store_url, prefix=world.store.prefix, deadline_ms=10_000)
    async with open_store(settings) as store:
        room = WaitingRoom(store)
        await room.queues.view(room.queues.thing(NS, QUEUE))
        yield room


async def test_who_entered_by_another_process_does_not_come_back(world: World, other: WaitingRoom) -> None:
    entries = await enter_all(world, "a")
    await world.tick()
    await knows_who_was_called(world, "a", room=other)
    await world.redeem(await world.ticket("a"), "x1")
    await knows_who_was_called(world, room=other)
    await lose_everything(world)
    with pytest.raises(QueueReset):
        await ask(world, entries["a"], other)


async def test_hints_that_were_missed_while_the_store_was_there_bring_nobody_back(world: World) -> None:
    entries = await enter_all(world, "a")
    await world.tick()
    await knows_who_was_called(world, "a")
    world.store.hints.notify_all()  # as when the connection of the hints was lost
    await world.enter("b")  # the same history goes on, and "a" may have entered unheard
    await lose_everything(world)
    with pytest.raises(QueueReset):
        await ask(world, entries["a"])


async def test_hints_that_end_with_the_store_are_all_that_there_were(world: World) -> None:
    entries = await enter_all(world, "a")
    await world.tick()
    await knows_who_was_called(world, "a")
    world.store.hints.notify_all()
    await lose_everything(world)
    assert (await ask(world, entries["a"])).rank == 1


async def test_after_a_possible_loss_nobody_is_called_for_a_moment(world: World) -> None:
    entries = await enter_all(world, "a")
    await lose_writes(world)
    await world.live(2)
    assert await world.state("a") == "WAITING"
    await world.live(2)
    assert await world.state("a") == "PROMOTED"
    assert (await ask(world, entries["a"])).status is State.PROMOTED


async def test_who_is_told_that_the_place_is_gone_is_told_why(world: World) -> None:
    await enter_all(world, "a")
    await lose_everything(world)
    with pytest.raises(QueueReset, match="may have lost your place"):
        await world.state("a")
    await world.operate("reset")
    with pytest.raises(QueueReset, match="was reset"):
        await world.state("a")


async def test_places_that_were_ahead_of_the_clock_come_back_and_nobody_new_gets_before_them(world: World) -> None:
    """For a minute after a possible loss new places are ahead of the clock, and then everything is lost."""
    await lose_writes(world)
    entries = await enter_all(world, "ab")
    await world.room.queues.view(world.thing)
    await lose_everything(world)
    await world.enter("new")
    assert [(await ask(world, entries[user])).place for user in "ba"] == [entries[user].place for user in "ba"]
    assert (await world.look()).line == ["a", "b", "new"]


async def test_a_process_that_does_not_know_a_lost_queue_says_try_again_until_somebody_has_written_it_back(
    world: World,
) -> None:
    entries = await enter_all(world, "a")
    await world.room.queues.view(world.thing)
    await lose_everything(world)
    await lose_list(world)
    newcomer = WaitingRoom(world.store)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="lost its data"):
            await ask(world, entries["a"], newcomer)
        with pytest.raises(StoreUnavailable):
            await newcomer.entry("default", "main", EntryArguments("b"))
        world.wait(RESTORE_MS // 3)
    with pytest.raises(QueueUnknown):
        await newcomer.queues.view(world.thing)  # an operator asks what is there now
    await ask(world, entries["a"])
    assert (await ask(world, entries["a"], newcomer)).rank == 1


async def test_a_queue_that_nobody_writes_back_is_unknown_in_the_end(world: World) -> None:
    await lose_everything(world)
    await lose_list(world)
    newcomer = WaitingRoom(world.store)
    with pytest.raises(StoreUnavailable):
        await newcomer.status("default", "main", "a", trusted=True)
    world.wait(RESTORE_MS)
    with pytest.raises(QueueUnknown):
        await newcomer.status("default", "main", "a", trusted=True)


async def test_a_possible_loss_counts_like_a_loss(world: World) -> None:
    """After a failover the last writes may be missing, and a queue may be among them."""
    home = world.room.queues.index.home
    await world.store.write(home, "HSET", home.key("meta"), "replid", "somebody-else")
    with pytest.raises(StoreUnavailable):
        await world.room.status("default", "other", "a", trusted=True)
    world.wait(RESTORE_MS)
    with pytest.raises(QueueUnknown):
        await world.room.status("default", "other", "a", trusted=True)


async def lose_list(world: World) -> None:
    """Unlink all keys of the list of queues, as a flush would."""
    home = world.room.queues.index.home
    for key in ("meta", "names", "due", "stamps", "changes", "since"):
        await world.store.write(home, "DEL", home.key(key))
