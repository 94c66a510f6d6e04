"""Quorum locks over five servers that know nothing of each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress

import pytest

from headgate.kit.problems import InvalidRequest, StoreUnavailable
from headgate.locks import Election, FenceOutdated, Leader, LockHeld, LockLost, Locks, Quorum, QuorumLost
from headgate.store import StoreSettings, open_store
from tests.store.cancelling import inject
from tests.store.lock_history import History
from tests.store.lock_world import within
from tests.topology import FaultyProxy, Node, Stopwatch, eventually

pytestmark = pytest.mark.topology("standalone")

# Durable to the last write, so that a restart costs no vote; one test asks for less.
DURABLE: dict[str, str | int] = {"appendfsync": "always"}
LONGEST = 8.0

# What servers have to answer here: more than a machine stands still. Tests in which they are late anyway are less patient.
PATIENT = 2.0


@pytest.fixture(scope="module")
def shared_nodes() -> Iterator[list[Node]]:
    nodes = [Node(f"voter-{n}", DURABLE) for n in range(5)]
    try:
        for node in nodes:
            node.spawn()
        for node in nodes:
            node.wait_ready()
        yield nodes
    finally:
        for node in nodes:
            node.stop()


@pytest.fixture
def nodes(shared_nodes: list[Node]) -> Iterator[list[Node]]:
    """All five, whole again afterwards."""
    yield shared_nodes
    for node in shared_nodes:
        if node.running:
            node.resume()
        else:
            node.start()


def patient(urls: list[str], prefix: str, longest_ttl: float = LONGEST) -> Quorum:
    return Quorum(urls, prefix=prefix, longest_ttl=longest_ttl, server_timeout=PATIENT)


@pytest.fixture
async def quorum(nodes: list[Node], prefix: str) -> AsyncIterator[Quorum]:
    async with patient([node.url for node in nodes], prefix) as made:
        await eventually(lambda: _healthy(made), 15)  # servers that were just started are silent
        yield made


@pytest.fixture
async def other(nodes: list[Node], prefix: str) -> AsyncIterator[Quorum]:
    async with patient([node.url for node in nodes], prefix) as made:
        await eventually(lambda: _healthy(made), 15)  # servers that were just started are silent
        yield made


@pytest.fixture
async def hasty(nodes: list[Node], prefix: str) -> AsyncIterator[Quorum]:
    """As patient as a quorum is unless told otherwise."""
    async with Quorum([node.url for node in nodes], prefix=prefix, longest_ttl=LONGEST) as made:
        await eventually(lambda: _healthy(made), 15)  # servers that were just started are silent
        yield made


async def test_one_holds_and_fences_grow(quorum: Quorum, other: Quorum) -> None:
    fences = []
    for who in (quorum, other, quorum):
        async with who.lock("a", ttl=LONGEST) as held:
            fences.append(held.fence)
            with pytest.raises(LockHeld):
                await other.acquire(other.lock("a", ttl=5, wait=0).request, taker=object())
            assert (await quorum.show("a")).held
    assert fences == sorted(set(fences))
    assert not (await quorum.show("a")).held


async def test_it_works_with_two_down_and_fails_with_three(nodes: list[Node], quorum: Quorum, hasty: Quorum) -> None:
    nodes[0].kill()
    nodes[1].kill()
    async with await within(2, quorum.lock("a", ttl=LONGEST).acquire()) as held:
        first = held.fence
    nodes[2].kill()
    watch = Stopwatch()
    with pytest.raises(QuorumLost):
        await hasty.lock("a", ttl=5, wait=0).acquire()
    assert watch.seconds < 1
    assert not (await quorum.health()).ok
    for node in nodes[:3]:
        node.start()
    # What the two said yes to was taken back: the lock is free long before that lease would have ended.
    watch = Stopwatch()
    await eventually(lambda: _healthy(quorum), 10)
    async with await within(5, quorum.lock("a", ttl=LONGEST).acquire()) as held:
        assert held.fence > first
    assert watch.seconds < 10


async def test_a_minority_leaves_nothing_behind(nodes: list[Node], hasty: Quorum, prefix: str) -> None:
    for node in nodes[:3]:
        node.pause()
    with pytest.raises(QuorumLost):
        await hasty.lock("a", ttl=5, wait=0).acquire()
    for node in nodes[:3]:
        node.resume()
    await eventually(lambda: all(_holder(node, prefix) == "" for node in nodes), 10)


async def test_a_slow_server_does_not_slow_it(nodes: list[Node], prefix: str) -> None:
    async with FaultyProxy(nodes[0].port) as first, FaultyProxy(nodes[1].port) as second:
        urls = [first.url, second.url, *(node.url for node in nodes[2:])]
        async with patient(urls, prefix) as quorum:
            await eventually(lambda: _healthy(quorum), 15)
            async with quorum.lock("a", ttl=LONGEST):
                pass
            first.delay(1)
            second.delay(1)
            watch = Stopwatch()
            held = await quorum.lock("a", ttl=LONGEST).acquire()
            assert watch.seconds < 0.75
            first.heal()
            second.heal()
            await held.release()


async def test_waiters_are_called_and_exclude_each_other(nodes: list[Node], prefix: str) -> None:
    history = History()
    async with AsyncExitStack() as stack:
        urls = [node.url for node in nodes]
        clients = [await stack.enter_async_context(patient(urls, prefix)) for _ in range(3)]
        await eventually(lambda: _healthy(clients[0]), 15)

        async def work(client: Quorum) -> None:
            turns = 0
            while turns < 4:
                with suppress(QuorumLost):  # on a machine that stalls, servers are too late with their votes
                    async with client.lock("a", ttl=LONGEST) as held:
                        holding = history.begin(held.fence)
                        await asyncio.sleep(0.005)
                        holding.end = time.monotonic()
                        turns += 1

        async with asyncio.timeout(60):
            await asyncio.gather(*(work(client) for client in clients for _ in range(3)))
    history.check()
    assert len(history.holdings) == 36


async def test_a_holder_without_a_majority_is_told_before_its_lease_ends(nodes: list[Node], quorum: Quorum) -> None:
    told: list[float] = []
    lasts = 0.0
    with pytest.raises(LockLost):  # noqa: PT012 -- the block is what is tested
        async with quorum.lock("a", ttl=4) as held:
            watch, lasts = Stopwatch(), held.lease_ends - time.monotonic()
            for node in nodes[:3]:
                node.pause()
            try:
                await asyncio.sleep(20)
            finally:
                told.append(watch.seconds)
    assert len(told) == 1
    assert told[0] < lasts


async def test_a_held_lock_survives_two_dead_servers(nodes: list[Node], quorum: Quorum, other: Quorum) -> None:
    async with quorum.lock("a", ttl=5) as held:
        nodes[3].kill()
        nodes[4].kill()
        await asyncio.sleep(5.5)
        assert held.fence
        with pytest.raises(LockHeld):
            await other.acquire(other.lock("a", ttl=1, wait=0).request, taker=object())


async def test_a_server_that_forgot_its_vote_does_not_vote_for_one_ttl(prefix: str) -> None:
    nodes = [Node(f"forgetful-{n}", {"appendonly": "no"}) for n in range(3)]
    try:
        for node in nodes:
            node.start()
        urls = [node.url for node in nodes]
        async with patient(urls, prefix, longest_ttl=6) as quorum:
            await eventually(lambda: _healthy(quorum), 30)  # all of them were just started
            # A renewal between the restarts, or when the first of them votes again, would be as good as any other.
            held = await quorum.lock("a", ttl=6, renew=False).acquire()
            for node in nodes[:2]:
                await node.restart()  # both have forgotten who holds the lock
            with pytest.raises((QuorumLost, LockHeld)):
                await quorum.acquire(quorum.lock("a", ttl=1, wait=0).request, taker=object())
            states = (await quorum.health()).servers
            assert sorted(states.values()) == ["silent", "silent", "voting"]
            await eventually(lambda: _healthy(quorum), 30)
            assert time.monotonic() > held.lease_ends
    finally:
        for node in nodes:
            node.stop()


async def test_the_failover_of_the_seed_gives_one_holder_by_majority(nodes: list[Node], prefix: str) -> None:
    """A has three votes of five; one of those servers dies, and something empty takes its place."""
    replica = Node("replica", DURABLE)
    try:
        async with FaultyProxy(nodes[0].port) as door:
            urls = [door.url, *(node.url for node in nodes[1:])]
            async with patient(urls, prefix) as a, patient(urls, prefix) as b:
                await eventually(lambda: _healthy(b))
                for node in nodes[3:]:
                    node.pause()  # two servers do not hear of A
                async with a.lock("a", ttl=LONGEST) as held:
                    replica.start()
                    nodes[0].kill()
                    door.target = replica.port
                    door.cut()
                    for node in nodes[3:]:
                        node.resume()
                    # The empty one and the two that know nothing would be three.
                    with pytest.raises((LockHeld, QuorumLost)):
                        await b.lock("a", ttl=5, wait=0).acquire()
                    assert (await b.health()).servers[f"127.0.0.1:{door.port}"] == "silent"
                    assert held.fence
    finally:
        replica.stop()


async def test_the_failover_of_the_seed_with_one_store_is_caught_by_the_fence(prefix: str) -> None:
    """The same with one store: both think they hold the lock, and the resource refuses the first."""
    primary, replica = Node("primary", DURABLE), Node("replica", DURABLE)
    try:
        primary.start()
        replica.start()  # it was never told anything: the worst case of a failover
        async with FaultyProxy(primary.port) as door:
            settings = StoreSettings(url=door.url, prefix=prefix, deadline_ms=10_000)
            async with open_store(settings) as store, Locks(store) as locks:
                a = await locks.lock("a", ttl=30).acquire()
                old = a.fence
                primary.kill()
                door.target = replica.port
                door.cut()
                b = await locks.acquire(locks.lock("a", ttl=30).request, taker=object())
                assert b.fence > old
                await locks.fenced_set("row", "b", b.fence)
                with pytest.raises(FenceOutdated):
                    await locks.fenced_set("row", "a", old)
                await b.release()
    finally:
        primary.stop()
        replica.stop()


async def test_a_cancelled_holder_gives_every_vote_back(quorum: Quorum, other: Quorum) -> None:
    async def work() -> None:
        async with quorum.lock("a", ttl=LONGEST):
            await asyncio.sleep(0)

    async def check() -> None:
        # Long before a lease that was left behind would have ended.
        async with await within(3, other.lock("a", ttl=LONGEST).acquire()):
            pass

    assert await inject(work, check) >= 4


async def test_those_who_wait_are_told_when_the_client_closes(quorum: Quorum, other: Quorum) -> None:
    async with quorum.lock("a", ttl=LONGEST):
        waiting = [asyncio.create_task(other.lock("a", ttl=LONGEST).acquire()) for _ in range(3)]
        await asyncio.sleep(0.1)
        await other.close()
        assert all(task.done() for task in waiting)
        for task in waiting:
            with pytest.raises(StoreUnavailable):
                await task
    assert not (await quorum.show("a")).held


async def test_an_election_by_majority(quorum: Quorum, other: Quorum) -> None:
    seen: list[Leader | None] = []

    async def observe() -> None:
        async for leader in Election(other, "boss").observe():
            seen.append(leader)  # noqa: PERF401 -- it is read while it grows

    observer = asyncio.create_task(observe())
    await eventually(lambda: seen == [None])
    async with Election(quorum, "boss", ttl=LONGEST, candidate="ann").campaign() as term:
        await eventually(lambda: seen[-1] == Leader("ann", term.grant.fence))
    await eventually(lambda: seen[-1] is None)
    observer.cancel()
    await asyncio.wait({observer})


def test_what_is_no_quorum_is_refused() -> None:
    for urls in (
        ["valkey://a"],
        ["valkey://a", "valkey://a", "valkey://b"],
        ["valkey+cluster://a", "valkey://b", "valkey://c"],
    ):
        with pytest.raises(InvalidRequest):
            Quorum(urls)


async def test_a_ttl_longer_than_the_quorums_and_replicas_are_refused(quorum: Quorum) -> None:
    with pytest.raises(InvalidRequest, match="ttl"):
        await quorum.lock("a", ttl=LONGEST + 1).acquire()
    with pytest.raises(InvalidRequest, match="replicas"):
        await quorum.lock("a", ttl=LONGEST, replicas=1).acquire()


async def _healthy(quorum: Quorum) -> bool:
    return all(state == "voting" for state in (await quorum.health()).servers.values())


def _holder(node: Node, prefix: str) -> str:
    return str(node.command("HGET", f"{prefix}:vote:{{default/a}}:meta", "holder") or "")


async def test_a_quorum_that_could_not_be_entered_can_be_entered_later(
    nodes: list[Node], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.locks.quorum.OPEN_SECONDS", 0.5)
    for node in nodes[:3]:
        node.kill()
    quorum = patient([node.url for node in nodes], prefix)
    with pytest.raises(QuorumLost):
        await quorum.__aenter__()
    for node in nodes[:3]:
        node.start()
    monkeypatch.setattr("headgate.locks.quorum.OPEN_SECONDS", 20)
    async with quorum:  # raises QuorumLost unless most servers were reached anew
        pass
