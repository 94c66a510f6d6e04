"""Requests leave nothing behind that only the garbage collector could find, since it seldom looks."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

import pytest

from headgate.gateway.assembly import open_gateway
from headgate.gateway.settings import GatewaySettings, RateLimit
from headgate.http.connection import ServerConnection
from headgate.http.listener import Listener
from headgate.http.routes import Access, Mount, Receive, Scope, Send
from headgate.store import Store
from headgate.waiting_room.api import operations
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.http.wires import GET, Wire
from tests.topology import eventually

ASKED = 40


async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


@pytest.mark.topology("standalone")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/api/queue/status?userId=USER", b"200"),
        (b"/api/queue/status?userId=nobody", b"404"),
        (b"/api/queue/status?userId=a%20b", b"422"),
        (b"/mounted/a", b"200"),
        (b"/nowhere", b"404"),
        (b"/api/queue/board?queue=main", b"200"),
        (b"/api/queue/board?queue=nobody", b"404"),
    ],
)
async def test_requests_leave_no_circles(store: Store, path: bytes, status: bytes) -> None:
    room = WaitingRoom(store)
    await room.queues.configure(room.queues.thing("default", "main"), PolicyChange(capacity=0), who="test")
    user = (await room.entry("default", "main", EntryArguments("ann"))).user_id
    request = GET % path.replace(b"USER", user.encode())
    much = RateLimit(per_second=1e6, burst=1e6, user_per_second=1e6, user_burst=1e6)
    settings = GatewaySettings(admin_token="the-admin-token-of-these-tests", limits={"status": much})
    mounts = [Mount("/mounted", mounted, Access.PUBLIC)]
    async with open_gateway(operations(room), mounts, settings=settings, store=store) as gateway:
        wire = Wire()
        connection = ServerConnection(Listener(gateway.serve))
        connection.connection_made(wire)

        async def ask(times: int) -> None:
            for _ in range(times):
                wire.written = b""
                connection.data_received(request)
                await eventually(lambda: wire.written.startswith(b"HTTP/1.1 %b" % status), 5)

        await ask(5)
        left: list[Any] = []
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await ask(ASKED)
            gc.collect()
            left += gc.garbage
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        assert len(left) < ASKED, {type(each).__name__ for each in left}
    room.queues.close()


@pytest.mark.topology("standalone")
async def test_boards_of_queues_that_do_not_exist_are_not_kept(store: Store) -> None:
    room = WaitingRoom(store)
    await room.queues.configure(room.queues.thing("default", "main"), PolicyChange(capacity=0), who="test")
    for queue in ("main", "nobody", "no-one"):
        with suppress(QueueUnknown):
            await room.board("default", queue)
    assert [thing.name for thing in room._boards._cache] == ["main"]
    room.queues.close()
