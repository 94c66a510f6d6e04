"""The store crashes or fails over under a gateway's requests: quick problems, and service again by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import anyio
import httpx2
import pytest

from tests.processes import GatewayProcess
from tests.topology import Standalone, Stopwatch, Topology, eventually

DEADLINE = 2.0


class Answer(NamedTuple):
    """The answer to one request, and when it came."""

    client: int
    began: float
    seconds: float
    status: int
    code: str


class Requests:
    """Clients that ask the gateway again and again, each on a connection of its own."""

    def __init__(self, gateway: GatewayProcess, clients: int = 8) -> None:
        self.answers: list[Answer] = []
        self._gateway = gateway
        self._clients = clients

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for n in range(self._clients):
                group.start_soon(self._ask_on, n)

    async def resumed(self, since: float, seconds: float) -> float:
        """Wait until every client has a good answer to a request that began after a moment; give how long it took."""

        def every() -> bool:
            good = {answer.client for answer in self.answers if answer.status == 200 and answer.began >= since}
            return len(good) == self._clients

        watch = Stopwatch()
        await eventually(every, seconds, "every client has an answer")
        return watch.seconds

    async def _ask_on(self, n: int) -> None:
        headers = {"X-API-Token": self._gateway.token}
        async with httpx2.AsyncClient(base_url=self._gateway.url, headers=headers, timeout=10) as client:
            while True:
                began, watch = time.monotonic(), Stopwatch()
                response = await client.get(f"/lock/v1/lock-{n}")
                code = "" if response.status_code == 200 else str(response.json()["code"])
                self.answers.append(Answer(n, began, watch.seconds, response.status_code, code))
                await anyio.sleep(0.02)


@pytest.mark.quiet
@pytest.mark.topology("standalone", "sentinel", "cluster")
async def test_requests_get_503_in_time_and_200_again_without_a_restart(
    fresh_server: Callable[..., Topology], fresh_gateway: Callable[..., GatewayProcess]
) -> None:
    server = fresh_server()
    gateway = fresh_gateway(server.url)
    requests = Requests(gateway)
    async with anyio.create_task_group() as group:
        group.start_soon(requests.run)
        await requests.resumed(time.monotonic(), 5)
        if isinstance(server, Standalone):
            server.node.kill()
            await anyio.sleep(2.5)
            await server.node.restart()
            assert await requests.resumed(time.monotonic(), 2) < 2
        else:
            server.primaries()[0].kill()
            assert await requests.resumed(time.monotonic(), 15) < 15
        group.cancel_scope.cancel()
    failed = [answer for answer in requests.answers if answer.status != 200]
    assert failed
    assert {(answer.status, answer.code) for answer in failed} == {(503, "store_unavailable")}
    assert max(answer.seconds for answer in requests.answers) < DEADLINE + 1
    await eventually(lambda: httpx2.get(f"{gateway.ops_url}/readyz").status_code == 200, 5, "ready again")
