"""Half-open connections: a watch whose other side has vanished without a word is noticed, on both ends, and loses nothing."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator

import pytest

from headgate.config.model import Draft
from headgate.http.server import listening
from headgate.registry.model import Change as Heard
from headgate.registry.model import Record
from headgate.sdk import Changed, Headgate, http
from tests.processes import Gateway
from tests.topology import HOST, FaultyProxy, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.topology("standalone")]

SILENT_SECONDS = 3.0


@pytest.fixture
def namespace() -> str:
    return f"n{secrets.token_hex(4)}"


@pytest.fixture
async def door(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultyProxy]:
    """A way to the gateway that can swallow everything without closing anything; clients are impatient."""
    monkeypatch.setattr(http, "SILENT_SECONDS", SILENT_SECONDS)
    async with FaultyProxy(gateway.process.port) as proxy:
        yield proxy


async def went_silent(door: FaultyProxy) -> None:
    """Swallow everything until the client has noticed by itself and come back, and then let it through."""
    connections = door.accepted
    door.blackhole()
    await eventually(lambda: door.accepted > connections, SILENT_SECONDS + 5, "the client has given the old one up")
    door.heal()


async def test_a_registry_watch_notices_silence_and_resumes_without_loss(
    gateway: Gateway, door: FaultyProxy, namespace: str
) -> None:
    heard: list[str] = []

    def hear(change: Heard) -> None:
        heard.append(change.instance.hostname)

    async with (
        Headgate(gateway.url, token=gateway.token, namespace=namespace) as near,
        Headgate(f"http://{HOST}:{door.port}", token=gateway.token, namespace=namespace) as far,
    ):

        async def put(number: int) -> None:
            await near.registry.register(Record(type="game", group="g", instance_id="i", hostname=f"h{number}"))

        await put(0)
        await far.registry.subscribe("game/g", hear)
        await eventually(lambda: heard == ["h0"])
        for number in range(1, 20):  # for longer than its patience: a connection that speaks is kept
            await put(number)
            await asyncio.sleep(SILENT_SECONDS / 15)
        await eventually(lambda: len(heard) == 20)
        assert door.accepted == 1
        silence = asyncio.ensure_future(went_silent(door))
        for number in range(20, 40):
            await put(number)
            await asyncio.sleep(SILENT_SECONDS / 15)
        await silence
        await eventually(lambda: len(heard) == 40, 15)
        assert heard == [f"h{number}" for number in range(40)]


async def test_a_config_watch_notices_silence_and_ends_with_the_latest(
    gateway: Gateway, door: FaultyProxy, namespace: str
) -> None:
    heard: list[int] = []

    async def hear(changed: Changed) -> None:
        heard.append(changed.version)

    async with (
        Headgate(gateway.url, token=gateway.token) as near,
        Headgate(f"http://{HOST}:{door.port}", token=gateway.token) as far,
    ):
        await near.config.publish(namespace, [Draft("a", "0")])
        live = await far.config.live(namespace, "a", str)
        live.listen(hear)
        await eventually(lambda: heard == [1])
        silence = asyncio.ensure_future(went_silent(door))
        for number in range(1, 11):
            await near.config.publish(namespace, [Draft("a", str(number))])
            await asyncio.sleep(SILENT_SECONDS / 15)
        await silence
        await eventually(lambda: heard[-1:] == [11], 15)
        assert heard == sorted(set(heard)), "in order, none twice"
        assert not live.stale


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_a_client_that_vanished_without_a_word_is_given_up_by_the_gateway() -> None:
    """A keep-alive goes out every 15 s; whoever does not acknowledge it within three of them is closed by the kernel."""
    with listening(HOST, 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert 0 < accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 45_000
