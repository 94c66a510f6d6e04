"""The relay of the document we started from: a lock and a counter per user, polled, around each call to the upstream."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import deque
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis

UPSTREAM = int(os.environ["UPSTREAM_PORT"])
LIMIT = int(os.environ.get("LIMIT", "10000"))
WINDOW_SECONDS = int(os.environ.get("WINDOW_SECONDS", "60"))
POLL_SECONDS = 0.5
LOCK_MS = 30_000
RELEASE = 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end'

valkey = Redis(
    connection_pool=BlockingConnectionPool(port=int(os.environ["STORE_PORT"]), max_connections=64, timeout=30)
)
release = valkey.register_script(RELEASE)
idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()


async def call_upstream() -> bytes:
    """Make the call on a connection that is kept."""
    reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", UPSTREAM)
    writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    body = await reader.readexactly(length)
    idle.append((reader, writer))
    return body


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    user = dict(scope["headers"]).get(b"x-user-id", b"nobody").decode()
    identity = str(uuid.uuid4())
    while not await valkey.set(f"{user}lock", identity, px=LOCK_MS, nx=True):
        await asyncio.sleep(POLL_SECONDS)
    try:
        while int(await valkey.get(user) or 0) >= LIMIT:
            await asyncio.sleep(POLL_SECONDS)
        if await valkey.incr(user) == 1:
            await valkey.expire(user, WINDOW_SECONDS)
        body = await call_upstream()
    finally:
        await release(keys=[f"{user}lock"], args=[identity])
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
