"""The waiting room when workers die, replies are lost and the store goes away: nobody lost, nobody over, nothing twice."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Self

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.store import Store, StoreSettings, open_store
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.problems import QueueReset, TicketInvalid, TicketUsed
from tests.faults.load import run_for
from tests.faults.worker_process import WorkerProcess
from tests.store.waiting_world import World
from tests.topology import Cluster, FaultyProxy, Node, Standalone, Stopwatch, Topology, eventually

pytestmark = pytest.mark.anyio


PAUSE_SECONDS = 30
SEATS = 5


class PausedWorker:
    """A worker that was stopped in the middle of its work, with another that goes on."""

    def __init__(self, url: str) -> None:
        self.prefix = f"t{secrets.token_hex(4)}"
        self._url = url
        self._workers = ExitStack()
        self._worker: WorkerProcess | None = None
        self.stopped_at = 0.0

    @asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        async with open_store(StoreSettings(url=self._url, prefix=self.prefix)) as store:
            yield World(store, real_time=True)

    async def stop(self) -> None:
        """Let it call the first few, and stop it."""
        async with self.world() as world:
            await world.configure(capacity=SEATS, tick_ms=100, grace_seconds=1000, ticket_ttl_seconds=600)
            await asyncio.gather(*(world.enter(f"u{number}") for number in range(50)))
            self._worker = self._workers.enter_context(WorkerProcess(self._url, self.prefix))
            await eventually(lambda: _more_than(world, SEATS - 1), 10)
        self._worker.signal(signal.SIGSTOP)
        self.stopped_at = time.monotonic()
        self._workers.enter_context(WorkerProcess(self._url, self.prefix))

    def go_on(self) -> None:
        assert self._worker is not None
        self._worker.signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(1) as thread:  # where no other loop is
            thread.submit(lambda: asyncio.run(self.stop())).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()


@pytest.fixture(scope="module", autouse=True)
def paused_worker(server: Topology) -> Iterator[PausedWorker]:
    """Pause a worker before the first test, so that the others run while it is away; the last test wakes it."""
    with PausedWorker(server.url) as paused:
        yield paused


async def called(world: World) -> int:
    return (await world.room.queues.view(world.thing)).admitted_total


async def test_two_workers_at_full_speed_and_one_killed_call_nobody_over_or_twice(
    server: Topology, store: Store, prefix: str
) -> None:
    world = World(store, real_time=True)
    await world.configure(capacity=100_000, batch=40, tick_ms=100, grace_seconds=1000)
    with WorkerProcess(server.url, prefix) as first, WorkerProcess(server.url, prefix):
        for start in range(0, 3000, 250):
            await asyncio.gather(*(world.enter(f"u{number}") for number in range(start, start + 250)))
        await eventually(lambda: _more_than(world, 300), 20)
        first.signal(signal.SIGKILL)
        before, watch = await called(world), Stopwatch()
        await eventually(lambda: _more_than(world, before + 80), 3, "the other goes on within 3 s")
        assert watch.seconds < 3
        await eventually(lambda: _more_than(world, 2999), 60)
    look = await world.look()
    assert look.contradictions() == []
    assert len(look.holds) == 3000
    assert await called(world) == 3000


async def test_a_rate_of_zero_stops_all_workers_within_a_second_and_resuming_gives_no_burst(
    server: Topology, store: Store, prefix: str
) -> None:
    world = World(store, real_time=True)
    await world.configure(capacity=100_000, rate_per_second=50, burst=5, tick_ms=100, grace_seconds=1000)
    with WorkerProcess(server.url, prefix), WorkerProcess(server.url, prefix):
        for start in range(0, 1000, 250):
            await asyncio.gather(*(world.enter(f"u{number}") for number in range(start, start + 250)))
        await eventually(lambda: _more_than(world, 20), 20)
        await world.configure(rate_per_second=0)
        await asyncio.sleep(1)
        paused_at = await called(world)
        await asyncio.sleep(3)
        assert await called(world) == paused_at
        await world.configure(rate_per_second=50)
        resumed = time.monotonic()
        await eventually(lambda: _more_than(world, paused_at), 5)
        await asyncio.sleep(1)
        more = await called(world) - paused_at
        assert more <= 5 + 50 * (time.monotonic() - resumed + 0.1), "nothing was stored up beyond the burst"


async def _more_than(world: World, number: int) -> bool:
    return await called(world) > number


async def test_each_ticket_is_counted_once_however_many_workers_show_it(
    server: Topology, store: Store, prefix: str
) -> None:
    world = World(store, real_time=True)
    await world.configure(capacity=7)
    with WorkerProcess(server.url, prefix) as first, WorkerProcess(server.url, prefix) as second:
        await asyncio.gather(*(world.enter(f"u{number}") for number in range(20)))
        await eventually(lambda: _more_than(world, 6), 10)

        def shown() -> bool:
            return all(
                'ticket_issued_count{queue="main"} 7.0' in worker.get("/metrics").text for worker in (first, second)
            )

        await eventually(shown, 15)
        text = first.get("/metrics").text
        assert 'ticket_expired_count{queue="main"} 0.0' in text
        assert 'headgate_queue_waiting{queue="main"} 13.0' in text
        assert 'headgate_queue_live_waiting{queue="main"} 13.0' in text
        assert 'headgate_queue_holds{queue="main"} 7.0' in text


@pytest.fixture
async def proxy(anyio_backend: str, fresh_server: Callable[..., Standalone]) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(fresh_server(Standalone()).node.port) as proxy:
        yield proxy


@pytest.mark.topology("standalone")
async def test_lost_replies_make_no_second_place_and_no_second_session(proxy: FaultyProxy, prefix: str) -> None:
    async with open_store(StoreSettings(url=proxy.url, prefix=prefix)) as store:
        world = World(store)
        await world.configure(capacity=100)
        await world.enter("first")
        for number in range(10):
            user = f"u{number}"
            proxy.drop_replies(cut=True)
            entering = asyncio.ensure_future(world.enter(user))
            await asyncio.sleep(0.02)
            proxy.heal()
            try:
                await entering
            except StoreUnavailable:
                await world.enter(user)
            look = await world.look()
            assert look.contradictions() == []
            assert list(look.people).count(user) == 1
        world.wait(1000)
        await world.tick()
        for number in range(10):
            ticket = await world.ticket(f"u{number}")
            proxy.drop_replies(cut=True)
            redeeming = asyncio.ensure_future(world.redeem(ticket, f"x{number}"))
            await asyncio.sleep(0.02)
            proxy.heal()
            try:
                seq = await redeeming
            except StoreUnavailable:
                seq = await world.redeem(ticket, f"x{number}")
            assert await world.redeem(ticket, f"x{number}") == seq
            with pytest.raises(TicketUsed):
                await world.redeem(ticket, "another")
        assert len((await world.look()).sessions) == 10


@pytest.mark.topology("standalone", "sentinel", "cluster")
async def test_a_crash_of_the_store_voids_tickets_and_keeps_everybody(
    fresh_server: Callable[..., Topology], prefix: str
) -> None:
    topology = fresh_server()
    async with open_store(StoreSettings(url=topology.url, prefix=prefix)) as store:
        world = World(store)
        await world.configure(capacity=2, grace_seconds=1000)
        entries = {
            user: await world.room.entry("default", "main", EntryArguments(user, user_id=user, trusted=True))
            for user in "abcde"
        }
        await world.tick()
        used, unused = await world.ticket("a"), await world.ticket("b")
        await world.redeem(used, "x1")
        await run_for(1.2)  # an append-only file synced every second, or a replica, has it by then
        await topology.fail_over(world.thing.key("meta"))

        async def back() -> bool:
            try:
                return await world.state("c") == "WAITING"
            except StoreUnavailable:
                return False

        await eventually(back, 30)
        with pytest.raises(TicketInvalid):
            await world.redeem(unused, "x2")
        with pytest.raises((TicketInvalid, TicketUsed)):
            await world.redeem(used, "x2")
        assert await world.ticket("b") != unused
        await world.tick()
        look = await world.look()
        assert look.contradictions() == []
        assert len(look.seats) == 2
        assert look.line == ["c", "d", "e"]
        assert {user: look.people[user].place for user in "cde"} == {user: entries[user].place for user in "cde"}


@pytest.mark.topology("standalone")
async def test_a_flushed_store_gets_its_line_back_from_tokens(
    fresh_server: Callable[..., Standalone], prefix: str
) -> None:
    topology = fresh_server()
    async with open_store(StoreSettings(url=topology.url, prefix=prefix)) as store:
        world = World(store)
        await world.configure(grace_seconds=1000)
        room = world.room
        entries = [await room.entry("default", "main", EntryArguments(f"nick{number}")) for number in range(20)]
        await world.beat("s1", 1, sessions=[])
        await world.tick()
        inside = await room.status("default", "main", entries[0].user_id)
        await world.redeem(str(inside.ticket_id), "x0", "s1")
        await room.end("default", "main", "x0")
        await world.tick()
        topology.node.command("FLUSHALL")
        world.wait(1)  # what begins anew is later than what was
        keeping = entries[1:10]  # the first was inside, the second was called; the last ten have no token any more
        for entry in reversed(keeping):
            await room.status("default", "main", entry.user_id, place_token=entry.place_token)
        look = await world.look()
        assert look.line == [entry.user_id for entry in keeping]
        with pytest.raises(QueueReset, match="called before"):
            await room.status("default", "main", entries[0].user_id, place_token=entries[0].place_token)
        with pytest.raises(QueueReset):
            await room.status("default", "main", entries[15].user_id)
        await world.live(11)
        assert (await world.look()).seats == [], "no server has reported yet"
        await world.beat("s1", 1, sessions=[])
        await world.live(1)
        assert await _state_of(world, keeping[0].user_id) == "PROMOTED"


async def _state_of(world: World, user: str) -> str:
    return str((await world.room.status("default", "main", user)).status)


async def test_a_worker_paused_for_thirty_seconds_does_no_harm_when_it_goes_on(paused_worker: PausedWorker) -> None:
    async with paused_worker.world() as world:
        for round_ in range(3):
            look = await world.look()
            for user, person in look.people.items():
                if person.state == "P":
                    await world.redeem(person.ticket, f"x-{user}")
                    await world.room.end("default", "main", f"x-{user}")
            await eventually(partial(_more_than, world, SEATS * (round_ + 2) - 1), 10)
        await asyncio.sleep(max(0.0, paused_worker.stopped_at + PAUSE_SECONDS - time.monotonic()))
        before = await called(world)
        paused_worker.go_on()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            look = await world.look()
            assert len(look.seats) == SEATS
            assert look.contradictions() == []
            await asyncio.sleep(0.05)
        assert await called(world) == before == 4 * SEATS


@pytest.mark.topology("cluster")
async def test_queues_on_a_shard_that_hangs_hold_up_no_other(fresh_server: Callable[..., Cluster], prefix: str) -> None:
    topology = fresh_server(Cluster(options={"cluster-node-timeout": 30_000}))
    async with open_store(StoreSettings(url=topology.url, prefix=prefix)) as store:
        index = store.thing("index", "default", "queue")
        by_shard: dict[Node, World] = {}
        for number in range(50):
            world = World(store, f"q{number}", real_time=True)
            by_shard.setdefault(topology.primary_of(world.thing.key("meta")), world)
        home = topology.primary_of(index.key("meta"))
        quick = by_shard.pop(home)
        hanging, slow = by_shard.popitem()
        for world in (quick, slow):
            await world.configure(capacity=1000, batch=1, tick_ms=100, grace_seconds=1000)
            await asyncio.gather(*(world.enter(f"u{number}") for number in range(200)))
        with WorkerProcess(topology.url, prefix):
            await eventually(lambda: _more_than(quick, 5), 20)
            await eventually(lambda: _more_than(slow, 5), 20)
            hanging.pause()
            try:
                before = await called(quick)
                await run_for(4)
                assert await called(quick) - before > 15, "ten a second, as before"
            finally:
                hanging.resume()
