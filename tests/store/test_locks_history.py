"""Many clients, much trouble: in every history there is one holder at a time, in order, and nobody is forgotten."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.locks import LockHeld, LockLost, LockSettings
from headgate.store import Store, StoreSettings, open_store
from tests.store.lock_history import History, WatchedLocks
from tests.topology import Standalone, Topology, eventually

CLIENTS = 5
WORKERS = 4
TTL = 1.0


class World:
    """Clients that take one lock again and again while somebody breaks things."""

    def __init__(self, url: str, prefix: str, seed: int, grace_ms: int = 500) -> None:
        self.url = url
        self.prefix = prefix
        self.grace_ms = grace_ms
        self.dice = random.Random(seed)
        self.history = History()
        self.clients: list[WatchedLocks] = []
        self.served = [0] * (CLIENTS * WORKERS)
        self.stopping = False
        self.patience: list[float | None] = [None, None, 3.0, 0.05]
        self._running: dict[int, asyncio.Task[None]] = {}
        self._ears: dict[WatchedLocks, Callable[[bytes, str | None], None]] = {}

    async def run(
        self,
        seconds: float,
        trouble: Callable[[], asyncio.Future[None] | None],
        until: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make trouble for so long, and on a slow machine until enough has happened."""
        async with AsyncExitStack() as stack:
            for _ in range(CLIENTS):
                settings = StoreSettings(url=self.url, prefix=self.prefix)
                store = await stack.enter_async_context(open_store(settings))
                locks = WatchedLocks(store, LockSettings(grace_ms=self.grace_ms))
                self.clients.append(await stack.enter_async_context(locks))
            workers = [asyncio.create_task(self.work(n)) for n in range(CLIENTS * WORKERS)]
            begun = time.monotonic()
            while (passed := time.monotonic() - begun) < seconds or (not until() and passed < 60):
                await asyncio.sleep(self.dice.uniform(0, 0.1))
                done = trouble()
                if done is not None:
                    await done
            before = list(self.served)
            # Once the trouble has ended, everybody is served again.
            await eventually(lambda: all(now > was for now, was in zip(self.served, before, strict=True)), 40)
            self.stopping = True
            async with asyncio.timeout(60):
                await asyncio.gather(*workers)
            await eventually(self.empty)

    async def work(self, n: int) -> None:
        while not self.stopping:
            self._running[n] = asyncio.create_task(self.hold(n))
            await asyncio.wait({self._running[n]})
            task = self._running[n]
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def hold(self, n: int) -> None:
        locks = self.clients[n % CLIENTS]
        patience = self.dice.choice(self.patience)
        holding = None
        try:
            async with locks.lock("a", ttl=TTL, wait=patience) as held:
                holding = self.history.begin(held.grant.fence, locks.places.get(held.holder, 0))
                try:
                    await asyncio.sleep(self.dice.choice([0, 0, 0.002, 0.01]))
                finally:
                    holding.end = time.monotonic()
                self.served[n] += 1
        except (LockHeld, LockLost, StoreUnavailable):
            await asyncio.sleep(0.01)

    def cancel_somebody(self) -> None:
        self._running[self.dice.randrange(CLIENTS * WORKERS)].cancel()

    def cut_a_subscriber(self) -> None:
        link = self.dice.choice(self.clients).store.hints._link
        if link is not None:
            link.close("cut by the test")

    def cut_a_connection(self) -> None:
        link = self.dice.choice(self.clients).store.route.ready(self.clients[0].thing("a").slot)
        if link is not None:
            link.close("cut by the test")

    def drop_a_hint(self) -> None:
        """Have one client miss whatever is said in the next moment."""
        client = self.dice.choice(self.clients)
        self.deafen(client)
        asyncio.get_running_loop().call_later(0.02, self.let_hear, client)

    def deafen(self, client: WatchedLocks) -> None:
        hints = client.store.hints
        self._ears.setdefault(client, hints._notify)
        hints._notify = lambda channel, words: None  # type: ignore[method-assign]

    def let_hear(self, client: WatchedLocks) -> None:
        client.store.hints._notify = self._ears[client]  # type: ignore[method-assign,assignment]

    async def empty(self) -> bool:
        state = await self.clients[0].show("a")
        return not state.held and not state.waiting


@pytest.mark.parametrize("seed", range(3))
async def test_histories_with_cancels_lost_hints_and_lost_connections(server: Topology, prefix: str, seed: int) -> None:
    world = World(server.url, prefix, seed)
    kinds = [world.cancel_somebody] * 6 + [world.cut_a_subscriber, world.cut_a_connection] + [world.drop_a_hint] * 3
    await world.run(4, lambda: world.dice.choice(kinds)(), lambda: len(world.history.holdings) > 100)
    world.history.check(fifo=False)
    assert len(world.history.holdings) > 100


async def test_a_client_that_hears_nothing_is_served_all_the_same(server: Topology, prefix: str) -> None:
    world = World(server.url, prefix, 5)
    world.patience = [None]

    def trouble() -> None:
        world.deafen(world.clients[0])  # and it stays so

    await world.run(1, trouble)
    world.history.check(fifo=False)
    assert all(world.served)


async def test_histories_without_trouble_are_in_the_order_of_the_line(server: Topology, prefix: str) -> None:
    # Whoever is called while the machine stands still must not be passed over.
    world = World(server.url, prefix, 0, grace_ms=10_000)
    await world.run(2, world.cancel_somebody, lambda: len(world.history.holdings) > 100)
    world.history.check()
    assert len(world.history.holdings) > 100


@pytest.mark.topology("standalone")
async def test_histories_with_restarts_of_the_store(fresh_server: Callable[..., Standalone], prefix: str) -> None:
    server = fresh_server(Standalone(options={"appendfsync": "always"}))
    world = World(server.url, prefix, 7)
    restarts = 0

    def trouble() -> asyncio.Future[None] | None:
        nonlocal restarts
        if world.dice.random() < 0.05 and restarts < 3:
            restarts += 1
            return asyncio.ensure_future(server.node.restart())
        world.cancel_somebody()
        return None

    await world.run(5, trouble, lambda: restarts > 0 and len(world.history.holdings) > 50)
    world.history.check(fifo=False)
    assert restarts
    assert len(world.history.holdings) > 50


@pytest.mark.topology("sentinel", "cluster")
async def test_histories_with_a_failover(fresh_server: Callable[..., Topology], prefix: str) -> None:
    """The last writes may be lost, so two may think that they hold the lock; then the fence says who is right."""
    server = fresh_server()
    world = World(server.url, prefix, 11)
    failovers = 0

    def trouble() -> asyncio.Future[None] | None:
        nonlocal failovers
        if len(world.history.holdings) > 50 and not failovers:
            failovers += 1
            return asyncio.ensure_future(server.fail_over(world.clients[0].thing("a").key("meta")))
        world.cancel_somebody()
        return None

    await world.run(4, trouble, lambda: failovers == 1)
    world.history.check(fifo=False, exclusive=False)
    assert failovers == 1


async def test_a_hundred_workers_count_exactly(server: Topology, prefix: str, store: Store) -> None:
    counter = 0
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(10):
            settings = StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)
            own = await stack.enter_async_context(open_store(settings))
            clients.append(await stack.enter_async_context(WatchedLocks(own)))

        async def work(n: int) -> None:
            nonlocal counter
            for _ in range(30):
                async with clients[n % 10].lock("counter", ttl=10):
                    seen = counter
                    await asyncio.sleep(0)
                    counter = seen + 1

        await asyncio.gather(*(work(n) for n in range(100)))
    assert counter == 3000
