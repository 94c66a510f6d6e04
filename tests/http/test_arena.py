"""The arena as seed 003 describes it, sections 4.4 and 5, played over real sockets."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headgate.arena import rate_limits, server
from headgate.arena.client import enter
from headgate.arena.problems import ArenaClosed
from headgate.arena.protocol import PlayerCount
from headgate.store import Store
from headgate.waiting_room.model import EntryArguments, State
from headgate.waiting_room.wire import Redeemed
from tests.http.arena_world import Guest, open_world, visiting
from tests.topology import eventually

BAD_FRAMES: list[str | bytes] = [
    "not json",
    "[]",
    '"text"',
    "{}",
    '{"type": 1, "payload": {}}',
    '{"type": "NO_SUCH_TYPE", "payload": {}}',
    '{"type": "MESSAGE_RECEIVE", "payload": {"timestamp": "x", "nickname": "x", "message": "x"}}',
    '{"type": "MESSAGE_SEND"}',
    '{"type": "MESSAGE_SEND", "payload": {"message": 5}}',
    '{"type": "MESSAGE_SEND", "payload": {"message": ""}}',
    '{"type": "MESSAGE_SEND", "payload": {"message": "  "}}',
    '{"type": "MESSAGE_SEND", "payload": {"message": "bell \\u0007"}}',
    '{"type": "MESSAGE_SEND", "payload": {"message": "turned \\u202e around"}}',
    '{"type": "MESSAGE_SEND", "payload": {"message": "' + "x" * 501 + '"}}',
    '{"type": "MESSAGE_SEND", "payload": ' + "[" * 900 + "]" * 900 + "}",
    b"\x00\x01",
]
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def test_the_seeds_conversation_word_for_word(store: Store) -> None:
    async with open_world(store) as world, world.arena() as arena:
        ryan, muzi = await world.promoted("라이언"), await world.promoted("무지")
        async with (
            visiting(arena.url, str(ryan.ticket_id)) as first,
            visiting(arena.url, str(muzi.ticket_id)) as second,
        ):
            joined = await first.next()
            assert joined["type"] == "SYSTEM_MESSAGE_RECEIVE"
            assert "무지" in joined["payload"]["message"]
            assert TIMESTAMP.fullmatch(joined["payload"]["timestamp"])

            await first.send("MESSAGE_SEND", {"message": "안녕하세요!"})
            heard = await second.next()
            assert heard["type"] == "MESSAGE_RECEIVE"
            assert heard["payload"]["nickname"] == "라이언"
            assert heard["payload"]["message"] == "안녕하세요!"
            assert set(heard["payload"]) == {"timestamp", "nickname", "message"}
            assert TIMESTAMP.fullmatch(heard["payload"]["timestamp"])

            # The sender gets no echo: the next thing it hears is the answer to its question.
            await first.send("SERVERSTATUS_REQUEST", {})
            assert await first.next() == {"type": "SERVERSTATUS_RESPONSE", "payload": {"clientCount": 2}}


async def test_who_leaves_is_announced_and_frees_the_seat(store: Store) -> None:
    async with open_world(store) as world, world.arena(capacity=2) as arena:
        ryan, muzi = await world.promoted("Ryan"), await world.promoted("Muzi")
        async with visiting(arena.url, str(ryan.ticket_id)) as stays:
            async with visiting(arena.url, str(muzi.ticket_id)):
                assert "Muzi" in (await stays.next())["payload"]["message"]
                inside = await world.server(arena.offer)
                assert inside is not None
                assert (inside.sessions, inside.holds) == (2, 0)
            left = await stays.next()
            assert left["type"] == "SYSTEM_MESSAGE_RECEIVE"
            assert "Muzi" in left["payload"]["message"]
            assert await stays.count() == 1
            await world.status_until(muzi.user_id, State.FINISHED)


async def test_server_status_is_current_users_soft_cap_and_max_cap(store: Store) -> None:
    async with open_world(store) as world, world.arena(capacity=3, max_capacity=5) as arena:
        ryan = await world.promoted("Ryan")
        async with visiting(arena.url, str(ryan.ticket_id)):
            status = await world.server(arena.offer)
            assert status is not None
            assert (status.sessions, status.capacity, status.max_capacity) == (1, 3, 5)


async def test_a_hundred_sockets_with_one_ticket_let_exactly_one_in(store: Store) -> None:
    async with open_world(store) as world, world.arena(handshake_failures=1000) as arena:
        ryan = await world.promoted("Ryan")
        async with AsyncExitStack() as stack:

            async def attempt() -> int:
                try:
                    await stack.enter_async_context(connect(f"{arena.url}?ticketId={ryan.ticket_id}"))
                except Exception as error:  # noqa: BLE001  # whatever the client raises, its answer counts
                    return int(error.response.status_code)  # type: ignore[attr-defined]
                return 101

            answers = await asyncio.gather(*(attempt() for _ in range(100)))
            assert sorted(set(answers)) == [101, 403]
            assert answers.count(101) == 1
            assert len(arena.arena.room) == 1


async def test_two_arenas_seat_players_side_by_side(store: Store) -> None:
    async with open_world(store) as world, world.arena(capacity=1) as one, world.arena(capacity=1) as other:
        players = [await world.promoted("Ryan"), await world.promoted("Muzi")]
        urls = {player.server.address for player in players if player.server}
        assert urls == {one.url, other.url}
        async with AsyncExitStack() as stack:
            for player in players:
                assert player.server
                guest: Guest = await stack.enter_async_context(visiting(player.server.address, str(player.ticket_id)))
                assert await guest.count() == 1


async def test_a_bad_frame_is_answered_and_survived(store: Store) -> None:
    async with open_world(store) as world, world.arena(message_burst=1000) as arena:
        ryan = await world.promoted("Ryan")
        async with visiting(arena.url, str(ryan.ticket_id)) as guest:
            for frame in BAD_FRAMES:
                await guest.connection.send(frame)
                answer = await guest.next()
                assert answer["type"] == "SYSTEM_MESSAGE_RECEIVE", frame
                assert answer["payload"]["message"]
                assert await guest.count() == 1


async def test_a_frame_that_is_too_large_closes_the_connection(store: Store) -> None:
    async with open_world(store) as world, world.arena(message_bytes=1024) as arena:
        ryan = await world.promoted("Ryan")
        async with visiting(arena.url, str(ryan.ticket_id)) as guest:
            await guest.connection.send("x" * 1025)
            with pytest.raises(ConnectionClosed) as closed:
                await guest.next()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009


async def test_who_sends_too_fast_is_told_and_who_floods_is_sent_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "monotonic", lambda: 1000.0)  # nobody is allowed more because we were slow
    async with open_world(store) as world, world.arena(messages_per_second=1, message_burst=3) as arena:
        ryan, muzi = await world.promoted("Ryan"), await world.promoted("Muzi")
        async with visiting(arena.url, str(ryan.ticket_id)) as loud, visiting(arena.url, str(muzi.ticket_id)) as quiet:
            await loud.next()  # Muzi joined
            for number in range(4):
                await loud.send("MESSAGE_SEND", {"message": f"{number}"})
            told = await loud.next()
            assert told["type"] == "SYSTEM_MESSAGE_RECEIVE"
            assert [(await quiet.next())["payload"]["message"] for _ in range(3)] == ["0", "1", "2"]
            with pytest.raises(ConnectionClosed) as closed:
                await _flood(loud)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008


async def _flood(guest: Guest) -> None:
    for _ in range(10_000):
        await guest.send("MESSAGE_SEND", {"message": "flood"})
        await asyncio.sleep(0)


async def test_two_quiet_minutes_close_the_connection_and_pings_do_not_count(store: Store) -> None:
    async with open_world(store) as world, world.arena(idle_seconds=0.6) as arena:
        ryan = await world.promoted("Ryan")
        async with visiting(arena.url, str(ryan.ticket_id), ping_interval=0.1) as guest:
            with pytest.raises(ConnectionClosed) as closed:
                await guest.next()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "idle")
        await world.status_until(ryan.user_id, State.FINISHED)


async def test_hearing_others_is_not_idle(store: Store) -> None:
    async with open_world(store) as world, world.arena(idle_seconds=3) as arena:
        ryan, muzi = await world.promoted("Ryan"), await world.promoted("Muzi")
        async with visiting(arena.url, str(ryan.ticket_id)) as talks, visiting(arena.url, str(muzi.ticket_id)) as hears:
            await talks.next()
            for number in range(8):  # twice as long as the idle time
                await talks.send("MESSAGE_SEND", {"message": f"{number}"})
                assert (await hears.next())["payload"]["message"] == f"{number}"
                await asyncio.sleep(0.75)


async def test_a_slow_reader_is_dropped_and_nobody_waits_for_it(store: Store) -> None:
    async with (
        open_world(store) as world,
        world.arena(backlog_bytes=1024, messages_per_second=1e6, message_burst=1_000_000) as arena,
    ):
        sleepy, loud, third = [await world.promoted(name) for name in ("Sleepy", "Loud", "Third")]
        async with (
            visiting(arena.url, str(sleepy.ticket_id), max_queue=1) as stuck,
            visiting(arena.url, str(loud.ticket_id)) as talks,
            visiting(arena.url, str(third.ticket_id)) as hears,
        ):
            stuck.connection.transport.pause_reading()
            await talks.next()
            heard = asyncio.ensure_future(_hear_until_left(hears, "Sleepy"))
            while len(arena.arena.room) == 3:
                await talks.send("MESSAGE_SEND", {"message": "x" * 500})
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                assert await heard > 0
            assert len(arena.arena.room) == 2


async def _hear_until_left(guest: Guest, nickname: str) -> int:
    """Count what is said until somebody's leaving is announced."""
    count = 0
    while True:
        message = await guest.next()
        if message["type"] == "SYSTEM_MESSAGE_RECEIVE" and message["payload"]["message"] == f"{nickname} left.":
            return count
        count += 1


