"""The metrics at the operations port of a relay."""

from __future__ import annotations

import asyncio
from secrets import token_hex

import httpx2

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.cli.trial.strict_upstream import StrictUpstream
from tests.http.relays import RelayProcess
from tests.topology import Topology, eventually


async def test_relay_counts_what_it_does(server: Topology) -> None:
    name = f"up-{token_hex(4)}"
    with RelayProcess(server.url, environment={"HEADGATE_RELAY_DRAIN_SECONDS": "1"}) as relay:
        async with (
            StrictUpstream(lambda: SlidingLog(3, 60.0)).open() as upstream,
            httpx2.AsyncClient(headers={"X-API-Token": relay.token, "X-User-Id": "u1"}, timeout=20) as client,
        ):
            body = {"baseUrl": upstream.url, "limits": [{"count": 3, "seconds": 60}], "forwardUser": True}
            await client.put(f"{relay.url}/api/admin/upstreams/{name}", json=body)
            for _ in range(3):
                assert (await client.get(f"{relay.url}/relay/{name}/x")).status_code == 200
            waiting = asyncio.ensure_future(client.get(f"{relay.url}/relay/{name}/x"))
            wanted = {
                f'headgate_relay_sends_total{{upstream="{name}"}}': 3.0,
                f'headgate_relay_waiting{{upstream="{name}"}}': 1.0,
                f'headgate_relay_in_flight{{upstream="{name}"}}': 0.0,
                f'headgate_relay_largest_window{{upstream="{name}"}}': 3.0,
                f'headgate_relay_utilisation{{upstream="{name}"}}': 1.0,
                f'headgate_relay_cooling{{upstream="{name}"}}': 3.0,
                f'headgate_relay_wait_seconds_count{{upstream="{name}"}}': 3.0,
            }

            async def told() -> bool:
                text = (await client.get(f"{relay.ops_url}/metrics")).text
                found = dict(line.rsplit(" ", 1) for line in text.splitlines() if name in line)
                return all(float(found.get(each, "nan")) == number for each, number in wanted.items())

            await eventually(told, 15, every=0.2)
            waiting.cancel()
            await asyncio.wait((waiting,))
