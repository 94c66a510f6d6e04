"""A process closes every part that it opened: no place in a line, no listener and no open connection is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest

from headgate.cli.processes.assembly import Process as Kind
from headgate.cli.processes.assembly import ProcessParts, open_application, open_parts
from headgate.cli.processes.relay import relay_listener
from headgate.cli.settings import KINDS
from headgate.gate.wire import BypassRequest
from headgate.http.listener import listen
from headgate.http.routes import Call, Stop
from headgate.http.server import listening
from headgate.kit.problems import Closed
from headgate.kit.settings import Configuration, configure
from headgate.locks import Locks
from headgate.locks.wire import AcquireRequest
from headgate.relay.relay import Relay
from headgate.relay.wire import PermitRequest
from headgate.store import Store, StoreSettings, open_store
from headgate.waiting_room.policy import Bypass, PolicyChange
from tests.store.relay_world import PATIENT_MS, window
from tests.store.test_relay_handed import Caller
from tests.topology import HOST, FaultyProxy, Topology, eventually

pytestmark = pytest.mark.topology("standalone")

TOKEN = "the-admin-token-of-these-tests"
LATE_SECONDS = 0.3  # so long the store does not hear what a process tells it at its end
WAIT_SECONDS = 60.0


@pytest.fixture
async def proxy(server: Topology) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(server.nodes[0].port) as opened:
        yield opened


def configuration(prefix: str) -> Configuration:
    said = {"HEADGATE_STORE_PREFIX": prefix, "HEADGATE_ADMIN_TOKEN": TOKEN, "HEADGATE_STORE_DEADLINE_MS": PATIENT_MS}
    return configure(KINDS, environment={name: str(value) for name, value in said.items()})


class Process:
    """The parts of a process on a store of its own, asked as a gateway asks them."""

    def __init__(self, parts: ProcessParts, store: Store) -> None:
        self.store = store
        self._handlers = {(each.method, each.path): each.handler for each in parts.operations}

    async def ask(self, method: str, route: str, body: object = None, **path: str) -> Any:
        call = Call(Caller(), "a-request", Stop())
        call.path, call.body = path, body
        answer: Any = self._handlers[method, route](call)
        return await answer


@asynccontextmanager
async def opened(proxy: FaultyProxy, prefix: str) -> AsyncIterator[Process]:
    """Open the parts as a process does; the store is slow to hear of their end, and outlives them."""
    settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=PATIENT_MS)
    async with open_store(settings) as store:
        async with open_parts(Kind.GATEWAY, store, configuration(prefix), HOST, 1) as parts:
            yield Process(parts, store)
            proxy.delay(LATE_SECONDS)


async def test_a_lock_that_is_being_given_back_is_free_when_the_process_has_closed(
    proxy: FaultyProxy, store: Store, prefix: str
) -> None:
    async with Locks(store) as other:
        held = await other.lock("a", ttl=WAIT_SECONDS).acquire()

        async def in_line() -> bool:
            return (await other.show("a")).waiting == 1

        wanted = AcquireRequest(ttl_seconds=WAIT_SECONDS, wait_seconds=WAIT_SECONDS)
        async with opened(proxy, prefix) as process:
            asking = asyncio.ensure_future(process.ask("POST", "/lock/v1/{name}/acquire", wanted, name="a"))
            await eventually(in_line, 10, "it stands in line")
            proxy.delay(LATE_SECONDS)
            asking.cancel()
            await asyncio.wait((asking,))
            assert await in_line(), "the store has not heard that it left"
            left = process
        assert (await other.show("a")).waiting == 0
        await held.release()
        with pytest.raises(Closed):
            await left.ask("POST", "/lock/v1/{name}/acquire", wanted, name="a")


async def test_a_closed_process_stands_in_no_line_of_an_upstream(proxy: FaultyProxy, store: Store, prefix: str) -> None:
    async with Relay(store) as other:
        await other.upstreams.note_new_store()
        await other.upstreams.put("slow", window(1, WAIT_SECONDS))

        async def in_line() -> bool:
            return (await other.upstreams.status("slow")).waiting == 1

        wanted = PermitRequest(upstream="slow", user="ann", wait_seconds=WAIT_SECONDS + 10)
        async with opened(proxy, prefix) as process:
            await process.ask("POST", "/relay/permits", wanted)
            asking = asyncio.ensure_future(process.ask("POST", "/relay/permits", wanted))
            await eventually(in_line, 10, "it stands in line")
        assert not await in_line()
        with pytest.raises(Closed):
            await asking


async def test_a_closed_process_listens_to_no_queue(proxy: FaultyProxy, prefix: str) -> None:
    async with opened(proxy, prefix) as process:
        change = PolicyChange(capacity=1, bypass=Bypass(header="X-Robot"))
        await process.ask("PUT", "/api/admin/queues/{queue}", change, queue="main")
        await process.ask("POST", "/api/admin/queues/{queue}/bypass", BypassRequest(for_seconds=60), queue="main")
        listeners = process.store.hints._listeners
        assert [len(each) for each in listeners.values()] == [2], "the waiting room and the gate listen to the queue"
    assert listeners == {}


@asynccontextmanager
async def upstream(open_connections: set[asyncio.StreamWriter]) -> AsyncIterator[str]:
    """Serve an upstream that answers everything and keeps its connections; give its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        open_connections.discard(writer)
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"


async def test_a_closed_relay_has_no_connection_to_an_upstream(server: Topology, store: Store, prefix: str) -> None:
    said, connections = configuration(prefix), set[asyncio.StreamWriter]()
    headers = {"X-API-Token": TOKEN, "X-User-Id": "ann"}
    async with Relay(store) as other, upstream(connections) as address:
        await other.upstreams.note_new_store()
        await other.upstreams.put("kept", window(10, 1, base_url=address))
        with listening(HOST, 0) as listener:
            url = f"http://{HOST}:{listener.getsockname()[1]}"
            async with open_application(Kind.RELAY, said, relay_listener(said), server.url) as application:
                async with listen(application.serve, listener, stop_seconds=10):
                    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=WAIT_SECONDS) as client:
                        assert (await client.get("/relay/kept/a")).status_code == 200
                    application.stop.set()
                assert len(connections) == 1, "it is kept for the next request"
        await eventually(lambda: not connections, 5, "it is closed")
