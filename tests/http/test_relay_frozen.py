"""A store that freezes: it takes calls and says nothing. Who has a deadline is told by then."""

from __future__ import annotations

import asyncio

import anyio.to_thread
import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.relay.upstreams import BEAT_SPARE, FRESH_SECONDS
from headgate.sdk import Headgate
from tests.http.echo import Echo
from tests.http.relays import RelayProcess, client_of, put
from tests.topology import FaultyProxy, Stopwatch, Topology

pytestmark = pytest.mark.topology("standalone")


async def test_deadlines_are_kept_when_the_store_freezes(server: Topology) -> None:
    user = {"X-User-Id": "u1"}
    async with FaultyProxy(server.primaries()[0].port) as proxy, Echo().open() as echo:
        relay = RelayProcess(proxy.url)
        await anyio.to_thread.run_sync(relay.__enter__)
        try:
            beside = Headgate(proxy.url, prefix=relay.prefix)
            async with client_of(relay) as client, beside as hg:
                await put(client, "a", echo.url, {"count": 50, "seconds": 1}, deadlineSeconds=3)
                assert (await client.get("/relay/a/x", headers=user)).status_code == 200
                await hg.relay.request("GET", "a", "/x", user="u1")
                proxy.hold()
                # From then on the policy would be read again before it is used.
                await asyncio.sleep(FRESH_SECONDS + BEAT_SPARE + 0.1)

                async def seconds(path: str, *, json: object = None, **headers: str) -> float:
                    watch = Stopwatch()
                    answer = await client.post(path, json=json, headers=user | headers)
                    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
                    return watch.seconds

                async def sdk_seconds() -> float:
                    watch = Stopwatch()
                    with pytest.raises(StoreUnavailable):
                        await hg.relay.request("GET", "a", "/x", user="u1", deadline=1)
                    return watch.seconds

                plain, short, permit, job, sdk = await asyncio.gather(
                    seconds("/relay/a/x"),
                    seconds("/relay/a/x", **{"X-Deadline-Ms": "1000"}),
                    seconds("/relay/permits", json={"upstream": "a", "user": "u1", "waitSeconds": 1}),
                    seconds("/relay/a/x", Prefer="respond-async"),
                    sdk_seconds(),
                )
                proxy.heal()
            assert plain < 4
            assert max(short, permit, sdk) < 2
            assert job < 5
        finally:
            await anyio.to_thread.run_sync(relay.__exit__, None, None, None)
