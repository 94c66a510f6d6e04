"""Our locks as a contestant: `python -m bench.contestants.locks CASE PORT SECONDS NUMBER` prints what it measured."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

from headgate.kit import logs
from headgate.kit.logs import Level, LogSettings
from headgate.sdk import Headgate

HOLD_SECONDS = 0.001


async def main(case: str, port: int, seconds: float, number: int) -> dict[str, object]:
    """Run one case."""
    async with Headgate(f"valkey://127.0.0.1:{port}/0") as hg:

        async def pair(name: str) -> None:
            async with hg.lock(name, ttl=10):
                pass

        if case == "waiting":
            return await wait(hg, seconds, number)
        if case == "contended":
            return await contend(hg, seconds, number)
        names = ["bench"] if case == "alone" else [f"bench-{n}" for n in range(number)]
        tasks = 1 if case == "alone" else min(number, 64)

        async def warm(first: int) -> None:
            for name in names[first::tasks]:
                await pair(name)

        await asyncio.gather(*(warm(n) for n in range(tasks)))
        return await race(pair, names, tasks, seconds) | {"warm": len(names)}


async def race(
    pair: Callable[[str], Awaitable[None]], names: list[str], tasks: int, seconds: float
) -> dict[str, object]:
    """Take and give back locks that nobody else wants."""
    done = 0
    end = time.monotonic() + seconds

    async def work(first: int) -> None:
        nonlocal done
        n = first
        while time.monotonic() < end:
            await pair(names[n % len(names)])
            n += tasks
            done += 1

    began, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*(work(n) for n in range(tasks)))
    return {"pairs": done, "seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}


async def contend(hg: Headgate, seconds: float, waiters: int) -> dict[str, object]:
    """Pass one lock round: how long from giving it back until the next has it?"""
    handed: list[float] = []
    released = 0.0
    end = time.monotonic() + seconds

    async def work() -> None:
        nonlocal released
        while time.monotonic() < end:
            async with hg.lock("contended", ttl=10):
                if released:
                    handed.append(time.monotonic() - released)
                await asyncio.sleep(HOLD_SECONDS)
                released = time.monotonic()

    cpu = time.process_time()
    await asyncio.gather(*(work() for _ in range(waiters)))
    return {"handed": handed, "cpu": time.process_time() - cpu, "pairs": len(handed) + 1, "seconds": seconds}


async def wait(hg: Headgate, seconds: float, waiters: int) -> dict[str, object]:
    """Hold a lock that many wait for."""
    async with hg.lock("waiting", ttl=30):
        tasks = [asyncio.create_task(hg.lock("waiting", ttl=30).acquire()) for _ in range(waiters)]
        await asyncio.sleep(0.5)
        print("waiting", flush=True)
        await asyncio.sleep(seconds)
        print("over", flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return {}


if __name__ == "__main__":
    logs.configure(LogSettings(level=Level.WARNING), "bench")
    arguments = sys.argv[1:]
    print(json.dumps(asyncio.run(main(arguments[0], int(arguments[1]), float(arguments[2]), int(arguments[3])))))
