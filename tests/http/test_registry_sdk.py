"""One client, two modes, one suite."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.registry.model import OverrideChange
from headgate.registry.registry import Registry as StoreRegistry
from headgate.registry.sweep import Sweeper
from headgate.sdk import (
    Change,
    Gone,
    Headgate,
    HeadgateSync,
    Listed,
    Marked,
    Put,
    Record,
    ServiceDiscoveryClient,
    UnknownInstance,
)
from headgate.sdk.balance import ConsistentHash, LeastLoaded, NobodyAvailable, Random, RoundRobin, Weighted
from headgate.sdk.lifespan import registered
from headgate.store import StoreSettings, open_store
from tests.http.two_modes import Make
from tests.processes import Gateway, GatewayProcess
from tests.topology import FaultyProxy, Topology, eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def beside(server: Topology, gateway_process: GatewayProcess) -> AsyncIterator[StoreRegistry]:
    """The registry itself, for what only a worker or a fault does."""
    async with open_store(StoreSettings(url=server.url, prefix=gateway_process.prefix, deadline_ms=10_000)) as store:
        yield StoreRegistry(store)


async def ids(hg: Headgate, **choice: object) -> list[str]:
    return sorted(each.instance_id for each in await hg.registry.discover("game", "kr-1", **choice))  # type: ignore[arg-type]


async def test_register_beat_discover_remove(hg: Headgate) -> None:
    made = await hg.registry.register(type="game", group="kr-1", hostname="x", performance={"tps": 1})
    await hg.registry.heartbeat(made.instance_id, performance={"tps": 2})
    (found,) = await hg.registry.discover("game", "kr-1")
    assert (found.performance, found.hostname) == ({"tps": 2}, "x")
    await hg.registry.remove(made.instance_id)
    assert await ids(hg) == []
    with pytest.raises(UnknownInstance):
        await hg.registry.heartbeat(made.instance_id)


async def test_the_nacos_names(hg: Headgate) -> None:
    for name in ("a", "b"):
        await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id=name, healthy=name == "a")
    assert len(await hg.registry.get_all_instances("game/kr-1")) == 2
    assert [each.instance_id for each in await hg.registry.get_healthy_instances("game")] == ["a"]
    answer = await hg.registry.batch_heartbeat(["a", "b", "x"])
    assert (answer.renewed, answer.unknown) == (2, ["x"])
    await hg.registry.deregister("a")
    assert await ids(hg) == ["b"]


async def test_filters_and_overrides(hg: Headgate) -> None:
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="a", metadata={"v": 2})
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="b", metadata={"v": 3})
    assert await ids(hg, filters=["metadata.v>2"]) == ["b"]
    await hg.registry.override("game", "kr-1", "b", OverrideChange(enabled=False))
    assert await ids(hg, healthy=True) == ["a"]
    await hg.registry.evict("game", "kr-1", "a", 30)
    assert await ids(hg) == ["b"]
    assert [(each.type, each.instances) for each in await hg.registry.services()] == [("game", 1)]


async def test_listeners_hear_the_present_and_every_change(hg: Headgate) -> None:
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="a")
    heard: list[Change] = []
    plain: list[Change] = []

    async def listen(change: Change) -> None:
        heard.append(change)

    def raising(change: Change) -> None:
        plain.append(change)
        raise RuntimeError("a listener's own mistake")

    await hg.registry.subscribe("game/kr-1", listen)
    await hg.registry.subscribe("game/kr-1", raising)
    await eventually(lambda: len(heard) == 1)
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="b")
    await hg.registry.remove("a")
    await eventually(lambda: len(heard) == 3 and len(plain) == 3)
    assert [(change.kind, change.instance.instance_id) for change in heard] == [
        ("put", "a"),
        ("put", "b"),
        ("removed", "a"),
    ]
    await hg.registry.unsubscribe("game/kr-1", raising)
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="c")
    await eventually(lambda: len(heard) == 4)
    assert len(plain) == 3


async def test_a_slow_listener_holds_up_nobody(hg: Headgate) -> None:
    gate = threading.Event()
    heard: list[str] = []

    for _ in range(40):  # more than any pool of threads has

        def slow(change: Change) -> None:
            gate.wait(20)

        await hg.registry.subscribe("game/kr-1", slow)

    async def quick(change: Change) -> None:
        heard.append(change.instance.instance_id)

    await hg.registry.subscribe("game/kr-1", quick)
    for number in range(20):
        await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id=f"i{number}")
    await eventually(lambda: len(heard) == 20)
    assert len(await hg.registry.discover("game", "kr-1")) == 20
    gate.set()


async def test_a_watch_by_hand_resumes_from_its_position(hg: Headgate) -> None:
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="a")
    position = ""
    async for happening in hg.registry.watch("game", "kr-1"):
        if isinstance(happening, Listed):
            assert [each.instance_id for each in happening.instances] == ["a"]
        if isinstance(happening, Marked):
            position = happening.position
            break
    for number in range(100):
        await hg.registry.heartbeat("a", metadata={"n": number})
    await hg.registry.remove("a")
    seen: list[object] = []
    async for happening in hg.registry.watch("game", "kr-1", position=position):
        if not isinstance(happening, Marked):
            seen.append(happening)
        if isinstance(happening, Gone):
            break
    puts = [each.instance.metadata["n"] for each in seen if isinstance(each, Put)]
    assert puts == list(range(100))


async def test_all_groups_are_followed_also_new_ones(hg: Headgate) -> None:
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="a")
    assert [each.instance_id for each in await hg.registry.cached("game")] == ["a"]
    await hg.registry.register(hostname="h", type="game", group="us-1", instance_id="b")

    async def both() -> bool:
        return sorted(each.instance_id for each in await hg.registry.cached("game")) == ["a", "b"]

    await eventually(both)


async def test_after_a_loss_it_registers_again_with_its_latest_record(
    hg: Headgate, beside: StoreRegistry, namespace: str
) -> None:
    made = await hg.registry.register(type="game", group="kr-1", hostname="x")
    hg.registry.start_auto_heartbeat(made.instance_id)
    await hg.registry.heartbeat(made.instance_id, metadata={"latest": True})
    await beside.remove(namespace, "game", "kr-1", made.instance_id)

    async def back() -> bool:
        found = await hg.registry.discover("game", "kr-1")
        return [each.metadata for each in found] == [{"latest": True}]

    await eventually(back)
    await hg.registry.remove(made.instance_id)
    await asyncio.sleep(0.6)  # three intervals: no late beat may bring it back
    assert await ids(hg) == []


async def test_no_watcher_sees_an_empty_list_after_a_flush(hg: Headgate, beside: StoreRegistry, namespace: str) -> None:
    for number in range(3):
        await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id=f"i{number}", ttl_seconds=5)
    assert len(await hg.registry.cached("game", "kr-1")) == 3
    thing = beside.service(namespace, "game", "kr-1")
    keys = ["meta", "records", "metadata", "metrics", "states", "deadlines", "changes"]
    await beside.store.write(thing, "DEL", *(thing.key(key) for key in keys))
    await beside.register(namespace, Record(hostname="h", type="game", group="kr-1", instance_id="i0", ttl_seconds=60))

    async def suspects() -> bool:
        found = await hg.registry.cached("game", "kr-1")
        assert len(found) == 3, "nobody is dropped before a lease has passed"
        return sum(each.suspect for each in found) == 2

    await eventually(suspects)
    assert len(await hg.registry.discover("game", "kr-1")) == 3

    async def settled() -> bool:
        return [each.instance_id for each in await hg.registry.discover("game", "kr-1")] == ["i0"]

    await eventually(settled, 8)


@pytest.mark.topology("standalone")
@pytest.mark.parametrize("mode", ["store", "http"])
async def test_a_position_that_falls_into_a_new_history_by_chance_is_noticed(
    mode: str, server: Topology, gateway: Gateway, beside: StoreRegistry, namespace: str, tmp_path: Path
) -> None:
    """The store's clock was set back and then everything was lost: revisions of the new history reach the old ones."""
    thing = beside.service(namespace, "game", "kr-1")

    async def register(name: str) -> None:
        await beside.register(namespace, Record(hostname="h", type="game", group="kr-1", instance_id=name))

    async with FaultyProxy(gateway.process.port if mode == "http" else server.primaries()[0].port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}" if mode == "http" else proxy.url
        async with Headgate(
            url, token=gateway.token, prefix=gateway.process.prefix, namespace=namespace, snapshot_dir=tmp_path
        ) as watcher:
            await register("a")
            ahead = str(int((beside.store.now() + 2) * 1_000_000))
            await beside.store.write(thing, "HSET", thing.key("meta"), "last", ahead)
            await register("b")

            async def both() -> bool:
                return len(await watcher.registry.cached("game", "kr-1")) == 2

            await eventually(both)
            await proxy.refuse()
            position = (await beside.feed.read(thing, 0)).revision
            assert position > int(ahead)
            keys = ["meta", "records", "metadata", "metrics", "states", "deadlines", "changes"]
            await beside.store.write(thing, "DEL", *(thing.key(key) for key in keys))
            await register("c")
            await eventually(lambda: beside.store.now() * 1_000_000 > position)
            await register("d")
            await proxy.accept()

            async def recovered() -> bool:
                found = await watcher.registry.cached("game", "kr-1")
                suspects = {each.instance_id for each in found if each.suspect}
                assert {"a", "b"} <= {each.instance_id for each in found}, "nobody is dropped before a lease has passed"
                return len(found) == 4 and suspects == {"a", "b"}

            await eventually(recovered)


