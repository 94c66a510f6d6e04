"""The SDK where things go wrong in uncommon ways: the same in both modes."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate import sdk
from headgate.config.model import MASK, Value
from headgate.kit.problems import Forbidden, HeadgateError, InvalidRequest, StoreUnavailable, Unauthorized
from headgate.registry.model import Check, CheckKind, OverrideChange, Record
from headgate.registry.problems import UnknownInstance
from headgate.sdk import Change, ContentType, Gone, Headgate, ServiceDiscoveryClient
from headgate.sdk import heartbeats as heartbeats_module
from headgate.sdk.listeners import MOST, ListenerTask
from headgate.sdk.live import Live
from tests.http.two_modes import Make
from tests.processes import Gateway, GatewayProcess
from tests.topology import FaultyProxy, Stopwatch, Topology, eventually

pytestmark = pytest.mark.anyio


class Limits(msgspec.Struct, frozen=True):
    players: int


@pytest.fixture
def port(make: Make, server: Topology, gateway_process: GatewayProcess) -> int:
    """Give the port to put a proxy in front of."""
    return server.primaries()[0].port if make().direct else gateway_process.port


async def test_a_listener_hears_what_was_known_before_it_came(hg: Headgate, make: Make) -> None:
    await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
    await hg.registry.discover("game", "g")
    heard: list[Change] = []
    await hg.registry.subscribe("game/g", heard.append)
    await eventually(lambda: [change.instance.instance_id for change in heard] == ["a"])
    async with make() as again:  # with a snapshot on disk
        told: list[Change] = []
        await again.registry.subscribe("game/g", told.append)
        await eventually(lambda: [change.instance.instance_id for change in told] == ["a"])
        await hg.registry.remove("a")
        await eventually(lambda: [change.kind for change in told] == ["put", "removed"])


async def test_a_client_may_be_closed_and_opened_again(make: Make) -> None:
    client = make()
    for number in range(2):
        async with client as hg:
            await hg.registry.register(hostname="h", type="game", group="g", instance_id=f"i{number}")
            await hg.config.set(hg.namespace, "a", str(number))
            assert len(await hg.registry.discover("game", "g")) == number + 1


async def test_whoever_has_left_is_not_kept_because_another_group_is_new(hg: Headgate) -> None:
    for name in ("a", "b"):
        await hg.registry.register(hostname="h", type="game", group="g", instance_id=name)
    assert len(await hg.registry.discover("game")) == 2
    await hg.registry.remove("a")
    await hg.registry.register(hostname="h", type="game", group="h", instance_id="c")
    found = await hg.registry.discover("game")
    assert [(each.instance_id, each.suspect) for each in found] == [("b", False), ("c", False)]


@pytest.mark.topology("standalone")
@pytest.mark.parametrize("choice", [{"healthy": True}, {"filters": ["metadata.v==1"]}, {"check": True}])
async def test_what_was_chosen_is_found_in_an_outage_too(make: Make, port: int, choice: dict[str, Any]) -> None:
    async with FaultyProxy(port) as proxy, make(proxy.port) as hg:
        await hg.registry.register(
            hostname="h", type="game", group="g", instance_id="a", metadata={"v": 1}, healthy=True
        )
        await hg.registry.discover("game", "g", **choice)
        await hg.registry.register(hostname="h", type="game", group="g", instance_id="b", metadata={"v": 1})
        await hg.registry.register(
            hostname="h", type="game", group="g", instance_id="c", metadata={"v": 2}, healthy=False
        )
        await hg.registry.discover("game", "g", **choice)
        await proxy.refuse()
        found = await hg.registry.discover("game", "g", healthy=True)
        assert ([each.instance_id for each in found], found.stale) == (["a", "b"], True)
        await proxy.accept()


@pytest.mark.parametrize(
    "bad",
    [
        {"weight": float("nan")}, {"weight": -1.0}, {"port": 99_999}, {"port": "80"}, {"enabled": "x"}, {"protocol": None},
        {"ephemeral": 2}, {"metadata": [1]}, {"metrics": {"a": 10**25}}, {"check": Check(CheckKind.TCP, interval_seconds=0)},
        {"check": Check(CheckKind.HTTP, "http://a:99999/")}, {"ttl_seconds": float("inf")}, {"hostname": 5},
    ],
)  # fmt: skip
async def test_what_python_allows_and_the_wire_does_not_is_refused_alike(hg: Headgate, bad: dict[str, Any]) -> None:
    await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
    with pytest.raises(InvalidRequest):
        await hg.registry.register(**{"hostname": "h", "type": "game", "group": "g", "instance_id": "b", **bad})
    assert [each.instance_id for each in await hg.registry.discover("game", "g")] == ["a"]


async def test_operators_words_are_checked_alike(hg: Headgate) -> None:
    await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
    with pytest.raises(InvalidRequest):
        await hg.registry.heartbeat("a", metadata=[1])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        await hg.registry.override("game", "g", "a", OverrideChange(weight=-1))
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest):
            await hg.registry.evict("game", "g", "a", seconds)
    with pytest.raises(InvalidRequest):
        await hg.registry.protect("game", "g", "sometimes")
    assert len(await hg.registry.discover("game", "g")) == 1


async def test_a_content_type_may_be_a_word(hg: Headgate) -> None:
    await hg.config.set(hg.namespace, "a", "[1]", content_type="json")
    assert (await hg.config.get(hg.namespace, "a")).parsed() == [1]
    with pytest.raises(InvalidRequest, match=r"one of text, json, toml, yaml, properties"):
        await hg.config.set(hg.namespace, "a", "[1]", content_type="xml")


async def test_more_heartbeats_than_one_call_takes(hg: Headgate) -> None:
    names = [f"i{number}" for number in range(1100)]
    await asyncio.gather(
        *(hg.registry.register(hostname="h", type="game", group="g", instance_id=name) for name in names[:50])
    )
    own = hg.registry._heartbeats.find("i0")
    assert own is not None
    for name in names[50:]:
        record = msgspec.structs.replace(own.record, instance_id=name)
        hg.registry._heartbeats.add(heartbeats_module.OwnInstance(record, own.registration))
    answer = await hg.registry.batch_heartbeat([*names, "nobody"])
    assert (answer.renewed, len(answer.unknown)) == (50, 1051)


async def test_a_block_whose_instance_was_taken_over_ends_in_peace(hg: Headgate, make: Make) -> None:
    async with make() as other:
        async with hg.registry.registered(hostname="h", type="game", group="g", instance_id="a"):
            await other.registry.register(type="game", group="g", instance_id="a", hostname="new")
        (found,) = await other.registry.discover("game", "g")
    assert found.hostname == "new", "its successor stays"


async def test_drain_of_an_instance_that_nobody_knows_lets_it_go(hg: Headgate, make: Make) -> None:
    made = await hg.registry.register(hostname="h", type="game", group="g")
    hg.registry.start_auto_heartbeat(made.instance_id)
    async with make() as other:
        await other.registry.remove(made.instance_id, "game", "g")
        await hg.registry.drain(made.instance_id, wait_seconds=30)
        await asyncio.sleep(0.5)  # two heartbeats and the pause before coming back
        assert await other.registry.discover("game", "g") == []
    with pytest.raises(UnknownInstance):
        await hg.registry.heartbeat(made.instance_id)


async def test_whoever_is_removed_while_it_comes_back_stays_removed(hg: Headgate, make: Make) -> None:
    made = await hg.registry.register(hostname="h", type="game", group="g")
    async with make() as other:
        await other.registry.remove(made.instance_id, "game", "g")
        mode = hg.registry._backend
        register, started = mode.register, asyncio.Event()

        async def late(record: Record, nonce: str, registration: int | None) -> Any:
            await asyncio.sleep(0.3)
            return await register(record, nonce, registration)

        async def slow(record: Record, nonce: str, registration: int | None) -> Any:
            started.set()
            return await asyncio.shield(
                asyncio.ensure_future(late(record, nonce, registration))
            )  # what is sent arrives, whoever gives up

        mode.register = slow  # type: ignore[method-assign]
        hg.registry.start_auto_heartbeat(made.instance_id)
        await asyncio.wait_for(started.wait(), 5)
        await hg.registry.remove(made.instance_id)
        await asyncio.sleep(0.5)
        assert await other.registry.discover("game", "g") == []


async def test_figures_that_cannot_be_had_do_not_end_a_life(hg: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await hg.registry.register(hostname="h", type="game", group="g", ttl_seconds=3)
    own = hg.registry._heartbeats.find(made.instance_id)
    assert own is not None

    def broken() -> Any:
        raise OSError("no such figure")

    own.figures = broken
    hg.registry.start_auto_heartbeat(made.instance_id)
    await asyncio.sleep(3.5)
    assert len(await hg.registry.discover("game", "g")) == 1


async def test_a_stream_that_brings_nonsense_is_opened_again(hg: Headgate) -> None:
    await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
    mode = hg.registry._backend
    watch, broken = mode.watch, 0

    async def nonsense(type: str, group: str | None, position: str | None) -> AsyncIterator[Any]:
        nonlocal broken
        broken += 1
        if broken == 1:
            yield Gone("g", "a", "removed", 1)
            raise ValueError("not an event")
        async for happening in watch(type, group, position):
            yield happening

    mode.watch = nonsense  # type: ignore[method-assign,assignment]
    assert [each.instance_id for each in await hg.registry.cached("game", "g")] == ["a"]
    assert broken == 2


async def test_what_is_refused_is_said_and_not_waited_for(gateway: Gateway, tmp_path: Path, namespace: str) -> None:
    async with Headgate(gateway.url, token="wrong", namespace=namespace, snapshot_dir=tmp_path) as hg:
        with pytest.raises(Unauthorized):
            await asyncio.wait_for(hg.registry.cached("game", "g"), 5)
        with pytest.raises(Unauthorized):
            await hg.config.live(namespace, "limits", Limits, default=Limits(1))


async def test_a_position_that_is_refused_is_given_up(hg: Headgate) -> None:
    await hg.registry.register(hostname="h", type="game", group="g", instance_id="a")
    view = await hg.registry._view("game", "g")
    view.position = "this is no position"
    assert [each.instance_id for each in await hg.registry.cached("game", "g")] == ["a"]
    assert view.position != "this is no position"


async def test_an_answer_of_somebody_else_is_an_outage(tmp_path: Path, namespace: str) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\nConnection: close\r\n\r\n<html>!</html>")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(page, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Headgate(url, namespace=namespace, snapshot_dir=tmp_path) as hg:
        with pytest.raises(StoreUnavailable):
            await hg.registry.discover("game", "g")
        with pytest.raises(StoreUnavailable):
            await hg.config.get(namespace, "a")
    server.close()


async def test_a_listener_that_hangs_costs_little_however_much_it_misses() -> None:
    listening = ListenerTask(lambda _: asyncio.sleep(60), lambda number: number)
    watch = Stopwatch()
    for number in range(MOST * 4):
        listening.put(number)
    assert len(listening._pending) <= MOST * 4
    assert watch.seconds < 5, "once a doubling, not once a change"
    for number in range(MOST * 8):
        listening.put(number % 10)
    assert len(listening._pending) <= MOST * 8, "what has one subject is told once"
    await listening.stop()


@pytest.mark.topology("standalone")
async def test_a_version_that_does_not_fit_spoils_no_snapshot(make: Make, port: int, namespace: str) -> None:
    async with FaultyProxy(port) as proxy:
        async with make(proxy.port) as hg:
            await hg.config.set(namespace, "limits", '{"players": 1}', content_type=ContentType.JSON)
            live = await hg.config.live(namespace, "limits", Limits)
            await hg.config.set(namespace, "limits", '{"players": 2}', content_type=ContentType.JSON)
            await eventually(lambda: live.players == 2)  # the watch runs
            await hg.config.set(namespace, "limits", '{"players": "many"}', content_type=ContentType.JSON)
            await eventually(lambda: live.error is not None)
        async with make(proxy.port) as hg:
            await proxy.refuse()
            live = await hg.config.live(namespace, "limits", Limits)
            assert (live.players, live.stale) == (2, True)
            await proxy.accept()


async def test_a_publish_while_a_live_value_is_made_is_not_missed(hg: Headgate, namespace: str) -> None:
    await hg.config.set(namespace, "first", "x")
    await hg.config.live(namespace, "first", str)  # from now on the namespace is followed
    await hg.config.set(namespace, "limits", '{"players": 1}', content_type=ContentType.JSON)
    config, left = hg.config, [2, 3]
    read, save = config._backend.get, config._save

    async def publish() -> None:
        if left:
            await config.set(namespace, "limits", f'{{"players": {left.pop(0)}}}')
            await asyncio.sleep(0.3)  # and everybody has heard of it

    async def slow_read(namespace: str, key: str, version: int | None) -> Value:
        value = await read(namespace, key, version)
        await publish()
        return value

    async def slow_save(namespace: str, value: Value) -> None:
        await save(namespace, value)
        await publish()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config._backend, "get", slow_read)
        patch.setattr(config, "_save", slow_save)
        live = await config.live(namespace, "limits", Limits)
        await eventually(lambda: (live.players, live.version, left) == (3, 3, []), 5)
    with pytest.raises(ValueError, match="does not fit"):
        await hg.config.live(namespace, "first", Limits)
    assert len(hg.config._all()) == 2, "who was not made is not kept"


async def test_a_live_value_that_is_closed_is_followed_no_more(hg: Headgate, namespace: str) -> None:
    await hg.config.set(namespace, "limits", '{"players": 1}', content_type=ContentType.JSON)
    lives = [await hg.config.live(namespace, "limits", Limits) for _ in range(20)]
    for live in lives[1:]:
        await live.close()
    await hg.config.set(namespace, "limits", '{"players": 2}')
    await eventually(lambda: lives[0].players == 2)
    assert [live.players for live in lives[1:]] == [1] * 19
    assert len(hg.config._all()) == 1


def test_a_watch_that_lags_behind_a_read_takes_nothing_back() -> None:
    live: Live[str] = Live("n", "a", str)
    live.take(Value("a", 5, "five", updated_at="2026-01-01T00:00:05.000Z"))
    newest = 1_767_225_605_000_000
    assert live.is_past(Value("a", 4, kind="removed"), newest - 1)
    assert not live.is_past(Value("a", 6, "six"), newest + 1)
    assert not live.is_past(Value("a", 1, "anew"), newest + 1), "history was lost, and somebody has published since"


async def test_a_removed_value_is_current_again_after_an_outage() -> None:
    live: Live[str] = Live("n", "a", str)
    live.take(Value("a", 1, "one"))
    live.take(Value("a", 2, kind="removed"))
    live.stale = True
    live.take(Value("a", 2, kind="removed"))
    assert not live.stale


def test_a_mask_is_no_value() -> None:
    live: Live[str] = Live("n", "a", str)
    assert not live.take(Value("a", 1, MASK, secret=True))
    assert "may not see" in (live.error or "")
    assert Forbidden.status == 403


async def test_a_user_without_a_name_may_publish(
    server: Topology, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nameless)
    async with Headgate(server.url, prefix=namespace, snapshot_dir=tmp_path) as hg:
        try:
            await hg.config.set(namespace, "a", "x")
        except HeadgateError as error:  # pragma: no cover
            pytest.fail(str(error))
        assert (await hg.config.get(namespace, "a")).updated_by.startswith("user-")


async def test_a_listener_that_fails_shows_no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    failed = asyncio.Event()

    async def raising(value: str) -> None:
        failed.set()
        raise RuntimeError("a listener's own mistake")

    listening = ListenerTask(raising, lambda value: value)
    listening.put("hush")
    await failed.wait()
    await eventually(lambda: "own mistake" in caplog.text)
    await listening.stop()
    logged = caplog.text
    assert "own mistake" in logged
    assert "hush" not in logged


def test_all_that_the_sdk_offers_is_there() -> None:
    for name in sdk.__all__:
        assert getattr(sdk, name).__name__ == name


async def test_a_fenced_value_is_text_in_either_mode(hg: Headgate) -> None:
    async with hg.lock("a") as held:
        with pytest.raises(InvalidRequest, match="text"):
            await hg.fenced_set("key", b"bytes", held.fence)  # type: ignore[arg-type]
    assert await hg.fenced_get("key") is None


async def test_a_client_that_was_not_started_says_so(gateway: Gateway) -> None:
    client = ServiceDiscoveryClient(base_url=gateway.url, api_token=gateway.token)
    for name in ("register", "discover", "subscribe", "start_auto_heartbeat"):
        with pytest.raises(RuntimeError, match=r"call start\(\) first"):
            getattr(client, name)
    with pytest.raises(RuntimeError, match="async with"):
        _ = client.registry
    with pytest.raises(AttributeError):
        getattr(client, "no_such_" + "call")
    await client.start()
    assert await client.discover("game") == []
    await client.stop()
