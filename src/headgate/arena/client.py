"""The player's side: enter an arena with a ticket, talk and listen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headgate.arena.protocol import Ask, Count, Notice, Said, Say, encoded, from_server
from headgate.kit.problems import HeadgateError, StoreUnavailable, from_document


class Visit:
    """A stay in an arena: `async for message in visit`, `await visit.say(…)`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def say(self, text: str) -> None:
        """Say something to the others."""
        await self._connection.send(encoded(Say(text)), text=True)

    async def ask_count(self) -> None:
        """Ask how many are here; the answer comes as a message."""
        await self._connection.send(encoded(Ask()), text=True)

    async def __aiter__(self) -> AsyncIterator[Said | Notice | Count]:
        try:
            while True:
                yield from_server(await self._connection.recv())
        except ConnectionClosed:
            return

    @property
    def farewell(self) -> str:
        """Say why the connection ended."""
        return self._connection.close_reason or ""


@asynccontextmanager
async def enter(address: str, ticket: str, *, patience_seconds: float = 10) -> AsyncIterator[Visit]:
    """Enter with a ticket, which travels in a header and so in no log; a refusal is raised as the problem it names."""
    headers = {"Authorization": f"Bearer {ticket}"}
    try:
        connection = await connect(
            address, additional_headers=headers, compression=None, open_timeout=patience_seconds, proxy=None
        )
    except InvalidStatus as error:
        raise _refused(error) from error
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(f"The arena at {address} cannot be reached.") from error
    async with connection:
        yield Visit(connection)


def _refused(error: InvalidStatus) -> HeadgateError:
    response = error.response
    try:
        document = json.loads(response.body or b"")
    except ValueError:
        document = {}
    return from_document(document if isinstance(document, dict) else {}, response.status_code)
