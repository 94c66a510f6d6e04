"""The guard in front of a service: a holder who was succeeded is refused, also when its request is already inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx2
import pytest

from headgate.http.routes import Receive, Scope, Send
from headgate.locks import Locks
from headgate.sdk.asgi import FenceGuard
from headgate.store import Store
from tests.topology import eventually

Write = Callable[[int], Coroutine[Any, Any, httpx2.Response]]


class Ledger:
    """A service that writes what it is told, and may be slow about it."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.inside = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        self.inside.set()
        await self.go_on.wait()
        self.written.append(dict(scope["headers"]).get(b"x-fence", b"none").decode())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def guard(ledger: Ledger) -> FenceGuard:
    return FenceGuard(ledger, "nightly")


@pytest.fixture
async def write(guard: FenceGuard) -> AsyncIterator[Write]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(guard), base_url="http://ledger") as client:

        async def post(fence: int) -> httpx2.Response:
            return await client.post("/", headers={"X-Fence-Lock": "nightly", "X-Fence": str(fence)})

        yield post


async def test_an_older_fence_is_refused(ledger: Ledger, write: Write) -> None:
    assert (await write(10)).status_code == 200
    assert (await write(10)).status_code == 200
    assert (await write(12)).status_code == 200
    late = await write(11)
    assert (late.status_code, late.json()["code"]) == (412, "fence_outdated")
    assert ledger.written == ["10", "10", "12"]


async def test_a_new_holder_waits_for_the_old_ones_request_that_is_inside(
    ledger: Ledger, guard: FenceGuard, write: Write
) -> None:
    ledger.go_on.clear()
    old = asyncio.create_task(write(1))
    await ledger.inside.wait()
    new = asyncio.create_task(write(2))
    await eventually(lambda: guard._mark == 2)
    refused = await write(1)
    assert refused.status_code == 412
    ledger.go_on.set()
    assert (await old).status_code == (await new).status_code == 200
    assert ledger.written == ["1", "2"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 428),
        ({"X-Fence": "5"}, 428),
        ({"X-Fence-Lock": "other", "X-Fence": "5"}, 428),
        ({"X-Fence-Lock": "nightly"}, 422),
        ({"X-Fence-Lock": "nightly", "X-Fence": "-1"}, 422),
        ({"X-Fence-Lock": "nightly", "X-Fence": "0"}, 422),
        ({"X-Fence-Lock": "nightly", "X-Fence": "9" * 40}, 422),
    ],
)
async def test_a_request_without_a_right_fence_does_not_come_in(
    ledger: Ledger, headers: dict[str, str], status: int
) -> None:
    guard = FenceGuard(ledger, "nightly")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(guard), base_url="http://ledger") as client:
        assert (await client.post("/", headers=headers)).status_code == status
        assert ledger.written == []
        assert (await client.get("/")).status_code == 200  # reading harms nothing


async def test_two_processes_share_their_marks_in_the_store(ledger: Ledger, store: Store) -> None:
    async with Locks(store) as locks, locks.lock("nightly") as held:
        guards = [FenceGuard(ledger, "nightly", locks.fences) for _ in range(2)]
        clients = [
            httpx2.AsyncClient(transport=httpx2.ASGITransport(guard), base_url="http://ledger") for guard in guards
        ]
        assert (await clients[0].post("/", headers=held.headers)).status_code == 200
        older = held.headers | {"X-Fence": str(held.fence - 1)}
        assert (await clients[1].post("/", headers=older)).status_code == 412
        for client in clients:
            await client.aclose()
