"""The store crashes, hangs or vanishes under load: quick 503s, and service again without a restart of ours."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import anyio
import anyio.to_thread
import pytest
from valkey import Valkey
from valkey.exceptions import ResponseError

from headgate.store import Store, StoreSettings, Thing, open_store
from tests.faults.load import PATIENT_MS, SLACK_SECONDS, Call, Load, Outcome
from tests.topology import FaultyProxy, Node, Standalone, eventually

pytestmark = [pytest.mark.topology("standalone"), pytest.mark.quiet]
DEADLINE = 2.0


@pytest.fixture
def server(fresh_server: Callable[..., Standalone]) -> Standalone:
    """A server of one's own that keeps whatever it has acknowledged; with everysec and a busy disk it may hold back 2 s of it."""
    return fresh_server(Standalone(options={"appendfsync": "always"}))


@pytest.fixture
async def proxy(anyio_backend: str, server: Standalone) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(server.node.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultyProxy, prefix: str) -> AsyncIterator[Store]:
    async with open_store(StoreSettings(url=proxy.url, prefix=prefix)) as store:
        yield store


@pytest.fixture
async def patient(proxy: FaultyProxy, prefix: str) -> AsyncIterator[Store]:
    """A store for callers of whom none may fail; how long they wait is measured."""
    async with open_store(StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store:
        yield store


def things(store: Store) -> list[Thing]:
    return [store.thing("t", "default", f"x{n}") for n in range(4)]


async def test_a_crash_and_restart_loses_nothing_that_was_acknowledged(server: Standalone, prefix: str) -> None:
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        async with Load(store, things(store)) as load:
            await anyio.sleep(0.5)
            server.node.kill()
            killed = time.monotonic()

            def late() -> list[Call]:
                return [call for call in load.history if call.began > killed + 2.5]

            await eventually(lambda: len(late()) >= 20, 10)
            assert load.outcomes(since=killed)[Outcome.OK] == 0
            # Whoever comes while the store has been away for a while is told at once, not at the deadline.
            assert max(call.seconds for call in late()) < 1
            await server.node.restart()
            assert await load.resumed(time.monotonic(), 2) < 2
            await anyio.sleep(0.3)
        assert load.slowest() < DEADLINE + SLACK_SECONDS
        await load.check(kept=True)


async def test_repeated_crashes_never_run_a_call_twice(server: Standalone, prefix: str) -> None:
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        async with Load(store, things(store), callers=40) as load:
            for _ in range(8):
                await anyio.sleep(0.2)
                await server.node.restart()
                await load.resumed(time.monotonic(), 2)
        await load.check(kept=True)


async def test_a_frozen_server_keeps_nobody_beyond_the_deadline(server: Standalone, prefix: str) -> None:
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        async with Load(store, things(store)) as load:
            server.node.pause()
            await anyio.sleep(5)
            server.node.resume()
            assert await load.resumed(time.monotonic(), 2) < 2
            await anyio.sleep(0.3)
        assert load.slowest() < DEADLINE + SLACK_SECONDS
        await load.check(kept=True)


async def test_a_network_that_swallows_everything_keeps_nobody_beyond_the_deadline(
    proxy: FaultyProxy, store: Store
) -> None:
    async with Load(store, things(store)) as load:
        proxy.blackhole()
        await anyio.sleep(5)
        proxy.heal()
        assert await load.resumed(time.monotonic(), 4) < 4
    assert load.slowest() < DEADLINE + SLACK_SECONDS
    await load.check(kept=True)


async def test_a_refused_port_is_told_and_survived(proxy: FaultyProxy, store: Store) -> None:
    async with Load(store, things(store)) as load:
        await proxy.refuse()
        await anyio.sleep(3)
        opened = proxy.accepted
        await proxy.accept()
        assert await load.resumed(time.monotonic(), 2) < 2
        # All callers share one connection attempt: no storm falls on a server that comes back.
        assert proxy.accepted - opened <= 4
    assert load.slowest() < DEADLINE + SLACK_SECONDS
    await load.check(kept=True)


async def test_a_slow_and_crumbling_network_mixes_up_no_answers(proxy: FaultyProxy, patient: Store) -> None:
    async with Load(patient, things(patient)) as load:
        for size, delay in ((1, 0.0), (7, 0.02), (0, 0.1), (3, 0.0)):
            proxy.slice(size)
            proxy.delay(delay)
            await anyio.sleep(1)
        proxy.heal()
    assert load.outcomes()[Outcome.OK] == len(load.history)
    assert load.slowest() < DEADLINE
    await load.check(kept=True)


async def test_connections_cut_at_random_lose_no_answer_and_double_none(proxy: FaultyProxy, patient: Store) -> None:
    async with Load(patient, things(patient), callers=40) as load:
        for _ in range(40):
            await anyio.sleep(0.05)
            proxy.cut()
        await load.resumed(time.monotonic(), 2)
    # What may be repeated was; only what may not is unknown.
    assert all(call.outcome is Outcome.OK for call in load.history if call.repeatable)
    assert load.slowest() < DEADLINE
    await load.check(kept=True)


async def test_a_server_with_no_room_for_connections_is_away_and_comes_back(server: Standalone, prefix: str) -> None:
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        async with Load(store, things(store)) as load:
            server.node.command("CONFIG", "SET", "maxclients", 1)
            server.node.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            full = time.monotonic()
            await anyio.sleep(1)
            assert load.outcomes(since=full)[Outcome.OK] == 0
            server.node.command("CONFIG", "SET", "maxclients", 1000)
            assert await load.resumed(time.monotonic(), 2) < 2
        await load.check(kept=True)


async def test_somebody_elses_endless_script_is_waited_for(server: Standalone, prefix: str) -> None:
    """The server says BUSY and runs nothing; our callers repeat within their deadline."""
    server.node.command("CONFIG", "SET", "busy-reply-threshold", 50)
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store:
        async with Load(store, things(store)) as load, anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, _run_endless_script, server.node)
            await anyio.sleep(1)
            server.node.command("SCRIPT", "KILL")
            await load.resumed(time.monotonic(), 2)
        assert load.outcomes() == {Outcome.OK: len(load.history)}
        assert load.slowest() < DEADLINE
        await load.check(kept=True)


def _run_endless_script(node: Node) -> None:
    with Valkey(**node.admin_options()) as client, pytest.raises(ResponseError, match="killed"):
        client.eval("while true do end", 0)
