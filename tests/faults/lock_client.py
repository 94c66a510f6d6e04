"""A program that takes a lock again and again and writes down what it saw: `python -m tests.faults.lock_client …`."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from headgate.kit import logs
from headgate.kit.logs import LogSettings
from headgate.kit.problems import HeadgateError
from headgate.sdk import FenceOutdated, Headgate, LockLost
from headgate.store import Store


async def work(url: str, prefix: str, file: str, ttl: str, seed: str) -> None:
    """Hold the lock for a moment, for ever; each line is one holding: fence, begin, end."""
    dice = random.Random(int(seed))
    with Path(file).open("a", buffering=1) as book:
        async with Headgate(url, prefix=prefix) as hg:
            book.write("ready\n")
            while True:
                try:
                    async with hg.lock("a", ttl=float(ttl)) as held:
                        begin = time.monotonic()
                        if begin >= held.lost_at:
                            continue  # it slept through its lease before it could begin
                        book.write(f"begin {held.grant.fence} {begin}\n")
                        try:
                            await asyncio.sleep(dice.choice([0, 0.002, 0.02]))
                        finally:
                            # Beyond its lease a holder that slept holds nothing, whenever it wakes up.
                            book.write(f"end {held.grant.fence} {min(time.monotonic(), held.lease_ends)}\n")
                except HeadgateError:
                    await asyncio.sleep(0.01)


async def hold(url: str, prefix: str, file: str, ttl: str) -> None:
    """Hold the lock, and write under its fence afterwards, as somebody who never looks at the clock."""
    with Path(file).open("a", buffering=1) as book:
        async with Headgate(url, prefix=prefix) as hg:
            try:
                async with hg.lock("a", ttl=float(ttl)) as held:
                    fence = held.fence
                    book.write(f"held {fence} {time.monotonic()}\n")
                    await asyncio.Event().wait()
            except LockLost:
                book.write(f"lost {time.monotonic()}\n")
            try:
                await hg.fenced_set("row", "late", fence)
            except FenceOutdated:
                book.write("refused\n")


@asynccontextmanager
async def patient(url: str, prefix: str) -> AsyncIterator[Headgate]:
    """Give a client that does not take a store for lost because the machine stood still."""
    async with Headgate(url, prefix=prefix) as hg:
        assert isinstance(hg._backend, Store)
        hg._backend.deadline_seconds = 10.0
        yield hg


async def crowd(url: str, prefix: str, file: str, waiters: str) -> None:
    """Have so many wait; whoever gets the lock writes it down and keeps it."""
    with Path(file).open("a", buffering=1) as book:

        async def wait() -> None:
            async with hg.lock("a", ttl=60) as held:
                book.write(f"held {held.fence}\n")
                await asyncio.Event().wait()

        async with patient(url, prefix) as hg, asyncio.TaskGroup() as group:
            for _ in range(int(waiters)):
                group.create_task(wait())


async def count(url: str, prefix: str, file: str, workers: str, times: str) -> None:
    """Add to the number in a file, which nothing but the lock guards; each worker so many times."""
    os.nice(5)  # it takes a minute, and other tests run beside it
    number = os.open(file, os.O_RDWR)

    async def work() -> None:
        lock = hg.lock("counter", ttl=30)
        for _ in range(int(times)):
            async with lock:
                seen = int.from_bytes(os.pread(number, 8, 0))
                await asyncio.sleep(0)
                os.pwrite(number, (seen + 1).to_bytes(8), 0)

    async with patient(url, prefix) as hg, asyncio.TaskGroup() as group:
        for _ in range(int(workers)):
            group.create_task(work())


if __name__ == "__main__":
    logs.configure(LogSettings(), "lock client")
    what, *rest = sys.argv[1:]
    verbs: dict[str, Callable[..., Coroutine[None, None, None]]] = {
        "work": work,
        "hold": hold,
        "crowd": crowd,
        "count": count,
    }
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if what == "count" else None) as runner:
        runner.run(verbs[what](*rest))