async def test_drain_leaves_the_healthy_list_then_the_registry(hg: Headgate) -> None:
    made = await hg.registry.register(hostname="h", type="game", group="kr-1")
    draining = asyncio.ensure_future(hg.registry.drain(made.instance_id, wait_seconds=3))

    async def unhealthy() -> bool:
        return await ids(hg, healthy=True) == [] and await ids(hg) == [made.instance_id]

    await eventually(unhealthy)
    await draining
    assert await ids(hg) == []


async def test_registered_for_as_long_as_a_block_lasts(hg: Headgate) -> None:
    async with hg.registry.registered(hostname="h", type="game", group="kr-1", collect_system=True) as made:

        async def told() -> bool:
            (found,) = await hg.registry.discover("game", "kr-1")
            assert found.instance_id == made.instance_id
            assert found.system_info["cpu"] >= 1
            return "memoryPercent" in found.metrics

        await eventually(told, 5, "the figures come with the heartbeats")
    assert await ids(hg) == []


@pytest.mark.topology("standalone")
@pytest.mark.parametrize("mode", ["store", "http"])
async def test_a_snapshot_answers_while_nobody_can_be_reached(
    mode: str, server: Topology, gateway: Gateway, namespace: str, tmp_path: Path
) -> None:
    port = gateway.process.port if mode == "http" else server.primaries()[0].port
    async with FaultyProxy(port) as proxy:

        def client() -> Headgate:
            url = f"http://127.0.0.1:{proxy.port}" if mode == "http" else proxy.url
            return Headgate(
                url, token=gateway.token, prefix=gateway.process.prefix, namespace=namespace, snapshot_dir=tmp_path
            )

        async with client() as hg:
            await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="a", metadata={"v": 1})
            assert not (await hg.registry.discover("game", "kr-1")).stale
        (file,) = tmp_path.rglob("*.json")
        async with client() as hg:
            await proxy.refuse()
            found = await hg.registry.discover("game", "kr-1", filters=["metadata.v==1"])
            assert ([each.instance_id for each in found], found.stale) == (["a"], True)
            await proxy.accept()
        file.write_bytes(file.read_bytes()[:-5] + b"xxxxx")
        async with client() as hg:
            await proxy.refuse()
            with pytest.raises(StoreUnavailable):
                await hg.registry.discover("game", "kr-1")
            await proxy.accept()