async def test_a_lost_connection_keeps_the_seat_for_its_owner(store: Store) -> None:
    async with open_world(store) as world, world.arena(capacity=1) as arena:
        ryan = await world.promoted("Ryan")
        async with visiting(arena.url, str(ryan.ticket_id)) as guest:
            guest.connection.transport.abort()
        await eventually(lambda: not len(arena.arena.room))
        waiting = await world.room.entry("default", "main", EntryArguments("Muzi"))
        again = await world.room.entry("default", "main", EntryArguments("Ryan", user_id=ryan.user_id, trusted=True))
        back = await world.status_until(again.user_id, State.PROMOTED)
        async with visiting(arena.url, str(back.ticket_id)) as guest:
            assert await guest.count() == 1
        assert (await world.status_until(waiting.user_id, State.PROMOTED)).rank == 0


async def test_who_talks_while_the_server_closes_is_told_that_it_closes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CLOSE_SECONDS", 20.0)  # all of them read in this process what was said before
    fast = {"messages_per_second": 1e6, "message_burst": 1_000_000, "backlog_bytes": 100_000_000}
    async with open_world(store) as world, AsyncExitStack() as stack:
        async with world.arena(**fast) as arena:
            guests = []
            for number in range(30):
                player = await world.promoted(f"player {number}")
                guests.append(await stack.enter_async_context(visiting(arena.url, str(player.ticket_id))))
            talking = [asyncio.ensure_future(_talk_and_listen(guest)) for guest in guests]
            await eventually(lambda: sum(player.last > 0 for player in arena.arena.room.players.values()) == 30)
        closed = await asyncio.gather(*talking)
    assert set(closed) == {(1001, "draining")}


