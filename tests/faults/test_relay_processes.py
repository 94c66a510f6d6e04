"""Relays that are killed or paused: others go on, nothing is refused, nothing is sent late."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx2
import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.cli.trial.strict_upstream import Delays, StrictUpstream
from tests.http.relays import RelayProcess
from tests.processes import note_new_store
from tests.topology import Stopwatch, Topology, eventually

LIMIT, SECONDS = 6, 2.0
PATIENT = {"X-Deadline-Ms": "3600000"}


@pytest.fixture
def three(server: Topology) -> Iterator[list[RelayProcess]]:
    first = RelayProcess(server.url)
    note_new_store(server.url, first.prefix)  # so that no upstream begins on hold
    token = {"HEADGATE_ADMIN_TOKEN": first.token}
    others = [RelayProcess(server.url, prefix=first.prefix, environment=token) for _ in range(2)]
    relays = [first, *others]
    try:
        for relay in relays:
            relay.start()
        yield relays
    finally:
        for relay in relays:
            relay.signal_all(signal.SIGCONT)
            relay.kill()


class Fleet:
    """Clients of all relays."""

    def __init__(self, relays: list[RelayProcess], name: str) -> None:
        self.relays, self.name = relays, name
        limits = httpx2.Limits(max_connections=None)
        headers = {"X-API-Token": relays[0].token, "X-User-Id": "u1", "X-Deadline-Ms": "60000"}
        self.clients = [
            httpx2.AsyncClient(base_url=relay.url, headers=headers, limits=limits, timeout=60) for relay in relays
        ]

    async def put(
        self, upstream: StrictUpstream, seconds: float = SECONDS, timeout: float = 4.0, count: int = LIMIT
    ) -> None:
        body = {
            "baseUrl": upstream.url,
            "limits": [{"count": count, "seconds": seconds}],
            "timeoutSeconds": timeout,
            "deliverySeconds": 0.5,
            "forwardUser": True,
        }
        assert (await self.clients[0].put(f"/api/admin/upstreams/{self.name}", json=body)).status_code == 200

    async def get(self, number: int) -> int:
        try:
            return (await self.clients[number % 3].post(f"/relay/{self.name}/x", content=b"b")).status_code
        except httpx2.TransportError:
            return 0

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.clients[0].get(f"/api/admin/upstreams/{self.name}/status")).json()
        return found

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()


@pytest.mark.quiet
@pytest.mark.release
async def test_hundred_requests_over_three_processes(three: list[RelayProcess]) -> None:
    """Nothing refused, all answered, and at nearly the pace that the limit allows."""
    fleet = Fleet(three, f"up-{secrets.token_hex(4)}")
    limit = 2 * LIMIT
    delays = Delays(0.02, tail=0.4, seed=random.SystemRandom().randrange(1_000_000))
    async with StrictUpstream(lambda: SlidingLog(limit, SECONDS, strict=True), delays).open() as upstream:
        await fleet.put(upstream, count=limit)
        watch = Stopwatch()
        statuses = await asyncio.gather(*(fleet.get(number) for number in range(100)))
        stood_still = watch.stood_still
        assert set(statuses) == {200}
        assert upstream.refused == 0
        assert upstream.largest(SECONDS) == limit
        # 8 windows after the first, each longer by the mean round trip (60 ms), within 5 %; and the last one's tail.
        moments = upstream.arrivals["u1"]
        assert max(moments) - min(moments) - stood_still < 8 * (SECONDS + 0.06) * 1.05 + 0.8
    await fleet.close()


async def test_killed_relay_costs_only_its_own_requests(three: list[RelayProcess]) -> None:
    fleet = Fleet(three, f"up-{secrets.token_hex(4)}")
    delays = Delays(0.05, tail=0.5, seed=3)
    async with StrictUpstream(lambda: SlidingLog(LIMIT, SECONDS, strict=True), delays).open() as upstream:
        await fleet.put(upstream)
        tasks = [asyncio.ensure_future(fleet.get(number)) for number in range(45)]
        await eventually(lambda: upstream.count >= 8)
        three[2].kill()
        statuses = await asyncio.gather(*tasks)
        assert all(status == 200 for number, status in enumerate(statuses) if number % 3 != 2)
        assert upstream.refused == 0
        assert upstream.largest(SECONDS) <= LIMIT

        # Capacity is whole again after lease and window, and nobody of the dead relay waits any more.
        async def whole() -> bool:
            status = await fleet.status()
            return bool(status["inFlight"] == 0 and status["waiting"] == 0 and status["cooling"] == 0)

        await eventually(whole, 15)
        async with asyncio.timeout(20):
            assert set(await asyncio.gather(*(fleet.get(3 * number) for number in range(LIMIT)))) == {200}
        assert upstream.refused == 0
    await fleet.close()


async def test_waiters_of_a_killed_relay_are_gone_within_ten_seconds(three: list[RelayProcess]) -> None:
    """Long before their deadlines: nobody is told a position or a time that counts the dead."""
    fleet = Fleet(three, f"up-{secrets.token_hex(4)}")
    async with StrictUpstream(lambda: SlidingLog(LIMIT, SECONDS, strict=True)).open() as upstream:
        await fleet.put(upstream, seconds=60.0)  # nobody is served before that is changed
        assert set(await asyncio.gather(*(fleet.get(0) for _ in range(LIMIT)))) == {200}

        async def wait(number: int) -> int:
            return (await fleet.clients[number].get(f"/relay/{fleet.name}/x", headers=PATIENT)).status_code

        async def waiting(count: int) -> bool:
            return bool((await fleet.status())["waiting"] == count)

        doomed = [asyncio.ensure_future(wait(2)) for _ in range(300)]
        await eventually(partial(waiting, 300), 20)
        alive = [asyncio.ensure_future(wait(1)) for _ in range(2)]
        await eventually(partial(waiting, 302), 20)
        three[2].kill()
        watch = Stopwatch()
        await eventually(partial(waiting, 2), 10)
        assert watch.seconds < 10
        late = await fleet.clients[0].get(f"/relay/{fleet.name}/x", headers={"X-Deadline-Ms": "2000"})
        assert (late.status_code, late.json()["code"]) == (503, "deadline_exceeded")
        assert late.json()["position"] == 3
        assert upstream.count == LIMIT
        await fleet.put(upstream)
        async with asyncio.timeout(20):
            assert set(await asyncio.gather(*alive)) == {200}
        assert upstream.refused == 0
        assert upstream.count == LIMIT + 2
        await asyncio.gather(*doomed, return_exceptions=True)
    await fleet.close()


async def test_paused_relay_does_not_send_late(three: list[RelayProcess]) -> None:
    fleet = Fleet(three, f"up-{secrets.token_hex(4)}")
    delays = Delays(0.03, tail=0.3, seed=4)
    async with StrictUpstream(lambda: SlidingLog(LIMIT, SECONDS, strict=True), delays).open() as upstream:
        await fleet.put(upstream, timeout=2.0)
        tasks = [asyncio.ensure_future(fleet.get(number)) for number in range(42)]
        for victim, arrivals in ((1, 5), (2, 14)):
            await eventually(partial(upstream.seen, arrivals), 30)
            three[victim].signal_all(signal.SIGSTOP)
            # Longer than the lease (2 + 2 + 0.5): its permits are given to others meanwhile.
            await asyncio.sleep(5.5)
            three[victim].signal_all(signal.SIGCONT)
        statuses = await asyncio.gather(*tasks)
        assert upstream.refused == 0
        assert upstream.largest(SECONDS) <= LIMIT
        # A request that was on its way when its relay froze may have ended as a time-out; no more than those.
        assert sum(status != 200 for status in statuses) <= 2 * LIMIT
    await fleet.close()
