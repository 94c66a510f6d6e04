"""One process of a contestant: sends its share of one user's requests to the upstream, each when its limiter says so.

The limiters are used as their own documentation shows, with the store where they have one.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

Slot = Callable[[], AbstractAsyncContextManager[Any]]
USER = "bench"
POLL_SECONDS = 0.5
LOCK_MS = 30_000


async def ask(port: int) -> None:
    """Make the call itself, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /x HTTP/1.1\r\nHost: x\r\nX-User-Id: {USER}\r\nConnection: close\r\n\r\n".encode())
    await reader.read()
    writer.close()


def before(wait: Callable[[], Awaitable[object]]) -> Slot:
    """Make a slot of a limiter that is only asked before the call."""

    @asynccontextmanager
    async def slot() -> Any:
        await wait()
        yield

    return slot


async def aiolimiter(store: int, count: int, seconds: float) -> Slot:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(count, seconds)
    return before(limiter.acquire)


async def pyrate(store: int, count: int, seconds: float) -> Slot:
    from pyrate_limiter import Limiter, Rate, RedisBucket
    from redis.asyncio import Redis

    bucket = await RedisBucket.init([Rate(count, round(seconds * 1000))], Redis(port=store), "bench-pyrate")
    limiter = Limiter(bucket)
    return before(lambda: limiter.try_acquire_async(USER, blocking=True))


async def throttled(store: int, count: int, seconds: float) -> Slot:
    from datetime import timedelta

    from throttled.asyncio import RateLimiterType, RedisStore, Throttled, per_duration

    throttle = Throttled(
        key=USER,
        using=RateLimiterType.SLIDING_WINDOW.value,
        quota=per_duration(timedelta(seconds=seconds), count),
        store=RedisStore(server=f"redis://127.0.0.1:{store}/0"),
        timeout=300,
    )

    async def wait() -> None:
        while (await throttle.limit()).limited:
            pass

    return before(wait)


async def seed(store: int, count: int, seconds: float) -> Slot:
    """The algorithm of the document we started from: a lock around a counter, and polling."""
    from redis.asyncio import BlockingConnectionPool, Redis

    valkey = Redis(connection_pool=BlockingConnectionPool(port=store, max_connections=20, timeout=300))
    release = valkey.register_script(
        'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end'
    )

    async def exceeded() -> bool:
        return int(await valkey.get("bench-seed") or 0) >= count

    async def increment() -> None:
        if await valkey.incr("bench-seed") == 1:
            await valkey.pexpire("bench-seed", round(seconds * 1000))

    @asynccontextmanager
    async def slot() -> Any:
        identity = str(uuid.uuid4())
        while not await valkey.set("bench-seed-lock", identity, px=LOCK_MS, nx=True):
            await asyncio.sleep(POLL_SECONDS / 10)
        while await exceeded():
            await asyncio.sleep(POLL_SECONDS)
        await increment()
        try:
            yield
        finally:
            await release(keys=["bench-seed-lock"], args=[identity])

    return slot


async def headgate(store: int, count: int, seconds: float) -> Slot:
    from headgate.sdk import Headgate

    client = await Headgate(f"valkey://127.0.0.1:{store}/0").__aenter__()
    return lambda: client.relay.permit("bench", USER)


async def main() -> None:
    kind, store, upstream, requests, count, seconds = sys.argv[1:7]
    slot = await globals()[kind](int(store), int(count), float(seconds))

    async def one() -> None:
        async with slot():
            await ask(int(upstream))

    await asyncio.gather(*(one() for _ in range(int(requests))))


if __name__ == "__main__":
    asyncio.run(main())
