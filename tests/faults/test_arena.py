"""The arena when its store goes away, when it is told to stop, and when it is killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headgate.kit.problems import StoreUnavailable
from headgate.store import StoreSettings, open_store
from headgate.waiting_room.model import LEASE_MS, State
from tests.faults.arena_process import ArenaProcess
from tests.http.arena_world import World, open_world, visiting
from tests.topology import FaultyProxy, Standalone, Topology, eventually

pytestmark = pytest.mark.topology("standalone")


async def sessions(world: World, url: str) -> int | None:
    """Tell how many sessions the store counts at an address; None if it does not know the server."""
    servers = (await world.room.servers("default", "main")).servers
    return next((one.sessions for one in servers if one.address == url), None)


async def test_players_stay_and_talk_while_the_store_is_down_and_are_reported_again(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    assert isinstance(server, Standalone)
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store, open_world(store) as world:
        with ArenaProcess(server.url, prefix) as arena:
            ryan, muzi, late = [await world.promoted(name) for name in ("Ryan", "Muzi", "Late")]
            async with visiting(arena.url, str(ryan.ticket_id)) as talks:
                async with visiting(arena.url, str(muzi.ticket_id)) as hears:
                    await talks.next()
                    assert await sessions(world, arena.url) == 2
                    server.node.kill()

                    await talks.send("MESSAGE_SEND", {"message": "still here?"})
                    assert (await hears.next())["payload"]["message"] == "still here?"
                    with pytest.raises(InvalidStatus) as refused:
                        async with connect(f"{arena.url}?ticketId={late.ticket_id}"):
                            pass
                    assert refused.value.response.status_code == 503
                    assert arena.get("/readyz").status_code == 503
                # Muzi has left while nobody could be told.
                assert "Muzi" in (await talks.next())["payload"]["message"]
                await server.node.restart()
                await eventually(lambda: _counts(world, arena.url, 1), 20, "the store knows who is inside")
                assert await talks.count() == 1
                left = await world.room.status("default", "main", muzi.user_id, trusted=True)
                assert left.status is State.FINISHED, "who left is not taken for somebody who never came in"


async def _counts(world: World, url: str, wanted: int) -> bool:
    try:
        return await sessions(world, url) == wanted
    except StoreUnavailable:
        return False


async def test_a_ticket_whose_redeem_got_no_answer_still_lets_its_owner_in_once(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    assert isinstance(server, Standalone)
    async with (
        FaultyProxy(server.node.port) as proxy,
        open_store(StoreSettings(url=server.url, prefix=prefix)) as store,
        open_world(store) as world,
    ):
        async with _beside(ArenaProcess(proxy.url, prefix)) as arena:
            muzi, ryan = await world.promoted("Muzi"), await world.promoted("Ryan")
            async with visiting(arena.url, str(muzi.ticket_id)):  # now the store knows the script
                pass
            await world.status_until(muzi.user_id, State.FINISHED)
            proxy.drop_replies()
            assert await _refusal(arena.url, ryan.ticket_id) == 503
            assert await sessions(world, arena.url) == 1  # it was spent, and nobody knows
            proxy.heal()
            await eventually(lambda: _enters(arena.url, str(ryan.ticket_id)), 10, "its owner gets in")
            await world.status_until(ryan.user_id, State.FINISHED)
            assert await _refusal(arena.url, ryan.ticket_id) == 403


async def test_a_redeem_that_got_no_answer_gives_the_ticket_back(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    """The store stands still in the middle of a handshake: the player is told 503, and keeps the ticket and the seat."""
    server = fresh_server()
    assert isinstance(server, Standalone)
    async with (
        FaultyProxy(server.node.port) as proxy,
        open_store(StoreSettings(url=server.url, prefix=prefix)) as store,
        open_world(store) as world,
    ):
        async with _beside(ArenaProcess(proxy.url, prefix)) as arena:
            muzi, ryan = await world.promoted("Muzi"), await world.promoted("Ryan")
            async with visiting(arena.url, str(muzi.ticket_id)):  # now the store knows the script
                pass
            proxy.drop_replies()
            assert await _refusal(arena.url, ryan.ticket_id) == 503
            spent = await world.room.status("default", "main", ryan.user_id, trusted=True)
            assert spent.status is State.ACTIVE, "the redeem did happen"
            proxy.heal()
            seen: set[State] = set()

            async def has_the_ticket() -> bool:
                status = await world.room.status("default", "main", ryan.user_id, trusted=True)
                seen.add(status.status)
                return status.ticket_id == ryan.ticket_id

            await eventually(has_the_ticket, 20, "its owner has the ticket again")
            assert seen <= {State.ACTIVE, State.PROMOTED}
            async with visiting(arena.url, str(ryan.ticket_id)) as guest:
                assert await guest.count() == 1
            assert await _refusal(arena.url, ryan.ticket_id) == 403


async def test_who_got_no_answer_from_an_arena_that_died_is_called_to_another(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    """Nobody knows whether the arena had let them in, so nobody says that their session is over."""
    server = fresh_server()
    assert isinstance(server, Standalone)
    async with (
        FaultyProxy(server.node.port) as proxy,
        open_store(StoreSettings(url=server.url, prefix=prefix)) as store,
        open_world(store) as world,
    ):
        async with _beside(ArenaProcess(proxy.url, prefix)) as arena:
            muzi, ryan = await world.promoted("Muzi"), await world.promoted("Ryan")
            async with visiting(arena.url, str(muzi.ticket_id)):  # now the store knows the script
                pass
            proxy.drop_replies()
            assert await _refusal(arena.url, ryan.ticket_id) == 503
            arena.process.kill()
            proxy.heal()
        seen: list[State] = []

        async def waits() -> bool:
            seen.append((await world.room.status("default", "main", ryan.user_id, trusted=True)).status)
            return seen[-1] is not State.ACTIVE

        await eventually(waits, LEASE_MS / 1000 + 3, "the arena's lease is over")
        assert seen[-1] is State.WAITING
        with ArenaProcess(server.url, prefix) as another:
            called = await world.status_until(ryan.user_id, State.PROMOTED)
            assert called.ticket_id != ryan.ticket_id
            assert await _enters(another.url, str(called.ticket_id))


async def _refusal(url: str, ticket_id: str | None) -> int:
    """Give the status with which a handshake with this ticket is refused."""
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"{url}?ticketId={ticket_id}"):
            pass
    return refused.value.response.status_code


async def _enters(url: str, ticket_id: str) -> bool:
    """Try to enter; a retry after an unknown outcome may be told to wait, but not that the ticket is used."""
    status = 101
    try:
        async with visiting(url, ticket_id) as guest:
            assert await guest.count() == 1
    except InvalidStatus as refused:
        status = refused.response.status_code
    assert status in (101, 503)
    return status == 101


@asynccontextmanager
async def _beside(process: ArenaProcess) -> AsyncIterator[ArenaProcess]:
    """Start a process without stopping this event loop, in which its proxy runs."""
    await asyncio.to_thread(process.__enter__)
    try:
        yield process
    finally:
        process.__exit__()


async def test_sigterm_tells_the_players_and_closes_within_its_time(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store, open_world(store) as world:
        with ArenaProcess(server.url, prefix, drain_seconds=4) as arena:
            ryan, late = await world.promoted("Ryan"), await world.promoted("Late")
            async with visiting(arena.url, str(ryan.ticket_id)) as guest:
                arena.process.send_signal(signal.SIGTERM)
                told = await guest.next()
                assert told["type"] == "SYSTEM_MESSAGE_RECEIVE"
                assert "closes in 4 seconds" in told["payload"]["message"]
                with pytest.raises(InvalidStatus) as refused:
                    async with connect(f"{arena.url}?ticketId={late.ticket_id}"):
                        pass
                assert refused.value.response.status_code == 503
                with pytest.raises(ConnectionClosed) as closed:
                    await guest.next()
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, "draining")
            code = await asyncio.to_thread(arena.process.wait, 10)
            assert code == 0, arena.log
            assert await sessions(world, arena.url) is None
            # The one whose ticket was not used waits for another server, at the front.
            assert (await world.status_until(late.user_id, State.WAITING)).rank == 1


async def test_a_killed_arenas_seats_are_gone_within_its_lease(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store, open_world(store) as world:
        with ArenaProcess(server.url, prefix) as arena:
            ryan = await world.promoted("Ryan")
            async with visiting(arena.url, str(ryan.ticket_id)):
                arena.process.kill()
                await eventually(lambda: _gone(world, arena.url), LEASE_MS / 1000 + 3, "its seats are gone")


async def _gone(world: World, url: str) -> bool:
    return await sessions(world, url) is None


async def test_neither_tickets_nor_requests_are_logged(fresh_server: Callable[..., Topology], prefix: str) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store, open_world(store) as world:
        with ArenaProcess(server.url, prefix) as arena:
            arena.process.send_signal(signal.SIGUSR1)  # debug
            ryan = await world.promoted("Ryan")
            async with visiting(arena.url, str(ryan.ticket_id)) as guest:
                assert await guest.count() == 1
            with pytest.raises(InvalidStatus):
                async with connect(f"{arena.url}?ticketId={ryan.ticket_id}"):
                    pass
            assert "headgate_arena_handshakes_total" in arena.get("/metrics").text
            assert str(ryan.ticket_id) not in arena.log
            assert "ticketId" not in arena.log
