"""A program that registers itself and beats until it is killed: `python -m tests.faults.registry_client …`."""

from __future__ import annotations

import asyncio
import sys

from headgate.sdk import Headgate


async def main(url: str, prefix: str, instance_id: str, ttl: str, interval_ms: str) -> None:
    async with Headgate(url, prefix=prefix, heartbeat_interval_ms=int(interval_ms), ttl_seconds=float(ttl)) as hg:
        async with hg.registry.registered(hostname="h", type="game", group="g", instance_id=instance_id):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
