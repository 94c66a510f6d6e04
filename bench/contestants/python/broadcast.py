"""A chat server on `websockets` as its documentation writes one: whoever connects gets what anybody else says."""

import asyncio
import os

from websockets.asyncio.server import broadcast, serve

CONNECTIONS = set()


async def handler(connection):
    """Keep a connection, and tell all the others what it says."""
    CONNECTIONS.add(connection)
    try:
        async for message in connection:
            broadcast([other for other in CONNECTIONS if other is not connection], message)
    finally:
        CONNECTIONS.remove(connection)


async def main():
    """Serve until stopped."""
    async with serve(handler, "127.0.0.1", int(os.environ["PORT"])):
        await asyncio.get_running_loop().create_future()


asyncio.run(main())
