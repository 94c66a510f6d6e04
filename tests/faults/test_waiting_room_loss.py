"""A store that loses everything under a gateway and a worker: nobody in line loses the place, whoever asks first."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from random import Random
from typing import Any

import httpx2
import pytest

from tests.faults.worker_process import WorkerProcess
from tests.processes import GatewayProcess
from tests.topology import Standalone, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.topology("standalone")]


class Caller:
    """Asks a gateway as the documents say: with the place token, and again when they are told to wait."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.http = httpx2.AsyncClient(base_url=gateway.url, timeout=20)
        self.admin = {"X-API-Token": gateway.token}
        self.entries: dict[str, dict[str, Any]] = {}

    async def enter(self, user: str) -> None:
        body = {"nickname": user, "userId": user}
        answer = await self.http.post("/api/queue/entry", json=body, headers=self.admin)
        assert answer.is_success, answer.text
        self.entries[user] = answer.json()

    async def ask(self, user: str) -> dict[str, Any]:
        token = {"X-Place-Token": self.entries[user]["placeToken"]}
        while True:
            answer = await self.http.get("/api/queue/status", params={"userId": user}, headers=token)
            if answer.status_code not in (429, 503):
                return answer.json()  # type: ignore[no-any-return]
            await asyncio.sleep(float(answer.headers["Retry-After"]))

    async def is_called(self, user: str) -> bool:
        return (await self.ask(user)).get("status") == "PROMOTED"


@pytest.mark.parametrize("loss", ["flush", "empty restart"])
async def test_everybody_who_has_not_entered_keeps_the_place(
    loss: str, fresh_server: Callable[..., Standalone], fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    server = fresh_server()
    gateway = fresh_gateway(server.url)
    caller = Caller(gateway)
    with WorkerProcess(server.url, gateway.prefix):
        policy = {"seats": "fixed", "capacity": 1, "tickMs": 100}
        assert (await caller.http.put("/api/admin/queues/main", json=policy, headers=caller.admin)).is_success
        users = list("abcdef")
        for user in ["inside", *users]:
            await caller.enter(user)
        await eventually(lambda: caller.is_called("inside"), 10)
        ticket = (await caller.ask("inside"))["ticketId"]
        spent = await caller.http.post(
            f"/api/queue/tickets/{ticket}/redeem", json={"sessionId": "x1"}, headers=caller.admin
        )
        assert spent.is_success, spent.text
        assert (await caller.http.post("/api/queue/sessions/x1/end", headers=caller.admin)).is_success
        await eventually(lambda: caller.is_called("a"), 10)
        old = (await caller.ask("a"))["ticketId"]

        if loss == "flush":
            server.node.command("FLUSHALL")
        else:
            server.node.kill()
            shutil.rmtree(server.node.directory / "appendonlydir")
            await server.node.restart()

        for user in ["f", *Random(loss).sample(users[:-1], 5)]:
            status = await caller.ask(user)
            assert (status.get("status"), status.get("place")) == ("WAITING", caller.entries[user]["place"]), status
        gone = await caller.ask("inside")
        assert (gone.get("code"), "called before" in gone["detail"]) == ("queue_reset", True)
        for user in users:
            await eventually(lambda user=user: caller.is_called(user), 20, f"{user} is called")  # type: ignore[misc]
            waiting = [(await caller.ask(other))["status"] for other in users[users.index(user) + 1 :]]
            assert set(waiting) <= {"WAITING"}, "in order"
            assert (await caller.ask(user))["ticketId"] != old
            leaving = await caller.http.delete("/api/queue/entry", params={"userId": user}, headers=caller.admin)
            assert leaving.status_code == 204
    await caller.http.aclose()
