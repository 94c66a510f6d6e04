"""A lock that counts only once replicas have it: what is confirmed survives the primary, what is not is not held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.locks import LockHeld, Locks, LockSettings, NotReplicated
from headgate.store import Store
from tests.store.cancelling import inject
from tests.store.lock_world import another, are_waiting, is_free, within
from tests.topology import Node, Stopwatch, Topology, eventually

replicated = pytest.mark.topology("sentinel", "cluster")

# Longer than a machine stands still, which is more than operators may ask for.
CALM = LockSettings(ack_ms=5000)


@pytest.fixture(autouse=True)
def a_primary_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the store enough time: a primary that falls silent while it counts replicas is not tested here."""
    monkeypatch.setattr("headgate.store.store.ACK_SLACK", 10)
    monkeypatch.setattr("headgate.store.client.link.STALL_SECONDS", 10)


@pytest.fixture
async def locks(store: Store) -> AsyncIterator[Locks]:
    async with Locks(store, LockSettings(ack_ms=200)) as made:
        yield made


def replicas_of(server: Topology, key: str) -> list[Node]:
    """The servers that follow the primary of a key."""
    port = server.primary_of(key).port
    states = ((node, node.info("replication")) for node in server.nodes if not node.sentinel)
    return [node for node, state in states if state["role"] == "slave" and state["master_port"] == port]


@pytest.mark.topology("standalone")
async def test_a_lock_that_no_replica_confirms_is_not_held(server: Topology, prefix: str, locks: Locks) -> None:
    async with another(server, prefix) as other:
        for _ in range(3):
            with pytest.raises(NotReplicated):
                await locks.lock("a", ttl=30, replicas=1).acquire()
            assert await is_free(other)
        async with other.lock("a", ttl=30, wait=0):
            with pytest.raises(LockHeld):
                await locks.lock("a", ttl=30, wait=0, replicas=1).acquire()


@pytest.mark.topology("standalone")
async def test_one_who_waited_and_is_not_confirmed_passes_the_turn_on(
    server: Topology, prefix: str, locks: Locks
) -> None:
    async with another(server, prefix) as other:
        held = await other.lock("a", ttl=30).acquire()
        first = asyncio.create_task(locks.lock("a", ttl=30, replicas=1).acquire())
        await eventually(lambda: are_waiting(other, 1))
        second = asyncio.create_task(locks.lock("a", ttl=30).acquire())
        await eventually(lambda: are_waiting(other, 2))
        await held.release()
        with pytest.raises(NotReplicated):
            await first
        await (await within(5, second)).release()


@pytest.mark.topology("standalone")
async def test_one_who_wants_replicas_is_not_given_the_lock_by_its_own_process(locks: Locks) -> None:
    held = await locks.lock("a", ttl=30).acquire()
    waiting = asyncio.create_task(locks.lock("a", ttl=30, replicas=1).acquire())
    await eventually(lambda: are_waiting(locks, 1))
    await held.release()
    with pytest.raises(NotReplicated):
        await waiting


@pytest.mark.topology("standalone")
async def test_waiting_for_replicas_holds_up_nobody_else(store: Store) -> None:
    async with Locks(store, CALM) as locks:
        waiting = asyncio.create_task(locks.lock("a", ttl=30, replicas=1).acquire())
        await eventually(lambda: _is_held(locks))
        watch = Stopwatch()
        async with locks.lock("b", ttl=30):
            pass
        assert not waiting.done()
        assert watch.seconds < 1
        with pytest.raises(NotReplicated):
            await waiting


@pytest.mark.topology("standalone")
async def test_cancelled_at_any_await_it_leaves_nothing_behind(server: Topology, prefix: str, locks: Locks) -> None:
    async def work() -> None:
        with suppress(NotReplicated):
            await locks.lock("a", ttl=60, replicas=1).acquire()

    async with another(server, prefix) as other:

        async def check() -> None:
            await eventually(lambda: is_free(other))

        assert await inject(work, check) >= 3


@replicated
async def test_a_lock_is_held_while_its_replicas_confirm_it(fresh_server: Callable[..., Topology], prefix: str) -> None:
    server = fresh_server()
    async with (
        another(server, prefix, CALM) as calm,
        another(server, prefix) as locks,
        another(server, prefix) as other,
    ):
        replicas = replicas_of(server, locks.thing("a").key("meta"))
        async with calm.lock("a", ttl=30, replicas=len(replicas)) as held:
            assert (await other.show("a")).fence == held.fence
        for node in replicas:
            node.pause()
        try:
            watch = Stopwatch()
            with pytest.raises(NotReplicated):
                await locks.lock("a", ttl=10, replicas=1).acquire()
            assert watch.seconds < 3
            assert await is_free(other)
            async with other.lock("a", ttl=10, wait=0):
                pass  # who asks for no replica is not held up
        finally:
            for node in replicas:
                node.resume()
        async with asyncio.timeout(20):
            while True:
                with suppress(NotReplicated):
                    await (await locks.lock("a", ttl=10, replicas=len(replicas)).acquire()).release()
                    break


@replicated
async def test_a_confirmed_lock_outlives_the_primary(fresh_server: Callable[..., Topology], prefix: str) -> None:
    server = fresh_server()
    async with another(server, prefix, CALM) as locks, another(server, prefix) as other:
        key = locks.thing("a").key("meta")
        count = len(replicas_of(server, key))
        async with locks.lock("a", ttl=60, replicas=count) as held:
            await server.fail_over(key)
            await eventually(lambda: _holds(other, held.fence), 20)
            with pytest.raises(LockHeld):
                await other.lock("a", ttl=10, wait=0).acquire()
            assert held.fence
        async with other.lock("a", ttl=10) as after:
            assert after.fence > held.grant.fence


async def _is_held(locks: Locks) -> bool:
    return (await locks.show("a")).held


async def _holds(locks: Locks, fence: int) -> bool:
    try:
        state = await locks.show("a")
    except StoreUnavailable:  # the new primary is not found yet
        return False
    return state.held and state.fence == fence
