"""ASGI applications in the registry: those that know of a lifespan, those that do not, and outages at the start."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate.http.routes import Asgi, Message, Receive, Scope, Send
from headgate.kit.problems import Closed, StoreUnavailable
from headgate.registry.model import Record, Registered
from headgate.sdk import Headgate, lifespan
from headgate.sdk.backends.registry import HttpRegistryBackend
from headgate.sdk.lifespan import registered
from tests.processes import Gateway
from tests.topology import FaultyProxy, eventually, free_port

pytestmark = pytest.mark.anyio


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise ValueError("Django can only handle ASGI/HTTP connections")


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    return


class Known:
    """An application with a lifespan of its own."""

    def __init__(self, answer: str = "complete") -> None:
        self.answer = answer
        self.heard: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            message = await receive()
            self.heard.append(message["type"])
            done = self.answer if message["type"] == "lifespan.startup" else "complete"
            await send({"type": f"{message['type']}.{done}"})


@asynccontextmanager
async def served(app: Asgi) -> AsyncIterator[tuple[str, Callable[[], Any]]]:
    """Serve an application's lifespan; gives what was answered to the start, and how to stop it."""
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    outbox: asyncio.Queue[Message] = asyncio.Queue()
    running = asyncio.ensure_future(app({"type": "lifespan"}, inbox.get, outbox.put))

    async def stop() -> str:
        await inbox.put({"type": "lifespan.shutdown"})
        answer = await asyncio.wait_for(outbox.get(), 10)
        await asyncio.wait_for(running, 10)
        return str(answer["type"])

    await inbox.put({"type": "lifespan.startup"})
    try:
        yield str((await asyncio.wait_for(outbox.get(), 15))["type"]), stop
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def count(gateway: Gateway, type_: str) -> int:
    answer = await gateway.client.get("/sd/v1/instances", params={"type": type_, "group": "g"})
    return len(answer.json()["instances"])


@pytest.mark.parametrize("app", [plain, silent, Known()], ids=["raises", "returns", "has one"])
async def test_any_application_is_registered_while_it_runs(gateway: Gateway, app: Asgi) -> None:
    type_ = f"web-{secrets.token_hex(4)}"
    wrapped = registered(
        app, gateway.url, Record(hostname="h", type=type_, group="g"), token=gateway.token, drain_seconds=0.05
    )
    before = asyncio.all_tasks()
    async with served(wrapped) as (answer, stop):
        assert answer == "lifespan.startup.complete"
        assert await count(gateway, type_) == 1
        assert await stop() == "lifespan.shutdown.complete"
        assert await count(gateway, type_) == 0
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_an_outage_keeps_nobody_from_starting(gateway: Gateway) -> None:
    type_ = f"web-{secrets.token_hex(4)}"
    async with FaultyProxy(gateway.process.port) as proxy:
        await proxy.refuse()
        url = f"http://127.0.0.1:{proxy.port}"
        record = Record(hostname="h", type=type_, group="g")
        async with served(registered(Known(), url, record, token=gateway.token, drain_seconds=0.05)) as (answer, stop):
            assert answer == "lifespan.startup.complete"
            assert await count(gateway, type_) == 0
            await proxy.accept()

            async def there() -> bool:
                return await count(gateway, type_) == 1

            await eventually(there, 15)
            assert await stop() == "lifespan.shutdown.complete"
        assert await count(gateway, type_) == 0


async def test_nobody_waits_for_a_registry_that_never_answers() -> None:
    wrapped = registered(Known(), f"http://127.0.0.1:{free_port()}", Record(hostname="h", type="web"), drain_seconds=30)
    async with served(wrapped) as (answer, stop):
        assert answer == "lifespan.startup.complete"
        assert await asyncio.wait_for(stop(), 5) == "lifespan.shutdown.complete"


async def test_a_refusal_is_a_failed_start_and_the_application_hears_of_its_end(gateway: Gateway) -> None:
    app = Known()
    async with served(registered(app, gateway.url, Record(hostname="h", type="web"), token="wrong")) as (answer, _):
        assert answer == "lifespan.startup.failed"
    assert app.heard == ["lifespan.startup", "lifespan.shutdown"]


async def test_an_application_that_does_not_start_is_not_registered(gateway: Gateway) -> None:
    type_ = f"web-{secrets.token_hex(4)}"
    record = Record(hostname="h", type=type_, group="g")
    async with served(registered(Known("failed"), gateway.url, record, token=gateway.token)) as (answer, _):
        assert answer == "lifespan.startup.failed"
        assert await count(gateway, type_) == 0


async def test_whoever_stops_while_the_store_is_away_does_not_wait_for_it_to_open(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespan, "RETRY_SECONDS", 0.0)
    opening = asyncio.Event()
    tries = 0

    async def never(client: Headgate) -> Headgate:
        nonlocal tries
        tries += 1
        if tries > 1:
            opening.set()
            await asyncio.Event().wait()
        raise StoreUnavailable

    monkeypatch.setattr(Headgate, "__aenter__", never)
    async with served(registered(Known(), gateway.url, Record(hostname="h", type="web"))) as (answer, stop):
        assert answer == "lifespan.startup.complete"
        await opening.wait()
        assert await stop() == "lifespan.shutdown.complete"


async def test_a_second_try_takes_the_place_of_one_whose_answer_was_lost(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespan, "RETRY_SECONDS", 0.0)
    type_ = f"web-{secrets.token_hex(4)}"
    register, lost, there = HttpRegistryBackend.register, False, False

    async def lossy(mode: HttpRegistryBackend, record: Record, nonce: str, registration: int | None) -> Registered:
        nonlocal lost, there
        made = await register(mode, record, nonce, registration)
        if not lost:
            lost = True
            raise StoreUnavailable
        there = True
        return made

    async def unheard(mode: HttpRegistryBackend, *_: object) -> None:
        raise Closed

    monkeypatch.setattr(HttpRegistryBackend, "register", lossy)
    wrapped = registered(
        Known(), gateway.url, Record(hostname="h", type=type_, group="g"), token=gateway.token, drain_seconds=0
    )
    with monkeypatch.context() as silent:
        silent.setattr(HttpRegistryBackend, "remove", unheard)  # the lost one cannot be taken out either
        async with served(wrapped) as (answer, stop):
            assert answer == "lifespan.startup.complete"
            await eventually(lambda: there)
            assert await count(gateway, type_) == 1
            silent.undo()
            assert await stop() == "lifespan.shutdown.complete"
    assert await count(gateway, type_) == 0


async def test_what_nobody_foresaw_at_the_start_is_raised(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(client: Headgate) -> Headgate:
        raise ValueError("not an address")

    monkeypatch.setattr(Headgate, "__aenter__", broken)
    app = registered(Known(), gateway.url, Record(hostname="h", type="web"))
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    await inbox.put({"type": "lifespan.startup"})
    with pytest.raises(ValueError, match="not an address"):
        await asyncio.wait_for(app({"type": "lifespan"}, inbox.get, inbox.put), 10)


async def test_a_lifespan_that_is_cancelled_leaves_no_task_behind() -> None:
    """The server may cancel it at any time; then nobody would end the heartbeats."""
    presence = lifespan._Presence(Headgate(f"valkey://127.0.0.1:{free_port()}"), Record(type="web", hostname="h"), 0)
    beginning = asyncio.ensure_future(presence.begin())
    await asyncio.sleep(0.1)
    await presence.close()
    assert presence._task is not None
    assert presence._task.done()
    beginning.cancel()
    await asyncio.wait((beginning,))