async def _talk_and_listen(guest: Guest) -> tuple[int | None, str | None]:
    async def listen() -> None:
        with suppress(ConnectionClosed):
            while True:
                await guest.connection.recv()

    listening = asyncio.ensure_future(listen())
    with suppress(ConnectionClosed):
        while True:
            await guest.send("MESSAGE_SEND", {"message": "still here"})
            await asyncio.sleep(0)
    await listening
    return guest.connection.close_code, guest.connection.close_reason


async def test_a_player_ignores_what_a_newer_arena_says_beyond_what_it_knows() -> None:
    async def newer(connection: ServerConnection) -> None:
        await connection.send('{"type": "EMOTE_RECEIVE", "payload": {"emote": "wave"}}')
        await connection.send('{"type": "SERVERSTATUS_RESPONSE", "payload": {"clientCount": 3}}')

    async with serve(newer, "127.0.0.1", 0) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        async with enter(f"ws://127.0.0.1:{port}/gameserver", "ticket") as visit:
            assert [message async for message in visit] == [PlayerCount(3)]
            with pytest.raises(ArenaClosed):
                await visit.say("anybody?")


@pytest.mark.parametrize("first", [True, False])
async def test_a_player_whose_ticket_is_spent_while_the_arena_drains_is_refused_and_nobody_waits_for_them(
    store: Store, first: bool
) -> None:
    async with open_world(store) as world, world.arena() as running, AsyncExitStack() as stack:
        if first:
            await stack.enter_async_context(visiting(running.url, (await world.promoted("Ryan")).ticket_id or ""))
        line = running.offer._backend
        redeem, spent, answer = line.redeem, asyncio.Event(), asyncio.Event()

        async def late(*given: Any) -> Redeemed:
            redeemed = await redeem(*given)
            spent.set()
            await answer.wait()
            return redeemed

        status = await world.promoted("Apeach")
        line.redeem = late  # type: ignore[assignment,method-assign]
        entering = asyncio.ensure_future(stack.enter_async_context(visiting(running.url, status.ticket_id or "")))
        await spent.wait()
        draining = asyncio.ensure_future(running.arena.drain())
        await eventually(lambda: not running.arena.room.players and running.offer.draining.is_set())
        assert not draining.done(), "somebody is at the door"
        answer.set()
        with pytest.raises(InvalidStatus) as refused:
            await entering
        assert refused.value.response.status_code == 503
        assert b"enter again" in refused.value.response.body
        await asyncio.wait_for(draining, 10)
        assert not running.offer.sessions
        assert not running.arena._admitted
