"""The registry when things die, freeze, vanish and come back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.registry.model import Record
from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper
from headgate.sdk import Headgate
from headgate.store import Store, StoreSettings, open_store
from headgate.store.watch.feed import FeedChange
from tests.faults.load import PATIENT_MS
from tests.faults.registry_world import registered_program, worker
from tests.topology import FaultyProxy, Sentinel, Standalone, Stopwatch, Topology, eventually

pytestmark = pytest.mark.anyio
NS = "default"
Start = Callable[..., Topology]


async def names(registry: Registry) -> list[str]:
    listing = await registry.discover(NS, "game", "g")
    return sorted(each.instance_id for each in listing.instances)


async def told(registry: Registry) -> list[tuple[str, str]]:
    thing = registry.service(NS, "game", "g")
    return [(change.kind, change.member) for change in (await registry.feed.read(thing, 0, 5000)).changes]


@pytest.mark.quiet
async def test_killed_at_once_it_is_gone_at_its_ttl_with_one_event(server: Topology, prefix: str, store: Store) -> None:
    registry = Registry(store)
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(server.url, prefix)) for _ in range(2)]
        a = stack.enter_context(registered_program(server.url, prefix, "a", ttl=3, interval_ms=500))
        stack.enter_context(registered_program(server.url, prefix, "b", ttl=3, interval_ms=500))

        async def both() -> bool:
            return await names(registry) == ["a", "b"]

        await eventually(both, 20)
        await eventually(lambda: "worker started" in workers[0].log and "worker started" in workers[1].log, 20)
        a.kill()
        watch = Stopwatch()
        workers[0].kill()

        async def removed() -> bool:
            return ("removed", "a") in await told(registry)

        await eventually(removed, 10)
        assert watch.wall > 2
        assert watch.seconds < 3 + 1 + 1.5, "at most a second late; one more for the dead worker's claim"
        await asyncio.sleep(2)
        first, second, last = await told(registry)
        assert ({first, second}, last) == ({("put", "a"), ("put", "b")}, ("removed", "a"))
        assert await names(registry) == ["b"]


@pytest.mark.quiet
async def test_frozen_past_its_ttl_it_is_removed_once_and_added_once(
    server: Topology, prefix: str, store: Store
) -> None:
    registry = Registry(store)
    with ExitStack() as stack:
        stack.enter_context(worker(server.url, prefix))
        a = stack.enter_context(registered_program(server.url, prefix, "a", ttl=4, interval_ms=400))

        heard: set[str] = set()

        async def there() -> bool:
            return await names(registry) == ["a"]

        async def beats() -> bool:
            """It is in the list before it knows so itself; once it has beaten, it is past its start."""
            found = await registry.discover("default", "game", "g")
            heard.update(instance.last_heartbeat for instance in found.instances)
            return len(heard) > 1

        await eventually(beats, 20)
        a.freeze()

        async def removed() -> bool:
            return ("removed", "a") in await told(registry)

        await eventually(removed, 10)
        assert await names(registry) == []
        a.thaw()
        await eventually(there, 5)
        await asyncio.sleep(1)
        assert await told(registry) == [("put", "a"), ("removed", "a"), ("put", "a")]


@pytest.mark.topology("standalone")
@pytest.mark.alone
async def test_deaths_are_on_time_beside_two_hundred_thousand_expiring_keys(fresh_server: Start) -> None:
    server = fresh_server()
    assert isinstance(server, Standalone)
    for start in range(0, 200_000, 5000):
        pipe = server.node.admin.pipeline(transaction=False)
        for number in range(start, start + 5000):
            pipe.set(f"other:{number}", "x", ex=100_000)
        pipe.execute()  # type: ignore[no-untyped-call]
    async with open_store(StoreSettings(url=server.url, prefix="t")) as store:
        registry, sweeper = Registry(store), Sweeper(Registry(store))
        stop = asyncio.Event()

        async def sweep() -> None:
            while not stop.is_set():
                await sweeper.step()
                await asyncio.sleep(0.25)

        sweeping = asyncio.ensure_future(sweep())
        groups = [f"g{number}" for number in range(50)]
        for group in groups:
            for number in range(6):
                record = Record(hostname="h", type="game", group=group, instance_id=f"i{number}", ttl_seconds=2)
                await registry.register(NS, record)
        watch = Stopwatch()
        services = [registry.service(NS, "game", group) for group in groups]

        async def all_gone() -> bool:
            read = await asyncio.gather(*(registry.feed.read(service, 0) for service in services))
            return all(len(each.changes) == 12 for each in read)

        await eventually(all_gone, 10)
        assert watch.seconds < 2 + 1
        for service in services:
            changes = (await registry.feed.read(service, 0)).changes
            assert [change.kind for change in changes] == ["put"] * 6 + ["removed"] * 6
        stop.set()
        await sweeping


@pytest.mark.topology("standalone")
@pytest.mark.alone
async def test_after_a_flush_a_thousand_come_back_and_no_watcher_sees_an_empty_list(
    fresh_server: Start, tmp_path: Path
) -> None:
    server = fresh_server()
    assert isinstance(server, Standalone)
    interval = 2.0
    options = {
        "prefix": "t",
        "snapshot_dir": tmp_path,
        "heartbeat_interval_ms": int(interval * 1000),
        "ttl_seconds": 6.0,
    }
    async with Headgate(server.url, **options) as clients, Headgate(server.url, **options) as watching:  # type: ignore[arg-type]
        made = await asyncio.gather(
            *(
                clients.registry.register(hostname="h", type="game", group="g", instance_id=f"i{number}")
                for number in range(1000)
            )
        )
        for each in made:
            clients.registry.start_auto_heartbeat(each.instance_id)
        sizes: list[int] = []
        assert len(await watching.registry.cached("game", "g")) == 1000

        async def look() -> bool:
            sizes.append(len(await watching.registry.cached("game", "g")))
            return len(await names(registry)) == 1000

        async with open_store(StoreSettings(url=server.url, prefix="t")) as store:
            registry = Registry(store)
            server.node.command("FLUSHALL")
            watch = Stopwatch()

            await eventually(look, 10)
            assert watch.seconds < 2 * interval + 1
            assert min(sizes) == 1000


@pytest.mark.topology("standalone")
@pytest.mark.quiet
async def test_a_store_that_was_away_removes_nobody_before_one_ttl(fresh_server: Start) -> None:
    server = fresh_server()
    assert isinstance(server, Standalone)
    async with (
        open_store(StoreSettings(url=server.url, prefix="t", deadline_ms=500)) as impatient,
        open_store(StoreSettings(url=server.url, prefix="t", deadline_ms=PATIENT_MS)) as store,
    ):
        registry = Registry(store)
        sweeper = Sweeper(Registry(impatient))
        stop = asyncio.Event()

        async def sweep() -> None:
            while not stop.is_set():
                with suppress(StoreUnavailable):
                    await sweeper.step()
                await asyncio.sleep(0.25)

        sweeping = asyncio.ensure_future(sweep())
        for number in range(5):
            await registry.register(
                NS, Record(hostname="h", type="game", group="g", instance_id=f"i{number}", ttl_seconds=4)
            )
        thing = registry.service(NS, "game", "g")

        async def visited() -> bool:
            return await store.read(thing, "HEXISTS", thing.key("meta"), "visited") == 1

        await eventually(visited)
        server.node.pause()
        await asyncio.sleep(9)
        server.node.resume()
        resumed = monotonic()

        async def answers() -> bool:
            try:
                return len(await names(registry)) == 5
            except StoreUnavailable:
                return False

        await eventually(answers, 5)
        while True:
            there = await names(registry)
            if monotonic() - resumed >= 3.5:
                break
            assert len(there) == 5, "who could not beat is not dead"
            await asyncio.sleep(0.1)

        async def gone() -> bool:
            return await names(registry) == []

        await eventually(gone, 6)
        stop.set()
        await sweeping


@pytest.mark.topology("standalone")
async def test_lost_replies_register_nobody_twice_and_lose_nobody(fresh_server: Start) -> None:
    """Each registration's reply may be lost; repeated by the store's door, it is one registration, whole or not at all."""
    server = fresh_server()
    assert isinstance(server, Standalone)
    chance = random.Random(7)
    async with (
        FaultyProxy(server.node.port) as proxy,
        open_store(StoreSettings(url=proxy.url, prefix="t")) as store,
        open_store(StoreSettings(url=server.url, prefix="t")) as truth,
    ):
        registry, beside = Registry(store), Registry(truth)
        acknowledged = set()
        for number in range(60):
            fault = chance.random()
            if fault < 0.2:
                proxy.drop_replies(cut=True)
                asyncio.get_running_loop().call_later(0.05, proxy.heal)
            elif fault < 0.4:
                asyncio.get_running_loop().call_later(chance.random() * 0.01, proxy.cut)
            try:
                await registry.register(NS, Record(type="game", group="g", instance_id=f"i{number}", hostname="h"))
                acknowledged.add(f"i{number}")
            except StoreUnavailable:
                pass
        proxy.heal()
        listing = await beside.discover(NS, "game", "g")
        assert acknowledged <= {each.instance_id for each in listing.instances}
        assert all(each.hostname == "h" and each.registration for each in listing.instances), "none is half there"
        puts = [member for kind, member in await told(beside) if kind == "put"]
        assert len(puts) == len(set(puts)), "one event each"


@pytest.mark.topology("sentinel")
async def test_after_a_failover_with_lost_writes_everybody_alive_is_listed_again(
    fresh_server: Start, tmp_path: Path
) -> None:
    server = fresh_server()
    assert isinstance(server, Sentinel)
    interval = 1.0
    async with Headgate(
        server.url, prefix="t", snapshot_dir=tmp_path, heartbeat_interval_ms=int(interval * 1000), ttl_seconds=30
    ) as hg:
        for number in range(20):
            made = await hg.registry.register(hostname="h", type="game", group="g", instance_id=f"i{number}")
            hg.registry.start_auto_heartbeat(made.instance_id)
        seen = [len(await hg.registry.cached("game", "g"))]
        await server.fail_over()

        async def all_back() -> bool:
            seen.append(len(await hg.registry.cached("game", "g")))
            found = await hg.registry.discover("game", "g")
            return len(found) == 20 and not found.stale and not any(each.suspect for each in found)

        await eventually(all_back, 20)
        assert min(seen) == 20


async def test_a_store_that_is_down_answers_from_memory_and_comes_back(fresh_server: Start, tmp_path: Path) -> None:
    server = fresh_server()
    async with Headgate(server.url, prefix="t", snapshot_dir=tmp_path, heartbeat_interval_ms=300) as hg:
        made = await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
        hg.registry.start_auto_heartbeat(made.instance_id)
        await hg.registry.discover("game", "g")
        for node in server.primaries():
            node.pause()
        found = await hg.registry.discover("game", "g")
        assert ([each.instance_id for each in found], found.stale) == (["a"], True)
        for node in server.nodes:
            node.resume()

        async def fresh() -> bool:
            found = await hg.registry.discover("game", "g")
            return [each.instance_id for each in found] == ["a"] and not found.stale

        await eventually(fresh, 20)


@pytest.mark.topology("standalone")
@pytest.mark.quiet
@pytest.mark.parametrize("watched", [True, False])
async def test_after_a_restart_of_the_store_each_has_its_own_lease(fresh_server: Start, watched: bool) -> None:
    """The setting is 30 s, and so is one of the leases: neither keeps a dead one of 5 s, or takes a living one of 30 s."""
    server = fresh_server()
    assert isinstance(server, Standalone)
    async with open_store(StoreSettings(url=server.url, prefix="t", deadline_ms=PATIENT_MS)) as store:
        registry = Registry(store)
        thing = registry.service(NS, "game", "g")
        seen: list[tuple[str, str]] = []

        async def sweep() -> None:
            while True:
                with suppress(StoreUnavailable):
                    await Sweeper(registry).step()
                await asyncio.sleep(0.25)

        async def watch() -> None:
            notices = registry.feed.watch(thing)
            while True:
                notice = await anext(notices)
                if isinstance(notice, FeedChange):
                    seen.append((notice.kind, notice.member))

        for name, ttl_seconds in (("dead", 5), ("living", 30)):
            record = Record(type="game", group="g", instance_id=name, hostname="h", ttl_seconds=ttl_seconds)
            await registry.register(NS, record)
        tasks = [asyncio.ensure_future(sweep()), *([asyncio.ensure_future(watch())] if watched else [])]
        try:
            await asyncio.sleep(1.5)  # what was written is on disk
            server.node.kill()
            await asyncio.sleep(7)
            restarted = monotonic()
            await server.node.restart()
            back = Stopwatch()

            async def answers() -> bool:
                with suppress(StoreUnavailable):
                    return await names(registry) == ["dead", "living"]
                return False

            await eventually(answers, 4)

            async def gone() -> bool:
                return await names(registry) == ["living"]

            await eventually(gone, 12)
            assert monotonic() - restarted >= 5
            assert back.seconds < 9
            if watched:
                await eventually(lambda: seen == [("removed", "dead")])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_a_client_starts_from_its_snapshots_while_the_store_is_down(fresh_server: Start, tmp_path: Path) -> None:
    server = fresh_server()

    def client() -> Headgate:
        return Headgate(server.url, prefix="t", snapshot_dir=str(tmp_path), heartbeat_interval_ms=300)

    async with client() as hg:
        await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
        await hg.registry.discover("game", "g")
        await hg.config.set("shop", "limit", "7")
        await hg.config.live("shop", "limit", str)
    for node in server.nodes:
        node.pause()
    async with client() as hg:
        found = await hg.registry.discover("game", "g")
        assert ([each.instance_id for each in found], found.stale) == (["a"], True)
        live = await hg.config.live("shop", "limit", str)
        assert (live.value, live.stale) == ("7", True)
        with pytest.raises(StoreUnavailable):
            await hg.config.set("shop", "limit", "8")
        for node in server.nodes:
            node.resume()

        async def fresh() -> bool:
            return not (await hg.registry.discover("game", "g")).stale and not live.stale

        await eventually(fresh, 30)
        await hg.config.set("shop", "limit", "8")
        await eventually(lambda: live.value == "8")


@pytest.mark.topology("standalone")
@pytest.mark.quiet
async def test_whoever_looks_at_a_frozen_store_waits_for_one_deadline_not_for_two(fresh_server: Start) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix="t", deadline_ms=1000)) as store:
        registry = Registry(store)
        await registry.register(NS, Record(hostname="h", type="game", group="g", instance_id="a"))
        server.primaries()[0].pause()

        async def look() -> tuple[float, float]:
            watch = Stopwatch()
            with pytest.raises(StoreUnavailable):
                await names(registry)
            return watch.seconds, watch.wall

        first = asyncio.ensure_future(look())
        await asyncio.sleep(0.1)
        later = [asyncio.ensure_future(look()) for _ in range(20)]
        _, one_deadline = await first
        waited = [seconds for seconds, _ in [await each for each in later]]
        server.primaries()[0].resume()
        assert max(waited) < one_deadline + 0.6, waited

        async def back() -> bool:
            with suppress(StoreUnavailable):
                return await names(registry) == ["a"]
            return False

        await eventually(back, 10)