async def test_closing_leaves_no_task(make: Make) -> None:
    before = asyncio.all_tasks()
    async with make() as hg:
        made = await hg.registry.register(hostname="h", type="game", group="kr-1")
        hg.registry.start_auto_heartbeat(made.instance_id)
        await hg.registry.subscribe("game/kr-1", lambda change: None)
        await hg.registry.cached("game")
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_the_seeds_client(server: Topology, gateway: Gateway, make: Make, namespace: str, tmp_path: Path) -> None:
    if make().direct:
        client = ServiceDiscoveryClient(
            "store", store_url=server.url, key_prefix=gateway.process.prefix, namespace=namespace, snapshot_dir=tmp_path
        )
    else:
        client = ServiceDiscoveryClient(
            base_url=gateway.url, api_token=gateway.token, namespace=namespace, snapshot_dir=tmp_path
        )
    assert not client.is_running
    await client.start()
    made = await client.register(type="game", group="kr-1", hostname="h", public_ip="1.2.3.4", private_ip="10.0.0.1")
    client.start_auto_heartbeat(made.instance_id)
    assert isinstance(await client.discover("game", "kr-1"), list)
    await client.stop_auto_heartbeat()
    await client.remove(made.instance_id, "game", "kr-1")
    await client.stop()
    assert not client.is_running


def test_scripts_without_a_loop(
    server: Topology, gateway_process: GatewayProcess, make: Make, namespace: str, tmp_path: Path
) -> None:
    options: dict[str, object] = {"namespace": namespace, "snapshot_dir": tmp_path}
    url = server.url if make().direct else gateway_process.url
    with HeadgateSync(url, token=gateway_process.token, prefix=gateway_process.prefix, **options) as hg:
        with hg.registry.registered(hostname="h", type="game", group="kr-1") as made:
            assert [each.instance_id for each in hg.registry.discover("game", "kr-1")] == [made.instance_id]
            first = next(iter(hg.registry.watch("game", "kr-1")))
            assert first.instances[0].instance_id == made.instance_id
        assert hg.registry.discover("game", "kr-1") == []
        with pytest.raises(UnknownInstance):
            hg.registry.heartbeat("nobody")


