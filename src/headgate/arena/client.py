"""A client of the arena: enters with a ticket, sends and receives messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from headgate.arena.problems import ArenaClosed, NotAnArena
from headgate.arena.protocol import Ask, BadFrame, Message, Notice, PlayerCount, Said, Say, encoded, from_server
from headgate.kit.ids import sent_secret
from headgate.kit.problems import HeadgateError, StoreUnavailable, from_document


class ArenaVisit:
    """A connection to an arena: `async for message in visit`, `await visit.say(…)`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def say(self, text: str) -> None:
        """Send a message to the other players; raises ArenaClosed."""
        await self._send(Say(text))

    async def ask_count(self) -> None:
        """Request the number of players; it comes as a message. Raises ArenaClosed."""
        await self._send(Ask())

    async def __aiter__(self) -> AsyncIterator[Said | Notice | PlayerCount]:
        while True:
            try:
                frame = await self._connection.recv()
            except ConnectionClosed:
                return
            with suppress(BadFrame):  # a newer arena may send messages that this client does not know
                yield from_server(frame)

    async def _send(self, message: Message) -> None:
        try:
            await self._connection.send(encoded(message), text=True)
        except ConnectionClosed as error:
            raise ArenaClosed from error

    @property
    def farewell(self) -> str:
        """The reason that the arena gave for closing the connection, or ""."""
        received = self._connection.protocol.close_rcvd
        return received.reason if received is not None else ""


@asynccontextmanager
async def enter(address: str, ticket: str, *, patience_seconds: float = 10) -> AsyncIterator[ArenaVisit]:
    """Connect with a ticket, sent in a header to keep it out of logs; a refusal is raised as its problem."""
    headers = {"Authorization": f"Bearer {sent_secret(ticket, 'The ticket')}"}
    try:
        connection = await connect(
            address, additional_headers=headers, compression=None, open_timeout=patience_seconds, proxy=None
        )
    except InvalidStatus as error:
        raise _refused(error) from error
    except (InvalidURI, ValueError) as error:
        raise NotAnArena(
            f"{address} is not the address of an arena, such as ws://127.0.0.1:8081/gameserver."
        ) from error
    except InvalidHandshake as error:
        raise StoreUnavailable(f"What answers at {address} is no arena, or it was just closing.") from error
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(f"The arena at {address} cannot be reached.") from error
    async with connection:
        yield ArenaVisit(connection)


def _refused(error: InvalidStatus) -> HeadgateError:
    response = error.response
    try:
        document = json.loads(response.body or b"")
    except ValueError:
        document = {}
    return from_document(document if isinstance(document, dict) else {}, response.status_code)