async def test_an_asgi_application_is_registered_while_it_runs(make: Make, gateway: Gateway, server: Topology) -> None:
    app_seen: list[str] = []

    async def app(scope: object, receive: Callable[[], object], send: Callable[[object], object]) -> None:
        while True:
            message = await receive()  # type: ignore[misc]
            app_seen.append(message["type"])
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})  # type: ignore[misc]
            else:
                await send({"type": "lifespan.shutdown.complete"})  # type: ignore[misc]
                return

    type_ = f"web-{secrets.token_hex(4)}"
    record = Record(hostname="h", type=type_, group="g")
    wrapped = registered(app, gateway.url, record, token=gateway.token, drain_seconds=0.05)  # type: ignore[arg-type]
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    outbox: asyncio.Queue[object] = asyncio.Queue()
    running = asyncio.ensure_future(wrapped({"type": "lifespan"}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    await outbox.get()
    query = {"type": type_, "group": "g"}
    assert len((await gateway.client.get("/sd/v1/instances", params=query)).json()["instances"]) == 1
    await inbox.put({"type": "lifespan.shutdown"})
    await running
    assert (await gateway.client.get("/sd/v1/instances", params=query)).json()["instances"] == []


async def test_the_swept_are_told_as_expired(hg: Headgate, beside: StoreRegistry, namespace: str) -> None:
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="a", ttl_seconds=3)
    heard: list[Change] = []

    async def listen(change: Change) -> None:
        heard.append(change)

    await hg.registry.subscribe("game/kr-1", listen)
    sweeper = Sweeper(beside)

    async def swept() -> bool:
        await sweeper.step()
        return len(heard) == 2

    await eventually(swept, 8)
    assert (heard[1].kind, heard[1].reason) == ("removed", "expired")


async def test_balancers(hg: Headgate) -> None:
    for name, weight, load in (("a", 1.0, 0.9), ("b", 3.0, 0.1), ("c", 0.0, 0.5)):
        await hg.registry.register(
            hostname="h", type="game", group="kr-1", instance_id=name, weight=weight, metrics={"load": load}
        )
    await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="sick", healthy=False)
    found = await hg.registry.discover("game", "kr-1")

    def counts(balancer: object, turns: int = 3000) -> dict[str, int]:
        chosen = [balancer.choose(found, str(turn)).instance_id for turn in range(turns)]  # type: ignore[attr-defined]
        return {name: chosen.count(name) for name in ("a", "b", "c", "sick")}

    assert counts(RoundRobin(), 30) == {"a": 10, "b": 10, "c": 10, "sick": 0}
    assert min(counts(Random()).values()) == 0 < counts(Random())["c"]
    weighted = counts(Weighted())
    assert weighted["c"] == 0
    assert 2.3 < weighted["b"] / weighted["a"] < 3.9
    loads = counts(LeastLoaded())
    assert loads["a"] == 0 < loads["c"] < loads["b"]
    ring = ConsistentHash()
    before = {key: ring.choose(found, key).instance_id for key in map(str, range(500))}
    left = [each for each in found if each.instance_id != "a"]
    moved = [key for key, owner in before.items() if ring.choose(left, key).instance_id != owner]
    assert all(before[key] == "a" for key in moved)
    assert 0 < len(moved) < 350
    with pytest.raises(NobodyAvailable):
        Random().choose([])


async def test_a_gateway_that_stops_is_noticed_and_the_watch_goes_on(
    fresh_gateway: Callable[..., GatewayProcess], server: Topology, tmp_path: Path
) -> None:
    process = fresh_gateway(server.url)
    async with Headgate(process.url, token=process.token, snapshot_dir=tmp_path) as hg:
        await hg.registry.register(hostname="h", type="game", group="kr-1", instance_id="a")
        assert len(await hg.registry.cached("game", "kr-1")) == 1
        assert process.stop() == 0

        async def stale() -> bool:
            return (await hg.registry.cached("game", "kr-1")).stale

        await eventually(stale)
        assert (await hg.registry.discover("game", "kr-1")).stale
        process.start()
        async with httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token}) as other:
            await other.post(
                "/sd/v1/instances", json={"type": "game", "group": "kr-1", "instanceId": "b", "hostname": "h"}
            )

        async def caught_up() -> bool:
            found = await hg.registry.cached("game", "kr-1")
            return sorted(each.instance_id for each in found) == ["a", "b"] and not found.stale

        await eventually(caught_up, 20)
